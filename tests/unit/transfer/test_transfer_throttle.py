from __future__ import annotations

import threading
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest

from nightferry.errors import Cancelled
from nightferry.progress import Cancel
from nightferry.transfer.throttle import Throttle, Timetable

CHICAGO = ZoneInfo("America/Chicago")
MIB = 1 << 20


class FakeClock:
    """Time that only sleeping moves."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self.start = start
        self.time = 0.0

    def now(self) -> datetime:
        return self.start + timedelta(seconds=self.time)

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def test_rate_holds_over_time() -> None:
    clock = FakeClock()
    throttle = Throttle(1000, clock=clock)
    for _ in range(100):
        throttle.take(100)
    assert clock.time == pytest.approx(10 - 0.25)


def test_idle_time_saves_no_more_than_the_burst() -> None:
    clock = FakeClock()
    throttle = Throttle(1000, clock=clock)
    clock.time += 3600
    throttle.take(250)
    assert clock.time == 3600
    throttle.take(1000)
    assert clock.time == pytest.approx(3601)


def test_more_than_the_bucket_waits_longer() -> None:
    clock = FakeClock()
    Throttle(1000, clock=clock).take(10_000)
    assert clock.time == pytest.approx(9.75)


def test_threads_share_one_rate() -> None:
    clock = FakeClock()
    lock = threading.Lock()
    moving = clock.sleep

    def sleep(seconds: float) -> None:
        with lock:
            moving(seconds)

    clock.sleep = sleep  # type: ignore[method-assign]  # a sleep that threads may share
    throttle = Throttle(1000, clock=clock)
    threads = [threading.Thread(target=lambda: [throttle.take(100) for _ in range(25)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.time >= 10 - 0.25 - 1e-9


def test_cancel_ends_the_wait() -> None:
    clock = FakeClock()
    cancel = Cancel()
    moving = clock.sleep

    def sleep(seconds: float) -> None:
        moving(seconds)
        if clock.time >= 5:
            cancel.set("test")

    clock.sleep = sleep  # type: ignore[method-assign]  # a sleep in which a stop is asked for
    with pytest.raises(Cancelled):
        Throttle(1, clock=clock).take(1_000_000, cancel)
    assert clock.time <= 5.5


def test_rate_must_be_above_zero() -> None:
    with pytest.raises(ValueError, match="above zero"):
        Throttle(0)


@pytest.mark.parametrize(
    ("local", "rate"),
    [("19:59", 5 * MIB), ("20:00", 50 * MIB), ("23:59", 50 * MIB), ("00:00", 50 * MIB), ("06:00", 5 * MIB)],
)
def test_timetable_holds_over_midnight(local: str, rate: float) -> None:
    timetable = Timetable(((time(6), 5 * MIB), (time(20), 50 * MIB)), CHICAGO)
    hour, minute = map(int, local.split(":"))
    assert timetable.rate_at(datetime(2026, 7, 1, hour, minute, tzinfo=CHICAGO).astimezone(UTC)) == rate


def test_timetable_may_lift_the_limit() -> None:
    clock = FakeClock(datetime(2026, 1, 1, 22, tzinfo=UTC))
    throttle = Throttle(Timetable(((time(6), 1024), (time(20), None)), UTC), clock=clock)
    throttle.take(1 << 40)
    assert clock.time == 0


def test_rate_changes_while_one_waits() -> None:
    clock = FakeClock(datetime(2026, 1, 1, 19, 59, 50, tzinfo=UTC))
    throttle = Throttle(Timetable(((time(6), 1024), (time(20), 100 << 10)), UTC), clock=clock)
    throttle.take(110 << 10)
    assert clock.time == pytest.approx(11, abs=0.6)
