"""A destination that is away for two nights: owed, and delivered once it is back; nothing lost, nothing twice."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from nightferry.copies import verify
from nightferry.errors import DestinationError, Unavailable
from nightferry.health.status import status
from nightferry.model.records import CartridgeRecord
from nightferry.model.text import safe_markdown
from nightferry.night.report import night_result, report_markdown
from nightferry.progress import QUIET, Cancel
from nightferry.restore import restore
from nightferry.site.opened import OpenSite
from tests.support import night
from tests.support.outside import folder_copies, tape_copies, wrong_images
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

MakeSite = Callable[..., SmallSite]

RUNS = [f"202611{day}-TEX-BACK-1" for day in (10, 11, 12, 13)]


def images_of(runs: list[str]) -> list[str]:
    return [f"{run}.SG1.{store}.L0" for run in runs for store in ("a", "b")]


def on_tape(site: SmallSite) -> list[str]:
    return sorted(copy.image for copy in tape_copies(site.library))


def place_of(site: SmallSite, name: str) -> Path:
    return site.library if name == "tape" else site.objects


def next_night(site: SmallSite, clock: HandClock) -> OpenSite:
    """Each night is a process of its own: it opens the site again."""
    clock.advance(timedelta(days=1))
    return site.open(clock)


@pytest.mark.parametrize("away", ["tape", "folder"])
def test_two_nights_without_a_destination_are_caught_up(make_site: MakeSite, away: str) -> None:
    site, clock = make_site(), HandClock()
    there = {"tape": lambda: sorted(folder_copies(site.objects)), "folder": lambda: on_tape(site)}[away]
    with site.open(clock) as opened:
        night.night(opened, BACK_GROUP)
    place = place_of(site, away)
    place.rename(site.home / "elsewhere")
    for number in (1, 2):
        with next_night(site, clock) as opened:
            record = night.stage_one(opened, BACK_GROUP)
            with pytest.raises(DestinationError) as missed:
                night.stage_two(opened, record)
            assert (missed.value.exit_code, missed.value.retryable) == (20, True)
            result = night_result(opened, record)
            assert (result.outcome, result.exit_code) == ("CopyMissing", 20)
            assert {destination for _, destination in result.missing_copies} == {away}
            assert opened.catalog.run(record.run).state != "ended"
            assert [s.colour for s in status(opened)] == ["amber", "amber"]
        assert not place.exists(), "nothing is made where a disk is not mounted"
        # The other destination has everything; staging keeps what is owed.
        assert there() == images_of(RUNS[: number + 1])
        assert set(images_of(RUNS[1 : number + 1])) <= set(site.staged())

    (site.home / "elsewhere").rename(place)
    with next_night(site, clock) as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
        assert [s.colour for s in status(opened)] == ["green", "green"]
        marks = {c.barcode: c.state for c in opened.catalog.all(CartridgeRecord)}
        assert "foreign" not in marks.values(), marks
    tapes = {copy.image: copy.data for copy in tape_copies(site.library)}
    assert on_tape(site) == sorted(folder_copies(site.objects)) == images_of(RUNS)
    assert wrong_images(tapes | folder_copies(site.objects), site.home / "stores") == []
    assert sorted(site.staged()) == images_of(RUNS[3:])


def test_a_destination_that_goes_away_between_two_images(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image at hand fails, the next ones too; the rerun in the same window makes each copy once."""
    site = make_site()
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)

        class Unplug:
            def begin(self, subject: str, phase: str, total_bytes: int | None = None) -> None:
                if (phase, subject) == ("stream", "SG1/b → folder"):
                    site.objects.rename(site.home / "elsewhere")

            def advance(self, subject: str, done_bytes: int, current: str = "") -> None: ...
            def end(self, subject: str, result: str) -> None: ...
            def say(self, text: str, subject: str = "") -> None: ...

        with pytest.raises(DestinationError):
            night.stage_two(opened, record, Unplug())
        assert not site.objects.exists()
        (site.home / "elsewhere").rename(site.objects)
        night.stage_two(opened, opened.catalog.run(record.run))
        assert opened.catalog.run(record.run).result == "whole"
    assert on_tape(site) == sorted(folder_copies(site.objects)) == images_of(RUNS[:1])


@pytest.mark.parametrize("away", ["tape", "folder"])
def test_a_mount_point_without_its_disk_is_not_filled_nor_called_damaged(
    make_site: MakeSite, away: str, tmp_path: Path
) -> None:
    site, clock = make_site(), HandClock()
    with site.open(clock) as opened:
        night.night(opened, BACK_GROUP)
    place_of(site, away).rename(site.home / "elsewhere")
    place_of(site, away).mkdir()
    with next_night(site, clock) as opened:
        with pytest.raises(Unavailable, match="holds copies"):
            night.night(opened, BACK_GROUP)
        assert list(place_of(site, away).iterdir()) == []
        image = restore.find_image(opened, "SG1", "a", image=images_of(RUNS)[0])
        plan = restore.plan_restore(opened, image, [], tmp_path / "back", copy=away)
        with pytest.raises(Unavailable):
            restore.restore(opened, plan, progress=QUIET, cancel=Cancel())
        checked = list(verify.verify_copies(opened, away, progress=QUIET, cancel=Cancel()))
        assert {(c.copy.state, c.exit_code) for c in checked} == {("verified", 20)}


def test_a_copy_that_is_owed_after_its_deadline_is_missing(make_site: MakeSite) -> None:
    site, clock = make_site(copies=("folder",)), HandClock()
    text = site.file.read_text()
    site.file.write_text(text.replace('name = "folder"', 'name = "folder"\ndeadline = "07:00"'))
    with site.open(clock) as opened:
        night.night(opened, BACK_GROUP)
        assert [(s.colour, s.missing) for s in status(opened)] == [("green", ())] * 2
    site.objects.rename(site.home / "elsewhere")
    with next_night(site, clock) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        with pytest.raises(DestinationError):
            night.stage_two(opened, record)
        assert [(s.colour, s.missing) for s in status(opened)] == [("amber", ())] * 2
        result = night_result(opened, record)
        (reason,) = result.reasons
        assert reason.startswith("folder: ")
        assert f"{site.objects}" in reason
        assert {m["why"] for m in result.as_json()["missing_copies"]} == {reason.removeprefix("folder: ")}
        assert safe_markdown(reason) in report_markdown(result)
        clock.time = clock.time.astimezone(opened.file.tz).replace(day=12, hour=6, minute=59)
        assert {s.missing for s in status(opened)} == {()}
        clock.advance(timedelta(minutes=1))
        for store, one in zip(("a", "b"), status(opened), strict=True):
            (missing,) = one.missing
            assert (missing.image, missing.destination) == (f"{RUNS[1]}.SG1.{store}.L0", "folder")
            assert missing.due == clock.time
            assert one.colour == "amber"
            assert one.reason == "no verified copy at folder; 1 copy missing at folder, due 2026-11-12 07:00"
    (site.home / "elsewhere").rename(site.objects)
    with site.open(clock) as opened:
        night.stage_two(opened, opened.catalog.run(RUNS[1]))
        assert {(s.colour, s.missing) for s in status(opened)} == {("green", ())}
