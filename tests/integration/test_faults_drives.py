"""A drive that cannot read a cartridge which another one can: nobody loses a copy by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nightferry.copies import verify
from nightferry.destination.tape.drives.base import RECORD_BYTES, Mark
from nightferry.destination.tape.drives.virtual import VirtualDrive
from nightferry.errors import IntegrityError, MediumDamaged
from nightferry.model.records import CopyRecord, DriveRecord
from nightferry.progress import QUIET, Cancel
from nightferry.restore import restore
from nightferry.site.opened import OpenSite
from tests.support import night
from tests.support.outside import compare_tree, tape_copies
from tests.support.small_site import BACK_GROUP, SmallSite
from tests.support.tapes import Said

MakeSite = Callable[..., SmallSite]
BadIn = Callable[..., list[int]]


@pytest.fixture
def unreadable_in(monkeypatch: pytest.MonkeyPatch) -> BadIn:
    """Drives that read no record of 1 MiB of any cartridge from now on; returns where that was noticed."""
    read = VirtualDrive.read_record

    def install(*drives: int) -> list[int]:
        failed: list[int] = []

        def reading(drive: VirtualDrive, limit: int = RECORD_BYTES) -> bytes | Mark:
            record = read(drive, limit)
            if drive.number in drives and not isinstance(record, Mark) and len(record) == RECORD_BYTES:
                failed.append(drive.number)
                raise MediumDamaged(f"drive {drive.number}: unrecovered read error")
            return record

        monkeypatch.setattr(VirtualDrive, "read_record", reading)
        return failed

    return install


def copy_of(opened: OpenSite, store: str, destination: str = "tape") -> CopyRecord:
    opened.catalog.refresh()
    image = restore.find_image(opened, "SG1", store)
    [copy] = [c for c in opened.catalog.copies(image.image) if c.destination == destination]
    return copy


def bring_back(opened: OpenSite, to: Path, said: Said, copy: str | None = None) -> str:
    image = restore.find_image(opened, "SG1", "a")
    plan = restore.plan_restore(opened, image, [], to, copy=copy)
    return restore.restore(opened, plan, progress=said, cancel=Cancel()).copy


def set_aside(opened: OpenSite) -> list[tuple[int, str]]:
    opened.catalog.refresh()
    return [(record.drive, record.state) for record in opened.catalog.all(DriveRecord)]


def test_a_restore_reads_on_in_the_drive_that_can(
    make_site: MakeSite, unreadable_in: BadIn, tmp_path: Path
) -> None:
    site = make_site(copies=("tape",))
    with site.open() as opened:
        night.night(opened, BACK_GROUP)
    failed = unreadable_in(0)
    with site.open() as opened:
        assert bring_back(opened, tmp_path / "back", Said(), "tape") == "tape"
        assert copy_of(opened, "a").state == "verified"
        assert set_aside(opened) == [(0, "set aside")]
    assert failed == [0]
    assert compare_tree(site.store("SG1/a"), tmp_path / "back") == ""


def test_a_restore_takes_the_next_copy_when_two_drives_cannot_read(
    make_site: MakeSite, unreadable_in: BadIn, tmp_path: Path
) -> None:
    site = make_site()
    with site.open() as opened:
        night.night(opened, BACK_GROUP)
        image = restore.find_image(opened, "SG1", "a")
        plan = restore.plan_restore(opened, image, [], tmp_path / "back")
        by_name = {place.source: place for place in plan.sources}
        places = (by_name["tape"], by_name["folder"])
        said, failed = Said(), unreadable_in(0, 1)
        done = restore.restore(opened, replace(plan, sources=places), progress=said, cancel=Cancel())
        assert (done.copy, done.damaged) == ("folder", ("tape",))
        damaged = copy_of(opened, "a")
        assert (damaged.state, copy_of(opened, "b").state) == ("damaged", "verified")
        assert "neither drive" in damaged.note
        assert set_aside(opened) == []
    assert sorted(failed) == [0, 1]
    assert compare_tree(site.store("SG1/a"), tmp_path / "back") == ""


def test_the_read_back_of_a_night_is_done_in_another_drive(make_site: MakeSite, unreadable_in: BadIn) -> None:
    """What the drive wrote, and cannot read, is whole: it is not written again."""
    site = make_site(copies=("tape",), stores={"SG1": ("a",)})
    failed = unreadable_in(0)
    with site.open() as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
        assert copy_of(opened, "a").state == "verified"
        assert set_aside(opened) == [(0, "set aside")]
    assert failed == [0]
    assert len(tape_copies(site.library)) == 1


@pytest.mark.parametrize("both", [False, True], ids=["one drive", "both drives"])
def test_verify_blames_the_drive_or_the_copy(make_site: MakeSite, unreadable_in: BadIn, both: bool) -> None:
    site = make_site(copies=("tape",), stores={"SG1": ("a",)})
    with site.open() as opened:
        night.night(opened, BACK_GROUP)
    unreadable_in(0, *([1] if both else []))
    with site.open() as opened:
        [checked] = verify.verify_copies(opened, "tape", progress=QUIET, cancel=Cancel())
        assert checked.copy.state == ("damaged" if both else "verified")
        assert bool(checked.error) == both


def test_wrong_bytes_are_wrong_in_every_drive_and_are_read_once(make_site: MakeSite, tmp_path: Path) -> None:
    site = make_site(copies=("tape",), stores={"SG1": ("a",)})
    with site.open() as opened:
        night.night(opened, BACK_GROUP)
    [copy] = tape_copies(site.library)
    with copy.data.open("r+b") as file:
        file.seek(700_000)
        file.write(bytes(200))
    with site.open() as opened:
        before = [c.mounts for c in opened.catalog.cartridges("tape") if c.images]
        said = Said()
        with pytest.raises(IntegrityError):
            bring_back(opened, tmp_path / "back", said, "tape")
        assert set_aside(opened) == []
        assert not [line for line in said.lines if "another drive" in line]
        opened.close()
    with site.open() as opened:
        assert [c.mounts for c in opened.catalog.cartridges("tape") if c.images] == [before[0] + 1]
