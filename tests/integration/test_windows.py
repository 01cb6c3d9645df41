"""Which run a night is: none is skipped for a run that a wrong clock or another start dated."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from nightferry.errors import ClockAhead, NightferryError
from nightferry.model.records import RunRecord
from nightferry.night import gate
from nightferry.restore import restore
from nightferry.site.opened import OpenSite
from nightferry.staging import owed
from tests.support import night
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite, fill
from tests.support.tapes import Said

MakeSite = Callable[..., SmallSite]
DAY = timedelta(days=1)


@pytest.fixture
def site(make_site: MakeSite) -> SmallSite:
    return make_site(copies=("folder",), stores={"SG1": ("a", "b")})


def images(opened: OpenSite, run: RunRecord) -> list[str]:
    return sorted(image.store for image in opened.catalog.images(run=run.run))


def test_a_run_that_a_wrong_clock_dated_is_no_later_windows(site: SmallSite) -> None:
    clock = HandClock()
    with site.open(clock) as opened:
        clock.advance(3 * DAY)
        wrong = night.night(opened, BACK_GROUP)
        clock.advance(-3 * DAY)
        with pytest.raises(ClockAhead):
            night.night(opened, BACK_GROUP)
        runs = [night.night(opened, BACK_GROUP, clock_is_right="checked by phone")]
        for _ in range(4):  # the fourth of these windows is called as the wrong one was
            clock.advance(DAY)
            runs.append(night.night(opened, BACK_GROUP))
            assert images(opened, runs[-1]) == ["a", "b"]
        assert len({run.run for run in (wrong, *runs)}) == 6


def test_an_unfinished_run_from_the_future_holds_no_night_up(site: SmallSite) -> None:
    clock = HandClock()
    with site.open(clock) as opened:
        clock.advance(365 * DAY)
        away = site.objects.with_name("away")
        site.objects.mkdir(exist_ok=True)
        site.objects.rename(away)
        site.objects.write_text("not a folder")
        with pytest.raises(NightferryError):
            night.night(opened, BACK_GROUP)
        (wrong,) = opened.catalog.runs(BACK_GROUP)
        assert wrong.state == "streaming"
        clock.advance(-365 * DAY)
        done = set()
        for number in range(2):
            reason = "checked by phone" if number == 0 else ""
            with pytest.raises(NightferryError):
                night.night(opened, BACK_GROUP, clock_is_right=reason)
            newest = opened.catalog.runs(BACK_GROUP)[0]
            assert newest.run not in {wrong.run, *done}
            assert images(opened, newest) == ["a", "b"]
            done.add(newest.run)
            clock.advance(DAY)
        site.objects.unlink()
        away.rename(site.objects)
        assert night.night(opened, BACK_GROUP).result == "whole"
        assert not [
            c
            for i in opened.catalog.images()
            for c in opened.catalog.copies(i.image)
            if c.state != "verified"
        ]


def test_a_held_run_goes_on_when_the_clock_is_set_back_across_its_start(site: SmallSite) -> None:
    clock = HandClock(datetime(2026, 11, 10, 20, 10, tzinfo=UTC))
    shutil.rmtree(site.store("SG1/b"))
    with site.open(clock) as opened:
        held = night.stage_one(opened, BACK_GROUP)
        assert gate.evaluate(opened, held).state == "held"
        fill(site.store("SG1/b"))
        clock.advance(timedelta(minutes=-40))
        with pytest.raises(ClockAhead):
            night.night(opened, BACK_GROUP)
        assert opened.catalog.run(held.run).state != "ended"
        done = night.night(opened, BACK_GROUP, clock_is_right="set by NTP")
        assert (done.run, done.result) == (held.run, "whole")


def test_what_a_run_that_was_given_up_staged_whole_is_not_staged_again(site: SmallSite) -> None:
    shutil.rmtree(site.store("SG1/b"))
    with site.open(HandClock()) as opened:
        held = night.stage_one(opened, BACK_GROUP)
        assert gate.evaluate(opened, held).state == "held"
        fill(site.store("SG1/b"))
        partial = night.night(opened, BACK_GROUP, stores=["SG1/b"], new=True)
        assert images(opened, partial) == ["b"]
        before = len(opened.catalog.images())
        night.night(opened, BACK_GROUP)
        assert len(opened.catalog.images()) == before
        assert {c.state for i in opened.catalog.images() for c in opened.catalog.copies(i.image)} == {
            "verified"
        }


def test_a_run_of_a_release_without_window_starts_skips_no_night_when_the_start_moves(
    site: SmallSite,
) -> None:
    text = site.file.read_text()
    site.file.write_text(text.replace('start = "20:00"', 'start = "00:30"'))
    clock = HandClock(datetime(2026, 11, 10, 0, 31, tzinfo=UTC))
    with site.open(clock) as opened:
        first = night.night(opened, BACK_GROUP)
        opened.catalog.append(first.model_copy(update={"window_start": None}))
    site.file.write_text(text)
    clock.time = datetime(2026, 11, 10, 20, 1, tzinfo=UTC)
    with site.open(clock) as opened:
        assert images(opened, night.night(opened, BACK_GROUP)) == ["a", "b"]
        assert len(opened.catalog.runs(BACK_GROUP)) == 2
        night.night(opened, BACK_GROUP)
        assert len(opened.catalog.runs(BACK_GROUP)) == 2


def test_a_restore_says_which_image_it_took_where_stamps_and_log_disagree(site: SmallSite) -> None:
    clock = HandClock()
    with site.open(clock) as opened:
        clock.advance(2 * DAY)
        false = night.night(opened, BACK_GROUP)
        clock.advance(-2 * DAY)
        true = night.night(opened, BACK_GROUP, clock_is_right="checked by phone")
        opened.progress = said = Said()
        for when in (None, clock.now() + 3 * DAY, clock.now() + timedelta(hours=1)):
            said.lines.clear()
            assert restore.find_image(opened, "SG1", "a", as_of=when).run == true.run
            (line,) = said.lines
            assert f"{false.run}.SG1.a.L0" in line
        # The image of the false night is still to be had by its name, and without a word of others.
        said.lines.clear()
        name = f"{false.run}.SG1.a.L0"
        assert restore.find_image(opened, "SG1", "a", image=name).image == name
        assert said.lines == []


def test_a_renamed_store_gives_its_images_back_under_both_names(make_site: MakeSite) -> None:
    site = make_site(copies=("folder",), stores={"SG1": ("a", "b")})
    with site.open(HandClock()) as opened:
        run = night.night(opened, BACK_GROUP)
    site.write_file(stores={"SG9": ("a", "b")})
    name = f"{run.run}.SG1.a.L0"
    with site.open(HandClock()) as opened:
        owed.adopt(opened, "SG1", "SG9")
        for group in ("SG1", "SG9"):
            assert restore.find_image(opened, group, "a").image == name
            assert restore.find_image(opened, group, "a", image=name).image == name
