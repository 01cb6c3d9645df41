"""Locks on drives where the folder that holds them cannot be written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nightferry.destination.tape.drives.lock import try_lock
from tests.conftest import needs
from tests.support.disks import bound_read_only


@needs("mount")
def test_a_lock_that_is_there_is_taken_where_nothing_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "drive.lock"
    path.parent.mkdir()
    first = try_lock(path, "a")
    assert first is not None
    first.release()
    before = path.read_bytes()
    with bound_read_only(path.parent):
        lock = try_lock(path, "b")
        assert lock is not None
        assert (lock.untouched, lock.former) == (False, "a")
        assert try_lock(path, "c") is None, "it keeps others out all the same"
        lock.release()
        with pytest.raises(OSError, match="Read-only"):
            try_lock(path.parent / "another.lock", "b")
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["drive.lock"]
