"""Clocks ahead and set back, starts that were moved: no night is skipped, ended or outlived by a false one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from nightferry.errors import ClockAhead
from nightferry.health.status import status
from nightferry.night import gate
from nightferry.night.run import begin_run
from nightferry.progress import QUIET, Cancel
from nightferry.restore import restore
from nightferry.retention import expire
from nightferry.site import stamps
from tests.support import night
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite
from tests.support.tapes import Said

MakeSite = Callable[..., SmallSite]
DAY = timedelta(days=1)
KEEP = "\n[retention]\nkeep_last = 1\nkeep_daily = 3\n"


@pytest.fixture
def site(make_site: MakeSite) -> SmallSite:
    site = make_site(copies=("folder",))
    site.file.write_text(site.file.read_text() + KEEP)
    return site


def test_nights_of_a_clock_that_ran_a_year_ahead_never_outlive_the_true_ones(site: SmallSite) -> None:
    clock = HandClock()
    with site.open(clock) as opened:
        true = [night.night(opened, BACK_GROUP).run]
        clock.advance(365 * DAY)
        false = night.night(opened, BACK_GROUP).run
        clock.advance(-364 * DAY)
        assert {s.colour for s in status(opened)} == {"red"}
        with pytest.raises(ClockAhead, match=f"no night begins: run {false} is stamped") as refused:
            begin_run(opened, BACK_GROUP)
        assert "--clock-is-right" in refused.value.hint
        with pytest.raises(ClockAhead, match="nothing expires"):
            expire.expire(opened, progress=QUIET, cancel=Cancel())
        true.append(night.night(opened, BACK_GROUP, clock_is_right="checked by phone").run)
        assert {s.colour for s in status(opened)} == {"green"}
        opened.progress = said = Said()
        assert restore.find_image(opened, "SG1", "a").run == true[-1]
        (line,) = said.lines
        assert line.startswith(
            f"{true[-1]}.SG1.a.L0 was recorded last; 1 older image of SG1/a is stamped later"
        )
        for _ in range(3):
            clock.advance(DAY)
            true.append(night.night(opened, BACK_GROUP).run)
            expire.expire(opened, reason="a test", progress=QUIET, cancel=Cancel())
            assert restore.find_image(opened, "SG1", "a").run == true[-1]
        left = [i.run for i in opened.catalog.images("SG1", "a") if not opened.catalog.expired(i.image)]
    assert left == list(reversed(true[-3:]))


def test_a_clock_that_is_declared_right_needs_a_reason_and_counts_once(site: SmallSite) -> None:
    clock = HandClock()
    with site.open(clock) as opened:
        night.night(opened, BACK_GROUP)
        assert stamps.accept_clock(opened, "nothing is ahead") is None
        clock.advance(-timedelta(minutes=4))
        assert stamps.future_runs(opened) == {}
        clock.advance(-timedelta(minutes=10))
        record = stamps.accept_clock(opened, "a test")
        assert record is not None
        assert record.wrong == (opened.catalog.runs()[0].run,)
        assert stamps.future_runs(opened) == {}


def test_a_start_moved_from_after_midnight_to_the_evening_skips_no_night(make_site: MakeSite) -> None:
    site = make_site(copies=("folder",))
    site.file.write_text(site.file.read_text().replace('start = "20:00"', 'start = "01:00"'))
    clock = HandClock(datetime(2026, 11, 10, 1, 0, tzinfo=UTC))
    with site.open(clock) as opened:
        first = night.night(opened, BACK_GROUP)
    site.file.write_text(site.file.read_text().replace('start = "01:00"', 'start = "20:00"'))
    clock.time = datetime(2026, 11, 10, 20, 0, tzinfo=UTC)
    with site.open(clock) as opened:
        second = begin_run(opened, BACK_GROUP)
    assert not second.finished
    assert (first.window, second.run.window) == ("20261110", "20261110")
    assert second.run.run == f"{first.run}-2"
    assert second.run.window_start == clock.time


def test_a_run_that_is_held_goes_on_when_the_clock_is_set_back_or_its_start_moved_a_little(
    site: SmallSite,
) -> None:
    clock = HandClock(datetime(2026, 11, 10, 20, 2, tzinfo=UTC))
    store = site.store("SG1/b")
    store.rename(store.with_name("aside"))
    with site.open(clock) as opened:
        held = night.stage_one(opened, BACK_GROUP)
        clock.time = datetime(2026, 11, 10, 19, 58, tzinfo=UTC)
        assert begin_run(opened, BACK_GROUP).run.run == held.run
    site.file.write_text(site.file.read_text().replace('start = "20:00"', 'start = "20:30"'))
    clock.time = datetime(2026, 11, 10, 21, 0, tzinfo=UTC)
    with site.open(clock) as opened:
        assert begin_run(opened, BACK_GROUP).run.run == held.run
    clock.time = datetime(2026, 11, 11, 20, 30, tzinfo=UTC)
    with site.open(clock) as opened:
        assert begin_run(opened, BACK_GROUP).run.run != held.run
        assert opened.catalog.run(held.run).state == "ended"


def test_a_plain_backup_after_a_partial_new_one_repeats_nothing_that_is_finished(site: SmallSite) -> None:
    clock = HandClock()
    with site.open(clock) as opened:
        whole = night.night(opened, BACK_GROUP)
        again = night.night(opened, BACK_GROUP, stores=["SG1/a"], new=True)
        assert again.run != whole.run
        plain = begin_run(opened, BACK_GROUP)
        assert plain.finished
        # The same while the repeated part is not finished.
        begin_run(opened, BACK_GROUP, stores=["SG1/a"], new=True)
        assert begin_run(opened, BACK_GROUP).run.selection == {"SG1": ("a",)}


def test_what_one_destination_refuses_to_expire_still_expires_at_the_others(make_site: MakeSite) -> None:
    site, clock = make_site(), HandClock()
    text = site.file.read_text()
    with site.open(clock) as opened:
        night.nights(opened, clock, 3)
    more = "retention = { keep_last = 1 }\n"
    site.file.write_text(
        text.replace('name = "folder"\n', f'name = "folder"\n{more}') + "\n[retention]\nkeep_last = 3\n"
    )
    with site.open(clock) as opened:
        night.nights(opened, clock, 1)
        at_most = opened.file.retention.at_most
        assert at_most < 0.75
        done = expire.expire(opened, progress=QUIET, cancel=Cancel())
    assert set(done.errors) == {"folder"}
    assert {row.copy.destination for row in done.gone} == {"tape"}
    assert done.exit_code != 0


def test_a_clock_that_is_declared_right_begins_the_night_that_is_newer_than_the_false_one(
    site: SmallSite,
) -> None:
    clock = HandClock()
    with site.open(clock) as opened:
        night.night(opened, BACK_GROUP)
        clock.advance(3 * DAY)
        false = night.night(opened, BACK_GROUP)
        clock.advance(-3 * DAY)
        true = night.night(opened, BACK_GROUP, clock_is_right="a test")
        assert opened.catalog.runs()[0].run == true.run != false.run
        assert {s.colour for s in status(opened)} == {"green"}


def test_what_an_older_run_staged_again_last_is_the_newest(site: SmallSite) -> None:
    clock = HandClock()
    with site.open(clock) as opened:
        store = site.store("SG1/b")
        store.rename(store.with_name("aside"))
        first = night.stage_one(opened, BACK_GROUP)
        clock.advance(timedelta(minutes=5))
        newer = night.night(opened, BACK_GROUP, new=True, stores=["SG1/a"])
        store.with_name("aside").rename(store)
        clock.advance(timedelta(minutes=5))
        again = opened.catalog.image(f"{first.run}.SG1.a.L0").model_copy(update={"digest": "0" * 64})
        opened.catalog.append(again)
        assert restore.find_image(opened, "SG1", "a").run == first.run
        assert [r.run for r in opened.catalog.runs()] == [newer.run, first.run]


def test_a_held_run_is_not_gone_on_with_by_a_clock_that_is_behind_its_stamps(site: SmallSite) -> None:
    """Neither by a schedule whose own clock is right: what is staged is stamped by the node's."""
    clock = HandClock()
    store = site.store("SG1/b")
    store.rename(store.with_name("aside"))
    with site.open(clock) as opened:
        held = night.stage_one(opened, BACK_GROUP)
        schedule = clock.now()
        clock.advance(-timedelta(minutes=70))
        store.with_name("aside").rename(store)
        for moment in (None, schedule):
            with pytest.raises(ClockAhead, match="no night begins") as refused:
                begin_run(opened, BACK_GROUP, moment=moment)
            assert "--clock-is-right" in refused.value.hint
        with pytest.raises(ClockAhead):
            begin_run(opened, BACK_GROUP, run=held.run)
        with pytest.raises(ClockAhead, match="no approval without a reason"):
            gate.approve(opened, held, ["SG1/b"], "a test")
        assert opened.catalog.approvals(held.run) == []
        record = night.night(opened, BACK_GROUP, clock_is_right="checked by phone")
        assert (record.run, record.result) == (held.run, "whole")


def test_a_seal_or_approval_that_is_stamped_ahead_stops_a_night_as_an_image_does(site: SmallSite) -> None:
    clock = HandClock()
    store = site.store("SG1/b")
    store.rename(store.with_name("aside"))
    with site.open(clock) as opened:
        held = night.stage_one(opened, BACK_GROUP)
        clock.advance(timedelta(minutes=80))
        gate.approve(opened, held, ["SG1/b"], "a test")
        clock.advance(-timedelta(minutes=70))
        with pytest.raises(ClockAhead, match=f"run {held.run} is stamped"):
            begin_run(opened, BACK_GROUP)
