"""A BACK disk that is taken away while somebody works on it: the work stops, and nothing half-written looks
whole."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nightferry.cluster.base import ClusterView
from nightferry.cluster.disk import BackDisk
from nightferry.cluster.local import LocalCluster
from nightferry.copies import stream
from nightferry.errors import Cancelled, NotOwner
from nightferry.model.records import ImageRecord, RunRecord
from nightferry.night import gate, move, run, stage
from nightferry.progress import QUIET, Cancel, Quiet
from nightferry.site.destinations import destination_of
from nightferry.site.nodes import active_node
from nightferry.site.opened import OpenSite
from nightferry.staging import adoption, orphans, ownership
from tests.conftest import needs
from tests.support import night
from tests.support.disks import ext4, make_ext4, mount
from tests.support.outside import compare_tar
from tests.support.prefect_site import until
from tests.support.small_site import BACK_GROUP, SmallSite

pytestmark = needs("mkfs.ext4", "mount", "umount")

MIB = 1 << 20
Theft = Callable[[SmallSite, OpenSite, pytest.MonkeyPatch], None]


class Thief(Quiet):
    """Takes the disk at the first piece of an image, and waits until the watch has seen it."""

    def __init__(self, site: SmallSite, opened: OpenSite, theft: Theft, patch: pytest.MonkeyPatch) -> None:
        self.site, self.opened, self.theft, self.patch = site, opened, theft, patch
        self.done = False

    def advance(self, subject: str, done_bytes: int, current: str = "") -> None:
        if not self.done:
            self.done = True
            # What is open keeps the kernel from giving the mount's number away: the image may have been read whole.
            held = os.open(self.site.disk, os.O_RDONLY)
            try:
                self.theft(self.site, self.opened, self.patch)
                (watch,) = self.opened.part(ownership.Watches).by_disk.values()
                until(lambda: lost(watch), 10)
            finally:
                os.close(held)


def lost(watch: ownership.DiskWatch) -> bool:
    try:
        watch.require()
    except NotOwner:
        return True
    return False


def token_of_a_higher_epoch(site: SmallSite, opened: OpenSite, patch: pytest.MonkeyPatch) -> None:
    disk = BackDisk(site.disk)
    token = disk.owner()
    assert token is not None
    disk.take("TEX-PASS-2", "somebody else", token.epoch)


def lazily_unmounted(site: SmallSite, opened: OpenSite, patch: pytest.MonkeyPatch) -> None:
    subprocess.run(["umount", "-l", site.disk], check=True)


def another_disk_over_it(site: SmallSite, opened: OpenSite, patch: pytest.MonkeyPatch) -> None:
    mount(make_ext4(site.home / "other.img", 16 * MIB), site.disk)


def the_same_disk_mounted_again(site: SmallSite, opened: OpenSite, patch: pytest.MonkeyPatch) -> None:
    subprocess.run(["umount", "-l", site.disk], check=True)
    mount(site.home.parent / "disk.img", site.disk)


def the_group_runs_elsewhere(site: SmallSite, opened: OpenSite, patch: pytest.MonkeyPatch) -> None:
    owners = {"owners": {BACK_GROUP: "TEX-PASS-1"}}
    opened.file.cluster_state_path.write_text(json.dumps(owners))


def no_quorum(site: SmallSite, opened: OpenSite, patch: pytest.MonkeyPatch) -> None:
    looked = LocalCluster.view
    patch.setattr(LocalCluster, "view", lambda self: replace(looked(self), quorate=False))


THEFTS = [
    token_of_a_higher_epoch,
    lazily_unmounted,
    another_disk_over_it,
    the_same_disk_mounted_again,
    the_group_runs_elsewhere,
    no_quorum,
]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SmallSite]:
    home = tmp_path / "site"
    home.mkdir()
    with ext4(tmp_path, 48 * MIB) as disk:
        made = SmallSite(home, back=disk, stores={"SG1": ("a", "b")}).build()
        (made.store("SG1/a") / "large.bin").write_bytes(os.urandom(6 * MIB))
        yield made


def begin(opened: OpenSite) -> RunRecord:
    """A run whose disk is on the active node; nothing is staged yet."""
    opened.recheck_s = 0.02
    record = run.begin_run(opened, BACK_GROUP).run
    record = run.set_state(opened, record, node=active_node(opened, BACK_GROUP))
    move.to_active(opened, record, progress=QUIET, cancel=Cancel())
    return record


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("theft", THEFTS, ids=lambda t: t.__name__)
def test_stage_one_stops_on_a_stolen_disk(
    site: SmallSite, theft: Theft, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site.open() as opened:
        record = begin(opened)
        thief = Thief(site, opened, theft, monkeypatch)
        with pytest.raises(
            NotOwner, match=r"the disk of TEX-BACK-1 no longer belongs to TEX-ACTV-1"
        ) as refused:
            stage.stage_store(opened, record, "SG1", "a", progress=thief, cancel=Cancel())
        assert thief.done
        assert (refused.value.retryable, refused.value.exit_code) == (False, 50)
        assert opened.part(ownership.Watches).by_disk == {}
        opened.catalog.refresh()
        assert opened.catalog.images() == []
        if theft is lazily_unmounted:
            assert list(site.disk.iterdir()) == [], "nothing is written where the disk was"
        if theft is another_disk_over_it:
            assert {p.name for p in site.disk.iterdir()} == {"lost+found"}
        # The disk itself, as whoever has it now sees it: nothing that bears an image's name.
        while os.path.ismount(site.disk):
            subprocess.run(["umount", "-l", site.disk], check=True)
        until(lambda: is_free(tmp_path / "disk.img"), 10)
        mount(tmp_path / "disk.img", site.disk)
        assert list(site.disk.glob("SG1/*/*.tar")) == []
        assert [p.suffix for p in site.disk.glob("SG1/*/*")] == [".partial"]
    monkeypatch.undo()
    recover(site, theft)


def is_free(image: Path) -> bool:
    """Whether no loop device holds the file any more: a lazy unmount ends when the last file is closed."""
    shown = subprocess.run(["losetup", "-j", image], capture_output=True, text=True, check=True)
    return not shown.stdout.strip()


def recover(site: SmallSite, theft: Theft) -> None:
    """The next run on a node that has the disk is whole, and clears what was left."""
    if theft is the_group_runs_elsewhere:
        (site.home / "catalog-cluster.json").unlink()
    with site.open() as opened:
        if theft is token_of_a_higher_epoch:
            # The other one's move, which it recorded.
            token = BackDisk(site.disk).owner()
            assert token is not None
        assert night.night(opened, BACK_GROUP).result == "whole"
        for store in ("a", "b"):
            (tar,) = site.disk.glob(f"SG1/{store}/*.tar")
            assert compare_tar(tar, site.store(f"SG1/{store}")) == ""
        assert list(site.disk.glob("SG1/*/*.partial")) == []


@pytest.mark.parametrize("theft", THEFTS, ids=lambda t: t.__name__)
@pytest.mark.parametrize("destination", ["tape", "folder"])
def test_stage_two_stops_on_a_stolen_disk_and_makes_no_copy(
    site: SmallSite, theft: Theft, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site.open() as opened:
        record = night.stage_one(opened, BACK_GROUP)
        move.to_passive(opened, record, progress=QUIET, cancel=Cancel())
        opened.recheck_s = 0.02
        image = next(i for i in opened.catalog.images() if i.store == "a")
        thief = Thief(site, opened, theft, monkeypatch)
        node = opened.cluster.where(BACK_GROUP)
        with pytest.raises(NotOwner, match=f"the disk of {BACK_GROUP} no longer belongs to {node}"):
            stream.stream_image(opened, image, destination, progress=thief, cancel=Cancel())
        assert thief.done
        copies = opened.catalog.all_copies(image.image)
        assert [c.state for c in copies] == ["writing"]
        assert destination_of(opened, destination).find(image.image, copies[0].epoch) is None
        assert contents(site.disk).keys() & {"SG1/a"} == set()
        assert not list(site.disk.glob("SG1/*/*.damaged")), "a disk that is gone says nothing of its images"


def test_staging_frees_nothing_on_a_stolen_disk(site: SmallSite, monkeypatch: pytest.MonkeyPatch) -> None:
    from nightferry.staging import room

    with site.open() as opened:
        record = begin(opened)
        with ownership.watching_disk(opened, BACK_GROUP, Cancel(), stage.require_owner(opened, record)):
            token_of_a_higher_epoch(site, opened, monkeypatch)
            with pytest.raises(NotOwner, match="TEX-PASS-2 with epoch 2"):
                room.free_staging(opened, BACK_GROUP)


def test_an_image_staged_as_the_disk_goes_is_not_recorded(
    site: SmallSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site.open() as opened:
        record = begin(opened)
        read_back = adoption.prove_chunks

        def then_stolen(*arguments: Any, **options: Any) -> None:
            read_back(*arguments, **options)
            token_of_a_higher_epoch(site, opened, monkeypatch)

        monkeypatch.setattr(stage, "prove_chunks", then_stolen)
        with pytest.raises(NotOwner):
            stage.stage_store(opened, record, "SG1", "a", progress=QUIET, cancel=Cancel())
        assert opened.catalog.all(ImageRecord) == []


def test_a_cluster_that_does_not_answer_is_waited_for_and_then_counts_as_lost(
    site: SmallSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site.open() as opened:
        record = begin(opened)
        watch = ownership.DiskWatch(opened, BACK_GROUP, stage.require_owner(opened, record), 60)
        opened.file.cluster_state_path.write_text("not JSON")
        watch.look()
        monkeypatch.setattr(ownership, "SILENT_S", 0.0)
        with pytest.raises(NotOwner, match="the cluster did not answer for"):
            watch.look()


def test_a_disk_is_looked_at_on_time_while_the_cluster_hangs(
    site: SmallSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answers = threading.Event(), threading.Event()
    looked = LocalCluster.view

    def hanging(cluster: LocalCluster) -> ClusterView:
        asked.set()
        answers.wait(60)
        return looked(cluster)

    with site.open() as opened:
        record = begin(opened)
        monkeypatch.setattr(LocalCluster, "view", hanging)
        try:
            with ownership.watching_disk(
                opened, BACK_GROUP, Cancel(), stage.require_owner(opened, record)
            ) as owned:
                assert asked.wait(10)
                token_of_a_higher_epoch(site, opened, monkeypatch)
                until(owned.is_set, 10)
            with pytest.raises(Cancelled, match="TEX-PASS-2 with epoch 2"):
                owned.check()
        finally:
            answers.set()


def test_an_adoption_that_is_stopped_keeps_the_image_and_a_later_one_records_it(site: SmallSite) -> None:
    with site.open() as opened:
        record = begin(opened)

        def killed(*_: Any) -> None:
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stage, "record_image", killed)
            with pytest.raises(KeyboardInterrupt):
                stage.stage_store(opened, record, "SG1", "a", progress=QUIET, cancel=Cancel())
        (tar,) = site.disk.glob("SG1/a/*.tar")
        cancel = Cancel()
        check = adoption.check_chunk

        def stopped(*arguments: Any) -> None:
            check(*arguments)
            cancel.set("an operator")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(adoption, "check_chunk", stopped)
            with pytest.raises(Cancelled):
                orphans.clear_orphans(opened, BACK_GROUP, cancel=cancel)
        assert tar.exists()
        assert opened.catalog.all(ImageRecord) == []
        orphans.clear_orphans(opened, BACK_GROUP, cancel=Cancel())
        (adopted,) = opened.catalog.all(ImageRecord)
        assert compare_tar(tar, site.store("SG1/a")) == ""
        assert adopted.path.endswith(tar.name)


def test_a_seal_is_not_written_on_a_disk_of_somebody_else(
    site: SmallSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site.open() as opened:
        record = begin(opened)
        token_of_a_higher_epoch(site, opened, monkeypatch)
        with pytest.raises(NotOwner):
            gate.write_seal(opened, record)
