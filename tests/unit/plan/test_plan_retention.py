"""Which images stay, on calendars worked out by hand."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest

from nightferry.errors import ConfigError
from nightferry.model.destinations import Retention
from nightferry.model.names import run_name
from nightferry.plan.retention import Candidate, judge, night_of
from nightferry.plan.window import window_of

CHICAGO = ZoneInfo("America/Chicago")


def candidate(night: date, *, proved: bool = True, spared: str = "", hour: int = 21) -> Candidate:
    started = datetime(night.year, night.month, night.day, hour, tzinfo=UTC)
    return Candidate(f"{night:%Y%m%d}", night, started, proved, spared)


def nights(first: date, count: int) -> list[Candidate]:
    return [candidate(first + timedelta(days=number)) for number in range(count)]


def kept(retention: Retention, candidates: Iterable[Candidate]) -> list[str]:
    return sorted(v.image for v in judge(retention, list(candidates)) if v.stays)


def test_days_weeks_months_and_years_are_those_of_the_calendar() -> None:
    # 2024-12-30 is a Monday of ISO week 1 of 2025: the week is the next year's, month and year are not.
    of_a_year = nights(date(2024, 12, 1), 400)  # up to Sunday 2026-01-04
    assert kept(Retention(keep_daily=3), of_a_year) == ["20260102", "20260103", "20260104"]
    assert kept(Retention(keep_weekly=3), of_a_year) == ["20251221", "20251228", "20260104"]
    assert kept(Retention(keep_monthly=3), of_a_year) == ["20251130", "20251231", "20260104"]
    assert kept(Retention(keep_yearly=5), of_a_year) == ["20241231", "20251231", "20260104"]
    around = [candidate(date(2024, 12, day)) for day in (28, 29, 30, 31)] + [candidate(date(2025, 1, 2))]
    assert kept(Retention(keep_weekly=2), around) == ["20241229", "20250102"]
    assert kept(Retention(keep_yearly=2), around) == ["20241231", "20250102"]


def test_the_rules_add_up_and_say_which_of_them_keeps_an_image() -> None:
    verdicts = judge(Retention(keep_last=2, keep_weekly=2), nights(date(2026, 11, 20), 10))
    assert [(v.image, v.why) for v in verdicts if v.stays] == [
        ("20261129", "keep_last, keep_weekly"),
        ("20261128", "keep_last"),
        ("20261122", "keep_weekly"),
    ]
    assert {v.why for v in verdicts if not v.stays} == {"beyond keep_last = 2, keep_weekly = 2"}


def test_periods_without_an_image_are_not_counted() -> None:
    sparse = [candidate(date(2026, month, 1)) for month in (1, 4, 5, 11)]
    assert kept(Retention(keep_daily=3), sparse) == ["20260401", "20260501", "20261101"]


def test_an_image_that_is_not_proved_takes_no_place_from_one_that_is() -> None:
    found = nights(date(2026, 11, 1), 4)
    found[3] = candidate(date(2026, 11, 4), proved=False)
    assert kept(Retention(keep_last=2), found) == ["20261102", "20261103", "20261104"]
    # Two nights on it is beyond the last two, whole ones or not.
    found += [candidate(date(2026, 11, 5)), candidate(date(2026, 11, 6))]
    assert kept(Retention(keep_last=2), found) == ["20261105", "20261106"]


def test_a_months_only_backup_stays_for_it_though_it_is_partial() -> None:
    found = [candidate(date(2026, month, 3), proved=month != 10) for month in (8, 9, 10, 11)]
    assert kept(Retention(keep_monthly=2), found) == ["20260903", "20261003", "20261103"]


def test_of_a_store_with_nothing_proved_nothing_goes() -> None:
    found = [candidate(date(2026, 11, day), proved=False) for day in range(1, 9)]
    assert len(kept(Retention(keep_last=1), found)) == 8


def test_what_is_spared_stays_and_counts_like_any_other() -> None:
    found = nights(date(2026, 11, 1), 5)
    found[0] = candidate(date(2026, 11, 1), spared="held: a lawsuit")
    verdicts = judge(Retention(keep_last=2), found)
    assert [(v.image, v.why) for v in verdicts if v.stays] == [
        ("20261105", "keep_last"),
        ("20261104", "keep_last"),
        ("20261101", "held: a lawsuit"),
    ]


def test_a_retention_without_a_number_keeps_everything() -> None:
    verdicts = judge(Retention(), nights(date(2026, 1, 1), 30))
    assert all(v.stays and v.why == "the retention keeps everything" for v in verdicts)


def test_of_several_runs_of_a_night_the_last_one_stands_for_it() -> None:
    night = date(2026, 11, 9)
    first = Candidate("first", night, datetime(2026, 11, 10, 2, tzinfo=UTC), True)
    again = Candidate("again", night, datetime(2026, 11, 10, 9, tzinfo=UTC), True)
    assert kept(Retention(keep_daily=2), [first, again, candidate(date(2026, 11, 8))]) == [
        "20261108",
        "again",
    ]


@pytest.mark.parametrize("changed", [date(2026, 3, 8), date(2026, 11, 1)])
def test_each_night_around_a_changed_clock_is_one_day(changed: date) -> None:
    """A window that begins at the hour which the clock skips or repeats, staged at 23, 24 or 25 hours' distance."""
    start, found = time(2, 30), []
    moment = datetime(changed.year, changed.month, changed.day, tzinfo=CHICAGO) - timedelta(days=3)
    moment = moment.replace(hour=2, minute=30).astimezone(UTC)
    for _ in range(7):
        local = moment.astimezone(CHICAGO)
        run = run_name(window_of(moment + timedelta(minutes=31), start, CHICAGO), "TEX-BACK-1")
        found.append(Candidate(run, night_of(f"{run}.SG1.a.L0"), moment, True))
        # The same time of day in site time, as a schedule has it: the days are 23, 24 or 25 hours long.
        moment = (local.replace(tzinfo=None) + timedelta(days=1)).replace(tzinfo=CHICAGO).astimezone(UTC)
    assert len({c.night for c in found}) == 7
    assert len(kept(Retention(keep_daily=7), found)) == 7
    assert len(kept(Retention(keep_daily=3), found)) == 3


def test_the_night_of_an_image_is_its_windows() -> None:
    assert night_of("20261130-TEX-BACK-1-2.SG1.priv1.L0") == date(2026, 11, 30)
    with pytest.raises(ConfigError):
        night_of("20261131-TEX-BACK-1.SG1.priv1.L0")
