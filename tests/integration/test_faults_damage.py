"""A flipped byte: never copied, never restored, always marked; the next copy steps in."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from nightferry.copies import sources, verify
from nightferry.errors import CopyMissing, DestinationError, IntegrityError, MediumDamaged
from nightferry.health.status import status
from nightferry.model.records import ImageRecord
from nightferry.night.report import night_result
from nightferry.progress import QUIET, Cancel
from nightferry.restore import restore
from nightferry.site.opened import OpenSite
from nightferry.staging.images import is_staged, staged_path
from tests.support import night
from tests.support.brought import bring_back, states
from tests.support.outside import compare_tar, compare_tree, folder_copies, tape_copies
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite
from tests.support.tapes import Said

MakeSite = Callable[..., SmallSite]


def flip(path: Path, at: int = 700_000) -> None:
    """Turns over one byte, at an offset that lies inside the large file of store SG1/a."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0xFF]))


def copy_at(site: SmallSite, destination: str, image: str) -> Path:
    """The file that holds an image's bytes at a destination."""
    if destination == "folder":
        return folder_copies(site.objects)[image]
    return [copy.data for copy in tape_copies(site.library) if copy.image == image][-1]


def newest(opened: OpenSite, store: str = "a") -> ImageRecord:
    return restore.find_image(opened, "SG1", store)


def test_a_byte_flipped_on_staging_never_becomes_a_copy(make_site: MakeSite, tmp_path: Path) -> None:
    site = make_site()
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        image = newest(opened)
        flip(staged_path(opened, image))
        with pytest.raises(IntegrityError, match="on staging is damaged: chunk 0"):
            night.stage_two(opened, record)
        result = night_result(opened, record)
        assert (result.outcome, result.exit_code, result.lost) == ("CopyMissing", 30, (image.image,))
        assert image.image not in folder_copies(site.objects)
        assert image.image not in [copy.image for copy in tape_copies(site.library)]
        assert "verified" not in states(opened, image.image).values()
        assert set(states(opened, newest(opened, "b").image).values()) == {"verified"}
        (red, green) = status(opened)
        assert (red.colour, green.colour, green.reason) == ("red", "green", "")
        assert red.reason.startswith(f"no readable copy; image {image.image} is lost")
        assert image.image not in site.staged()
        with pytest.raises(CopyMissing):
            bring_back(opened, tmp_path / "back")
        before = site.staged()
        # The night again stages that store again, and that store alone.
        again = night.night(opened, BACK_GROUP)
        assert (again.run, again.result) == (record.run, "whole")
        assert [s.colour for s in status(opened)] == ["green", "green"]
        assert before.items() <= site.staged().items()
        assert len(tape_copies(site.library)) == len(folder_copies(site.objects)) == 2
        bring_back(opened, tmp_path / "back")
        assert compare_tree(site.store("SG1/a"), tmp_path / "back") == ""
        # What could have been salvaged from it stays until there is another.
        (left,) = site.disk.glob("SG1/a/*.damaged")
        night.night(opened, BACK_GROUP, new=True)
        assert not left.exists()


@pytest.mark.parametrize("how", ["flipped", "gone"])
def test_an_image_whose_side_file_is_damaged_on_staging_gives_its_room_back(
    make_site: MakeSite, how: str
) -> None:
    site, clock = make_site(), HandClock()
    with site.open(clock) as opened:
        night.nights(opened, clock, 1)
        (meta,) = site.disk.glob("SG1/a/*.meta.json")
        if how == "gone":
            meta.unlink()
        else:
            flip(meta, 1)
        night.nights(opened, clock, 1)
    assert sorted(file.name for file in site.disk.glob("SG1/a/*")) == [
        f"20261111-TEX-BACK-1.SG1.a.L0{ending}" for ending in (".chunks", ".meta.json", ".tar")
    ]


@pytest.mark.parametrize("how", ["flipped", "gone"])
def test_an_owed_image_without_its_chunk_table_on_staging_is_not_lost(make_site: MakeSite, how: str) -> None:
    site, clock = make_site(copies=("folder",)), HandClock()
    with site.open(clock) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        (chunks,) = site.disk.glob("SG1/a/*.chunks")
        before = chunks.read_bytes()
        if how == "gone":
            chunks.unlink()
        else:
            flip(chunks, 3)
        night.stage_two(opened, record)
        assert opened.catalog.run(record.run).result == "whole"
        assert chunks.read_bytes() == before
        assert compare_tar(folder_copies(site.objects)[newest(opened).image], site.store("SG1/a")) == ""


def test_a_byte_flipped_on_staging_is_never_restored(make_site: MakeSite, tmp_path: Path) -> None:
    site = make_site()
    with site.open(HandClock()) as opened:
        night.stage_one(opened, BACK_GROUP)
        flip(staged_path(opened, newest(opened)))
        with pytest.raises(IntegrityError):
            bring_back(opened, tmp_path / "back")
        assert not [p for p in (tmp_path / "back").rglob("*") if p.name == "big.bin"]


@pytest.mark.parametrize(("hurt", "other"), [("folder", "tape"), ("tape", "folder")])
def test_a_byte_flipped_in_a_copy_is_found_marked_and_mended(
    make_site: MakeSite, tmp_path: Path, hurt: str, other: str, caplog: pytest.LogCaptureFixture
) -> None:
    site = make_site()
    with site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
        image = newest(opened)
        flip(copy_at(site, hurt, image.image))
        found = {
            (c.copy.image, c.copy.destination): (c.copy.state, c.exit_code)
            for c in verify.verify_copies(opened, progress=QUIET, cancel=Cancel())
        }
        assert found.pop((image.image, hurt)) == ("damaged", 30)
        assert set(found.values()) == {("verified", 0)}
        assert "is damaged" in caplog.text
        assert status(opened)[0].colour == "amber"
        assert [p.source for p in sources.sources_of(opened, image)] == ["staging", other]

        missing = verify.missing_copies(opened, hurt)
        assert [i.image for i in missing] == [image.image]
        made = verify.remake_copy(opened, image, hurt, progress=QUIET, cancel=Cancel())
        assert (made.state, made.epoch) == ("verified", 2)
        assert compare_tar(copy_at(site, hurt, image.image), site.store("SG1/a")) == ""
        assert status(opened)[0].colour == "green"
        bring_back(opened, tmp_path / "back", copy=hurt)
        assert compare_tree(site.store("SG1/a"), tmp_path / "back") == ""


def test_a_damaged_copy_that_nothing_can_mend_is_named(make_site: MakeSite) -> None:
    site, clock = make_site(copies=("folder",)), HandClock()
    with site.open(clock) as opened:
        night.night(opened, BACK_GROUP)
        image = newest(opened)
        copy_at(site, "folder", image.image).unlink()
        clock.advance(timedelta(days=1))
        night.night(opened, BACK_GROUP)
        assert not is_staged(opened, image)
        list(verify.verify_copies(opened, progress=QUIET, cancel=Cancel()))
        assert [i.image for i in verify.missing_copies(opened, "folder")] == [image.image]
        with pytest.raises(CopyMissing, match=f"no readable copy of image {image.image}: folder damaged"):
            verify.remake_copy(opened, image, "folder", progress=QUIET, cancel=Cancel())


@pytest.mark.parametrize(("hurt", "other"), [("folder", "tape"), ("tape", "folder")])
def test_a_restore_goes_on_with_the_next_copy_and_says_so(
    make_site: MakeSite, tmp_path: Path, hurt: str, other: str, caplog: pytest.LogCaptureFixture
) -> None:
    site = make_site()
    with site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
        image = newest(opened)
        flip(copy_at(site, hurt, image.image))
        flip(staged_path(opened, image), at=900_000)
        plan = restore.plan_restore(opened, image, [], tmp_path / "back")
        # Nearest first would be the folder: put the hurt one before the sound one, whichever it is.
        places = sorted(plan.sources, key=lambda place: ("staging", hurt, other).index(place.source))
        sink = Said()
        with caplog.at_level(logging.WARNING):
            done = restore.restore(
                opened,
                restore.RestorePlan(image, tuple(places), plan.rows, plan.target),
                progress=sink,
                cancel=Cancel(),
            )
        assert (done.copy, done.damaged, done.is_complete) == (other, ("staging", hurt), True)
        assert compare_tree(site.store("SG1/a"), tmp_path / "back") == ""
        assert states(opened, image.image) == {hurt: "damaged", other: "verified"}
        failed = [
            text.split(" from ")[1].split(":")[0] for text in sink.lines if text.startswith("cannot read ")
        ]
        assert failed == ["staging", hurt]


@pytest.mark.parametrize("hurt", ["folder", "tape"])
def test_with_no_other_copy_nothing_is_left_looking_whole(
    make_site: MakeSite, tmp_path: Path, hurt: str
) -> None:
    site = make_site(copies=(hurt,))
    with site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
        image = newest(opened)
        flip(copy_at(site, hurt, image.image))
        back = tmp_path / "back"
        with pytest.raises(IntegrityError) as refused:
            bring_back(opened, back, copy=hurt)
        assert refused.value.exit_code == 30
        assert states(opened, image.image) == {hurt: "damaged"}
        # Every file that has its name has its content, and what was being written has none.
        left = [p for p in back.rglob("*") if p.is_file() and not p.is_symlink()]
        assert all(p.read_bytes() == (site.store("SG1/a") / p.relative_to(back)).read_bytes() for p in left)
        assert "big.bin" not in [p.name for p in left]


@pytest.mark.parametrize(("hurt", "other"), [("folder", "tape"), ("tape", "folder")])
def test_a_copy_that_was_cut_off_is_marked_by_the_restore_that_meets_it(
    make_site: MakeSite, tmp_path: Path, hurt: str, other: str
) -> None:
    site = make_site()
    with site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
        image = newest(opened)
        path = copy_at(site, hurt, image.image)
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 5000)
        opened.close()  # the drive holds what it knew of the cartridge
        with pytest.raises((MediumDamaged, IntegrityError)):
            bring_back(opened, tmp_path / "never", copy=hurt)
        assert states(opened, image.image) == {hurt: "damaged", other: "verified"}
        assert bring_back(opened, tmp_path / "back", copy=other).is_complete
        assert compare_tree(site.store("SG1/a"), tmp_path / "back") == ""


def test_wrong_bytes_weigh_more_than_a_destination_that_is_away(make_site: MakeSite, tmp_path: Path) -> None:
    site = make_site()
    with site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
        image = newest(opened)
        flip(copy_at(site, "folder", image.image))
        staged_path(opened, image).unlink()
        opened.close()
        site.library.rename(site.home / "away")
        with pytest.raises((IntegrityError, DestinationError)) as refused:
            bring_back(opened, tmp_path / "back")
        assert refused.value.exit_code == 30
        assert states(opened, image.image) == {"folder": "damaged", "tape": "verified"}
