from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import blake3
import pytest

from nightferry.errors import IntegrityError
from nightferry.transfer.base import CHUNK_BYTES
from nightferry.transfer.digest import ChunkTable, check_chunk, image_digest
from tests.support.outgoing import table_of

DATA = os.urandom(3 * CHUNK_BYTES + 12345)


@pytest.mark.parametrize("step", [1 << 12, 777_777, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 1 << 22])
def test_table_does_not_depend_on_how_the_bytes_came(step: int) -> None:
    chunks = ChunkTable()
    for at in range(0, len(DATA), step):
        chunks.update(memoryview(DATA)[at : at + step])
    assert chunks.table() == table_of(DATA)
    assert len(chunks) == 4
    assert chunks.size_bytes == len(DATA)


def test_table_is_what_xxhsum_says(tmp_path: Path) -> None:
    if shutil.which("xxhsum") is None:
        pytest.skip("xxhsum is not installed")
    path = tmp_path / "chunk"
    path.write_bytes(DATA[:CHUNK_BYTES])
    said = subprocess.run(["xxhsum", "-H3", path], capture_output=True, text=True, check=True).stdout
    chunks = ChunkTable()
    chunks.update(DATA[:CHUNK_BYTES])
    assert chunks.table().hex() in said


def test_empty_file_has_an_empty_table() -> None:
    assert ChunkTable().table() == b""
    assert len(ChunkTable()) == 0


def test_table_may_be_asked_for_in_the_middle() -> None:
    chunks = ChunkTable()
    chunks.update(DATA[:100])
    assert chunks.table() == table_of(DATA[:100])
    chunks.update(DATA[100:])
    assert chunks.table() == table_of(DATA)


def test_replaced_chunk_is_the_only_one_that_changes() -> None:
    chunks = ChunkTable()
    chunks.update(DATA)
    other = os.urandom(CHUNK_BYTES)
    chunks.replace(1, other)
    assert chunks.table() == table_of(DATA[:CHUNK_BYTES] + other + DATA[2 * CHUNK_BYTES :])


def test_only_whole_chunks_can_be_replaced_or_kept() -> None:
    chunks = ChunkTable()
    chunks.update(DATA)
    with pytest.raises(IndexError):
        chunks.replace(3, b"")
    with pytest.raises(IndexError):
        chunks.truncate(4)
    chunks.truncate(2)
    assert chunks.table() == table_of(DATA[: 2 * CHUNK_BYTES])


def test_image_digest_is_of_table_and_index() -> None:
    assert image_digest(b"table", b"index") == blake3.blake3(b"tableindex").hexdigest()


def test_damaged_chunk_is_named() -> None:
    table = table_of(DATA)
    check_chunk(table, 3, DATA[3 * CHUNK_BYTES :])
    with pytest.raises(IntegrityError, match=r"chunk 2 \(bytes from 2097152\) is damaged"):
        check_chunk(
            table, 2, bytes([DATA[2 * CHUNK_BYTES] ^ 1]) + DATA[2 * CHUNK_BYTES + 1 : 3 * CHUNK_BYTES]
        )


@pytest.mark.parametrize("number", [4, -1])
def test_chunk_outside_the_table_is_an_integrity_error(number: int) -> None:
    with pytest.raises(IntegrityError, match="not in the chunk table of 4 chunks"):
        check_chunk(table_of(DATA), number, b"")
