from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nightferry.transfer import files
from nightferry.transfer.durable import durable_rename
from nightferry.transfer.files import data_extents, preallocate, reopen_direct


def extents_of(path: Path, size: int) -> list[tuple[int, int]]:
    fd = os.open(path, os.O_RDONLY)
    try:
        return data_extents(fd, size)
    finally:
        os.close(fd)


def sparse(path: Path, size: int, *pieces: tuple[int, int]) -> Path:
    with open(path, "wb") as file:
        file.truncate(size)
        for offset, length in pieces:
            file.seek(offset)
            file.write(b"x" * length)
    return path


MIB = 1 << 20


def test_extents_leave_the_holes_out(tmp_path: Path) -> None:
    path = sparse(tmp_path / "f", 10 * MIB, (MIB, MIB), (5 * MIB, 4096))
    assert extents_of(path, 10 * MIB) == [(MIB, MIB), (5 * MIB, 4096)]


def test_extents_of_nothing_and_of_a_hole(tmp_path: Path) -> None:
    assert extents_of(sparse(tmp_path / "empty", 0), 0) == []
    assert extents_of(sparse(tmp_path / "hole", MIB), MIB) == []


def test_extents_stop_at_the_size_asked_for(tmp_path: Path) -> None:
    path = sparse(tmp_path / "f", 4 * MIB, (0, 4 * MIB))
    assert extents_of(path, MIB + 5) == [(0, MIB + 5)]
    assert extents_of(path, 9 * MIB) == [(0, 4 * MIB)]


def test_extents_of_a_file_that_ends_in_a_hole(tmp_path: Path) -> None:
    assert extents_of(sparse(tmp_path / "f", 3 * MIB, (0, MIB)), 3 * MIB) == [(0, MIB)]


def test_file_system_without_holes_has_one_extent() -> None:
    fd = os.open("/proc/self/status", os.O_RDONLY)
    try:
        assert data_extents(fd, 100) == [(0, 100)]
    finally:
        os.close(fd)


def test_renamed_file_has_only_its_new_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "d").mkdir()
    durable_rename(tmp_path / "a", tmp_path / "d" / "b")
    assert not (tmp_path / "a").exists()
    assert (tmp_path / "d" / "b").read_bytes() == b"1"


def test_preallocated_file_has_its_room(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    try:
        assert preallocate(fd, MIB)
        assert os.fstat(fd).st_size == MIB
        assert os.fstat(fd).st_blocks * 512 >= MIB
    finally:
        os.close(fd)


def test_what_does_not_fit_takes_no_room_from_anybody_meanwhile(tmp_path: Path) -> None:
    def neighbour() -> None:
        for turn in range(200):
            (tmp_path / f"n{turn}").write_bytes(bytes(10_000))

    room = os.statvfs(tmp_path)
    fd = os.open(tmp_path, os.O_RDWR | os.O_TMPFILE)
    try:
        with ThreadPoolExecutor(1) as pool:
            written = pool.submit(neighbour)
            while not written.done():
                with pytest.raises(OSError, match="No space left"):
                    preallocate(fd, room.f_bfree * room.f_frsize * 4)
        written.result()
        assert os.fstat(fd).st_blocks == 0
    finally:
        os.close(fd)


def test_room_that_others_take_meanwhile_is_seen_before_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_STEP_BYTES", MIB)
    rooms = iter([3 * MIB, 1.5 * MIB])
    monkeypatch.setattr(files, "_room", lambda fd: next(rooms))
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    try:
        with pytest.raises(OSError, match="No space left"):
            preallocate(fd, 3 * MIB)
        assert os.fstat(fd).st_size == MIB
    finally:
        os.close(fd)


def test_preallocation_that_is_not_supported_says_so() -> None:
    fd = os.open("/proc/self/comm", os.O_WRONLY)
    try:
        assert not preallocate(fd, MIB)
    finally:
        os.close(fd)


def test_c_library_without_fallocate_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_fallocate", lambda: None)
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    try:
        assert not preallocate(fd, MIB)
    finally:
        os.close(fd)


def test_reopened_descriptor_is_another_one(tmp_path: Path) -> None:
    import fcntl

    (tmp_path / "f").write_bytes(b"x")
    fd = os.open(tmp_path / "f", os.O_RDONLY)
    direct = reopen_direct(fd)
    assert direct is not None
    assert fcntl.fcntl(direct, fcntl.F_GETFL) & os.O_DIRECT
    assert not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT
    os.close(fd)
    os.close(direct)


def test_what_cannot_be_read_unbuffered_is_not_reopened() -> None:
    fd = os.open("/proc/self/status", os.O_RDONLY)
    try:
        assert reopen_direct(fd) is None
    finally:
        os.close(fd)
