"""Which night it is, what it is called, which storage groups it holds and when each of them begins.

All times of day are site time; what is handed out is aware UTC or seconds. A night begins at the first
instant at which the site's clock shows its start or later, so a start that daylight saving skips begins with
the hour after it, and one that it repeats begins once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from nightferry.errors import ConfigError

_DAY = timedelta(days=1)


def window_of(now: datetime, start: time, tz: tzinfo) -> str:
    """The window ``now`` belongs to: the local date, ``YYYYMMDD``, on which it began.

    A night that began at 20:00 is the same window until 20:00 of the next day.

    Args:
        now: Aware. A scheduled flow hands in the time it was scheduled for: a clock one second slow would
            otherwise find it in the night before.
        start: The window's start in site time.
    """
    day = now.astimezone(tz).date() + _DAY
    while _first_instant(day, start, tz) > now:
        day -= _DAY
    return f"{day:%Y%m%d}"


def window_start(window: str, start: time, tz: tzinfo) -> datetime:
    """The instant a window begins, UTC.

    Raises:
        ConfigError: ``window`` is not ``YYYYMMDD``.
    """
    return _first_instant(_date_of(window), start, tz)


def night_start(starts: Iterable[time]) -> time:
    """When the night of several storage groups begins: at the start that follows the longest pause between
    two.

    ``20:00, 23:30, 01:00`` is a night from 20:00. Of equally long pauses the one before the latest start
    counts.

    Raises:
        ConfigError: there is no start at all.
    """
    order = sorted(set(starts))
    if not order:
        raise ConfigError("a night without a storage group has no start")
    pauses = [_seconds_between(order[i - 1], start) for i, start in enumerate(order)]
    return max(zip(pauses, order, strict=True))[1]


def due_groups(starts: Mapping[str, time]) -> tuple[str, ...]:
    """The storage groups of a night in the order in which they begin, those of one start by name.

    Args:
        starts: Storage group → its start, for all groups of the BACK group.
    """
    if not starts:
        return ()
    begin = night_start(starts.values())
    return tuple(sorted(starts, key=lambda name: (_seconds_after(begin, starts[name]), name)))


def start_delays(
    starts: Mapping[str, time], now: datetime, tz: tzinfo, window: str | None = None
) -> dict[str, float]:
    """Seconds until each storage group's start in a window; 0 when it has passed.

    Args:
        starts: Storage group → its start, for all groups of the BACK group.
        now: Aware.
        window: Its local date; None: the one that ``now`` belongs to. A clock a second slow would find itself in
            the night before.

    Raises:
        ConfigError: ``window`` is not ``YYYYMMDD``.
    """
    if not starts:
        return {}
    begin = night_start(starts.values())
    day = _date_of(window if window is not None else window_of(now, begin, tz))
    delays = {}
    for name in due_groups(starts):
        start = starts[name]
        instant = _first_instant(day if start >= begin else day + _DAY, start, tz)
        delays[name] = max(0.0, (instant - now).total_seconds())
    return delays


def next_run_name(window: str, back_group: str, existing: Iterable[str]) -> str:
    """The next run's name: ``<YYYYMMDD>-<back group>``, or with ``-2``, ``-3`` ... after it.

    Args:
        existing: Names of runs there are, of any window and BACK group.

    Returns:
        A name that is not in ``existing`` and whose number is above every one used, so that names sort in the
        order of the runs.
    """
    base = f"{window}-{back_group}"
    taken = set(existing)
    family = [re.fullmatch(rf"{re.escape(base)}-([1-9][0-9]*)", name) for name in taken]
    numbers = [int(match[1]) for match in family if match]
    if base not in taken and not numbers:
        return base
    return f"{base}-{max([1, *numbers]) + 1}"


def _first_instant(day: date, start: time, tz: tzinfo) -> datetime:
    """The first instant, UTC, at which the site's clock shows ``start`` or later on ``day``."""
    wanted = datetime.combine(day, start.replace(tzinfo=None, fold=0))
    instant = wanted.replace(tzinfo=tz).astimezone(UTC)
    if _wall(instant, tz) == wanted:
        return instant
    # The clock never shows it. PEP 495: fold=0 reads it with the offset before the jump, which lies after the
    # jump, fold=1 with the offset after it, which lies before. The jump is where the clock passes it.
    early, late = wanted.replace(tzinfo=tz, fold=1).astimezone(UTC), instant
    while late - early > timedelta(seconds=1):
        middle = early + (late - early) // 2
        early, late = (early, middle) if _wall(middle, tz) >= wanted else (middle, late)
    return late.replace(microsecond=0)


def _wall(instant: datetime, tz: tzinfo) -> datetime:
    return instant.astimezone(tz).replace(tzinfo=None, fold=0)


def _seconds_of(clock: time) -> float:
    return clock.hour * 3600 + clock.minute * 60 + clock.second + clock.microsecond / 1e6


def _seconds_after(begin: time, start: time) -> float:
    return (_seconds_of(start) - _seconds_of(begin)) % 86400


def _seconds_between(before: time, after: time) -> float:
    """How long it is from one start to the next; a whole day when there is only one."""
    return _seconds_after(before, after) or 86400.0


def _date_of(window: str) -> date:
    try:
        if len(window) != 8:
            raise ValueError("eight digits are needed")
        return datetime.strptime(window, "%Y%m%d").date()
    except ValueError as error:
        raise ConfigError(
            f"not a window: {window!r}", hint="write its date, such as 20260308", subject=window
        ) from error
