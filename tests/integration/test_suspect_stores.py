"""A store whose disk is not mounted is an empty folder, and no night takes it for the store."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from flows.stage_one import approve_beforehand
from nightferry.catalog.query import Catalog
from nightferry.copies import origin
from nightferry.errors import GateClosed
from nightferry.health import check, status
from nightferry.model.load import load_site
from nightferry.model.records import ImageRecord
from nightferry.night import gate
from nightferry.night.report import night_result, report_markdown
from nightferry.progress import QUIET, Cancel
from nightferry.restore.restore import find_image
from nightferry.retention import expire
from nightferry.site.opened import OpenSite
from nightferry.staging.images import is_staged
from tests.support import night
from tests.support.disks import ext4, make_ext4, mount
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite, fill

DAY = 86400
KEEP_1 = "[retention]\nkeep_last = 1\nat_most = 1.0\n"


class Mounted:
    """A small site whose store SG1/a is a disk of its own; nights a day apart."""

    def __init__(self, home: Path, more: str = KEEP_1) -> None:
        self.clock = HandClock()
        self.site = SmallSite(home / "site", copies=("folder",), more=more)
        self.site.home.mkdir()
        self.store = self.site.store("SG1/a")
        self.store.mkdir(parents=True)
        self.image = make_ext4(home / "disk.img", 32 << 20)
        mount(self.image, self.store)
        fill(self.store / "mail")
        self.site.build()

    def unmount(self) -> None:
        subprocess.run(["umount", self.store], check=True)

    def open(self) -> OpenSite:
        return self.site.open(self.clock)

    def tomorrow(self) -> None:
        self.clock.sleep(DAY)

    def stage(self, opened: OpenSite) -> ImageRecord:
        """Stage one of another night; the image of SG1/a."""
        record = night.stage_one(opened, BACK_GROUP)
        return next(i for i in opened.catalog.images("SG1", "a") if i.run == record.run)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Mounted]:
    made = Mounted(tmp_path)
    try:
        yield made
    finally:
        while os.path.ismount(made.store):
            subprocess.run(["umount", "-l", made.store], check=True)


def status_of(opened: OpenSite, store: str = "a") -> status.StoreStatus:
    return next(s for s in status.status(opened) if s.store == store)


def test_the_file_system_on_record_is_what_findmnt_says(mounted: Mounted) -> None:
    with mounted.open() as opened:
        record = night.night(opened, BACK_GROUP)
        image = opened.catalog.images("SG1", "a", run=record.run)[0]
    said = subprocess.run(
        ["findmnt", "-nro", "TARGET,SOURCE,FSTYPE,MAJ:MIN", "--target", mounted.store],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    found = image.origin
    assert found is not None
    assert [found.mount, found.source, found.filesystem, found.device] == said
    assert found.path == str(mounted.store)
    # ext4 makes the id of a file system out of the halves of its UUID.
    uuid = subprocess.run(
        ["blkid", "-p", "-s", "UUID", "-o", "value", mounted.image],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    raw = bytes.fromhex(uuid.replace("-", ""))
    halves = int.from_bytes(raw[:8], "little") ^ int.from_bytes(raw[8:], "little")
    assert found.fsid == f"{halves:016x}"


def test_the_uuid_is_what_udev_names_the_device_by(
    mounted: Mounted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = tmp_path / "by-uuid"
    names.mkdir()
    source = subprocess.run(
        ["findmnt", "-nro", "SOURCE", "--target", mounted.store], capture_output=True, text=True, check=True
    ).stdout.strip()
    (names / "11-22").symlink_to("/dev/null")
    (names / "33-44").symlink_to(source)
    (names / "55-66").symlink_to("/dev/gone")
    monkeypatch.setattr(origin, "UUIDS", names)
    found = origin.origin_now(load_site(mounted.site.file).site.store("SG1/a"))
    assert found is not None
    assert found.uuid == "33-44"


def test_a_store_whose_disk_is_not_mounted_holds_the_gate_until_it_is_back(mounted: Mounted) -> None:
    with mounted.open() as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
        good = opened.catalog.images("SG1", "a")[0]
        assert good.state == "whole"
        mounted.tomorrow()
        mounted.unmount()
        assert [f.severity for f in check.check(load_site(mounted.site.file)) if f.id == "NF-STORE-003"] == [
            "fail"
        ]
        record = night.stage_one(opened, BACK_GROUP)
        image = opened.catalog.images("SG1", "a", run=record.run)[0]
        assert (image.state, image.files) == ("suspect", 0)
        assert image.suspect.startswith("it is empty, and had 5 files")
        assert f"{mounted.store}" in image.suspect
        with pytest.raises(GateClosed, match="SG1/a is suspect"):
            gate.require_open(opened, record)
        result = night_result(opened, record)
        assert (result.outcome, result.exit_code) == ("GateHeld", 50)
        assert "it is empty" in result.sentence()
        assert "suspect: it is empty" in report_markdown(result).replace("\\", "")
        listed = {i["image"]: (i["state"], i["suspect"]) for i in result.as_json()["images"]}
        assert listed[image.image] == ("suspect", image.suspect)
        found = status_of(opened)
        assert (found.colour, found.image, found.suspect) == ("amber", good, image)
        assert "is suspect: it is empty" in found.reason
        assert find_image(opened, "SG1", "a") == good
        # Stage one alone is not well either.
        assert night_result(opened, record, staged_only=True).exit_code == 3
        # What was accepted beforehand was a store that is partial or missing.
        approve_beforehand(opened, record, ["SG1/a"], "known to be broken")
        assert gate.evaluate(opened, record).state == "held"
        # Mounted again, the same run stages it again.
        mount(mounted.image, mounted.store)
        assert night.night(opened, BACK_GROUP).result == "whole"
        image = opened.catalog.images("SG1", "a", run=record.run)[0]
        assert (image.state, image.suspect, image.files) == ("whole", "", 5)
        found = status_of(opened)
        assert (found.colour, found.image, found.reason) == ("green", image, "")


def test_suspect_images_never_take_the_place_of_the_last_good_one(mounted: Mounted) -> None:
    with mounted.open() as opened:
        night.night(opened, BACK_GROUP)
        good = opened.catalog.images("SG1", "a")[0]
        mounted.unmount()
        for _ in range(3):
            mounted.tomorrow()
            assert mounted.stage(opened).state == "suspect"
            opened.catalog.append(  # the night is given up, the next one begins
                opened.catalog.runs(BACK_GROUP)[0].model_copy(update={"state": "ended", "result": "partial"})
            )
        done = expire.expire(opened, progress=QUIET, cancel=Cancel())
        assert done.gone == []
        assert is_staged(opened, good)
        [copy] = opened.catalog.copies(good.image)
        assert copy.state == "verified"
        # What nobody approved and the retention would not keep is given back.
        suspects = [i for i in opened.catalog.images("SG1", "a") if i.state == "suspect"]
        assert {row.image.image for row in done.staged} <= {i.image for i in suspects}
        assert all(not opened.catalog.copies(i.image) for i in suspects)


def test_what_is_approved_is_the_new_normal(mounted: Mounted) -> None:
    with mounted.open() as opened:
        night.night(opened, BACK_GROUP)
        mounted.tomorrow()
        shutil.rmtree(mounted.store / "mail")
        image = mounted.stage(opened)
        assert image.suspect == "it is empty, and had 5 files with 1.0 MiB"
        record = opened.catalog.run(image.run)
        gate.approve(opened, record, ["SG1/a"], "mailboxes were moved to SG2")
        night.stage_two(opened, record)
        result = night_result(opened, record)
        assert (result.outcome, result.exit_code) == ("Completed", 0)
        listed = {i["store"]: (i["state"], i["accepted"]) for i in result.as_json()["images"]}
        assert listed == {"a": ("suspect", True), "b": ("whole", False)}
        assert result.sentence().startswith(f"run {record.run}: 2 of 2 stores whole")
        found = status_of(opened)
        assert (found.colour, found.image, found.suspect) == ("green", image, None)
        assert find_image(opened, "SG1", "a") == image
        mounted.tomorrow()
        assert night.night(opened, BACK_GROUP).result == "whole"
        assert opened.catalog.images("SG1", "a")[0].state == "whole"
        # It takes its place in the retention, too.
        done = expire.expire(opened, progress=QUIET, cancel=Cancel())
        assert image.image in {row.image.image for row in done.gone}


def test_another_disk_in_the_place_of_the_first_is_suspect_whatever_is_on_it(
    mounted: Mounted, tmp_path: Path
) -> None:
    with mounted.open() as opened:
        night.night(opened, BACK_GROUP)
        mounted.tomorrow()
        with ext4(tmp_path, 32 << 20, "other") as other:
            subprocess.run(["cp", "-a", f"{mounted.store}/.", other], check=True)
        mounted.unmount()
        mount(tmp_path / "other.img", mounted.store)
        image = mounted.stage(opened)
        assert image.state == "suspect"
        assert image.suspect.startswith("its file system is /dev/")


def test_the_same_disk_behind_another_device_is_not(mounted: Mounted, tmp_path: Path) -> None:
    with mounted.open() as opened:
        night.night(opened, BACK_GROUP)
        before = opened.catalog.images("SG1", "a")[0].origin
        mounted.tomorrow()
        mounted.unmount()
        # Taken by another disk, the loop device is not free for this one.
        with ext4(tmp_path, 8 << 20, "between"):
            mount(mounted.image, mounted.store)
            image = mounted.stage(opened)
        assert image.state == "whole"
        assert before is not None
        assert image.origin is not None
        assert image.origin.device != before.device


def test_a_disk_inside_a_store_that_is_not_mounted_is_missed(tmp_path: Path) -> None:
    site, clock = SmallSite(tmp_path / "site", copies=("folder",)), HandClock()
    site.home.mkdir()
    site.build()
    with ext4(site.store("SG1/b"), 8 << 20, "disk2") as disk:
        (disk / "letter").write_text("small")
        with site.open(clock) as opened:
            night.night(opened, BACK_GROUP)
    clock.sleep(DAY)
    (site.store("SG1/b") / "disk2.img").rename(tmp_path / "disk2.img")
    with site.open(clock) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        image = opened.catalog.images("SG1", "b", run=record.run)[0]
        assert "nothing is mounted at disk2 inside it any more" in image.suspect
    site.file.write_text(
        site.file.read_text().replace('kind = "files"', 'kind = "files"\nexclude = ["disk2/"]')
    )
    with site.open(clock) as opened:
        below = origin.origin_now(load_site(site.file).site.store("SG1/b"))
        assert below is not None
        assert below.below == ()


@pytest.mark.parametrize("what", ["no table left", "a new file"])
def test_a_database_that_became_empty_is_suspect(tmp_path: Path, what: str) -> None:
    site, clock = SmallSite(tmp_path, copies=("folder",), stores={"SG1": ("a",)}), HandClock()
    base = site.store("SG1/a") / "app.db"
    base.parent.mkdir(parents=True)
    with closing(sqlite3.connect(base)) as opened, opened:
        opened.execute("create table t(a)")
        opened.execute("insert into t values (zeroblob(50000))")
    site.build()
    site.file.write_text(site.file.read_text().replace('kind = "files"', 'kind = "sqlite"'))
    with site.open(clock) as here:
        night.night(here, BACK_GROUP)
        clock.sleep(DAY)
        if what == "a new file":
            base.unlink()
            base.touch()
        else:
            with closing(sqlite3.connect(base)) as opened:
                opened.execute("drop table t")
                opened.execute("vacuum")
        record = night.stage_one(here, BACK_GROUP)
        [image] = here.catalog.images(run=record.run)
        assert image.state == "suspect"
        assert image.suspect.startswith("it is empty, and had 1 file with")


def test_a_store_says_itself_what_is_expected_of_it(tmp_path: Path) -> None:
    site, clock = SmallSite(tmp_path, copies=("folder",)).build(), HandClock()
    text = site.file.read_text()
    for store in ("a", "b"):
        (site.store(f"SG1/{store}") / "large").write_bytes(os.urandom(8 << 20))
    site.file.write_text(
        text.replace('name = "b"\n', 'name = "b"\nexpect = { least = "0 %" }\n').replace(
            'name = "a"\n', 'name = "a"\nexpect = { least = "90 %" }\n'
        )
    )
    with site.open(clock) as opened:
        night.night(opened, BACK_GROUP)
        clock.sleep(DAY)
        (site.store("SG1/a") / "large").write_bytes(os.urandom(6 << 20))
        shutil.rmtree(site.store("SG1/b"))
        site.store("SG1/b").mkdir()
        record = night.stage_one(opened, BACK_GROUP)
        states = {i.store: (i.state, i.suspect) for i in opened.catalog.images(run=record.run)}
        assert states["b"] == ("whole", "")
        assert states["a"][0] == "suspect"
        assert states["a"][1].endswith("less than 90%")


def test_another_path_begins_a_line_of_its_own_and_is_said(tmp_path: Path) -> None:
    site, clock = SmallSite(tmp_path, copies=("folder",), more=KEEP_1).build(), HandClock()
    old, new = site.store("SG1/a"), tmp_path / "elsewhere"
    with site.open(clock) as opened:
        night.nights(opened, clock, 2)
        last = opened.catalog.images("SG1", "a")[0]
    new.mkdir()
    (new / "one").write_text("nothing like it")
    site.file.write_text(site.file.read_text().replace(f'"{old}"', f'"{new}"'))
    said = f"its path was {old}; a new line of images begins with {new}, and is not compared with the old one"
    with site.open(clock) as opened:
        assert said in status_of(opened).reason
        assert [f.text for f in check.check(load_site(site.file)) if f.id == "NF-STORE-004"] == [
            f"store SG1/a: {said}"
        ]
        record = night.night(opened, BACK_GROUP)
        image = opened.catalog.images("SG1", "a", run=record.run)[0]
        assert (record.result, image.state, image.notes) == ("whole", "whole", (said,))
        assert said in status_of(opened).reason
        assert f"SG1/a: {said}" in report_markdown(night_result(opened, record)).replace("\\", "")
        # Once: the next night says nothing.
        clock.sleep(DAY)
        record = night.night(opened, BACK_GROUP)
        assert opened.catalog.images("SG1", "a", run=record.run)[0].notes == ()
        assert (status_of(opened).colour, status_of(opened).reason) == ("green", "")
        # The retention keeps the newest of either line.
        expire.expire(opened, progress=QUIET, cancel=Cancel())
        kept = [i.image for i in opened.catalog.images("SG1", "a") if not opened.catalog.expired(i.image)]
        there = [i for i in kept if any(c.state == "verified" for c in opened.catalog.copies(i))]
        assert last.image in there
        assert len(there) == 2
        # Back at the old path, its line goes on and is compared with its own last image.
        site.file.write_text(site.file.read_text().replace(f'"{new}"', f'"{old}"'))
    shutil.rmtree(old)
    old.mkdir()
    with site.open(clock) as opened:
        clock.sleep(DAY)
        record = night.stage_one(opened, BACK_GROUP)
        image = opened.catalog.images("SG1", "a", run=record.run)[0]
        assert image.notes == (f"its path was {new}; the images from {old} continue as a line of their own",)
        assert image.suspect.startswith("it is empty, and had 5 files")


def test_a_catalog_of_a_release_without_origins_is_compared_by_size(tmp_path: Path) -> None:
    site, clock = SmallSite(tmp_path, copies=("folder",)).build(), HandClock()
    with site.open(clock) as opened:
        night.night(opened, BACK_GROUP)
        for image in opened.catalog.images():
            opened.catalog.append(image.model_copy(update={"origin": None}))
        clock.sleep(DAY)
        shutil.rmtree(site.store("SG1/a"))
        site.store("SG1/a").mkdir()
        record = night.stage_one(opened, BACK_GROUP)
        images = {i.store: i for i in opened.catalog.images(run=record.run)}
        assert images["a"].suspect.startswith("it is empty")
        assert (images["b"].state, images["b"].notes) == ("whole", ())


def test_records_without_the_new_fields_are_read(tmp_path: Path) -> None:
    site = SmallSite(tmp_path, copies=("folder",)).build()
    with site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
        image = opened.catalog.images()[0]
        old = image.model_dump(mode="json")
        for key in ("origin", "suspect", "notes"):
            del old[key]
        assert ImageRecord.model_validate(old).origin is None
        assert isinstance(opened.catalog, Catalog)
