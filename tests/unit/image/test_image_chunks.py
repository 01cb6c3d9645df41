"""Ranges are checked chunk by chunk, at a bounded cost."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from nightferry.errors import IntegrityError
from nightferry.image.chunks import CheckedReader
from nightferry.transfer.base import CHUNK_BYTES
from nightferry.transfer.digest import ChunkTable


class Bytes:
    """A reader of bytes in memory that counts what was read."""

    def __init__(self, data: bytes, piece: int = 300_000) -> None:
        self.data = data
        self.piece = piece
        self.read_bytes = 0

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        assert 0 <= offset <= offset + length <= len(self.data)
        self.read_bytes += length
        return self.data[offset : offset + length]

    def stream(self, offset: int, length: int) -> Iterator[memoryview]:
        buffer = bytearray(self.piece)  # one for all pieces: each is valid until the next is asked for
        for at in range(offset, offset + length, self.piece):
            count = min(self.piece, offset + length - at)
            buffer[:count] = self.read(at, count)
            yield memoryview(buffer)[:count]


def collect(got: bytearray, pieces: Iterator[memoryview]) -> None:
    for piece in pieces:
        got += piece


def table(data: bytes) -> bytes:
    made = ChunkTable()
    made.update(data)
    return made.table()


@pytest.fixture(scope="module")
def data() -> bytes:
    return random.Random(1).randbytes(7 * CHUNK_BYTES + 100)


@pytest.mark.parametrize(
    ("offset", "length"),
    [
        (0, 0),
        (0, 1),
        (CHUNK_BYTES - 1, 2),
        (CHUNK_BYTES, CHUNK_BYTES),
        (5, 6 * CHUNK_BYTES),
        (7 * CHUNK_BYTES + 3, 97),
        (0, 7 * CHUNK_BYTES + 100),
        (7 * CHUNK_BYTES + 100, 0),
    ],
)
def test_a_range_is_the_range_and_costs_less_than_two_mib_more(data: bytes, offset: int, length: int) -> None:
    reader = Bytes(data)
    checked = CheckedReader(reader, table(data))
    assert checked.read(offset, length) == data[offset : offset + length]
    assert reader.read_bytes <= length + 2 * CHUNK_BYTES
    assert b"".join(checked.stream(offset, length)) == data[offset : offset + length]


def test_ascending_ranges_read_no_chunk_twice(data: bytes) -> None:
    reader = Bytes(data)
    checked = CheckedReader(reader, table(data))
    for offset in range(0, len(data) - 1000, 1000):
        assert checked.read(offset, 1000) == data[offset : offset + 1000]
    assert reader.read_bytes <= len(data)


def test_a_damaged_chunk_is_told_apart_from_its_whole_neighbours(data: bytes) -> None:
    damaged = bytearray(data)
    damaged[3 * CHUNK_BYTES + 500] ^= 1
    checked = CheckedReader(Bytes(bytes(damaged)), table(data))
    assert checked.read(2 * CHUNK_BYTES, CHUNK_BYTES) == data[2 * CHUNK_BYTES : 3 * CHUNK_BYTES]
    with pytest.raises(IntegrityError, match="chunk 3"):
        checked.read(3 * CHUNK_BYTES, 1)
    got = bytearray()
    with pytest.raises(IntegrityError, match="chunk 3"):
        collect(got, checked.stream(CHUNK_BYTES, 5 * CHUNK_BYTES))
    assert got == data[CHUNK_BYTES : 3 * CHUNK_BYTES]
    assert checked.read(4 * CHUNK_BYTES, 10) == data[4 * CHUNK_BYTES : 4 * CHUNK_BYTES + 10]


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, 1 << 40), (7 * CHUNK_BYTES + 100, 1), (5, -1)])
def test_a_range_beyond_the_end_is_refused(data: bytes, offset: int, length: int) -> None:
    with pytest.raises(IntegrityError, match="beyond"):
        CheckedReader(Bytes(data), table(data)).read(offset, length)


def test_a_table_of_another_length_is_refused(data: bytes) -> None:
    for wrong in (b"", table(data)[:-8], table(data) + bytes(8), table(data)[:-1]):
        with pytest.raises(IntegrityError, match="chunk table"):
            CheckedReader(Bytes(data), wrong)


def test_a_stream_that_ends_early_is_an_integrity_error(data: bytes) -> None:
    class Short(Bytes):
        def stream(self, offset: int, length: int) -> Iterator[memoryview]:
            yield from super().stream(offset, length - 200_000)

    with pytest.raises(IntegrityError):
        CheckedReader(Short(data), table(data)).read(0, 6 * CHUNK_BYTES)
