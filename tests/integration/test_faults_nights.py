"""What several nights, tries and site files in a row come to: nothing is taken for what it was before."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pytest

from nightferry.copies import read_back, stream, verify
from nightferry.errors import CatalogError, ConfigError, DestinationError, GateClosed, StagingFull
from nightferry.health.status import status
from nightferry.image import index_builder
from nightferry.model.records import ImageRecord
from nightferry.night import gate, move, run, stage
from nightferry.night.report import night_result
from nightferry.progress import QUIET, Cancel, Quiet
from nightferry.restore import restore
from nightferry.site.opened import OpenSite
from nightferry.staging import owed, staged
from nightferry.staging.images import files_of
from nightferry.staging.room import quarantine
from tests.support import night
from tests.support.brought import bring_back
from tests.support.outside import compare_tree
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite, fill

MakeSite = Callable[..., SmallSite]


def unsteady(patched: pytest.MonkeyPatch, name: bytes = b"letter.txt") -> None:
    """From now on files of this name come out ``changed``: none is tolerated, so their images are partial."""
    original = stage.ImageWriter._add_once

    def disturbed(self: object, path: bytes, *rest: object, **options: object) -> object:
        done = original(self, path, *rest, **options)  # type: ignore[arg-type]
        return replace(done, came="changed") if path.endswith(name) else done

    patched.setattr(stage.ImageWriter, "_add_once", disturbed)


def states(opened: OpenSite) -> dict[str, str]:
    return {i.store: i.state for i in opened.catalog.images()}


def test_an_approval_of_a_missing_store_accepts_no_image_that_comes_later(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site()
    shutil.rmtree(site.store("SG1/b"))
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        gate.approve(opened, record, ["SG1/b"], "b is being moved")
        fill(site.store("SG1/b"))
        with monkeypatch.context() as patched:
            unsteady(patched)
            stage.stage_store(opened, record, "SG1", "b", progress=QUIET, cancel=Cancel())
        assert states(opened) == {"a": "whole", "b": "partial"}
        assert {o.image.store for o in owed.owed(opened, BACK_GROUP)} == {"a"}
        # Nobody accepted that image, so a retry makes it again.
        night.stage_one(opened, BACK_GROUP, run=record.run)
        stage.stage_store(opened, record, "SG1", "b", progress=QUIET, cancel=Cancel())
        assert states(opened) == {"a": "whole", "b": "whole"}


def test_a_night_after_a_run_of_one_store_stages_all_the_others(make_site: MakeSite) -> None:
    site = make_site(stores={"SG1": ("a", "b"), "SG2": ("c",)}, copies=("folder",))
    with site.open(HandClock()) as opened:
        alone = night.stage_one(opened, BACK_GROUP, stores=["SG1/b"])
        assert states(opened) == {"b": "whole"}
        whole = night.night(opened, BACK_GROUP)
        assert (whole.run, whole.state, whole.result) == (alone.run, "ended", "whole")
        assert states(opened) == {"a": "whole", "b": "whole", "c": "whole"}


def test_an_image_made_anew_since_the_seal_closes_the_gate_until_it_is_sealed(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(copies=("folder",))
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        assert gate.evaluate(opened, record).state == "open"
        (tar,) = site.disk.glob("SG1/b/*.tar")
        tar.unlink()
        with monkeypatch.context() as patched:
            unsteady(patched)
            stage.stage_store(opened, record, "SG1", "b", progress=QUIET, cancel=Cancel())
        # Here the process died: the seal still says that b is whole.
        view = gate.evaluate(opened, record)
        assert (view.state, view.reason) == ("closed", "not sealed yet: SG1/b")
        assert night.night(opened, BACK_GROUP).result == "whole"


def test_a_destination_taken_out_of_the_site_file_stops_no_restore_and_no_verify(
    make_site: MakeSite, tmp_path: Path
) -> None:
    site = make_site()
    with site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
    for tar in site.disk.glob("*/*/*.tar"):
        tar.unlink()
    site.write_file(copies=("tape",))
    with site.open(HandClock()) as opened:
        assert bring_back(opened, tmp_path / "back").copy == "tape"
        assert compare_tree(site.store("SG1/a"), tmp_path / "back") == ""
        checked = list(verify.verify_copies(opened, progress=QUIET, cancel=Cancel()))
        assert {(c.copy.destination, c.exit_code) for c in checked} == {("tape", 0), ("folder", 20)}
        assert [s.colour for s in status(opened)] == ["green", "green"]


def test_a_store_taken_out_of_the_site_file_can_still_be_brought_back(
    make_site: MakeSite, tmp_path: Path
) -> None:
    site = make_site(stores={"SG1": ("a",), "SG2": ("b",)}, copies=("folder",))
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        # A staged image of it that was found damaged is not a reason to stop the nights that follow.
        quarantine(files_of(opened, opened.catalog.images("SG2", "b")[0]))
    expected = tmp_path / "expected"
    shutil.copytree(site.store("SG2/b"), expected, symlinks=True)
    with site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP, run=record.run)
    site.write_file(stores={"SG1": ("a",)})
    with site.open(HandClock()) as opened:
        assert night.night(opened, BACK_GROUP, new=True).result == "whole"
        assert bring_back(opened, tmp_path / "back", store="SG2/b").copy == "staging"
        assert compare_tree(expected, tmp_path / "back") == ""
        with pytest.raises(ConfigError, match="SG2"):
            restore.find_image(opened, "SG2", "c")


def test_what_a_storage_group_owes_is_delivered_after_it_went_to_another_disk(
    make_site: MakeSite, tmp_path: Path
) -> None:
    site = make_site(stores={"SG1": ("a",), "SG2": ("b",)}, copies=("folder",))
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)
    other = tmp_path / "other"
    other.mkdir()
    site.write_file(more=f'\n[[back_groups]]\nname = "TEX-BACK-2"\npath = "{other}"\n')
    moved = site.file.read_text().replace('back_group = "TEX-BACK-1"', 'back_group = "TEX-BACK-2"', 1)
    site.file.write_text(moved)
    with site.open(HandClock()) as opened:
        assert owed.owed(opened, "TEX-BACK-2") == []
        assert bring_back(opened, tmp_path / "back").copy == "staging"
        night.stage_two(opened, record)
        assert owed.owed(opened, BACK_GROUP) == []
        assert [s.colour for s in status(opened)] == ["green", "green"]


def test_a_store_that_left_neither_image_nor_failure_makes_the_night_partial(make_site: MakeSite) -> None:
    site = make_site(copies=("folder",))
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP, stores=["SG1/a"])
        with run.run_lock(opened, BACK_GROUP, progress=QUIET, cancel=Cancel()):
            record = run.begin_run(opened, BACK_GROUP).run
            gate.write_seal(opened, record)  # the task of SG1/b died with Prefect's server
        gate.approve(opened, record, ["SG1/b"], "tomorrow")
        night.stage_two(opened, record)
        result = night_result(opened, record)
        assert (result.outcome, result.exit_code, result.run.result) == ("Partial", 3, "partial")
        assert "partial: SG1/b" in result.sentence()


def test_a_night_that_leaves_an_older_copy_owed_is_not_green(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, clock = make_site(copies=("folder",)), HandClock()
    with site.open(clock) as opened:
        first = night.stage_one(opened, BACK_GROUP)
        clock.advance(timedelta(days=1))

        original = stream.make_copy

        def refused(
            opened: OpenSite, outgoing: staged.StagedOutgoing, *rest: object, **more: object
        ) -> object:
            if outgoing.record.run == first.run and outgoing.record.store == "a":
                raise DestinationError("refused")
            return original(opened, outgoing, *rest, **more)  # type: ignore[arg-type]

        with monkeypatch.context() as patched:
            patched.setattr(stream, "make_copy", refused)
            with pytest.raises(DestinationError, match="refused"):
                night.night(opened, BACK_GROUP)
        (second, _) = opened.catalog.runs(BACK_GROUP)
        result = night_result(opened, second)
        assert (result.outcome, result.exit_code) == ("CopyMissing", 20)
        assert f"{first.run}.SG1.a.L0 at folder" in result.sentence()
        assert (result.run.state, result.run.result) == ("ended", "whole")
        night.stage_two(opened, second)
        assert night_result(opened, second).outcome == "Completed"


def test_a_damaged_chunk_table_in_the_catalog_judges_no_copy(make_site: MakeSite, tmp_path: Path) -> None:
    site = make_site(copies=("folder",))
    with site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
        image = restore.find_image(opened, "SG1", "a")
        (table,) = (site.home / "catalog" / "indexes").glob(f"{image.image}.chunks")
        right = table.read_bytes()
        for number, wrong in enumerate((right[:-1] + bytes([right[-1] ^ 1]), right[:8], b"")):
            table.write_bytes(wrong)
            checked = verify.verify_copies(opened, progress=QUIET, cancel=Cancel())
            assert {one.copy.state for one in checked} == {"verified"}
            assert table.read_bytes() == right
            table.write_bytes(wrong)
            assert bring_back(opened, tmp_path / str(number)).copy == "staging"


def test_an_index_that_no_place_has_is_named(make_site: MakeSite, tmp_path: Path) -> None:
    site = make_site(copies=("folder",))
    with site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
        image = restore.find_image(opened, "SG1", "a")
        places = [site.home / "catalog" / "indexes", site.disk, site.home / "objects"]
        for found in [path for place in places for path in place.rglob("*chunks")]:
            found.write_bytes(b"")
        with pytest.raises(CatalogError, match=f"{image.image} differ from the record.*staging: .*folder: "):
            bring_back(opened, tmp_path / "back")


def test_a_sample_does_not_clear_a_damaged_copy(make_site: MakeSite) -> None:
    site = make_site(copies=("folder",))
    with site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
        image = restore.find_image(opened, "SG1", "b")
        (copy,) = opened.catalog.copies(image.image)
        read_back.mark_damaged(opened, copy, DestinationError("a bad block"))
        found = [
            verify.check_one(opened, c, sample=share, progress=QUIET, cancel=Cancel())
            for share in (0.5, 1.0)
            for c in opened.catalog.copies(image.image)
        ]
        assert [(c.copy.state, c.exit_code) for c in found] == [("damaged", 30), ("verified", 0)]


def test_samples_come_round_to_every_chunk() -> None:
    met = [{c for part in read_back._sampled(40, 0.1) for c in part} for _ in range(300)]
    assert {len(m) for m in met} == {4}
    assert set().union(*met) == set(range(40))


def test_the_move_to_a_passive_node_waits_for_a_restore_that_reads_from_staging(make_site: MakeSite) -> None:
    site = make_site(copies=("folder",))
    with site.open(HandClock()) as opened, ExitStack() as reading:
        record = night.stage_one(opened, BACK_GROUP)
        reading.enter_context(opened.claims.shared(BACK_GROUP).read("restore of SG1/a"))

        class Ended(Quiet):
            said = ""

            def say(self, text: str, subject: str = "") -> None:
                if "restore of SG1/a" in text:
                    self.said = text
                    reading.close()

        progress = Ended()
        night.stage_two(opened, record, progress=progress)
        assert progress.said.startswith("waiting: the disk")
        assert opened.cluster.where(BACK_GROUP) == "TEX-PASS-2"


def test_an_image_of_a_node_whose_clock_goes_ahead_is_the_newest_all_the_same(make_site: MakeSite) -> None:
    site, clock = make_site(copies=("folder",)), HandClock()
    with site.open(clock) as opened:
        night.night(opened, BACK_GROUP)
        clock.advance(-timedelta(minutes=10))
        assert restore.find_image(opened, "SG1", "a").run == opened.catalog.runs()[0].run
        assert {s.colour for s in status(opened)} == {"red"}
        assert "is stamped" in status(opened)[0].reason
        with pytest.raises(ConfigError, match="began by"):
            restore.find_image(opened, "SG1", "a", as_of=clock.now())


def test_stage_two_by_itself_reads_nothing_that_did_not_go_through_the_gate(make_site: MakeSite) -> None:
    site = make_site(copies=("folder",))
    with site.open(HandClock()) as opened:
        move.require_handed_over(opened, BACK_GROUP)  # no run yet: nothing is owed
        shutil.rmtree(site.store("SG1/b"))
        record = night.stage_one(opened, BACK_GROUP)
        with pytest.raises(GateClosed, match="still with TEX-ACTV-1"):
            move.require_handed_over(opened, BACK_GROUP)
        gate.approve(opened, record, ["SG1/b"], "gone")
        night.stage_two(opened, record)
        move.require_handed_over(opened, BACK_GROUP)


def test_an_image_under_another_images_name_is_not_taken_over(make_site: MakeSite) -> None:
    site = make_site(copies=("folder",))
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        before = opened.catalog.all(ImageRecord)
        for path in sorted(site.disk.glob("SG1/a/*")):
            shutil.copy(path, path.with_name(path.name.replace("20261110", "20261109")))
        with run.run_lock(opened, BACK_GROUP, progress=QUIET, cancel=Cancel()):
            run.begin_run(opened, BACK_GROUP, run=record.run)
        assert opened.catalog.all(ImageRecord) == before
        assert len(site.staged()) == 2


def test_no_room_for_the_index_being_sorted_is_no_fault_of_the_file_at_hand(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(stores={"SG1": ("a",)}, copies=("folder",))
    asked: list[str] = []

    def once_full(**options: object) -> BinaryIO:
        asked.append("")
        if len(asked) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return make(**options)  # type: ignore[call-overload, no-any-return]

    make = index_builder.tempfile.TemporaryFile
    monkeypatch.setattr(index_builder.tempfile, "TemporaryFile", once_full)
    # The seventh path is a symbolic link: with it the rows of the six before it leave the memory.
    seven = partial(index_builder.IndexBuilder, spill_rows=7)
    monkeypatch.setattr("nightferry.image.writer.IndexBuilder", seven)
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        (failure,) = opened.catalog.failures(record.run)
        assert "cannot keep the index" in failure.error
        assert night.night(opened, BACK_GROUP).result == "whole"
        rows = {row.path for row in restore.matching_rows(opened, opened.catalog.images()[0], [])}
        assert rows >= {b"big.bin", b"deep/letter.txt", b"empty", b"link"}


def test_a_copy_is_not_fetched_into_the_room_that_staging_keeps_free(make_site: MakeSite) -> None:
    site = make_site()
    with site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
    for tar in site.disk.glob("*/*/*.tar"):
        tar.unlink()
    site.write_file(keep_free="100 %")
    with site.open(HandClock()) as opened:
        image = restore.find_image(opened, "SG1", "a")
        for copy in opened.catalog.copies(image.image):
            if copy.destination == "folder":
                read_back.mark_damaged(opened, copy, DestinationError("a bad block"))
        with pytest.raises(StagingFull, match="scratch space"):
            verify.remake_copy(opened, image, "folder", progress=QUIET, cancel=Cancel())
    site.write_file(keep_free="0 %")
    with site.open(HandClock()) as opened:
        made = verify.remake_copy(opened, image, "folder", progress=QUIET, cancel=Cancel())
        assert made.state == "verified"


def test_a_run_goes_on_at_the_node_that_its_service_went_to(make_site: MakeSite) -> None:
    site = make_site(copies=("folder",))
    shutil.rmtree(site.store("SG1/b"))
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        plan = opened.cluster.plan("TEX-MAIL-1", "TEX-PASS-1")
        opened.cluster.move(plan, run="a failover", cancel=Cancel())
        fill(site.store("SG1/b"))
        record = night.stage_one(opened, BACK_GROUP)
        seal = opened.catalog.seal(record.run)
        assert seal is not None
        assert (record.node, seal.node, opened.cluster.where(BACK_GROUP)) == ("TEX-PASS-1",) * 3
        assert {i.store: i.node for i in opened.catalog.images()} == {"a": "TEX-ACTV-1", "b": "TEX-PASS-1"}
        night.stage_two(opened, record)
        assert opened.cluster.where(BACK_GROUP) == "TEX-PASS-2"
