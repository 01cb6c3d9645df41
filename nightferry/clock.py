"""The clock, as a thing that can be handed in, so that no test sleeps."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

CLOCKS_APART = timedelta(minutes=5)
"""How far the clocks of two nodes may differ; no window is found wrongly below it."""


class Clock(Protocol):
    """Time and waiting. ``now`` is aware UTC; ``monotonic`` and ``sleep`` are seconds."""

    def now(self) -> datetime: ...
    def monotonic(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM_CLOCK = SystemClock()
