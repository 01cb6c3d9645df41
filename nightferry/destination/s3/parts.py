"""Cutting a stream into parts, from memory that all uploads of a destination share."""

from __future__ import annotations

import io
import threading
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass

from awscrt import checksums

from nightferry.destination.base import Span
from nightferry.errors import DestinationError, IntegrityError
from nightferry.progress import Cancel
from nightferry.units import MIB

PART_BYTES = 16 * MIB
SMALLEST_PART, LARGEST_PART = 5 * MIB, 5 << 30
"""S3's limits; the last part may be smaller. Source: Amazon S3 user guide, multipart upload limits."""
MOST_PARTS = 10_000
MEMORY_BYTES = 80 * MIB
"""All part buffers of a destination together, however large the images and however many go up at once."""
IN_FLIGHT = 4
"""Parts under way at once at least. Where the memory does not hold so many they are streamed, and each takes so small
a share of it, for reading and encoding."""


def part_size(most_bytes: int, *, most_parts: int = MOST_PARTS, part_bytes: int = PART_BYTES) -> int:
    """The size of every part but the last, in whole MiB, so that ``most_parts`` of them hold ``most_bytes``.

    Args:
        most_bytes: Bytes to come at most.
        most_parts: The provider's limit.
        part_bytes: The smallest part.

    Raises:
        DestinationError: they do not fit into an object.
    """
    size = max(part_bytes, _whole_mib(most_bytes, most_parts))
    if size > LARGEST_PART:
        raise DestinationError(
            f"{most_bytes} bytes are more than one object of {most_parts} parts can hold",
            hint="shard the store",
        )
    return size


class Memory:
    """Buffers that several threads share, a bounded sum of bytes; those given back are used again.

    A fresh buffer costs more than filling it: the system zeroes every page of it first.
    """

    def __init__(self, size_bytes: int = MEMORY_BYTES) -> None:
        self.size_bytes = size_bytes
        self.most_taken = 0
        self._taken = 0
        self._kept: list[bytearray] = []
        self._turn = threading.Condition()

    def take(self, count: int, cancel: Cancel) -> bytearray:
        """Waits until ``count`` bytes are free and takes them. What they hold is anything.

        Raises:
            Cancelled: a stop was asked for meanwhile.
        """
        with self._turn:
            while self._taken + count > self.size_bytes:
                cancel.check()
                self._turn.wait(0.2)
            return self._buffer(count)

    def take_now(self, count: int, *, owed: bool = False) -> bytearray | None:
        """The same without waiting: None when they are not free, unless they are ``owed``, free or not."""
        with self._turn:
            free = self._taken + count <= self.size_bytes
            return self._buffer(count) if free or owed else None

    def reserve(self, count: int, cancel: Cancel) -> None:
        """Waits until ``count`` bytes are free and counts them as taken; who reserves brings its own buffers.

        Raises:
            Cancelled: a stop was asked for meanwhile.
        """
        with self._turn:
            while self._taken + count > self.size_bytes:
                cancel.check()
                self._turn.wait(0.2)
            self._taken += count
            self.most_taken = max(self.most_taken, self._taken)
            while self._kept and self._taken + self._kept_bytes() > self.size_bytes:
                self._kept.pop(0)

    def release(self, count: int) -> None:
        """Gives back what was reserved."""
        with self._turn:
            self._taken -= count
            self._turn.notify_all()

    def give(self, buffer: bytearray, count: int) -> None:
        """Gives back what was taken as ``count`` bytes; one that was cut shorter is not kept."""
        with self._turn:
            if len(buffer) == count and self._taken + self._kept_bytes() <= self.size_bytes:
                self._kept.append(buffer)
            self._taken -= count
            self._turn.notify_all()

    def _buffer(self, count: int) -> bytearray:
        self._taken += count
        self.most_taken = max(self.most_taken, self._taken)
        for number, buffer in enumerate(self._kept):
            if len(buffer) == count:
                return self._kept.pop(number)
        while self._kept and self._taken + self._kept_bytes() > self.size_bytes:
            self._kept.pop(0)
        return bytearray(count)

    def _kept_bytes(self) -> int:
        return sum(map(len, self._kept))


@dataclass(slots=True)
class MemoryPart:
    """A part in memory; ``drop`` it when it has been sent."""

    number: int
    data: bytearray
    memory: Memory
    reserved: int

    def drop(self) -> None:
        buffer, self.data = self.data, bytearray()
        self.memory.give(buffer, self.reserved)


@dataclass(slots=True)
class StreamedPart:
    """A part that is read from its source each time it is sent; ``drop`` it when it has been."""

    number: int
    span: Span
    memory: Memory
    reserved: int

    def drop(self) -> None:
        count, self.reserved = self.reserved, 0
        self.memory.release(count)


def streamed(spans: Iterator[Span], memory: Memory, cancel: Cancel) -> Iterator[StreamedPart]:
    """Parts that are not held: ``IN_FLIGHT`` of them are under way at once, whatever their size. Whoever gets a part
    drops it."""
    share = memory.size_bytes // IN_FLIGHT
    for number, span in enumerate(spans, 1):
        memory.reserve(share, cancel)
        yield StreamedPart(number, span, memory, share)


def cut(
    pieces: Iterator[memoryview], sizes: Iterator[int], length: int | None, memory: Memory, cancel: Cancel
) -> Iterator[MemoryPart]:
    """Parts of the stream in order; at least one, which may be empty.

    A piece is copied before the next one is asked for. Whoever gets a part drops it.

    Raises:
        DestinationError: the stream is longer than all parts together.
    """
    rest: memoryview | None = memoryview(b"")
    left = length
    for number, size in enumerate(sizes, 1):
        if left is not None:
            size = min(size, max(left, 1))
        part = MemoryPart(number, memory.take(size, cancel), memory, size)
        filled = 0
        try:
            while filled < size:
                if not rest:
                    rest = next(pieces, None)
                    if rest is None:
                        break
                    continue
                step = min(len(rest), size - filled)
                part.data[filled : filled + step] = rest[:step]
                rest = rest[step:]
                filled += step
            if filled < size:
                # A copy: a buffer that a failed request still refers to could not be cut.
                part.data = part.data[:filled]
        except BaseException:
            part.drop()
            raise
        left = None if left is None else left - filled
        if (not filled and number > 1) or (left == 0 and _more(rest, pieces)):
            part.drop()
            if filled:
                raise IntegrityError(f"more than the {length} bytes that were announced")
            return
        yield part
        if rest is None or left == 0:
            return
    if _more(rest, pieces):
        raise DestinationError(
            "the stream is longer than an object of this many parts", hint="shard the store"
        )


def _more(rest: memoryview | None, pieces: Iterator[memoryview]) -> bool:
    """Whether the stream goes on; asking makes its source say what it says at its end."""
    return bool(rest) or (rest is not None and next(pieces, None) is not None)


class Streamed(io.RawIOBase):
    """A span as the file that boto3 sends a part from; proved to be what was measured before its last byte leaves.

    Args:
        span: Measured by ``crc64``.
    """

    def __init__(self, span: Span) -> None:
        super().__init__()
        self.error: Exception | None = None
        """What the source raised; to boto3 and those below it everything is a broken connection."""
        self._crc = span.checksum
        self._found = 0
        self._position = 0
        self._pieces = span.opened()
        self._left = span.size_bytes
        self._rest = memoryview(b"")

    def read(self, count: int = -1) -> bytes:
        """Up to ``count`` bytes, none at the part's end.

        Raises:
            IntegrityError: the source gives other bytes than those that were measured.
        """
        if not self._left:
            return b""
        try:
            return self._read(count)
        except Exception as error:
            self.error = error
            raise

    def _read(self, count: int) -> bytes:
        if not self._rest:
            following = next(self._pieces, None)
            if following is None:
                raise IntegrityError(f"the stream ended {self._left} bytes before its part")
            self._rest = following[: self._left]
        wanted = len(self._rest) if count < 0 else min(count, len(self._rest))
        data, self._rest = bytes(self._rest[:wanted]), self._rest[wanted:]
        self._left -= wanted
        self._position += wanted
        self._found = crc64(data, self._found)
        if not self._left and self._found != self._crc:
            raise IntegrityError(
                "what is sent is not what was read before: check the staging disk and the memory"
            )
        return data

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Only to where it stands: boto3 asks for a file that could be read twice, and never does."""
        if (offset, whence) != (self._position, io.SEEK_SET):
            raise io.UnsupportedOperation("a part that is streamed is read once")
        return self._position


def crc64(data: bytes | bytearray | memoryview, before: int = 0) -> int:
    """CRC64NVME, as S3 takes it; of what had the CRC ``before``, and then ``data``."""
    return int(checksums.crc64nvme(data, before))


def crc_text(crc: int) -> str:
    """A CRC64NVME as S3 writes it."""
    return b64encode(crc.to_bytes(8, "big")).decode()


def joined_crc(first: int, second: int, second_bytes: int) -> int:
    """The CRC64NVME of two pieces after each other."""
    return int(checksums.combine_crc64nvme(first, second, second_bytes))


def _whole_mib(length: int, most_parts: int) -> int:
    share = -(-length // most_parts)
    return -(-share // MIB) * MIB
