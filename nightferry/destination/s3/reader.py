"""Reading an object by range, several ranges at once where much is wanted."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from nightferry.destination.s3.bucket import Bucket, Head
from nightferry.destination.s3.parts import Memory
from nightferry.errors import IntegrityError
from nightferry.units import MIB

RANGE_BYTES = 16 * MIB
"""Bytes of one request of a stream: each costs the client two milliseconds beside them."""
SHORT_BYTES = 4 * MIB
"""The same where the others took all memory: a stream always has so much."""
RANGES = 5
"""Ranges of one stream under way at once."""
READ_AHEAD_BYTES = 80 * MIB
"""What all streams of a destination together read ahead."""


class ObjectReader:
    """See ``ByteReader``. The object is the one that was opened, or reading fails: every range names its ETag.

    Args:
        bucket: Where it is.
        path: Below the prefix.
        head: What it said when it was opened.
        memory: Of all readers of the destination. A stream has one short range whatever the others took;
            long ones, and several at once, are read while there is room.
        range_bytes: Of a stream's requests.
    """

    def __init__(
        self, bucket: Bucket, path: str, head: Head, *, memory: Memory, range_bytes: int = RANGE_BYTES
    ) -> None:
        self._bucket = bucket
        self._memory = memory
        self._path = path
        self._head = head
        self._range_bytes = range_bytes

    @property
    def size_bytes(self) -> int:
        return self._head.size_bytes

    def read(self, offset: int, length: int) -> bytes:
        self._require_inside(offset, length)
        data = bytearray(length)
        if length:
            self._get(offset, memoryview(data))
        return bytes(data)

    def stream(self, offset: int, length: int) -> Iterator[memoryview]:
        self._require_inside(offset, length)
        return self._stream(offset, length)

    def _stream(self, offset: int, length: int) -> Iterator[memoryview]:
        end = offset + length
        ahead: deque[tuple[bytearray, Future[memoryview]]] = deque()
        try:
            with ThreadPoolExecutor(RANGES, thread_name_prefix="s3-range") as threads:
                try:
                    while offset < end or ahead:
                        while offset < end and len(ahead) < RANGES:
                            buffer = self._buffer(end - offset, owed=not ahead)
                            if buffer is None:
                                break
                            ahead.append((buffer, threads.submit(self._get, offset, memoryview(buffer))))
                            offset += len(buffer)
                        yield ahead[0][1].result()
                        self._give(ahead.popleft()[0])
                finally:
                    for _, piece in ahead:
                        piece.cancel()
        finally:
            for buffer, _ in ahead:
                self._give(buffer)

    def _buffer(self, left: int, *, owed: bool) -> bytearray | None:
        """Room for the next range; when all is taken a short one, if the stream would else stand still."""
        buffer = self._memory.take_now(min(self._range_bytes, left))
        if buffer is None and owed:
            buffer = self._memory.take_now(min(SHORT_BYTES, self._range_bytes, left), owed=True)
        return buffer

    def _give(self, buffer: bytearray) -> None:
        self._memory.give(buffer, len(buffer))

    def _get(self, offset: int, into: memoryview) -> memoryview:
        self._bucket.get_range(self._path, offset, into, self._head.etag, self.size_bytes)
        return into

    def _require_inside(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0 or offset + length > self.size_bytes:
            raise IntegrityError(
                f"bytes {offset} to {offset + length} lie beyond the {self.size_bytes} of {self._path}"
            )
