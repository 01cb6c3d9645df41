"""Any bytes in any pieces come back from any range of their frames; any damage is an IntegrityError."""

from __future__ import annotations

from unittest import mock

import zstandard
from hypothesis import given
from hypothesis import strategies as st

from nightferry.errors import IntegrityError
from nightferry.image import frames
from nightferry.image.frames import FramedReader, encode
from tests.support.memory_reader import MemoryReader

contents = st.one_of(
    st.binary(max_size=2000),
    st.builds(lambda word, times: word * times, st.binary(min_size=1, max_size=9), st.integers(0, 300)),
)
frame_sizes = st.integers(1, 700)


def small_frames(size: int) -> mock._patch[int]:
    """The format with frames that a test can have many of."""
    return mock.patch.object(frames, "FRAME_BYTES", size)


@st.composite
def in_pieces(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    data = draw(contents)
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return data, [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@given(in_pieces(), frame_sizes, st.integers(1, 5), st.integers(1, 3), st.data())
def test_any_range_of_any_bytes_comes_back(
    made: tuple[bytes, list[bytes]], size: int, level: int, threads: int, data: st.DataObject
) -> None:
    plain, pieces = made
    with small_frames(size):
        encoded = b"".join(encode(pieces, level, threads=threads))
        stream = zstandard.ZstdDecompressor().stream_reader(encoded, read_across_frames=True)
        assert stream.read() == plain
        reader = FramedReader(MemoryReader(encoded, data.draw(st.integers(1, 400))), len(plain))
        with mock.patch.object(frames, "_READ_AT_ONCE", data.draw(st.integers(0, 400))):
            for _ in range(4):
                offset = data.draw(st.integers(0, len(plain)))
                length = data.draw(st.integers(0, len(plain) - offset))
                assert reader.read(offset, length) == plain[offset : offset + length]


@given(contents.filter(len), frame_sizes, st.data())
def test_changed_bytes_are_never_handed_out(plain: bytes, size: int, data: st.DataObject) -> None:
    with small_frames(size):
        encoded = bytearray(b"".join(encode([plain], 1)))
        for _ in range(data.draw(st.integers(1, 3))):
            encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
        try:
            assert FramedReader(MemoryReader(bytes(encoded)), len(plain)).read(0, len(plain)) == plain
        except IntegrityError:
            return


@given(st.binary(max_size=300), st.integers(0, 2000), frame_sizes)
def test_any_bytes_at_all_are_read_or_refused(noise: bytes, claimed: int, size: int) -> None:
    with small_frames(size):
        try:
            reader = FramedReader(MemoryReader(noise), claimed)
            assert len(reader.read(0, claimed)) == claimed
        except IntegrityError:
            return
