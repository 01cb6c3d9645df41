"""Indexes and segments with damaged footers and pages: each is an error, none ends the process."""

from __future__ import annotations

import os
import random
import tarfile
from pathlib import Path

import pytest

from nightferry.errors import IntegrityError
from nightferry.image.index import Index

GOLDEN = Path(__file__).parents[1] / "golden" / "image_format_1" / "image.tar"
BATCH = 500


@pytest.mark.parametrize("seed", range(16))
def test_no_damaged_index_ends_the_process(seed: int) -> None:
    """In a process of its own: C++ ends it by SIGABRT where an exception cannot pass."""
    with tarfile.open(GOLDEN) as tar:
        found = tar.extractfile(".nightferry/index.parquet")
        assert found is not None
        data = found.read()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _read_all(data, seed)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _read_all(data: bytes, seed: int) -> None:
    """Every reading of every damaged one: rows, or an error of ours."""
    chance = random.Random(seed)
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for _ in range(BATCH):
        hurt = bytearray(data)
        for _ in range(chance.choice((1, 1, 2, 4))):
            hurt[chance.randrange(chance.choice((4, footer)), len(hurt) - 8)] = chance.randrange(256)
        try:
            index = Index(bytes(hurt))
            list(index)
            index.lookup(b"x")
            list(index.select(lambda path: True))
        except IntegrityError:
            continue
