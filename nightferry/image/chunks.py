"""A reader that checks an image's bytes against its chunk table and lets nothing unproved through."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from nightferry.errors import IntegrityError
from nightferry.transfer.base import CHUNK_BYTES, ByteReader
from nightferry.transfer.digest import ENTRY_BYTES, check_chunk

READ_AT_ONCE: Final = 4 * CHUNK_BYTES
"""Ranges up to this are asked for in one read: a stream that reads ahead is not worth its set-up."""


class CheckedReader:
    """A ``ByteReader`` over another one that hands out only bytes whose chunk was checked.

    A range costs at most the rest of its first and of its last chunk: less than 2 MiB more than was asked
    for. The last chunk of a range is kept, so that ranges in ascending order read no chunk twice. Not for
    several threads at once.

    Args:
        reader: Where the image's bytes are.
        table: Its chunk table.

    Raises:
        IntegrityError: the table does not fit the image's size.
    """

    def __init__(self, reader: ByteReader, table: bytes) -> None:
        if len(table) != ENTRY_BYTES * -(-reader.size_bytes // CHUNK_BYTES):
            raise IntegrityError(
                f"a chunk table of {len(table)} bytes does not fit an image of {reader.size_bytes} bytes"
            )
        self._reader = reader
        self._table = table
        self._kept: tuple[int, bytes] = (-1, b"")

    @property
    def size_bytes(self) -> int:
        return self._reader.size_bytes

    def read(self, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``offset``, checked.

        Raises:
            IntegrityError: a chunk is not what the table says, or the range ends beyond the end.
            DestinationError: the bytes cannot be had.
        """
        return b"".join(bytes(piece) for piece in self.stream(offset, length))

    def stream(self, offset: int, length: int) -> Iterator[memoryview]:
        """The same bytes in order, in pieces of at most 1 MiB; a piece is valid until the next is asked for."""
        if offset < 0 or length < 0 or offset + length > self.size_bytes:
            raise IntegrityError(
                f"bytes {offset} to {offset + length} lie beyond the image's end at {self.size_bytes}"
            )
        end = offset + length
        number = offset // CHUNK_BYTES
        if length and number == self._kept[0]:
            piece = memoryview(self._kept[1])[offset - number * CHUNK_BYTES : end - number * CHUNK_BYTES]
            yield piece
            offset += len(piece)
            number += 1
        if offset == end:
            return
        for found, chunk in self._chunks(number, -(-end // CHUNK_BYTES)):
            start = found * CHUNK_BYTES
            yield memoryview(chunk)[max(offset - start, 0) : end - start]

    def _chunks(self, first: int, stop: int) -> Iterator[tuple[int, bytes | bytearray | memoryview]]:
        """Whole chunks ``first`` to ``stop`` (exclusive), each checked; the last one is kept."""
        start = first * CHUNK_BYTES
        end = min(stop * CHUNK_BYTES, self.size_bytes)
        few = end - start <= READ_AT_ONCE
        pieces = (self._reader.read(start, end - start),) if few else self._reader.stream(start, end - start)
        for number, chunk in enumerate(checked(pieces, self._table, first, end - start), first):
            if number == stop - 1:
                self._kept = (number, bytes(chunk))
            yield number, chunk


def checked(
    pieces: Iterable[bytes | memoryview], table: bytes, first: int, length: int
) -> Iterator[bytes | bytearray | memoryview]:
    """Cuts ``length`` bytes that begin with chunk ``first`` into chunks, each checked before it is handed out.

    A chunk is valid until the next is asked for.

    Raises:
        IntegrityError: a chunk is not what the table says, or they end too early.
    """
    number = first
    for chunk in _in_chunks(pieces, length):
        check_chunk(table, number, chunk)
        yield chunk
        number += 1
    stop = first + -(-length // CHUNK_BYTES)
    if number != stop:
        raise IntegrityError(f"the image ended in chunk {number}; chunks up to {stop} were expected")


def _in_chunks(pieces: Iterable[bytes | memoryview], length: int) -> Iterator[bytes | bytearray | memoryview]:
    """Cuts ``length`` bytes into chunks, the last one shorter; copies only what two pieces share."""
    held = bytearray()
    for piece in pieces:
        rest = memoryview(piece)
        while rest and length:
            wanted = min(CHUNK_BYTES, length)
            if not held and len(rest) >= wanted:
                chunk: bytearray | memoryview = rest[:wanted]
                rest = rest[wanted:]
            else:
                cut = wanted - len(held)
                held += rest[:cut]
                rest = rest[cut:]
                if len(held) < wanted:
                    break
                chunk, held = held, bytearray()
            length -= wanted
            yield chunk
