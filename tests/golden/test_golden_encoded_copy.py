"""Encoded copies of every released format stay readable, by us and by the zstd program."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nightferry.image.frames import FRAME_BYTES, FramedReader
from nightferry.transfer.reading import FileReader
from tests.conftest import needs

DATA = Path(__file__).parent / "encoded_copy_1" / "data.zst"


@pytest.fixture(scope="module")
def plain() -> bytes:
    """What was encoded: numbered lines, and zeros between them so that the file is small."""
    lines = b"".join(b"carriage %06d of the night ferry\n" % number for number in range(280_000))
    made = bytearray(lines[: (9 << 20) + 4711])
    for at in range(0, len(made), 65_536):
        made[at + 4096 : at + 65_536] = bytes(len(made[at + 4096 : at + 65_536]))
    return bytes(made)


def test_format_1_is_read_whole_and_by_range(plain: bytes) -> None:
    with FileReader(DATA) as file:
        reader = FramedReader(file, len(plain))
        assert reader.read(0, len(plain)) == plain
        for offset, length in ((FRAME_BYTES - 7, 5000), (2 * FRAME_BYTES, 4711), (len(plain) - 1, 1)):
            assert reader.read(offset, length) == plain[offset : offset + length]


@needs("zstd")
@pytest.mark.server
def test_format_1_is_decoded_by_zstd(plain: bytes) -> None:
    done = subprocess.run(["zstd", "-dc", DATA], capture_output=True, check=True)
    assert done.stdout == plain
