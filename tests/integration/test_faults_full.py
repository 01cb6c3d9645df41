"""A full staging disk: the store that does not fit fails alone and leaves nothing."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from io import RawIOBase
from pathlib import Path
from typing import Any, NoReturn

import pytest

from nightferry.errors import StagingFull
from nightferry.model.records import RunRecord
from nightferry.night import gate, stage
from nightferry.progress import QUIET, Cancel
from nightferry.site.opened import OpenSite
from nightferry.source import files
from nightferry.staging import staged_files
from nightferry.transfer import newfile
from tests.conftest import needs
from tests.support import night
from tests.support.disks import ext4
from tests.support.outside import compare_tar
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

pytestmark = needs("mkfs.ext4", "mount", "tar")

MIB = 1 << 20
DISK_BYTES = 32 * MIB


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real ext4 of 32 MiB, mounted."""
    with ext4(tmp_path, DISK_BYTES) as place:
        yield place


def on_small_disk(make_site: Callable[..., SmallSite], disk: Path, **options: Any) -> SmallSite:
    return make_site(back=disk, stores={"SG1": ("a", "big", "c")}, copies=("folder",), **options)


def one_failed(opened: OpenSite, site: SmallSite, record: RunRecord, says: str) -> None:
    """SG1/big is missing for want of room, the others are whole, and nothing of it is left."""
    view = gate.evaluate(opened, record)
    assert view.state == "held"
    assert [(m.name, m.state) for m in view.missing] == [("SG1/big", "missing")]
    assert says in view.missing[0].reason
    assert [f.exit_code for f in opened.catalog.failures(record.run)] == [3]
    for store in ("a", "c"):
        (tar,) = site.disk.glob(f"SG1/{store}/*.tar")
        assert compare_tar(tar, site.store(f"SG1/{store}")) == ""
    assert list(site.disk.glob("SG1/big/*")) == []
    assert list(site.disk.glob(".nightferry/scratch/*")) == []


def write_for_ever(file: RawIOBase, data: bytes) -> NoReturn:
    while True:
        file.write(data)
        os.fsync(file.fileno())


def fill_up(hog: Path) -> None:
    """Takes the disk's last block."""
    with hog.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 16, 1 << 12, 1) * 2:
            with pytest.raises(OSError, match="No space left"):
                write_for_ever(file, bytes(size))


def free_bytes(disk: Path) -> int:
    status = os.statvfs(disk)
    return status.f_bavail * status.f_frsize


def test_a_store_that_is_too_large_fails_alone(make_site: Callable[..., SmallSite], small_disk: Path) -> None:
    site = on_small_disk(make_site, small_disk)
    (site.store("SG1/big") / "huge.bin").write_bytes(os.urandom(DISK_BYTES))
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        one_failed(opened, site, record, "SG1/big needs 33")
        # It is final: asking again changes nothing, making it fit does.
        with pytest.raises(StagingFull) as refused:
            stage.stage_store(opened, record, "SG1", "big", progress=QUIET, cancel=Cancel())
        assert (refused.value.retryable, refused.value.exit_code) == (False, 3)
        (site.store("SG1/big") / "huge.bin").unlink()
        assert night.night(opened, BACK_GROUP).result == "whole"


def test_keep_free_is_kept_free(make_site: Callable[..., SmallSite], small_disk: Path) -> None:
    site = on_small_disk(make_site, small_disk, keep_free="20 MiB")
    (site.store("SG1/big") / "more.bin").write_bytes(os.urandom(8 * MIB))
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        one_failed(opened, site, record, "may be used")
        assert free_bytes(small_disk) >= 20 * MIB
    site.write_file(keep_free="1 MiB")
    with site.open(HandClock()) as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
        assert free_bytes(small_disk) >= 1 * MIB


def test_a_store_that_grows_beyond_the_disk_fails_alone(
    make_site: Callable[..., SmallSite], small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = on_small_disk(make_site, small_disk)
    growing = site.store("SG1/big") / "zz.bin"
    growing.write_bytes(b"small when it was looked at")
    estimate = files.FilesSource.estimate

    def then_grow(self: files.FilesSource) -> object:
        before = estimate(self)
        if b"/SG1/big" in self._path:
            growing.write_bytes(os.urandom(DISK_BYTES))
        return before

    monkeypatch.setattr(files.FilesSource, "estimate", then_grow)
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        one_failed(opened, site, record, "no space left")


def test_a_disk_that_cannot_reserve_room_still_fails_one_store_alone(
    make_site: Callable[..., SmallSite], small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without fallocate(2), and with a disk that somebody else fills meanwhile, it shows in the middle."""
    site = on_small_disk(make_site, small_disk)
    (site.store("SG1/big") / "huge.bin").write_bytes(os.urandom(20 * MIB))
    monkeypatch.setattr(newfile, "preallocate", lambda fd, size: False)
    hog = small_disk / "hog"
    write = files.FilesSource.write

    def hogged(self: files.FilesSource, *args: Any, **kwargs: Any) -> None:
        hog.unlink(
            missing_ok=True
        )  # it stays until the next store: the ring still writes when this one was read
        if b"/SG1/big" in self._path:
            with hog.open("wb") as file:
                file.write(bytes(15 * MIB))
                file.flush()
                os.fsync(file.fileno())
        write(self, *args, **kwargs)

    monkeypatch.setattr(files.FilesSource, "write", hogged)
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        one_failed(opened, site, record, "no space left")


def test_no_room_for_the_side_files_is_no_room(
    make_site: Callable[..., SmallSite], small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image fitted to the last block: its chunk table does not."""
    site = on_small_disk(make_site, small_disk)
    keep = staged_files.replace_file

    def hogged(path: Path, data: bytes) -> None:
        if "/SG1/big" in os.path.realpath(path):
            fill_up(small_disk / "hog")
        try:
            keep(path, data)
        finally:
            (small_disk / "hog").unlink(missing_ok=True)

    monkeypatch.setattr(staged_files, "replace_file", hogged)
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        one_failed(opened, site, record, "no space left")


def test_a_database_whose_copy_does_not_fit_fails_alone(
    make_site: Callable[..., SmallSite], small_disk: Path
) -> None:
    """A database is copied to staging's scratch first: that it has no room is no fault of the database."""
    site = on_small_disk(make_site, small_disk)
    database = site.home / "mail.db"
    with closing(sqlite3.connect(database)) as mail, mail:
        mail.execute("create table mail (body blob)")
        mail.execute("insert into mail values (?)", (os.urandom(18 * MIB),))
    text = site.file.read_text()
    old = f'kind = "files"\n  path = "{site.store("SG1/big")}"'
    assert old in text
    site.file.write_text(text.replace(old, f'kind = "sqlite"\n  path = "{database}"'))
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        one_failed(opened, site, record, "no space in")
