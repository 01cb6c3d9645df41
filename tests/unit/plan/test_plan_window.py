from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest

from nightferry.errors import ConfigError
from nightferry.plan.window import (
    due_groups,
    next_run_name,
    night_start,
    start_delays,
    window_of,
    window_start,
)

CHICAGO = ZoneInfo("America/Chicago")


def local(text: str, fold: int = 0) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=CHICAGO, fold=fold).astimezone(UTC)


@pytest.mark.parametrize(
    ("now", "window"),
    [
        ("2026-01-10 19:59:59", "20260109"),
        ("2026-01-10 20:00:00", "20260110"),
        ("2026-01-11 03:00:00", "20260110"),
        ("2026-01-11 19:59:59", "20260110"),
        ("2026-01-11 20:00:00", "20260111"),
    ],
)
def test_a_night_keeps_its_date_until_the_same_start_of_the_next_day(now: str, window: str) -> None:
    assert window_of(local(now), time(20, 0), CHICAGO) == window


def test_the_local_date_counts_where_utc_is_a_day_ahead() -> None:
    assert window_of(datetime(2026, 1, 11, 2, 30, tzinfo=UTC), time(20, 0), CHICAGO) == "20260110"


def test_nights_across_both_clock_changes_keep_their_date() -> None:
    for day, after in (("2026-03-07", "2026-03-08"), ("2026-10-31", "2026-11-01")):
        window = day.replace("-", "")
        for hour in range(20, 24):
            assert window_of(local(f"{day} {hour}:00"), time(20, 0), CHICAGO) == window
        for hour in (0, 1, 3, 12, 19):
            assert window_of(local(f"{after} {hour:02}:59"), time(20, 0), CHICAGO) == window
        assert window_of(local(f"{after} 01:59", fold=1), time(20, 0), CHICAGO) == window
        assert window_of(local(f"{after} 20:00"), time(20, 0), CHICAGO) == after.replace("-", "")


def test_a_start_that_the_clock_skips_begins_with_the_hour_after_it() -> None:
    # 2026-03-08 in Chicago goes from 01:59:59 CST to 03:00:00 CDT at 08:00 UTC.
    jump = datetime(2026, 3, 8, 8, 0, tzinfo=UTC)
    assert window_start("20260308", time(2, 30), CHICAGO) == jump
    assert window_of(jump - timedelta(seconds=1), time(2, 30), CHICAGO) == "20260307"
    assert window_of(jump, time(2, 30), CHICAGO) == "20260308"


def test_a_start_that_the_clock_repeats_begins_once() -> None:
    # 2026-11-01 in Chicago shows 01:00 to 01:59 twice: 06:00 UTC on (CDT) and 07:00 UTC on (CST).
    start = time(1, 30)
    assert window_start("20261101", start, CHICAGO) == datetime(2026, 11, 1, 6, 30, tzinfo=UTC)
    assert window_of(local("2026-11-01 01:29"), start, CHICAGO) == "20261031"
    assert window_of(local("2026-11-01 01:30"), start, CHICAGO) == "20261101"
    assert window_of(local("2026-11-01 01:10", fold=1), start, CHICAGO) == "20261101"


def test_a_window_that_is_no_date_is_refused() -> None:
    for window in ("2026030", "20260230", "today"):
        with pytest.raises(ConfigError, match="not a window"):
            window_start(window, time(20, 0), CHICAGO)


def test_the_night_begins_after_the_longest_pause() -> None:
    assert night_start([time(23, 30), time(1, 0), time(20, 0)]) == time(20, 0)
    assert night_start([time(3, 0)]) == time(3, 0)
    assert night_start([time(8, 0), time(20, 0)]) == time(20, 0)
    with pytest.raises(ConfigError):
        night_start([])


def test_groups_come_in_the_order_of_the_night() -> None:
    starts = {"late": time(1, 0), "b": time(20, 0), "a": time(20, 0), "mid": time(22, 15)}
    assert due_groups(starts) == ("a", "b", "mid", "late")
    assert due_groups({}) == ()


def test_groups_are_staggered_by_their_starts() -> None:
    starts = {"one": time(20, 0), "two": time(20, 5), "past midnight": time(1, 0)}
    assert start_delays(starts, local("2026-01-10 20:00:01"), CHICAGO) == {
        "one": 0.0,
        "two": 299.0,
        "past midnight": 5 * 3600 - 1.0,
    }
    assert set(start_delays(starts, local("2026-01-11 09:00"), CHICAGO).values()) == {0.0}
    assert start_delays({}, local("2026-01-11 09:00"), CHICAGO) == {}


def test_the_stagger_across_a_clock_change_is_elapsed_time() -> None:
    starts = {"evening": time(20, 0), "morning": time(3, 0)}
    assert start_delays(starts, local("2026-03-07 20:00"), CHICAGO)["morning"] == 6 * 3600
    assert start_delays(starts, local("2026-10-31 20:00"), CHICAGO)["morning"] == 8 * 3600


def test_run_names_count_from_two() -> None:
    first = next_run_name("20260308", "TEX-BACK-1", [])
    assert first == "20260308-TEX-BACK-1"
    assert next_run_name("20260308", "TEX-BACK-1", [first]) == f"{first}-2"
    assert next_run_name("20260308", "TEX-BACK-1", [first, f"{first}-2", f"{first}-10"]) == f"{first}-11"
    assert next_run_name("20260308", "TEX-BACK-1", ["20260307-TEX-BACK-1", f"{first}-x"]) == first
    assert next_run_name("20260308", "TEX-BACK-2", [first]) == "20260308-TEX-BACK-2"


def test_delays_are_those_of_the_window_of_the_run_though_the_clock_is_a_second_slow() -> None:
    starts = {"evening": time(20, 0), "late": time(23, 30)}
    slow = local("2026-01-10 19:59:59")
    assert start_delays(starts, slow, CHICAGO, "20260110") == {"evening": 1.0, "late": 3.5 * 3600 + 1}
