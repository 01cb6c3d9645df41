"""Keeping to a rate: one token bucket that all threads of a destination share, and rates by time of day."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import datetime, time, tzinfo

from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.progress import Cancel

BURST_S = 0.25
"""An idle bucket saves up this many seconds of its rate, no more."""

THROTTLE_SLICE_S = 0.5
"""A wait looks at its cancel and at the timetable this often."""

_TICK_S = 0.001
"""No wait is shorter: a clock may not tell less apart."""


@dataclass(frozen=True, slots=True)
class Timetable:
    """Rates by local time of day. ``entries`` are ``(from, bytes a second or None for no limit)``, by time.

    A rate holds from its time until the next entry's; the last one holds over midnight until the first.
    """

    entries: tuple[tuple[time, float | None], ...]
    zone: tzinfo

    def rate_at(self, moment: datetime) -> float | None:
        """The rate in force at an aware moment, in bytes a second; None when there means no limit."""
        local = moment.astimezone(self.zone).time()
        rate = self.entries[-1][1]
        for start, following in self.entries:
            if start > local:
                break
            rate = following
        return rate


class Throttle:
    """A token bucket: over any time ``t`` it lets at most ``rate * (t + 0.25 s)`` bytes pass.

    Any number of threads may share one. They pass in the order they came, and what one asks for at once may
    be more than the bucket holds: it then waits that much longer.

    Args:
        rate: Bytes a second, or a timetable of them.
        clock: Where time comes from.

    Raises:
        ValueError: the rate is not above zero.
    """

    def __init__(self, rate: float | Timetable, *, clock: Clock = SYSTEM_CLOCK) -> None:
        if not isinstance(rate, Timetable) and rate <= 0:
            raise ValueError(f"a rate must be above zero: {rate}")
        self._rate = rate
        self._clock = clock
        self._lock = threading.Lock()
        self._asked = 0.0
        self._allowed = (self._rate_now() or 0.0) * BURST_S
        self._counted = clock.monotonic()

    def take(self, count: int, cancel: Cancel | None = None) -> None:
        """Returns when ``count`` bytes may pass.

        Raises:
            Cancelled: a stop was asked for meanwhile; the bytes count as passed.
        """
        with self._lock:
            self._refill()
            self._asked += count
            ticket = self._asked
        while True:
            if cancel is not None:
                cancel.check()
            with self._lock:
                rate = self._refill()
                owed = ticket - self._allowed
            if rate is None or owed < 1:  # less than a byte is what floating point leaves over
                return
            self._clock.sleep(min(max(owed / rate, _TICK_S), THROTTLE_SLICE_S))

    def _refill(self) -> float | None:
        """Brings what is allowed up to now; returns the rate in force. Called with the lock held."""
        now = self._clock.monotonic()
        rate = self._rate_now()
        if rate is None:
            self._allowed = self._asked
        else:
            earned = self._allowed + rate * (now - self._counted)
            self._allowed = min(earned, self._asked + rate * BURST_S)
        self._counted = now
        return rate

    def _rate_now(self) -> float | None:
        return self._rate.rate_at(self._clock.now()) if isinstance(self._rate, Timetable) else self._rate
