"""Parts: sizes within S3's limits, streams cut exactly, memory given back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightferry.destination.base import Span
from nightferry.destination.s3.parts import (
    IN_FLIGHT,
    LARGEST_PART,
    MOST_PARTS,
    SMALLEST_PART,
    Memory,
    Streamed,
    crc64,
    cut,
    joined_crc,
    part_size,
    streamed,
)
from nightferry.errors import DestinationError, IntegrityError
from nightferry.image.frames import encoded_bound
from nightferry.progress import Cancel
from nightferry.units import GIB, MIB, TIB


def pieces(data: bytes, size: int = 1000) -> Iterator[memoryview]:
    for at in range(0, len(data), size):
        yield memoryview(data)[at : at + size]


@given(st.integers(0, 49 * TIB), st.sampled_from([1000, MOST_PARTS]), st.booleans())
def test_any_image_fits_before_its_first_byte(plain: int, most: int, encoded: bool) -> None:
    length = encoded_bound(plain) if encoded else plain
    if length > most * LARGEST_PART:
        with pytest.raises(DestinationError, match="more than one object"):
            part_size(length, most_parts=most)
        return
    size = part_size(length, most_parts=most)
    assert SMALLEST_PART <= size <= LARGEST_PART
    assert size % MIB == 0
    assert size * most >= length


@pytest.mark.parametrize(
    ("plain", "most"), [(5 * TIB, MOST_PARTS), (48 * TIB, MOST_PARTS), (4 * TIB + 800 * GIB, 1000)]
)
def test_compressed_images_fit_whatever_they_shrink_to(plain: int, most: int) -> None:
    assert part_size(encoded_bound(plain), most_parts=most) <= LARGEST_PART


@given(st.binary(max_size=9000), st.integers(1, 4000), st.integers(1, 4000), st.booleans())
def test_cut_parts_joined_are_the_stream(data: bytes, piece: int, part: int, known: bool) -> None:
    memory = Memory(10_000)
    length = len(data) if known else None
    parts = cut(pieces(data, piece), iter([part] * 10_000), length, memory, Cancel())
    joined, crc, sizes = bytearray(), 0, []
    for one in parts:
        joined += one.data
        crc = joined_crc(crc, crc64(one.data), len(one.data))
        sizes.append(len(one.data))
        one.drop()
    assert joined == data
    assert crc == crc64(data)
    assert all(size == part for size in sizes[:-1])
    assert memory.most_taken <= max(part, 1)
    memory.take(10_000, Cancel())  # all of it came back


def test_a_stream_longer_than_announced_or_than_all_parts_is_an_error() -> None:
    data = random.Random(1).randbytes(100)
    memory = Memory(1000)
    with pytest.raises(IntegrityError, match="more than the 40 bytes"):
        [part.drop() for part in cut(pieces(data), iter([50, 50]), 40, memory, Cancel())]
    with pytest.raises(DestinationError, match="longer than an object"):
        [part.drop() for part in cut(pieces(data), islice([30, 30, 30], 3), None, memory, Cancel())]
    memory.take(1000, Cancel())


def test_what_a_broken_stream_took_is_given_back() -> None:
    def broken() -> Iterator[memoryview]:
        yield memoryview(b"x" * 10)
        raise IntegrityError("chunk 1 is damaged")

    memory = Memory(100)
    with pytest.raises(IntegrityError):
        next(cut(broken(), iter([100]), None, memory, Cancel()))
    memory.take(100, Cancel())


def test_the_crc_is_the_published_one() -> None:
    # Source: CRC-64/NVME check value, NVM Express NVM Command Set Specification 1.0.
    assert crc64(b"123456789") == 0xAE8B14860A799888


def test_a_buffer_that_something_still_refers_to_is_used_again() -> None:
    memory = Memory(100)
    (part,) = cut(pieces(b"x" * 60), iter([60]), 60, memory, Cancel())
    held = memoryview(part.data)
    part.drop()
    (part,) = cut(pieces(b"y" * 10), iter([60]), None, memory, Cancel())
    assert (part.data, held.nbytes) == (b"y" * 10, 60)
    part.drop()
    assert memory.take_now(100) is not None


def test_what_is_owed_is_given_beyond_the_bound_and_not_kept() -> None:
    memory = Memory(100)
    first = memory.take_now(60)
    assert first is not None
    assert memory.take_now(60) is None
    owed = memory.take_now(60, owed=True)
    assert owed is not None
    memory.give(owed, 60)
    memory.give(first, 60)
    assert memory.take_now(100) is not None


def test_streamed_parts_wait_for_their_share_of_the_memory() -> None:
    memory, cancel = Memory(IN_FLIGHT * 10), Cancel()
    spans = (Span(1 << 40, 0, lambda: iter(())) for _ in range(8))
    parts = streamed(spans, memory, cancel)
    first = [next(parts) for _ in range(IN_FLIGHT)]
    assert memory.take_now(1) is None
    first[0].drop()
    assert next(parts).number == IN_FLIGHT + 1
    assert memory.most_taken == IN_FLIGHT * 10 == 40


def test_a_part_that_is_read_otherwise_than_before_never_leaves_whole() -> None:
    span = Span(9, crc64(b"123456789"), lambda: iter([memoryview(b"12345"), memoryview(b"6789")]))
    assert Streamed(span).read() + Streamed(span).read(3) == b"12345123"
    changed = Streamed(Span(9, crc64(b"123456789"), lambda: iter([memoryview(b"123456780")])))
    with pytest.raises(IntegrityError, match="not what was read before"):
        changed.read()
    assert isinstance(changed.error, IntegrityError)
    short = Streamed(Span(9, 0, lambda: iter([memoryview(b"1")])))
    assert short.read() == b"1"
    with pytest.raises(IntegrityError, match="ended 8 bytes before"):
        short.read()
