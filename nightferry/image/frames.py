"""Encoded copies: an image as zstd frames that are read one by one (docs/image-format.md, "Encoded copies").

What is written is one ``.zst`` file in zstd's official seekable format: every frame holds 4 MiB of the image
(the last one less) and decodes on its own; a skippable frame at the end says how long each is. ``zstd -d``
gives the image back without knowing any of this.

Source of the numbers: facebook/zstd, contrib/seekable_format/zstd_seekable_compression_format.md, version
0.1.0; a frame's checksum: RFC 8878 §3.1.1.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import cycle, repeat
from struct import Struct
from typing import Final

import zstandard

from nightferry.errors import IntegrityError
from nightferry.transfer.base import CHUNK_BYTES, ByteReader

FRAME_BYTES: Final = 4 * CHUNK_BYTES
"""Bytes of the image in one frame: a range costs at most this much more at either end."""
LEAST_GAIN: Final = 0.03
"""What samples must shrink by, of their size, for encoding to be worth its time."""
PROBE_LEVEL: Final = 1

_READ_AT_ONCE: Final = 2 * FRAME_BYTES
"""Encoded ranges up to this are asked for in one read: a stream that reads ahead is not worth its set-up."""
_MOST_ENCODED: Final = FRAME_BYTES + (FRAME_BYTES >> 8) + 1024
"""No frame is longer than zstd's own bound for one (ZSTD_COMPRESSBOUND)."""
_HEAD: Final = Struct("<II")
_ENTRY: Final = Struct("<III")
_FOOTER: Final = Struct("<IBI")
_SKIPPABLE_MAGIC: Final = 0x184D2A5E
_SEEKABLE_MAGIC: Final = 0x8F92EAB1
_HAS_CHECKSUMS: Final = 0x80
_CHECKSUM_BYTES: Final = 4
_DECODERS: Final = 2
"""How many frames of a long range are decoded at once."""


def shrinks(samples: Iterable[bytes]) -> bool:
    """Whether encoding bytes like these is worth its time; no bytes at all are not."""
    compressor = zstandard.ZstdCompressor(level=PROBE_LEVEL)
    plain = encoded = 0
    for sample in samples:
        plain += len(sample)
        encoded += len(compressor.compress(sample))
    return encoded < plain * (1 - LEAST_GAIN)


def encode(
    pieces: Iterable[bytes | memoryview], level: int, *, threads: int = 2, proved: bool = False
) -> Iterator[bytes]:
    """Bytes → the ``.zst`` file of them, frame by frame, the seek table last.

    The same bytes and level always give the same file. Frames are compressed by threads of its own while the
    caller does something with the last one; they end with the iterator. Memory: ``threads + 1`` frames plain,
    ``threads + 2`` encoded, and 12 bytes per frame.

    Args:
        pieces: The image's bytes in pieces of any length; a piece need not outlive the next.
        level: zstd's, 1 to 19.
        threads: How many frames are compressed at once.
        proved: Whether each frame is decoded again and compared.

    Raises:
        IntegrityError: a frame does not decode to what went into it.
    """
    compressors = deque(
        zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)
        for _ in range(threads)
    )

    def compress(plain: memoryview) -> tuple[int, bytes]:
        compressor = compressors.pop()  # no more frames are at work than there are threads
        try:
            frame = compressor.compress(plain)
            if proved and zstandard.ZstdDecompressor().decompress(frame) != plain:
                raise IntegrityError(
                    "zstd does not return the data that it was given: do not trust this machine"
                )
            return len(plain), frame
        finally:
            compressors.append(compressor)

    table = bytearray()
    waiting: deque[Future[tuple[int, bytes]]] = deque()

    def oldest() -> bytes:
        plain_bytes, frame = waiting.popleft().result()
        # A frame ends in the very checksum that the table wants of it: the low half of an XXH64.
        checksum = int.from_bytes(frame[-_CHECKSUM_BYTES:], "little")
        table.extend(_ENTRY.pack(len(frame), plain_bytes, checksum))
        return frame

    with ThreadPoolExecutor(threads, thread_name_prefix="nightferry-zstd") as pool:
        try:
            # As many as are waiting when the next one is filled, and that one.
            buffers = cycle([bytearray(FRAME_BYTES) for _ in range(threads + 1)])
            for plain in _in_frames(pieces, buffers):
                waiting.append(pool.submit(compress, plain))
                if len(waiting) > threads:
                    yield oldest()
            while waiting:
                yield oldest()
        finally:
            for future in waiting:
                future.cancel()
    yield _seek_table(table)


def encoded_bound(plain_bytes: int) -> int:
    """The most bytes that ``encode`` can make of so many, whatever they are."""
    frames = -(-plain_bytes // FRAME_BYTES)
    return frames * (_MOST_ENCODED + _ENTRY.size) + _HEAD.size + _FOOTER.size


def frames_again(pieces: Iterable[bytes | memoryview], level: int) -> Iterator[bytes]:
    """The frames that ``encode`` makes of the same bytes, one after the other in the caller's own thread; without
    the seek table. ``pieces`` begin where a frame does. Memory: one frame, plain and encoded."""
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)
    for plain in _in_frames(pieces, repeat(bytearray(FRAME_BYTES))):
        yield compressor.compress(plain)


def _in_frames(pieces: Iterable[bytes | memoryview], buffers: Iterator[bytearray]) -> Iterator[memoryview]:
    """Copies of 4 MiB each, the last one shorter, each in the next of ``buffers`` of that size.

    They are used again: buffers that grow, or are made for each frame, leave holes that the process keeps.
    """
    held, filled = next(buffers), 0
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            step = min(len(rest), FRAME_BYTES - filled)
            held[filled : filled + step] = rest[:step]
            filled += step
            rest = rest[step:]
            if filled == FRAME_BYTES:
                yield memoryview(held)
                held, filled = next(buffers), 0
    if filled:
        yield memoryview(held)[:filled]


def _seek_table(entries: bytes | bytearray) -> bytes:
    head = _HEAD.pack(_SKIPPABLE_MAGIC, len(entries) + _FOOTER.size)
    return head + entries + _FOOTER.pack(len(entries) // _ENTRY.size, _HAS_CHECKSUMS, _SEEKABLE_MAGIC)


class FramedReader:
    """A ``ByteReader`` of an image over one of its encoded copy.

    Opening it reads the seek table, a range the frames that cover it: both in one read of the copy, unless
    the range is longer than 8 MiB encoded. The last frame read is kept, so that ranges in ascending order read
    no frame twice. What the table may say follows from the image's size, so that memory is bounded whatever
    the copy holds: 12 bytes for each 4 MiB, and four frames, plain and encoded, while a long range
    is streamed: its frames are decoded ahead. Not for several threads at once.

    A frame is proved against its own checksum and that of the table. That it is the *right* frame only the
    image's chunk table says.

    Args:
        reader: The encoded copy's bytes.
        size_bytes: Bytes of the image.

    Raises:
        IntegrityError: not the frames of an image of that size.
        DestinationError: the bytes cannot be had.
    """

    def __init__(self, reader: ByteReader, size_bytes: int) -> None:
        self._reader = reader
        self._size_bytes = size_bytes
        self._starts = array("Q", [0])
        """Where each frame begins in the copy, and where the last one ends."""
        self._checksums = array("I")
        self._decompressors = deque(zstandard.ZstdDecompressor() for _ in range(_DECODERS))
        self._kept: tuple[int, bytes] = (-1, b"")
        self._load_table()

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def read(self, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``offset``.

        Raises:
            IntegrityError: a frame is damaged, or the range ends beyond the end.
            DestinationError: the bytes cannot be had.
        """
        return b"".join(self.stream(offset, length))

    def stream(self, offset: int, length: int) -> Iterator[memoryview]:
        """The same bytes in order, in pieces of at most 4 MiB."""
        end = offset + length
        if offset < 0 or length < 0 or end > self._size_bytes:
            raise IntegrityError(f"bytes {offset} to {end} lie beyond the image's end at {self._size_bytes}")
        if not length:
            return
        first, stop = offset // FRAME_BYTES, -(-end // FRAME_BYTES)
        for number, frame in self._frames(first, stop):
            start = number * FRAME_BYTES
            yield memoryview(frame)[max(offset - start, 0) : end - start]

    def _frames(self, first: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """Frames ``first`` to ``stop`` (exclusive) decoded, each kept before it is handed out."""
        if first == self._kept[0]:
            yield self._kept
            first += 1
        if first == stop:
            return
        length = self._starts[stop] - self._starts[first]
        if length <= _READ_AT_ONCE:
            frames = self._cut(first, stop, (self._reader.read(self._starts[first], length),))
            decoded: Iterator[tuple[int, bytes]] = ((n, self._decode(n, data)) for n, data in frames)
        else:
            pieces = self._reader.stream(self._starts[first], length)
            decoded = self._decoded_ahead(self._cut(first, stop, pieces))
        for number, frame in decoded:
            self._kept = (number, frame)
            yield self._kept

    def _cut(
        self, first: int, stop: int, pieces: Iterable[bytes | memoryview]
    ) -> Iterator[tuple[int, bytes]]:
        """Frames ``first`` to ``stop`` (exclusive) as the copy has them."""
        held = bytearray()
        number = first
        for piece in pieces:
            held += piece
            while number < stop and len(held) >= (size := self._starts[number + 1] - self._starts[number]):
                data = bytes(memoryview(held)[:size])
                del held[:size]
                yield number, data
                number += 1
        if number != stop:
            raise IntegrityError(
                f"the encoded copy ended in frame {number}; frames up to {stop} were expected"
            )

    def _decoded_ahead(self, frames: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        """Frames decoded by threads while the caller is busy with earlier ones; the threads end with it."""
        waiting: deque[tuple[int, Future[bytes]]] = deque()
        with ThreadPoolExecutor(_DECODERS, thread_name_prefix="nightferry-unzstd") as pool:
            try:
                for number, data in frames:
                    waiting.append((number, pool.submit(self._decode, number, data)))
                    if len(waiting) > _DECODERS:
                        number, future = waiting.popleft()
                        yield number, future.result()
                while waiting:
                    number, future = waiting.popleft()
                    yield number, future.result()
            finally:
                for _, future in waiting:
                    future.cancel()

    def _decode(self, number: int, data: bytes) -> bytes:
        expected = self._plain_bytes(number)
        decompressor = self._decompressors.pop()  # no more frames are at work than there are threads
        try:
            # Read first: what a frame says of its length is what its decoder makes room for.
            parameters = zstandard.get_frame_parameters(data)
            if (
                parameters.content_size != expected
                or not parameters.has_checksum
                or int.from_bytes(data[-_CHECKSUM_BYTES:], "little") != self._checksums[number]
            ):
                raise IntegrityError(
                    f"frame {number} of the encoded copy is not the one its seek table names"
                )
            plain = decompressor.decompress(data, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise IntegrityError(f"frame {number} of the encoded copy is damaged: {error}") from error
        finally:
            self._decompressors.append(decompressor)
        if len(plain) != expected:
            raise IntegrityError(f"frame {number} of the encoded copy has {len(plain)} bytes, not {expected}")
        return plain

    def _plain_bytes(self, number: int) -> int:
        return min(FRAME_BYTES, self._size_bytes - number * FRAME_BYTES)

    def _load_table(self) -> None:
        count = -(-self._size_bytes // FRAME_BYTES)
        length = _HEAD.size + count * _ENTRY.size + _FOOTER.size
        encoded_bytes = self._reader.size_bytes - length
        if encoded_bytes < 0:
            raise _no_table(f"{self._reader.size_bytes} bytes cannot hold {count} frames")
        table = memoryview(self._reader.read(encoded_bytes, length))
        if table[: _HEAD.size] != _HEAD.pack(_SKIPPABLE_MAGIC, length - _HEAD.size) or table[
            -_FOOTER.size :
        ] != _FOOTER.pack(count, _HAS_CHECKSUMS, _SEEKABLE_MAGIC):
            raise _no_table(f"no seek table of {count} frames at its end")
        for number, (size, plain, checksum) in enumerate(
            _ENTRY.iter_unpack(table[_HEAD.size : -_FOOTER.size])
        ):
            if plain != self._plain_bytes(number) or not 0 < size <= _MOST_ENCODED:
                raise _no_table(f"frame {number} cannot have {plain} bytes in {size}")
            self._starts.append(self._starts[-1] + size)
            self._checksums.append(checksum)
        if self._starts[-1] != encoded_bytes:
            raise _no_table(f"frames of {self._starts[-1]} bytes in a copy with {encoded_bytes}")


def plain_bytes(reader: ByteReader, chunks: int) -> int:
    """What an encoded copy decodes to in all, by its seek table, where only the image's chunks are counted.

    Raises:
        IntegrityError: there is no such table.
    """
    count = -(-chunks * CHUNK_BYTES // FRAME_BYTES)
    at = reader.size_bytes - _FOOTER.size - count * _ENTRY.size
    if at < 0:
        raise _no_table(f"{reader.size_bytes} bytes cannot hold {count} frames")
    return sum(plain for _, plain, _ in _ENTRY.iter_unpack(reader.read(at, count * _ENTRY.size)))


def _no_table(why: str) -> IntegrityError:
    return IntegrityError(f"not an encoded copy of the image: {why}")
