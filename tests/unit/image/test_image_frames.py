"""An encoded copy is what the zstd program takes for one, and its frames are read one by one."""

from __future__ import annotations

import random
import struct
import subprocess
from pathlib import Path

import pytest
import xxhash
import zstandard

from nightferry.errors import IntegrityError
from nightferry.image.frames import FRAME_BYTES, FramedReader, encode, shrinks
from nightferry.transfer.base import CHUNK_BYTES
from tests.conftest import needs
from tests.support.memory_reader import MemoryReader

FRAMES = 3


def in_chunks(data: bytes) -> list[bytes]:
    return [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]


@pytest.fixture(scope="module")
def plain() -> bytes:
    """Two frames and a bit; half of it shrinks."""
    content = random.Random(5)
    line = b"The Night Ferry left Victoria at %06d. " + content.randbytes(20) + b"\n"
    text = b"".join(line % number for number in range(2 * FRAME_BYTES // len(line) // 2 + 1))
    return (text + content.randbytes(FRAME_BYTES) + text)[: 2 * FRAME_BYTES + 12_345]


@pytest.fixture(scope="module")
def encoded(plain: bytes) -> bytes:
    return b"".join(encode(in_chunks(plain), 1))


def entries(encoded: bytes) -> list[tuple[int, int, int]]:
    """The seek table as the format's document says: 12 bytes a frame before a footer of 9."""
    assert struct.unpack("<IBI", encoded[-9:]) == (FRAMES, 0x80, 0x8F92EAB1)
    table = encoded[-9 - 12 * FRAMES : -9]
    head = encoded[-17 - 12 * FRAMES : -9 - 12 * FRAMES]
    assert struct.unpack("<II", head) == (0x184D2A5E, 12 * FRAMES + 9)
    return list(struct.iter_unpack("<III", table))


@needs("zstd")
@pytest.mark.server
def test_the_zstd_program_proves_it_and_gives_the_same_bytes(
    plain: bytes, encoded: bytes, tmp_path: Path
) -> None:
    (tmp_path / "data.zst").write_bytes(encoded)
    (tmp_path / "plain").write_bytes(plain)
    subprocess.run(["zstd", "-q", "--test", tmp_path / "data.zst"], check=True)
    subprocess.run(["zstd", "-q", "-d", tmp_path / "data.zst", "-o", tmp_path / "back"], check=True)
    subprocess.run(["cmp", tmp_path / "plain", tmp_path / "back"], check=True)
    told = subprocess.run(["zstd", "-lv", tmp_path / "data.zst"], capture_output=True, text=True).stdout
    assert f"# Zstandard Frames: {FRAMES}\n" in told
    assert "# Skippable Frames: 1\n" in told
    assert "Check: XXH64" in told


def test_every_frame_decodes_alone_and_the_table_says_where_and_what_it_is(
    plain: bytes, encoded: bytes
) -> None:
    at = 0
    for number, (size, plain_bytes, checksum) in enumerate(entries(encoded)):
        wanted = plain[number * FRAME_BYTES : (number + 1) * FRAME_BYTES]
        assert plain_bytes == len(wanted)
        assert checksum == xxhash.xxh64_intdigest(wanted) & 0xFFFF_FFFF
        assert zstandard.ZstdDecompressor().decompress(encoded[at : at + size]) == wanted
        at += size
    assert at + 17 + 12 * FRAMES == len(encoded)


@pytest.mark.parametrize("level", [1, 3])
def test_the_same_bytes_give_the_same_file_however_they_come(plain: bytes, level: int) -> None:
    whole = b"".join(encode([plain], level, threads=1))
    odd = [plain[at : at + 777_777] for at in range(0, len(plain), 777_777)]
    assert b"".join(encode(odd, level, threads=3)) == whole


def test_pieces_may_be_reused_by_who_gives_them(plain: bytes, encoded: bytes) -> None:
    def through_one_buffer():
        buffer = bytearray(CHUNK_BYTES)
        for chunk in in_chunks(plain):
            buffer[: len(chunk)] = chunk
            yield memoryview(buffer)[: len(chunk)]

    assert b"".join(encode(through_one_buffer(), 1)) == encoded


def test_an_error_of_the_source_comes_through_and_so_does_giving_up(plain: bytes) -> None:
    def broken():
        yield plain
        raise IntegrityError("chunk 8 is damaged")

    with pytest.raises(IntegrityError, match="chunk 8"):
        list(encode(broken(), 1))
    given_up = encode([plain, plain], 1)
    next(given_up)
    given_up.close()


def test_it_reads_no_more_than_a_few_frames_ahead() -> None:
    taken = [0]

    def counted():
        for _ in range(40):
            taken[0] += 1
            yield bytes(CHUNK_BYTES)

    for given_back, _ in enumerate(encode(counted(), 1, threads=2), 1):
        assert taken[0] <= (given_back + 2) * FRAME_BYTES // CHUNK_BYTES


def test_nothing_is_a_file_without_frames() -> None:
    encoded = b"".join(encode([], 1))
    assert FramedReader(MemoryReader(encoded), 0).read(0, 0) == b""


@pytest.mark.parametrize(
    ("offset", "length"),
    [
        (0, 0),
        (0, 1),
        (FRAME_BYTES - 1, 2),
        (FRAME_BYTES, FRAME_BYTES),
        (3, 2 * FRAME_BYTES),
        (2 * FRAME_BYTES + 12_344, 1),
        (2 * FRAME_BYTES + 12_345, 0),
    ],
)
def test_a_range_gives_exactly_those_bytes(plain: bytes, encoded: bytes, offset: int, length: int) -> None:
    reader = FramedReader(MemoryReader(encoded), len(plain))
    assert reader.size_bytes == len(plain)
    assert reader.read(offset, length) == plain[offset : offset + length]


def test_a_range_beyond_the_end_is_refused(plain: bytes, encoded: bytes) -> None:
    reader = FramedReader(MemoryReader(encoded), len(plain))
    for offset, length in ((len(plain), 1), (0, len(plain) + 1), (-1, 1), (5, -1)):
        with pytest.raises(IntegrityError, match="beyond"):
            reader.read(offset, length)


def test_a_file_of_one_mib_costs_two_reads_and_its_frames(plain: bytes, encoded: bytes) -> None:
    inner = MemoryReader(encoded)
    reader = FramedReader(inner, len(plain))
    sizes = [size for size, *_ in entries(encoded)]
    reader.read(FRAME_BYTES - CHUNK_BYTES // 2, CHUNK_BYTES)
    assert inner.requests == 2
    assert inner.read_bytes == 17 + 12 * FRAMES + sizes[0] + sizes[1]
    reader.read(FRAME_BYTES + CHUNK_BYTES, CHUNK_BYTES)  # of the frame that is still there
    assert inner.requests == 2
    reader.read(2 * FRAME_BYTES, 1)
    assert inner.read_bytes == 17 + 12 * FRAMES + sum(sizes)


def test_a_long_range_is_streamed(plain: bytes) -> None:
    dense = random.Random(6).randbytes(3 * FRAME_BYTES)
    inner = MemoryReader(b"".join(encode([dense], 1)))
    got = [bytes(piece) for piece in FramedReader(inner, len(dense)).stream(10, len(dense) - 20)]
    assert b"".join(got) == dense[10:-10]
    assert max(map(len, got)) <= FRAME_BYTES
    assert inner.requests == 2


def flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def test_a_flipped_byte_is_damage_of_its_frame_alone(plain: bytes, encoded: bytes) -> None:
    first, second, _ = (size for size, *_ in entries(encoded))
    for at in (first, first + 6, first + second // 2, first + second - 1):
        reader = FramedReader(MemoryReader(flipped(encoded, at)), len(plain))
        assert reader.read(0, FRAME_BYTES) == plain[:FRAME_BYTES]
        with pytest.raises(IntegrityError, match="frame 1"):
            reader.read(FRAME_BYTES, 1)
        assert reader.read(2 * FRAME_BYTES, 5) == plain[2 * FRAME_BYTES :][:5]


def test_every_flipped_bit_of_the_seek_table_is_found(plain: bytes, encoded: bytes) -> None:
    for at in range(len(encoded) - 17 - 12 * FRAMES, len(encoded)):
        with pytest.raises(IntegrityError):
            FramedReader(MemoryReader(flipped(encoded, at)), len(plain)).read(0, len(plain))


def test_another_images_frame_in_its_place_is_found(plain: bytes) -> None:
    one, other = (b"".join(encode([bytes([fill]) * FRAME_BYTES], 1)) for fill in (1, 2))
    table = 17 + 12
    assert len(one) == len(other)
    with pytest.raises(IntegrityError, match="not the one its seek table names"):
        FramedReader(MemoryReader(other[:-table] + one[-table:]), FRAME_BYTES).read(0, 1)


@pytest.mark.parametrize("cut", [0, 1, 8, 100, 50_000])
def test_a_copy_that_was_cut_off_is_none(plain: bytes, encoded: bytes, cut: int) -> None:
    with pytest.raises(IntegrityError, match="not an encoded copy"):
        FramedReader(MemoryReader(encoded[:cut]), len(plain))
    with pytest.raises(IntegrityError, match="not an encoded copy"):
        FramedReader(MemoryReader(encoded[: -cut - 1]), len(plain))


@pytest.mark.parametrize("size", [0, 1, FRAME_BYTES, 2 * FRAME_BYTES + 12_344, 3 * FRAME_BYTES, 1 << 60])
def test_a_copy_of_an_image_of_another_size_is_none(encoded: bytes, size: int) -> None:
    with pytest.raises(IntegrityError, match="not an encoded copy"):
        FramedReader(MemoryReader(encoded), size)


def hostile(frame: bytes, plain_bytes: int, checksum: bytes) -> bytes:
    """A copy with one frame and a table that says of it what one likes."""
    entry = struct.pack("<II", len(frame), plain_bytes) + checksum
    return frame + struct.pack("<II", 0x184D2A5E, 21) + entry + struct.pack("<IBI", 1, 0x80, 0x8F92EAB1)


def test_a_frame_that_unfolds_to_more_than_it_may_is_never_unfolded() -> None:
    bomb = zstandard.ZstdCompressor(level=1, write_checksum=True).compress(bytes(1 << 27))
    reader = FramedReader(MemoryReader(hostile(bomb, FRAME_BYTES, bomb[-4:])), FRAME_BYTES)
    with pytest.raises(IntegrityError, match="not the one its seek table names"):
        reader.read(0, 1)


def test_a_frame_that_does_not_say_its_length_is_refused() -> None:
    compressor = zstandard.ZstdCompressor(level=1, write_checksum=True, write_content_size=False)
    silent = compressor.compress(b"abc" * 100)
    with pytest.raises(IntegrityError):
        FramedReader(MemoryReader(hostile(silent, 300, silent[-4:])), 300).read(0, 300)


def test_two_frames_where_one_is_named_are_refused() -> None:
    one = zstandard.ZstdCompressor(level=1, write_checksum=True).compress(b"abc" * 100)
    with pytest.raises(IntegrityError):
        FramedReader(MemoryReader(hostile(one + one, 300, one[-4:])), 300).read(0, 300)


def test_random_bytes_do_not_shrink_and_text_does(plain: bytes) -> None:
    noise = random.Random(7).randbytes(256 << 10)
    assert not shrinks([noise] * 3)
    assert not shrinks([])
    assert shrinks([plain[: 256 << 10]])
    # A sixteenth of text among noise is more than 3 %, a sixty-fourth is less.
    assert shrinks([noise] * 15 + [bytes(256 << 10)])
    assert not shrinks([noise] * 63 + [bytes(256 << 10)])


def test_frames_are_decoded_and_compared_before_they_go_out_where_that_is_asked(
    plain: bytes, encoded: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert b"".join(encode([plain], 1, proved=True)) == b"".join(encode([plain], 1))

    class Wrong:
        def decompress(self, frame: bytes) -> bytes:
            return bytes(4)

    monkeypatch.setattr(zstandard, "ZstdDecompressor", Wrong)
    with pytest.raises(IntegrityError, match="does not return the data"):
        list(encode([plain], 1, proved=True))
