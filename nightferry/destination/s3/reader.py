"""Reading an object by range, several ranges at once where much is wanted."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from nightferry.destination.s3.bucket import Bucket, Head
from nightferry.errors import IntegrityError
from nightferry.transfer.ring import Buffers
from nightferry.units import MIB

RANGE_BYTES = 8 * MIB
RANGES = 4
"""Ranges of one stream under way at once; with the one handed out that is its memory, 40 MiB."""


class ObjectReader:
    """See ``ByteReader``. The object is the one that was opened, or reading fails: every range names its ETag.

    A stream's memory is ``(RANGES + 1) * RANGE_BYTES``.
    """

    def __init__(self, bucket: Bucket, path: str, head: Head, *, range_bytes: int = RANGE_BYTES) -> None:
        self._bucket = bucket
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
        ranges = deque(
            (start, min(self._range_bytes, offset + length - start))
            for start in range(offset, offset + length, self._range_bytes)
        )
        if not ranges:
            return
        under_way = min(RANGES, len(ranges))
        buffers = Buffers(min(RANGES + 1, len(ranges)), ranges[0][1])
        ahead: deque[tuple[memoryview, Future[memoryview]]] = deque()
        try:
            with ThreadPoolExecutor(under_way, thread_name_prefix="s3-range") as threads:
                try:
                    while ranges or ahead:
                        while ranges and buffers.free:
                            start, count = ranges.popleft()
                            buffer = buffers.free.pop()
                            ahead.append((buffer, threads.submit(self._get, start, buffer[:count])))
                        buffer, piece = ahead.popleft()
                        yield piece.result()
                        buffers.free.append(buffer)
                finally:
                    for _, piece in ahead:
                        piece.cancel()
        finally:
            ahead.clear()
            buffers.close()

    def _get(self, offset: int, into: memoryview) -> memoryview:
        self._bucket.get_range(self._path, offset, into, self._head.etag, self.size_bytes)
        return into

    def _require_inside(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0 or offset + length > self.size_bytes:
            raise IntegrityError(
                f"bytes {offset} to {offset + length} lie beyond the {self.size_bytes} of {self._path}"
            )
