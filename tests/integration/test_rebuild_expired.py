"""What has expired is gone for a rebuild, too; what is owed and nowhere is named once, and given up with a word."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from nightferry.copies.delivery import deliver_catalog
from nightferry.errors import Cancelled
from nightferry.model.records import CopyRecord
from nightferry.night.report import night_result
from nightferry.progress import QUIET, Cancel
from nightferry.retention import expire
from tests.support import night, toml
from tests.support.command_site import Command, Ran
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite
from tests.support.tapes import Said

MakeSite = Callable[..., SmallSite]
DAY = timedelta(days=1)
KEEP_2 = '[retention]\nkeep_last = 2\nat_most = "90 %"\n'
AT = ("folder", "other")


@pytest.fixture
def site(make_site: MakeSite, tmp_path: Path) -> SmallSite:
    """Two destinations that are folders; the newest two images of each store are kept."""
    (tmp_path / "other").mkdir()
    return make_site(copies=AT, more=KEEP_2 + toml.folder(tmp_path / "other", "other"))


@pytest.fixture
def other(site: SmallSite, tmp_path: Path) -> Path:
    return tmp_path / "other"


def nights(site: SmallSite, clock: HandClock, count: int) -> None:
    """Nights, each with its copies of the catalog."""
    with site.open(clock) as opened:
        for _ in range(count):
            assert night.night(opened, BACK_GROUP).result == "whole"
            for name in AT:
                deliver_catalog(opened, name, clock.now())
            clock.advance(DAY)


def run_expire(site: SmallSite, clock: HandClock, destination: str | None = None) -> expire.Expiry:
    with site.open(clock) as opened:
        return expire.expire(opened, destination, reason="a test", progress=QUIET, cancel=Cancel())


def rebuild(site: SmallSite, nightferry: Command, copy: str = "folder") -> Ran:
    """The catalog is lost, and made again from a destination."""
    shutil.rmtree(site.home / "catalog")
    new = site.home / "catalog"
    return nightferry(site.file, "catalog", "rebuild", "--copy", copy, "--to", new, "--json")


def accept(site: SmallSite, nightferry: Command, *more: str) -> Ran:
    return nightferry(site.file, "catalog", "accept", "--reason", "a test", "--json", *more)


def listed(site: SmallSite, nightferry: Command) -> set[str]:
    """The images that are there, as the command line says."""
    return {image["image"] for image in nightferry(site.file, "images", "--json").document["images"]}


def folders(place: Path) -> set[str]:
    return {path.name for path in (place / "images").iterdir()}


def next_night(site: SmallSite, clock: HandClock) -> int:
    with site.open(clock) as opened:
        code = night_result(opened, night.night(opened, BACK_GROUP)).exit_code
    clock.advance(DAY)
    return code


@pytest.mark.parametrize("copy", AT)
def test_a_rebuild_after_an_expiry_lists_what_is_there_and_nights_verify_status_and_expire_are_green(
    site: SmallSite, other: Path, nightferry: Command, copy: str
) -> None:
    clock = HandClock()
    nights(site, clock, 4)
    done = run_expire(site, clock)
    assert (len(done.gone), done.undelivered) == (8, {})
    ran = rebuild(site, nightferry, copy)
    assert (ran.code, ran.document["lost"], ran.document["missing"]) == (0, [], [])
    assert listed(site, nightferry) == folders(site.objects) == folders(other)
    accepted = accept(site, nightferry)
    assert (accepted.code, accepted.document["given_up"]) == (0, [])
    assert next_night(site, clock) == 0
    assert nightferry(site.file, "verify").code == 0
    assert run_expire(site, clock).exit_code == 0
    with site.open(clock) as opened:
        assert {c.state for c in opened.catalog.all(CopyRecord)} == {"verified", "expired"}


def test_an_expiry_that_removes_nothing_delivers_nothing(site: SmallSite) -> None:
    clock = HandClock()
    nights(site, clock, 2)
    before = sorted((site.objects / "catalog").iterdir())
    run_expire(site, clock)
    assert sorted((site.objects / "catalog").iterdir()) == before


def test_a_destination_that_is_away_gets_its_copy_of_the_catalog_with_the_next_night(
    site: SmallSite, other: Path, nightferry: Command
) -> None:
    clock = HandClock()
    nights(site, clock, 4)
    other.rename(other.with_name("away"))
    text = site.file.read_text()
    site.file.write_text(text.replace("keep_last = 2", "keep_last = 3"))
    ran = nightferry(site.file, "expire", "--copy", "folder", "--yes", "--reason", "a test", "--json")
    assert (ran.code, ran.err.count("Traceback")) == (0, 0)
    [said] = ran.document["undelivered"]
    assert (said["destination"], "other" in said["message"]) == ("other", True)
    assert len(folders(site.objects)) == 6
    shown = nightferry(site.file, "expire", "--copy", "other")
    assert shown.code == 20
    other.with_name("away").rename(other)
    nights(site, clock, 1)
    ran = rebuild(site, nightferry, "other")
    assert (ran.code, ran.document["lost_elsewhere"]) == (0, [])


def test_a_stopped_expiry_is_known_at_the_destinations_once_the_next_one_has_ended_it(
    site: SmallSite, other: Path, nightferry: Command
) -> None:
    clock, cancel = HandClock(), Cancel()
    nights(site, clock, 4)

    class Stops(Said):
        def say(self, text: str, subject: str = "") -> None:
            cancel.set("a test")

    with site.open(clock) as opened, pytest.raises(Cancelled):
        expire.expire(opened, reason="a test", progress=Stops(), cancel=cancel)
    assert len(folders(site.objects)) + len(folders(other)) == 15
    run_expire(site, clock)
    ran = rebuild(site, nightferry)
    assert ran.code == 0
    assert listed(site, nightferry) == folders(site.objects) == folders(other)


def older_copy_of_the_catalog(site: SmallSite, clock: HandClock) -> list[str]:
    """A night's copies of the catalog from between its stages are the only ones; its images were copied, freed and have
    expired since."""
    with site.open(clock) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        deliver_catalog(opened, "folder", clock.now())
        night.stage_two(opened, record)
        clock.advance(DAY)
        gone = sorted(image.image for image in opened.catalog.images(run=record.run))
        night.nights(opened, clock, 3)
    kept = {path: path.read_bytes() for path in (site.objects / "catalog").iterdir()}
    run_expire(site, clock)
    for path in (site.objects / "catalog").iterdir():
        path.unlink()
    for path, data in kept.items():
        path.write_bytes(data)
    shutil.rmtree(site.objects / "records")
    return gone


def test_what_is_owed_by_an_old_copy_and_nowhere_is_named_and_given_up_with_the_acceptance(
    site: SmallSite, nightferry: Command
) -> None:
    clock = HandClock()
    gone = older_copy_of_the_catalog(site, clock)
    ran = rebuild(site, nightferry)
    assert (ran.code, sorted(ran.document["missing"])) == (3, gone)
    before = nightferry(site.file, "images", "--json").document["images"]
    assert {i["image"] for i in before if i["state"] == "lost"} == set(gone), "not before it is accepted"
    foreseen = accept(site, nightferry, "--dry-run")
    assert sorted(foreseen.document["given_up"]) == gone
    accepted = accept(site, nightferry)
    assert (sorted(accepted.document["given_up"]), accepted.document["undecided"]) == (gone, [])
    assert not listed(site, nightferry).intersection(gone)
    assert next_night(site, clock) == 0
    assert run_expire(site, clock).exit_code == 0
    assert nightferry(site.file, "catalog", "accept", "--yes").code == 2, "once is enough"


def test_what_an_old_copy_lists_at_other_destinations_and_has_expired_there_is_lost_on_record(
    site: SmallSite, other: Path, nightferry: Command
) -> None:
    clock = HandClock()
    nights(site, clock, 4)
    kept = {path: path.read_bytes() for path in (site.objects / "catalog").iterdir()}
    run_expire(site, clock)
    for path in (site.objects / "catalog").iterdir():
        path.unlink()
    for path, data in kept.items():
        path.write_bytes(data)
    away = other.rename(other.with_name("away"))
    ran = rebuild(site, nightferry)
    assert (ran.code, len(ran.document["lost"]), ran.document["lost_elsewhere"]) == (3, 4, [])
    [unseen] = ran.document["unseen"]
    assert unseen.startswith("other: ")
    with site.open(clock) as opened:
        assert len([c for c in opened.catalog.all(CopyRecord) if c.destination == "other"]) == 8
        assert {c.state for c in opened.catalog.all(CopyRecord) if c.destination == "other"} == {"verified"}
    away.rename(other)
    ran = rebuild(site, nightferry)
    gone = {f"{image} at other" for image in ran.document["lost"]}
    assert (ran.code, set(ran.document["lost_elsewhere"])) == (3, gone)
    accept(site, nightferry)
    assert next_night(site, clock) == 0
    assert nightferry(site.file, "verify").code == 0
    assert run_expire(site, clock).exit_code == 0


def test_another_sites_folder_in_the_place_of_a_destination_makes_no_copy_lost(
    site: SmallSite, other: Path, nightferry: Command
) -> None:
    clock = HandClock()
    nights(site, clock, 1)
    other.rename(other.with_name("away"))
    (other / "images").mkdir(parents=True)
    ran = rebuild(site, nightferry)
    assert (ran.code, ran.document["lost_elsewhere"], len(ran.document["unseen"])) == (0, [], 1)


def test_what_is_owed_and_still_staged_stays_owed_and_is_delivered(
    site: SmallSite, other: Path, nightferry: Command
) -> None:
    clock = HandClock()
    nights(site, clock, 1)
    with site.open(clock) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        deliver_catalog(opened, "folder", clock.now())
    ran = rebuild(site, nightferry)
    assert (ran.code, ran.document["missing"]) == (0, [])
    accepted = accept(site, nightferry)
    assert (accepted.document["given_up"], accepted.document["undecided"]) == ([], [])
    with site.open(clock) as opened:
        night.stage_two(opened, opened.catalog.run(record.run))
        assert night_result(opened, opened.catalog.run(record.run)).exit_code == 0
    assert {name for name in folders(other) if name.startswith(record.run)} == {
        f"{record.run}.SG1.a.L0",
        f"{record.run}.SG1.b.L0",
    }


def test_a_disk_that_cannot_be_seen_keeps_what_is_owed_until_a_night_sees_it_without_the_image(
    site: SmallSite, nightferry: Command
) -> None:
    clock = HandClock()
    gone = older_copy_of_the_catalog(site, clock)
    shutil.rmtree(site.disk)
    site.disk.mkdir()
    (site.home / "catalog-cluster.json").unlink()
    assert rebuild(site, nightferry).code == 3
    accepted = accept(site, nightferry)
    assert (accepted.document["given_up"], sorted(accepted.document["undecided"])) == ([], gone)
    new_disk = ("--to", "TEX-ACTV-1", "--ungated", "--reason", "the old one is lost")
    assert nightferry(site.file, "cluster", "move", BACK_GROUP, *new_disk).code == 0
    with site.open(clock) as opened:
        opened.progress = said = Said()
        assert night_result(opened, night.night(opened, BACK_GROUP)).exit_code == 0
    assert sorted(line.split(" ")[0] for line in said.lines if "is given up" in line) == gone
    clock.advance(DAY)
    assert next_night(site, clock) == 0
