"""The gate opens on proof: what is missing, altered, or somebody else's keeps it shut."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from nightferry.errors import ConfigError, GateClosed, MoveFailed
from nightferry.model.records import RunRecord
from nightferry.night import gate, move, run, stage
from nightferry.night.report import night_result
from nightferry.progress import QUIET, Cancel
from nightferry.site.opened import OpenSite
from tests.support import night
from tests.support.command_site import Command
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite, fill

MakeSite = Callable[..., SmallSite]


def shut(opened: OpenSite, record: RunRecord, state: str, says: str) -> None:
    """The gate is in this shut state, says why, and lets nothing by."""
    view = gate.evaluate(opened, record)
    assert view.state == state
    with pytest.raises(GateClosed, match=says) as refused:
        night.stage_two(opened, record)
    assert refused.value.exit_code == 50
    assert opened.cluster.where(BACK_GROUP) == "TEX-ACTV-1"
    assert opened.disk(BACK_GROUP).owner().node == "TEX-ACTV-1"  # type: ignore[union-attr]
    assert opened.catalog.run(record.run).state == "held"


def seal_file(site: SmallSite, record: RunRecord, number: int = 1) -> Path:
    return site.disk / ".nightferry/seals" / record.run / f"seal.{number}.json"


def test_a_store_that_fails_keeps_it_shut_however_much_time_passes(make_site: MakeSite) -> None:
    site, clock = make_site(), HandClock()
    shutil.rmtree(site.store("SG1/b"))
    with site.open(clock) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        shut(opened, record, "held", "SG1/b is missing")
        clock.advance(timedelta(days=9))
        shut(opened, record, "held", "SG1/b is missing")
        fill(site.store("SG1/b"))
        shut(opened, record, "held", "SG1/b is missing")
        continued = night.night(opened, BACK_GROUP, run=record.run)
        assert (continued.run, continued.result) == (record.run, "whole")


def test_a_partial_image_keeps_it_shut(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make_site()
    # A file that is rewritten whenever it is read: "changed", of which none is tolerated.
    unsteady = site.store("SG1/b") / "deep" / "letter.txt"
    original = stage.ImageWriter._add_once

    def disturbed(self: object, path: bytes, *rest: object, **options: object) -> object:
        done = original(self, path, *rest, **options)  # type: ignore[arg-type]
        if path.endswith(b"letter.txt") and unsteady.exists():
            unsteady.write_bytes(unsteady.read_bytes() + b"!")
            return replace(done, came="changed")
        return done

    monkeypatch.setattr(stage.ImageWriter, "_add_once", disturbed)
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP, stores=["SG1/b"])
        assert [i.state for i in opened.catalog.images()] == ["partial"]
        shut(opened, record, "held", "SG1/b is partial .*1 changed")
        gate.approve(opened, record, ["SG1/b"], "the letter does not matter")
        assert gate.evaluate(opened, record).state == "open"


def test_a_partial_store_that_was_mended_is_staged_again_by_a_retry(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site()
    original = stage.ImageWriter._add_once

    def broken(self: object, path: bytes, *rest: object, **options: object) -> object:
        done = original(self, path, *rest, **options)  # type: ignore[arg-type]
        return replace(done, came="changed") if path.endswith(b"letter.txt") else done

    with site.open(HandClock()) as opened:
        with monkeypatch.context() as patched:
            patched.setattr(stage.ImageWriter, "_add_once", broken)
            record = night.stage_one(opened, BACK_GROUP)
            assert {i.state for i in opened.catalog.images()} == {"partial"}
            gate.approve(opened, record, ["SG1/a"], "the letter does not matter")
            accepted = site.staged()

        # Fixed: what was accepted stays as it was accepted, the other store comes whole.
        record = night.stage_one(opened, BACK_GROUP, run=record.run)
        assert {i.store: i.state for i in opened.catalog.images()} == {"a": "partial", "b": "whole"}
        kept = {name: what for name, what in accepted.items() if ".a." in name}
        assert kept.items() <= site.staged().items()
        shut(opened, record, "held", "SG1/a is partial")  # another seal wants another approval
        gate.approve(opened, record, ["SG1/a"], "still does not matter")
        night.stage_two(opened, record)
        assert {c.state for i in opened.catalog.images() for c in opened.catalog.copies(i.image)} == {
            "verified"
        }


def test_an_approval_holds_for_the_seal_it_names_only(make_site: MakeSite) -> None:
    site = make_site()
    shutil.rmtree(site.store("SG1/b"))
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        first = opened.catalog.seal(record.run)
        assert first is not None
        with pytest.raises(ConfigError, match="nothing to approve for SG1/a"):
            gate.approve(opened, record, ["SG1/a"], "why not")
        approval = gate.approve(opened, record, ["SG1/b"], "b is being moved")
        assert approval.seal_digest == first.digest
        assert gate.evaluate(opened, record).state == "open"

        # The whole image goes; staged again it is another one, and the new seal is not what was approved.
        for left in site.disk.glob("SG1/a/*"):
            left.unlink()
        shutil.rmtree(site.store("SG1/a"))
        fill(site.store("SG1/a"), seed=77)
        stage.stage_store(opened, record, "SG1", "a", progress=QUIET, cancel=Cancel())
        second = gate.write_seal(opened, record)
        assert (second.number, second.digest == first.digest) == (2, False)
        shut(opened, record, "held", "SG1/b is missing")
        gate.approve(opened, record, ["SG1/b"], "still being moved")
        assert gate.evaluate(opened, record).state == "open"


def test_a_seal_that_did_not_change_keeps_its_approval(make_site: MakeSite) -> None:
    site, clock = make_site(), HandClock()
    shutil.rmtree(site.store("SG1/b"))
    with site.open(clock) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        gate.approve(opened, record, ["SG1/b"], "b is being moved")
        clock.advance(timedelta(hours=1))
        assert gate.write_seal(opened, record).number == 1
        assert gate.evaluate(opened, record).state == "open"


def altered(path: Path) -> None:
    content = json.loads(path.read_text())
    content["stores"][0]["size_bytes"] += 1
    path.write_text(json.dumps(content))


def garbled(path: Path) -> None:
    path.write_text("{")


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (altered, "differs from the catalog's"),
        (garbled, "cannot read .*seal.1.json"),
        (Path.unlink, "differs from the catalog's"),
    ],
)
def test_a_seal_altered_or_removed_on_the_disk_closes_it(
    make_site: MakeSite, harm: Callable[[Path], None], says: str
) -> None:
    site = make_site()
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        assert gate.evaluate(opened, record).state == "open"
        harm(seal_file(site, record))
        shut(opened, record, "closed", says)


def test_a_seal_from_another_disk_closes_it(make_site: MakeSite, tmp_path: Path) -> None:
    site = make_site()
    other = SmallSite(tmp_path / "other")
    other.home.mkdir()
    other.build()
    with other.open(HandClock()) as opened:
        night.stage_one(opened, BACK_GROUP)
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        shutil.rmtree(site.disk)
        shutil.copytree(other.disk, site.disk)
        shut(opened, record, "closed", "differs from the catalog's")


def test_a_disk_in_an_older_state_closes_it(make_site: MakeSite, tmp_path: Path) -> None:
    """A copy of our disk, with the right seal, taken before its owner changed."""
    site = make_site()
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        shutil.copytree(site.disk, tmp_path / "older")
        night.stage_two(opened, record)
        shutil.rmtree(site.disk)
        shutil.copytree(tmp_path / "older", site.disk)
        view = gate.evaluate(opened, record)
        assert (view.state, "another disk" in view.reason) == ("closed", True)


def test_an_approval_counts_only_when_disk_and_catalog_have_it(make_site: MakeSite) -> None:
    site = make_site()
    shutil.rmtree(site.store("SG1/b"))
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        approval = gate.approve(opened, record, ["SG1/b"], "b is being moved")
        (path,) = seal_file(site, record).parent.glob("approval.*.json")
        content = path.read_text()
        path.unlink()
        shut(opened, record, "held", "SG1/b is missing")
        path.write_text(content.replace("being moved", "not needed"))
        shut(opened, record, "held", "SG1/b is missing")
        path.write_text(content)
        assert gate.evaluate(opened, record).approvals == (approval,)


def test_a_second_storage_group_on_the_disk_that_is_not_staged_keeps_it_shut(make_site: MakeSite) -> None:
    site = make_site(stores={"SG1": ("a",), "SG2": ("b",)})
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP, groups=["SG1"])
        assert gate.evaluate(opened, record).state == "open"
        with run.run_lock(opened, BACK_GROUP, progress=QUIET, cancel=Cancel()):
            record = run.begin_run(opened, BACK_GROUP, run=record.run).run
            assert gate.evaluate(opened, record).state == "open", "what was begun for one group is its own"
            record = run.begin_run(opened, BACK_GROUP, groups=["SG2"]).run
        shut(opened, record, "closed", "not sealed yet: SG2/b")
        record = night.stage_one(opened, BACK_GROUP)
        assert gate.evaluate(opened, record).state == "open"


def test_an_unmounted_disk_is_never_taken_for_a_new_one(make_site: MakeSite) -> None:
    site, clock = make_site(), HandClock()
    with site.open(clock) as opened:
        first = night.night(opened, BACK_GROUP)
        site.disk.rename(site.home / "disk")
        site.disk.mkdir()
        assert gate.evaluate(opened, first).state == "closed"
        clock.advance(timedelta(days=1))
        with pytest.raises(MoveFailed, match="has no owner token"):
            night.night(opened, BACK_GROUP)
        assert not list(site.disk.glob("*/*/*.tar"))

        # A disk that was really replaced is taken into use on somebody's word, and goes on counting.
        move.move_ungated(
            opened, BACK_GROUP, "TEX-ACTV-1", "the old disk died", progress=QUIET, cancel=Cancel()
        )
        token = opened.disk(BACK_GROUP).owner()
        assert token is not None
        assert token.epoch == 3
        assert night.night(opened, BACK_GROUP).result == "whole"


def test_an_older_run_takes_the_disk_past_no_newer_run_behind_its_gate(
    make_site: MakeSite, nightferry: Command
) -> None:
    site, clock = make_site(), HandClock()
    shutil.rmtree(site.store("SG1/b"))
    with site.open(clock) as opened:
        older = night.stage_one(opened, BACK_GROUP)
        clock.advance(timedelta(days=1))
        newer = night.stage_one(opened, BACK_GROUP)
        assert gate.evaluate(opened, newer).state == "held"
        older = opened.catalog.run(older.run)

        says = f"the newer run {newer.run} has not passed its gate, which is held"
        with pytest.raises(GateClosed, match=says):
            gate.approve(opened, older, ["SG1/b"], "b is being moved")
        assert not opened.catalog.approvals(older.run)
    refused = nightferry(site.file, "gate", "approve", older.run, "--store", "SG1/b", "--reason", "b moves")
    assert refused.code == 50
    assert newer.run in refused.err

    with site.open(clock) as opened:
        # A run whose own gate is open is no exception.
        gate.approve(opened, newer, ["SG1/b"], "b is being moved")
        shutil.rmtree(site.store("SG1/a"))
        clock.advance(timedelta(days=1))
        newest = night.stage_one(opened, BACK_GROUP)
        assert gate.evaluate(opened, newer).state == "open"
        with pytest.raises(GateClosed, match=newest.run):
            night.stage_two(opened, opened.catalog.run(newer.run))
        assert opened.catalog.run(newer.run).state == "ended", "what has ended is not held again for it"
        assert opened.cluster.where(BACK_GROUP) == "TEX-ACTV-1"
        assert night_result(opened, newer).outcome == "GateHeld"

        gate.approve(opened, newest, ["SG1/a", "SG1/b"], "both are being moved")
        night.stage_two(opened, newest)
        gate.approve(opened, older, ["SG1/b"], "b was being moved")
        assert gate.require_open(opened, older).state == "open"
