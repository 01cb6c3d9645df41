"""Everything of ours that opens a file on a MAIL or a BACK disk holds a lease, whatever the verb: the kernel says what
is opened, at the moment when it is."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nightferry.cluster import reader_agent
from nightferry.copies.side_files import side_files
from nightferry.model.records import ImageRecord
from nightferry.night import gate, stage
from nightferry.progress import QUIET, Cancel
from nightferry.site.opened import OpenSite
from nightferry.staging import orphans
from nightferry.staging.images import files_of
from nightferry.staging.scratch import scratch_folder
from tests.conftest import needs
from tests.support import night, toml
from tests.support.command_site import Command
from tests.support.disks import ext4
from tests.support.opened_files import OpenedFiles, watching
from tests.support.small_site import BACK_GROUP, SmallSite

pytestmark = needs("mkfs.ext4", "mount", "umount")

MIB = 1 << 20
MAIL_GROUP = "TEX-MAIL-1"

HOOK = """
[[hooks]]
name = "looks-{when}"
stage = "move"
when = "{when}"
command = ["{python}", "{program}", "{disk}"]
"""
READS = """
import os, sys
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        open(os.path.join(folder, name), "rb").close()
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallSite]:
    """Stores on the MAIL group's disk, staging on the BACK group's, and both groups' agents started."""
    home = tmp_path / "site"
    home.mkdir()
    run = tmp_path / "run"
    for group in (MAIL_GROUP, BACK_GROUP):
        (run / group).mkdir(parents=True)
        (run / group / "here").touch()
    monkeypatch.setattr(reader_agent, "RUN_FOLDER", run)
    program = tmp_path / "hook.py"
    program.write_text(READS)
    with ext4(home, 64 * MIB, "stores") as mail, ext4(tmp_path, 96 * MIB, "back") as back:
        more = "".join(
            HOOK.format(when=when, python=sys.executable, program=program, disk=back)
            for when in ("before", "after")
        )
        made = SmallSite(home, back=back, more=more).build()
        with made.file.open("a") as file:
            file.write(toml.group("SG2", ("tape",), more=f'back_group = "{BACK_GROUP}"\n'))
            file.write(toml.store("ledger", mail / "ledger.db", "sqlite"))
        with sqlite3.connect(mail / "ledger.db") as database:
            database.execute("create table entries (n integer)")
        database.close()
        yield made


@pytest.fixture
def opened_files(site: SmallSite, tmp_path: Path) -> Iterator[OpenedFiles]:
    try:
        with watching(tmp_path / "run", {MAIL_GROUP: site.home / "stores", BACK_GROUP: site.disk}) as found:
            yield found
    except OSError as error:
        pytest.skip(f"the kernel does not tell who opens files: {error}")


def test_the_watch_sees_what_has_no_lease(site: SmallSite, opened_files: OpenedFiles) -> None:
    with opened_files.watched() as found:
        (site.disk / "a").write_text("x")
        with reader_agent.registered([BACK_GROUP]):
            (site.disk / "a").read_text()
    assert [line.split()[0] for line in found] == [str(os.getpid())]


def test_a_night_and_what_follows_a_crash_of_it(site: SmallSite, opened_files: OpenedFiles) -> None:
    with site.open() as opened:
        with opened_files.watched() as found:
            record = night.stage_one(opened, BACK_GROUP)
        assert found == []
        assert len(opened.catalog.images()) == 3
        with opened_files.watched() as found:
            night.stage_two(opened, record)
        assert found == []
        # A second one that is killed when its images have their names and are not recorded.
        adopted = crashed(opened)
        with opened_files.watched() as found:
            orphans.clear_orphans(opened, BACK_GROUP, cancel=Cancel())
        assert found == []
        assert opened.catalog.latest(ImageRecord, adopted) is not None


def crashed(opened: OpenSite) -> str:
    """Leaves an image that was staged and not recorded, and scratch files; returns the image's name."""
    from nightferry.night import move, run

    with run.run_lock(opened, BACK_GROUP, progress=QUIET, cancel=Cancel()):
        record = run.begin_run(opened, BACK_GROUP, new=True).run
        move.to_active(opened, record, progress=QUIET, cancel=Cancel())

        class Killed(BaseException):
            pass

        def killed(*_: Any) -> None:
            raise Killed

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stage, "record_image", killed)
            with pytest.raises(Killed):
                stage.stage_store(opened, record, "SG1", "a", progress=QUIET, cancel=Cancel())
    (scratch_folder(opened, BACK_GROUP) / "some.tar").write_bytes(b"x")
    (tar,) = (Path(opened.file.back_group(BACK_GROUP).path) / "SG1/a").glob(f"{record.run}*.tar")
    return tar.name.removesuffix(".tar")


VERBS: list[tuple[str | Path, ...]] = [
    ("check",),
    ("status",),
    ("cluster", "view"),
    ("cluster", "move", BACK_GROUP, "--dry-run"),
    ("cluster", "move", BACK_GROUP, "--to", "TEX-ACTV-1", "--ungated", "--reason", "a test"),
    ("gate", "show"),
    ("runs",),
    ("images",),
    ("files", "{image}"),
    ("selection", "show", "SG1"),
    ("verify",),
    ("restore", "store", "SG1/a", "--copy", "staging", "--to", "{mail}/restored"),
    ("restore", "files", "SG1/a", "*", "--copy", "tape", "--to", "{back}/restored"),
    ("restore", "group", "SG1", "--to", "{mail}/group"),
    ("restore", "store", "SG1/b", "--in-place", "--yes"),
    ("restore", "store", "SG2/ledger", "--in-place", "--yes"),
    ("tune", "{back}", "--size", "4 MiB"),
    ("support", "--to", "{back}/bundle.tar.gz"),
    ("expire",),
]


def test_every_verb_of_the_command_line(
    site: SmallSite, opened_files: OpenedFiles, nightferry: Command
) -> None:
    with site.open() as opened:
        night.night(opened, BACK_GROUP)
        image = opened.catalog.images("SG1", "a")[0].image
    without: dict[str, list[str]] = {}
    for words in VERBS:
        argv = [str(w).format(mail=site.home / "stores", back=site.disk, image=image) for w in words]
        with opened_files.watched() as found:
            ran = nightferry(site.file, *argv)
        assert ran.code in (0, 3), (argv, ran.err)
        if found:
            without[" ".join(argv)] = sorted(set(found))
    assert without == {}


def test_copies_that_are_made_again_and_catalogs_that_lack_an_index(
    site: SmallSite, opened_files: OpenedFiles, nightferry: Command
) -> None:
    with site.open() as opened:
        night.night(opened, BACK_GROUP)
        image = opened.catalog.images("SG1", "a")[0]
        # The catalog lost the index: it is read from staging.
        for path in site.home.glob(f"catalog/**/*{image.image}*"):
            if path.is_file():
                path.unlink()
        with opened_files.watched() as found:
            side_files(opened, image)
        assert found == []
        # Staging lost the image: a copy is made by way of a scratch file.
        files_of(opened, image).remove(".tar", ".chunks", ".meta.json")
        for copy in opened.catalog.copies(image.image):
            if copy.destination == "folder":
                opened.catalog.append(copy.model_copy(update={"state": "lost"}))
    for path in (site.objects / "images" / image.image).rglob("*"):
        if path.is_file():
            path.unlink()
    with opened_files.watched() as found:
        made = nightferry(site.file, "copy", image.image, "--to", "folder")
    assert made.code == 0, made.err
    assert found == []


def test_a_gate_that_is_held_and_approved(
    site: SmallSite, opened_files: OpenedFiles, nightferry: Command
) -> None:
    (site.store("SG1/b")).rename(site.store("SG1/b").with_name("away"))
    with site.open() as opened, opened_files.watched() as found:
        record = night.stage_one(opened, BACK_GROUP)
    assert found == []
    with opened_files.watched() as found:
        assert nightferry(site.file, "gate", "show", record.run).code == 50
        with site.open() as opened:
            gate.approve(opened, record, ["SG1/b"], "a test")
            gate.require_open(opened, record)
    assert found == []
