"""Expiry on a folder and on tape: what stays comes back, what went is gone, cartridges are written again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from nightferry.copies import media, verify
from nightferry.errors import CopyMissing, ImplausibleExpiry, NoScratch
from nightferry.health import check
from nightferry.model.records import CopyRecord, ExpiryRecord
from nightferry.night import gate, stage
from nightferry.progress import QUIET, Cancel
from nightferry.restore import restore
from nightferry.retention import expire
from nightferry.site.opened import OpenSite
from nightferry.staging import adoption, owed
from nightferry.staging.images import staged_path
from tests.support import brought, night
from tests.support.command_site import Command
from tests.support.night import nights
from tests.support.outside import folder_copies, tape_copies, wrong_images
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

MakeSite = Callable[..., SmallSite]
Aged = Callable[..., tuple[SmallSite, HandClock]]
DAY = timedelta(days=1)
KEEP_2 = '[retention]\nkeep_last = 2\nat_most = "75 %"\n'


def sums(folder: Path) -> str:
    """``sha256sum`` of every file below a folder."""
    command = ["find", ".", "-type", "f", "-exec", "sha256sum", "{}", "+"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=True)
    return b"\n".join(sorted(done.stdout.splitlines(), key=lambda line: line[64:])).decode(errors="replace")


def test_cartridges_of_an_image_that_is_not_finished_are_kept_for_it_until_it_is_given_up(
    make_site: MakeSite, tmp_path: Path
) -> None:
    site, clock = make_site(copies=("tape",), cartridge="4 MiB", more=KEEP_2), HandClock()
    (site.store("SG1/a") / "large.bin").write_bytes(os.urandom(30 << 20))
    with site.open(clock) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        with pytest.raises(NoScratch):
            night.stage_two(opened, record)
        name = opened.catalog.images("SG1", "a")[0].image
        [begun] = opened.catalog.copies(name)
        held = {part["barcode"] for part in begun.location["parts"]}
        assert len(held) >= 5
        clock.advance(DAY)
        run_expire(opened)
        assert not {c.barcode for c in opened.catalog.cartridges("tape") if c.state == "expired"}
        owed.forget_owed(opened, name, "there are no more cartridges of this kind")
        run_expire(opened)
        assert {c.barcode for c in opened.catalog.cartridges("tape") if c.state == "expired"} == held
        # They are written by the next night, which has no others.
        (site.store("SG1/a") / "large.bin").write_bytes(os.urandom(15 << 20))
        night.night(opened, BACK_GROUP)
        newer = opened.catalog.images("SG1", "a")[0].image
        assert newer != name
        [copy] = opened.catalog.copies(newer)
        assert copy.state == "verified"
        assert {part["barcode"] for part in copy.location["parts"]} <= held
        bring_back(opened, newer, tmp_path / "back", "tape")


def test_an_image_that_ran_out_of_cartridges_goes_on_in_the_next_night(
    make_site: MakeSite, tmp_path: Path
) -> None:
    site, clock = make_site(copies=("tape",), cartridge="4 MiB", more=KEEP_2), HandClock()
    (site.store("SG1/a") / "large.bin").write_bytes(os.urandom(30 << 20))
    with site.open(clock) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        with pytest.raises(NoScratch):
            night.stage_two(opened, record)
        name = opened.catalog.images("SG1", "a")[0].image
        [begun] = opened.catalog.copies(name)
    before = {p: p.read_bytes() for p in sorted(site.library.rglob("*.tape"))}
    library = (
        f'{{ kind = "virtual", path = "{site.library}", drives = 2, slots = 40, cartridge_bytes = "4 MiB" }}'
    )
    site.write_file(tape=library)
    with site.open(clock) as opened:
        night.stage_two(opened, opened.catalog.run(record.run))
        [copy] = opened.catalog.all_copies(name)
        assert (copy.state, copy.epoch) == ("verified", 1)
        assert copy.location["parts"][: len(begun.location["parts"])] == begun.location["parts"]
        bring_back(opened, name, tmp_path / "back", "tape")
    assert {p: p.read_bytes() for p in before} == before


def run_expire(opened: OpenSite, **options: object) -> expire.Expiry:
    return expire.expire(opened, progress=QUIET, cancel=Cancel(), **options)  # type: ignore[arg-type]


def image(day: int, store: str = "a") -> str:
    return f"202611{day:02d}-TEX-BACK-1.SG1.{store}.L0"


def bring_back(opened: OpenSite, name: str, to: Path, copy: str | None = None) -> None:
    store = name.split(".")[2]
    record = restore.find_image(opened, "SG1", store, image=name)
    assert brought.bring_back(opened, to, copy=copy, image=record).is_complete


@pytest.fixture(scope="module")
def four_nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site's home after four nights, 10 to 13 November; ``was/DAY``: the sums of SG1/a that night. Its stores lie
    beside it, so that a copy of it has stores of the same path."""
    home = tmp_path_factory.mktemp("aged") / "site"
    (home / "was").mkdir(parents=True)
    site, clock = SmallSite(home, sources=home.parent / "stores").build(), HandClock()
    with site.open(clock) as opened:
        for day in (10, 11, 12, 13):
            (site.store("SG1/a") / "today.txt").write_text(f"day {day}")
            (home / "was" / str(day)).write_text(sums(site.store("SG1/a")))
            nights(opened, clock, 1)
    return home


@pytest.fixture
def aged(four_nights: Path, tmp_path: Path) -> Aged:
    """A copy of it with another site file, and the clock as it stands then."""

    def make(more: str = KEEP_2, copies: tuple[str, ...] = ("tape", "folder")) -> tuple[SmallSite, HandClock]:
        home = tmp_path / "site"
        shutil.copytree(four_nights, home, symlinks=True)
        site = SmallSite(home, more=more, copies=copies, sources=four_nights.parent / "stores")
        site.write_file()
        return site, HandClock(HandClock().now() + 4 * DAY)

    return make


def test_seals_and_logs_go_with_the_last_image_of_their_run(aged: Aged) -> None:
    site, clock = aged()
    seals, logs = site.disk / ".nightferry" / "seals", site.home / "catalog" / "logs"
    runs = [f"202611{day}-{BACK_GROUP}" for day in (10, 11, 12, 13, 14)]
    assert sorted(os.listdir(seals)) == runs[:4]
    with site.open(clock) as opened:
        expire.add_hold(opened, image(11), "evidence")
        run_expire(opened)
        night.night(opened, BACK_GROUP)
        # The first run's images have all expired, one of the second's is held.
        assert sorted(os.listdir(seals)) == runs[1:]
        assert sorted(os.listdir(logs)) == [f"{run}.log" for run in runs[1:]]
        assert {record.run for record in opened.catalog.runs()} == set(runs)


def test_what_stays_comes_back_and_what_went_is_gone(aged: Aged, tmp_path: Path) -> None:
    site, clock = aged()
    with site.open(clock) as opened:
        before = sums(site.home)
        foreseen = run_expire(opened, dry_run=True)
        assert sums(site.home) == before
        done = run_expire(opened)
        assert done.exit_code == 0
        gone = {(row.image.image, row.copy.destination) for row in done.gone}
        expected = {(image(d, s), at) for d in (10, 11) for s in "ab" for at in ("tape", "folder")}
        assert gone == expected == {(row.image.image, row.copy.destination) for row in foreseen.gone}
        assert sorted(folder_copies(site.objects)) == sorted(image(d, s) for d in (12, 13) for s in "ab")
        assert not (site.objects / "images" / image(10)).exists()
        kept = {path.name.rpartition(".")[0] for path in (site.home / "catalog" / "indexes").iterdir()}
        assert kept == {image(d, s) for d in (12, 13) for s in "ab"}
        with pytest.raises(CopyMissing, match="has expired, and its index with it"):
            restore.plan_restore(opened, opened.catalog.image(image(10)), [], tmp_path / "none")
        assert done.freed_bytes == foreseen.freed_bytes == sum(r.copy.size_bytes for r in done.gone) // 2
        for day in (12, 13):
            was = (site.home / "was" / str(day)).read_text()
            for at in ("tape", "folder"):
                to = tmp_path / f"{day}-{at}"
                bring_back(opened, image(day), to, at)
                assert sums(to) == was
        with pytest.raises(CopyMissing):
            bring_back(opened, image(11), tmp_path / "gone")
        assert verify.missing_copies(opened, "folder") == []
        assert {row.fate for row in run_expire(opened).copies} == {"kept"}


def test_a_restore_as_of_takes_the_newest_image_that_is_still_there(aged: Aged) -> None:
    site, clock = aged()
    with site.open(clock) as opened:
        expire.add_hold(opened, image(10), "the audit")
        run_expire(opened)
        as_of = clock.now() - 2 * DAY - timedelta(hours=1)
        found = restore.find_image(opened, "SG1", "a", as_of=as_of)
        assert (found.image, opened.catalog.expired(image(11))) == (image(10), True)


def test_an_expiry_says_who_why_and_what_before_and_afterwards(aged: Aged) -> None:
    site, clock = aged(copies=("folder",))
    with site.open(clock) as opened:
        run_expire(opened)
        events = [json.loads(p.read_bytes()) for p in sorted((site.home / "catalog/events").iterdir())]
        told = [(e["phase"], e["kind"], e["body"].get("state"), e["subject"]) for e in events]
        first, last = (told.index(t) for t in told if t[1] == "expiry")
        subject = f"{image(10)}@folder#1"
        order = [
            first,
            told.index(("result", "copy", "expiring", subject)),
            told.index(("result", "copy", "expired", subject)),
            last,
        ]
        assert order == sorted(order)
        body = events[first]["body"]
        assert body["who"]
        assert set(body["copies"]) == {f"{image(day, store)}@folder#1" for day in (10, 11) for store in "ab"}
        assert set(events[last]["body"]["copies"]) == set(body["copies"])
        copy = opened.catalog.latest(CopyRecord, subject)
        assert copy is not None
        assert "beyond keep_last = 2" in copy.note


def test_a_scratch_cartridge_is_labelled_anew_and_written_from_its_start(
    make_site: MakeSite, tmp_path: Path
) -> None:
    site, clock = make_site(more=KEEP_2, copies=("tape",), cartridge="8 MiB"), HandClock()
    site.file.write_text(site.file.read_text().replace("slots = 6", "slots = 3"))
    (site.store("SG1/a") / "large.bin").write_bytes(os.urandom(2 << 20))

    def label(barcode: str) -> str:
        text = (site.library / "cartridges" / barcode / "0000.tape").read_text()
        return next(line for line in text.splitlines() if line.startswith("label: "))

    with site.open(clock) as opened:
        nights(opened, clock, 5)
        live = {c.data.parent.name for c in tape_copies(site.library) if c.image[6:8] in ("13", "14")}
        content = {barcode: sums(site.library / "cartridges" / barcode) for barcode in live}
        labels = {p.parent.name: label(p.parent.name) for p in site.library.glob("cartridges/*/0000.tape")}
        foreseen = [c.barcode for c in run_expire(opened, dry_run=True).cartridges]
        scratch = [c.barcode for c in run_expire(opened).cartridges]
        assert scratch == foreseen
        assert scratch
        assert live.isdisjoint(scratch)
        assert {c.state for c in opened.catalog.cartridges("tape") if c.barcode in scratch} == {"expired"}
        # The labels are untouched until a night needs the room.
        assert {barcode: label(barcode) for barcode in labels} == labels
    with site.open(clock) as opened:
        while label(scratch[0]) == labels[scratch[0]]:
            nights(opened, clock, 1)
            assert clock.now().day < 28
        record = next(c for c in opened.catalog.cartridges("tape") if c.barcode == scratch[0])
        assert (f"label: {record.label}", record.former_label) == (label(scratch[0]), "")
        assert not {image(10), image(11), image(12)} & set(record.images)
        newest = opened.catalog.images("SG1", "a")[0].image
        bring_back(opened, newest, tmp_path / "back", "tape")
        assert sums(tmp_path / "back") == sums(site.store("SG1/a"))
        one_part = {c.image: c.data for c in tape_copies(site.library) if ".b." in c.image}
        assert wrong_images(one_part, site.store("SG1/a").parents[1]) == []
    for barcode in live:
        lines = content[barcode].splitlines()
        assert set(lines[:2]) <= set(sums(site.library / "cartridges" / barcode).splitlines())


def test_a_cartridge_in_the_vault_comes_home_as_scratch(aged: Aged) -> None:
    site, clock = aged("[retention]\nkeep_last = 1\nat_most = 1.0\n", copies=("tape",))
    with site.open(clock) as opened:
        nights(opened, clock, 1)
        before = {c.barcode for c in opened.catalog.cartridges("tape") if c.images}
        (barcode,) = before
        media.holding(opened, barcode).handling.export(barcode, "test")
        nights(opened, clock, 1)
        assert [c.barcode for c in run_expire(opened).cartridges] == [barcode]
        record = next(c for c in opened.catalog.cartridges("tape") if c.barcode == barcode)
        assert (record.state, record.resumes) == ("offsite", "expired")
        media.holding(opened, barcode).handling.take_in("test")
        record = next(c for c in opened.catalog.cartridges("tape") if c.barcode == barcode)
        assert record.state == "expired"
        assert run_expire(opened).cartridges == []


def test_a_cartridge_with_one_live_copy_is_no_scratch(aged: Aged) -> None:
    site, clock = aged(copies=("tape",))
    with site.open(clock) as opened:
        done = run_expire(opened)
        assert done.gone
        assert done.cartridges == []
        assert {c.state for c in opened.catalog.cartridges("tape")} == {"appendable"}


def test_a_held_image_stays_until_the_hold_is_removed(aged: Aged, nightferry: Command) -> None:
    site, clock = aged()
    assert nightferry(site.file, "hold", "add", image(10)).code == 2
    assert nightferry(site.file, "hold", "add", image(10)[:-1] + "9", "--reason", "x").code == 2
    assert nightferry(site.file, "hold", "add", image(10), "--reason", "a lawsuit").code == 0
    done = nightferry(site.file, "expire")
    assert done.code == 0
    assert "held: a lawsuit" in done.out
    with site.open(clock) as opened:
        assert not opened.catalog.expired(image(10))
        assert opened.catalog.expired(image(10, "b"))
    listed = nightferry(site.file, "hold", "list", "--json").document["holds"]
    assert [(h["image"], h["reason"]) for h in listed] == [(image(10), "a lawsuit")]
    assert nightferry(site.file, "hold", "remove", image(10)).code == 0
    assert nightferry(site.file, "hold", "remove", image(10)).code == 2
    assert nightferry(site.file, "expire").code == 0
    refused = nightferry(site.file, "hold", "add", image(10), "--reason", "too late")
    assert (refused.code, "has expired" in refused.err) == (2, True)
    assert nightferry(site.file, "hold", "list").out == "nothing is held\n"


def test_so_much_at_once_needs_somebodys_word(aged: Aged, nightferry: Command) -> None:
    site, clock = aged(more="[retention]\nkeep_last = 1\n", copies=("folder",))
    with site.open(clock) as opened, pytest.raises(ImplausibleExpiry):
        run_expire(opened)
    before = sums(site.objects)
    foreseen = nightferry(site.file, "expire", "--dry-run", "--json")
    assert (foreseen.code, foreseen.document["refused"]) == (
        2,
        "6 of 8 copies at folder would expire at once, more than 50%",
    )
    refused = nightferry(site.file, "expire", "--json")
    assert refused.error["subject"] == "folder"
    assert "--yes --reason" in refused.error["hint"]
    assert nightferry(site.file, "expire", "--yes").code == 2
    assert nightferry(site.file, "expire", "--reason", "x").code == 2
    assert sums(site.objects) == before
    assert nightferry(site.file, "expire", "--yes", "--reason", "new policy of the board").code == 0
    assert sorted(folder_copies(site.objects)) == [image(13), image(13, "b")]
    with site.open() as opened:
        assert [e.reason for e in opened.catalog.all(ExpiryRecord)] == ["new policy of the board"]


def test_expired_images_leave_the_list_and_stay_in_the_log(aged: Aged, nightferry: Command) -> None:
    site, clock = aged()
    with site.open(clock) as opened:
        run_expire(opened)
    listed = [i["image"] for i in nightferry(site.file, "images", "--json").document["images"]]
    assert sorted(listed) == sorted(image(d, s) for d in (12, 13) for s in "ab")
    gone = nightferry(site.file, "images", "--expired", "--json").document["images"]
    assert sorted(i["image"] for i in gone) == sorted(image(d, s) for d in (10, 11) for s in "ab")
    assert {c["state"] for i in gone for c in i["copies"]} == {"expired"}
    assert nightferry(site.file, "copies", image(10)).code == 0
    assert (
        nightferry(site.file, "restore", "store", "SG1/a", "--image", image(10), "--to", site.home / "x").code
        == 20
    )


def test_what_a_run_owes_stays_and_an_unproved_copy_takes_no_place(make_site: MakeSite) -> None:
    site, clock = make_site(more='[retention]\nkeep_last = 1\nat_most = "90 %"\n'), HandClock()
    with site.open(clock) as opened:
        nights(opened, clock, 1)
        moved = site.objects.rename(site.home / "away")
        record = night.stage_one(opened, BACK_GROUP)
        with pytest.raises(Exception, match="is not there"):
            night.stage_two(opened, record)
        clock.advance(DAY)
        done = run_expire(opened)
        why = {(r.image.image, r.copy.destination): (r.fate, r.why) for r in done.copies}
        assert why[image(11), "tape"] == ("kept", f"run {record.run} has not ended")
        assert why[image(10), "tape"][0] == "expired"
        assert why[image(10), "folder"] == ("kept", "keep_last")
        moved.rename(site.objects)
        nights(opened, clock, 1)
        run_expire(opened)
        assert sorted(folder_copies(site.objects)) == [image(12), image(12, "b")]


def test_a_destination_that_is_away_keeps_its_copies_and_stops_nobody_else(aged: Aged) -> None:
    site, clock = aged()
    with site.open(clock) as opened:
        moved = site.objects.rename(site.home / "away")
        done = run_expire(opened)
        fates = {(r.copy.destination, r.fate) for r in done.copies if r.image.image == image(10)}
        assert (fates, done.exit_code) == ({("tape", "expired"), ("folder", "failed")}, 20)
        moved.rename(site.objects)
        done = run_expire(opened)
        assert done.exit_code == 0
        assert opened.catalog.expired(image(10))
        assert sorted(folder_copies(site.objects)) == sorted(image(d, s) for d in (12, 13) for s in "ab")


def test_what_is_found_out_about_a_copy_does_not_bring_it_back(aged: Aged) -> None:
    """Somebody reads a copy while it expires: neither damage nor soundness is news of it any more."""
    site, clock = aged(copies=("folder",))
    with site.open(clock) as opened:
        copy = opened.catalog.copies(image(10))[0]
        run_expire(opened)
        result = verify.check_one(opened, copy, sample=1.0, progress=QUIET, cancel=Cancel())
        assert result.exit_code == 20
        now = opened.catalog.copies(image(10))[0]
        assert now.state == "expired"
        assert owed.owed(opened, BACK_GROUP) == []


def test_a_hold_that_comes_while_it_expires_is_heard(aged: Aged, monkeypatch: pytest.MonkeyPatch) -> None:
    site, clock = aged(copies=("folder",))
    with site.open(clock) as opened, site.open(clock) as elsewhere:
        ahead = expire.look_ahead

        def late(*args: object) -> object:
            seen = ahead(*args)  # type: ignore[arg-type]
            expire.add_hold(elsewhere, image(10), "just in time")
            return seen

        monkeypatch.setattr(expire, "look_ahead", late)
        done = run_expire(opened)
        (row,) = [r for r in done.copies if r.image.image == image(10)]
        assert (row.fate, row.why) == ("kept", "held: just in time")
        copy = opened.catalog.copies(image(10))[0]
        assert copy.state == "verified"
        assert image(10) in folder_copies(site.objects)


def test_an_image_whose_other_copy_never_arrived_and_that_staging_lost_is_listed_no_more(aged: Aged) -> None:
    site, clock = aged(copies=("folder",))
    with site.open(clock) as opened:
        lost, tape = opened.catalog.image(image(10)), opened.catalog.copies(image(10))[1]
        opened.catalog.append(tape.model_copy(update={"state": "writing", "epoch": 2, "location": {}}))
        opened.catalog.append(tape.model_copy(update={"state": "lost"}))
        run_expire(opened)
        assert opened.catalog.expired(lost.image)
        assert {c.state for c in opened.catalog.all_copies(lost.image)} == {"expired", "lost"}


def test_a_destinations_own_retention_is_its_own(aged: Aged) -> None:
    site, clock = aged()
    text = site.file.read_text().replace(
        'kind = "fsspec"', 'kind = "fsspec"\nretention = { keep_last = 3, keep_monthly = 1 }'
    )
    site.file.write_text(text)
    with site.open(clock) as opened:
        run_expire(opened)
        held: dict[str, set[str]] = {"tape": set(), "folder": set()}
        for record in opened.catalog.images("SG1", "a"):
            for copy in opened.catalog.copies(record.image):
                if copy.state == "verified":
                    held[copy.destination].add(record.image)
        assert held == {"tape": {image(12), image(13)}, "folder": {image(11), image(12), image(13)}}
        assert not opened.catalog.expired(image(11))
        assert opened.catalog.expired(image(10))


@pytest.mark.parametrize(("keep", "stays"), [("keep_last = 2", False), ("", True)])
def test_a_partial_image_that_nobody_approved_leaves_staging_when_it_is_outlived(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch, keep: str, stays: bool
) -> None:
    site, clock = make_site(more=f'[retention]\nat_most = "90 %"\n{keep}\n', copies=("folder",)), HandClock()
    judge = adoption.state_of
    with site.open(clock) as opened:
        monkeypatch.setattr(stage, "state_of", lambda *_: "partial")
        record = night.stage_one(opened, BACK_GROUP)
        assert gate.evaluate(opened, record).state == "held"
        monkeypatch.setattr(stage, "state_of", judge)
        clock.advance(DAY)
        nights(opened, clock, 1)
        tar = staged_path(opened, opened.catalog.image(image(10)))
        assert run_expire(opened).staged == []
        nights(opened, clock, 1)
        foreseen = run_expire(opened, dry_run=True)
        done = run_expire(opened)
        assert done.staged == foreseen.staged
        assert tar.exists() == stays
        assert [r.image.image for r in done.staged] == ([] if stays else [image(10, "b"), image(10)])
        assert opened.catalog.expired(image(10)) != stays
        assert staged_path(opened, opened.catalog.images("SG1", "a")[0]).exists()


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ("", {"NF-RET-001"}),
        ("[retention]\nkeep_daily = 1\nkeep_last = 1\n", {"NF-RET-002"}),
        ("[retention]\nkeep_daily = 2\n", set()),
    ],
)
def test_check_says_what_is_kept_for_ever_or_once(make_site: MakeSite, more: str, found: set[str]) -> None:
    site = make_site(more=more, copies=("folder",))
    with site.open() as opened:
        findings = [f for f in check.check(opened.loaded) if f.id.startswith("NF-RET")]
    assert {f.id for f in findings} == found
    assert all("folder" in f.text and f.fix for f in findings)


def test_orphans_of_a_folder_go_when_nobody_touched_them_for_two_days(make_site: MakeSite) -> None:
    site, clock = make_site(copies=("folder",)), HandClock()
    with site.open(clock) as opened:
        nights(opened, clock, 1)
        whole = site.objects / "images" / image(10)
        (whole / "data.zst").write_bytes(b"x" * 1000)
        cut = site.objects / "images" / image(11) / ".partial-1"
        cut.mkdir(parents=True)
        (cut / "data").write_bytes(b"y" * 5)
        said = json.loads((whole / "origin.json").read_text())
        (cut.parent / "origin.json").write_text(json.dumps(said | {"image": image(11)}))
        begun = opened.catalog.copies(image(10))[0].model_copy(
            update={"image": image(11), "state": "writing"}
        )
        opened.catalog.append(begun)
        lost = site.objects / "images" / image(10, "b") / "meta.json"
        lost.unlink()  # that is damage, for `verify` to find
        clock.time = clock.time.replace(year=2040)
        old = clock.now().timestamp() - 3 * 86400
        young = clock.now().timestamp() - 3600
        os.utime(whole / "data.zst", (old, old))
        os.utime(cut.parent / "origin.json", (old, old))
        os.utime(cut / "data", (young, young))
        done = run_expire(opened)
        assert [(r.orphan.what, r.orphan.path) for r in done.orphans] == [
            ("data", f"images/{image(10)}/data.zst")
        ]
        assert not (whole / "data.zst").exists()
        os.utime(cut / "data", (old, old))
        assert [r.orphan.what for r in run_expire(opened, dry_run=True).orphans] == ["unfinished"]
        assert cut.exists()
        run_expire(opened)
        assert not cut.parent.exists()
        assert sorted(p.name for p in whole.iterdir()) == sorted(
            ["chunks", "copy.json", "data", "index", "meta.json", "origin.json"]
        )
        assert lost.parent.exists()
