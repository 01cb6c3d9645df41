"""What is owed stays owed: groups, stores, destinations and disks that leave the site file, images lost on staging."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from nightferry.copies import verify
from nightferry.copies.rebuild import rebuild
from nightferry.copies.stream import note_there
from nightferry.errors import ConfigError, NightferryError
from nightferry.health import check
from nightferry.health.status import StoreStatus, status, stores_exit_code
from nightferry.model.load import load_site
from nightferry.model.records import RunRecord
from nightferry.night.report import NightResult, image_json, night_result
from nightferry.progress import QUIET, Cancel
from nightferry.restore import restore
from nightferry.restore.restore_group import plan_group, restore_group
from nightferry.retention import expire
from nightferry.site import nodes
from nightferry.site.opened import OpenSite
from nightferry.staging import owed
from nightferry.staging.images import staged_path
from tests.support import night
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

MakeSite = Callable[..., SmallSite]
DAY = timedelta(days=1)


class Place:
    """A site with a folder destination that goes away and comes back."""

    def __init__(self, site: SmallSite) -> None:
        self.site = site
        self.clock = HandClock()
        self.aside = site.objects.with_name("aside")

    def open(self) -> OpenSite:
        return self.site.open(self.clock)

    def leave(self) -> None:
        self.site.objects.rename(self.aside)
        self.site.objects.write_text("not a folder")

    def come_back(self) -> None:
        self.site.objects.unlink()
        self.aside.rename(self.site.objects)

    def night(self) -> NightResult:
        """A night a day later, whatever it ends with."""
        with self.open() as opened:
            try:
                night.night(opened, BACK_GROUP)
            except NightferryError:
                pass
            result = night_result(opened, opened.catalog.runs(BACK_GROUP)[0])
        self.clock.advance(DAY)
        return result

    def owing(self) -> RunRecord:
        """A whole night, then one whose copies in the folder are owed."""
        assert self.night().outcome == "Completed"
        self.leave()
        result = self.night()
        assert (result.outcome, len(result.missing_copies)) == ("CopyMissing", 2)
        return result.run


@pytest.fixture
def place(make_site: MakeSite) -> Place:
    return Place(make_site())


def rows(opened: OpenSite) -> dict[str, StoreStatus]:
    return {f"{s.group}/{s.store}": s for s in status(opened)}


def data_of(site: SmallSite, image: str) -> Path:
    return site.objects / "images" / image / "data"


def sha256(path: Path) -> str:
    return subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True).stdout.split()[0]


def test_a_renamed_storage_group_is_named_until_its_copies_are_there_and_they_still_come(
    place: Place,
) -> None:
    run = place.owing()
    place.site.write_file(stores={"SG9": ("a", "b")})
    place.site.build()
    result = place.night()
    assert result.outcome == "CopyMissing"
    assert {image for image, _ in result.owed_before} == {f"{run.run}.SG1.{s}.L0" for s in "ab"}
    with place.open() as opened:
        assert rows(opened)["SG1/a"].colour == "amber"
        assert "not in the site file" in rows(opened)["SG1/a"].reason
        staged = {s: sha256(staged_path(opened, opened.catalog.image(f"{run.run}.SG1.{s}.L0"))) for s in "ab"}
    place.come_back()
    assert place.night().outcome == "Completed"
    for store, digest in staged.items():
        assert sha256(data_of(place.site, f"{run.run}.SG1.{store}.L0")) == digest
    with place.open() as opened:
        assert "SG1/a" not in rows(opened)


def test_a_destination_that_left_the_site_file_is_owed_until_somebody_gives_it_up(place: Place) -> None:
    run = place.owing()
    place.site.write_file(copies=("tape",))
    image = f"{run.run}.SG1.a.L0"
    for _ in range(2):
        result = place.night()
        assert (result.outcome, result.exit_code) == ("CopyMissing", 20)
        assert (image, "folder") in result.owed_before
        assert any("destination folder is not in the site file" in reason for reason in result.reasons)
    with place.open() as opened:
        assert rows(opened)["SG1/a"].colour == "amber"
        assert image in rows(opened)["SG1/a"].reason
        assert any(f.id == "NF-OWED-001" and image in f.text for f in check.check(opened.loaded))
        said = expire.expire(opened, dry_run=True, progress=QUIET, cancel=Cancel()).undeliverable
        assert any(line.startswith(f"{image} owes 1 copy at folder") for line in said)
        with pytest.raises(ConfigError, match="needs a reason"):
            owed.forget_owed(opened, image, " ")
        owed.forget_owed(opened, image, "the folder's machine was sold")
        owed.forget_owed(opened, "SG1/b", "the folder's machine was sold")
    assert place.night().outcome == "Completed"
    with place.open() as opened:
        assert {s.colour for s in status(opened)} == {"green"}
        with pytest.raises(ConfigError, match="owes nothing"):
            owed.forget_owed(opened, image, "again")


def test_a_back_group_that_was_renamed_still_delivers_from_its_disk(place: Place) -> None:
    run = place.owing()
    place.come_back()
    text = place.site.file.read_text()
    place.site.file.write_text(text.replace("TEX-BACK-1", "TEX-BACK-9"))
    with place.open() as opened:
        owing = {o.image.image for o in owed.owed(opened, "TEX-BACK-9")}
        assert owing == {f"{run.run}.SG1.{s}.L0" for s in "ab"}
        assert owed.undeliverable(opened) == []


def test_an_owed_image_that_is_damaged_on_staging_is_made_again_from_another_copy(place: Place) -> None:
    run = place.owing()
    image = f"{run.run}.SG1.a.L0"
    with place.open() as opened:
        path = staged_path(opened, opened.catalog.image(image))
        digest = sha256(path)
        with path.open("r+b") as file:
            file.write(b"\xff\xff")
    place.come_back()
    result = place.night()
    assert (result.outcome, result.exit_code) == ("Completed", 0)
    assert sha256(data_of(place.site, image)) == digest


def test_an_owed_image_without_any_good_copy_is_lost_and_said_until_it_is_given_up(
    make_site: MakeSite,
) -> None:
    place = Place(make_site(copies=("folder",)))
    run = place.owing()
    image = f"{run.run}.SG1.a.L0"
    with place.open() as opened:
        staged_path(opened, opened.catalog.image(image)).unlink()
    place.come_back()
    for _ in range(2):
        result = place.night()
        assert (result.exit_code, result.lost) == (30, (image,))
        assert image in result.sentence()
    with place.open() as opened:
        assert (rows(opened)["SG1/a"].colour, stores_exit_code(status(opened))) == ("red", 30)
        assert image in rows(opened)["SG1/a"].reason
        record = opened.catalog.image(image)
        assert image_json(record, [], accepted=False, is_lost=owed.is_lost(opened, record))["state"] == "lost"
        place.site.write_file(
            stores={"SG2": ("c",)}
        )  # nothing of a lost one is on its way, wherever its group is
    with place.open() as opened:
        of_image = [f for f in check.check(opened.loaded) if image in f.text]
        assert [(f.id, f.severity) for f in of_image] == [("NF-OWED-002", "fail")]
        place.site.write_file(stores={"SG1": ("a", "b")})
    with place.open() as opened:
        owed.forget_owed(opened, image, "the disk was bad")
        assert {s.colour for s in status(opened)} == {"green"}
    assert place.night().exit_code == 0


def test_a_store_that_was_renamed_goes_on_with_its_images_when_somebody_says_so(make_site: MakeSite) -> None:
    place = Place(make_site(copies=("folder",)))
    assert place.night().outcome == "Completed"
    place.site.store("SG1/a").rename(place.site.store("SG1/mail"))
    place.site.write_file(stores={"SG1": ("mail", "b")})
    with place.open() as opened:
        assert rows(opened)["SG1/mail"].reason == "never backed up whole"
        with pytest.raises(ConfigError, match="SG1/b is still in the site file"):
            owed.adopt(opened, "SG1/b", "SG1/mail")
        owed.adopt(opened, "SG1/a", "SG1/mail")
        assert opened.catalog.selection("SG1").stores == ("mail", "b")
        found = restore.find_image(opened, "SG1", "mail")
        assert (found.store, rows(opened)["SG1/mail"].colour) == ("a", "green")
    assert place.night().outcome == "Completed"
    with place.open() as opened:
        assert restore.find_image(opened, "SG1", "mail").store == "mail"
        assert [i.store for i in opened.catalog.images("SG1", "mail")] == ["mail", "a"]


def test_one_line_of_nights_expires_across_a_rename_as_if_there_had_been_none(make_site: MakeSite) -> None:
    keep = "\n[retention]\nkeep_last = 2\n"
    place = Place(make_site(copies=("folder",)))
    for _ in range(2):
        assert place.night().outcome == "Completed"
    shutil.move(place.site.store("SG1/a"), place.site.store("SG1/mail"))
    place.site.write_file(stores={"SG1": ("mail", "b")})
    with place.open() as opened:
        owed.adopt(opened, "SG1/a", "SG1/mail")
    assert place.night().outcome == "Completed"
    place.site.file.write_text(place.site.file.read_text() + keep)
    with place.open() as opened:
        done = expire.expire(opened, reason="a test", progress=QUIET, cancel=Cancel())
        left = [
            (i.store, i.run)
            for i in opened.catalog.images("SG1", "mail")
            if not opened.catalog.expired(i.image)
        ]
        runs = [r.run for r in opened.catalog.runs()]
    assert left == [("mail", runs[0]), ("a", runs[1])]
    assert {row.image.run for row in done.gone} == {runs[2]}


def test_images_of_a_rebuilt_catalog_owe_nothing_and_can_still_be_copied_again(make_site: MakeSite) -> None:
    place = Place(make_site())
    assert place.night().outcome == "Completed"
    shutil.rmtree(place.site.home / "catalog")
    shutil.rmtree(place.site.disk)
    place.site.disk.mkdir()
    to = str(place.site.home / "catalog")
    rebuild(load_site(place.site.file), "folder", to, clock=place.clock, progress=QUIET, cancel=Cancel())
    with place.open() as opened:
        assert len(opened.catalog.images()) == 2
        assert owed.owed(opened) == []
        assert len(verify.missing_copies(opened, "tape")) == 2


def test_what_a_removed_back_group_owes_is_named_by_every_night(place: Place) -> None:
    run = place.owing()
    old = place.site.file.read_text()
    new_disk = place.site.home / "disk-2"
    new_disk.mkdir()
    place.come_back()
    text = old.replace("TEX-BACK-1", "TEX-BACK-2").replace(str(place.site.disk), str(new_disk))
    place.site.file.write_text(text.replace('name = "SG1"', 'name = "SG9"'))
    name = f"{run.run}.SG1.a.L0"
    for each in "ab":
        shutil.copytree(place.site.store(f"SG1/{each}"), place.site.store(f"SG9/{each}"), symlinks=True)
    with place.open() as opened:
        night.night(opened, "TEX-BACK-2")
        result = night_result(opened, opened.catalog.runs("TEX-BACK-2")[0])
        assert (result.outcome, result.exit_code) == ("CopyMissing", 20)
        assert (name, "folder") in result.owed_before
        assert "its BACK group TEX-BACK-1 is not in the site file" in result.notes[name, "folder"].text
        assert any(
            line.startswith(f"{name} owes 1 copy")
            for line in owed.describe_undeliverable(owed.undeliverable(opened))
        )
        for store in ("SG1/a", "SG1/b"):
            owed.forget_owed(opened, store, "the disk is gone")
        assert night_result(opened, result.run).outcome == "Completed"


def test_images_of_a_disk_that_is_not_mounted_are_not_lost(place: Place) -> None:
    place.owing()
    moved = place.site.disk.with_name("unmounted")
    place.site.disk.rename(moved)
    place.site.disk.mkdir()
    with place.open() as opened:
        assert owed.owed(opened)
        assert owed.lost(opened) == []
        assert not any("lost" in row.reason for row in rows(opened).values())
    place.site.disk.rmdir()
    moved.rename(place.site.disk)


def test_a_loss_is_on_record_for_nodes_without_the_disk_until_the_image_is_made_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = place.owing()
    name = f"{run.run}.SG1.a.L0"
    place.come_back()
    with place.open() as opened:
        image = opened.catalog.image(name)
        with staged_path(opened, image).open("r+b") as file:
            file.write(b"\xff\xff")
        for copy in opened.catalog.copies(name):
            opened.catalog.append(copy.model_copy(update={"state": "lost"}))
    result = place.night()
    assert result.exit_code == 30
    assert name in result.sentence()
    with place.open() as opened:
        monkeypatch.setattr(nodes, "has_disk", lambda *_: False)
        assert [i.image for i in owed.lost(opened)] == [name]
        assert "lost" in rows(opened)["SG1/a"].reason
        opened.catalog.append(image)
        assert owed.lost(opened) == []


def test_an_image_of_before_policies_were_recorded_whose_group_is_gone_owes_what_its_group_had(
    place: Place,
) -> None:
    run = place.owing()
    name = f"{run.run}.SG1.a.L0"
    with place.open() as opened:
        opened.catalog.append(opened.catalog.image(name).model_copy(update={"policy": None}))
    place.site.write_file(stores={"SG9": ("a", "b")})
    with place.open() as opened:
        assert {each.destination for each in owed.owed(opened) if each.image.image == name} == {"folder"}
        findings = [f.text for f in check.check(opened.loaded) if f.id == "NF-OWED-001"]
    assert any(text.startswith(name) and "SG1/a is not in the site file" in text for text in findings)


def test_a_renamed_group_is_restored_as_one_before_its_first_night(place: Place, tmp_path: Path) -> None:
    assert place.night().outcome == "Completed"
    content = {s: place.site.store(f"SG1/{s}") for s in "ab"}
    place.site.write_file(stores={"SG9": ("a", "b")})
    with place.open() as opened:
        owed.adopt(opened, "SG1", "SG9")
        plans = plan_group(opened, "SG9", tmp_path)
        done = restore_group(opened, plans, progress=QUIET, cancel=Cancel())
    assert [(each.store, each.exit_code) for each in done] == [("SG1/a", 0), ("SG1/b", 0)]
    for store, folder in content.items():
        assert subprocess.run(["diff", "-r", "--no-dereference", folder, tmp_path / store]).returncode == 0


def test_an_image_that_was_given_up_while_only_damaged_copies_are_left_is_nobodys_newest(
    make_site: MakeSite,
) -> None:
    place = Place(make_site())
    run = place.owing()
    image = f"{run.run}.SG1.a.L0"
    with place.open() as opened:
        path = staged_path(opened, opened.catalog.image(image))
        with path.open("r+b") as file:
            file.write(b"\xff\xff")
        for copy in opened.catalog.copies(image):
            opened.catalog.append(copy.model_copy(update={"state": "damaged"}))
    place.come_back()
    with place.open() as opened, pytest.raises(NightferryError):
        night.stage_two(opened, run)
    with place.open() as opened:
        assert owed.is_lost(opened, opened.catalog.image(image))
        owed.forget_owed(opened, image, "both are bad")
        result = night_result(opened, run)
        assert (result.outcome, result.exit_code) == ("Partial", 3)
        assert f"given up: {image}" in result.sentence()
        older = restore.find_image(opened, "SG1", "a")
        assert older.run != run.run
        assert rows(opened)["SG1/a"].image == older


def test_the_reason_of_a_destination_that_is_back_is_not_told_again(place: Place) -> None:
    run = place.owing()
    with place.open() as opened:
        assert any(reason.startswith("folder: ") for reason in night_result(opened, run).reasons)
        note_there(opened, "folder")
        assert night_result(opened, run).reasons == []
