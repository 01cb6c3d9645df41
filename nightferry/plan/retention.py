"""Which images of a store stay at a destination, by the site's own calendar.

A period is counted in *nights*: an image belongs to the night of its run, the local date on which the window
began. So a store that is staged now before and now after midnight has one image a day, and a day that
daylight saving makes 23 or 25 hours long is one like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from nightferry.model.destinations import Retention
from nightferry.model.names import parse_image_name


@dataclass(frozen=True, slots=True)
class Candidate:
    """One image of a store at one destination.

    ``order``: its place in the catalog's log, which tells the newest of one night; stamps may be wrong. ``proved``: the
    image is whole and the copy there was verified. ``spared`` says why it must stay whatever the rule says (held, owed
    by a run); empty when nothing speaks for it.
    """

    image: str
    night: date
    started: datetime
    proved: bool
    spared: str = ""
    order: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an image stays, and why."""

    image: str
    stays: bool
    why: str


_PERIODS: tuple[tuple[str, Callable[[date], Hashable]], ...] = (
    ("keep_daily", lambda night: night),
    ("keep_weekly", lambda night: night.isocalendar()[:2]),
    ("keep_monthly", lambda night: (night.year, night.month)),
    ("keep_yearly", lambda night: night.year),
)


def night_of(image: str) -> date:
    """The night an image belongs to, by its name: the local date of its window's start.

    Raises:
        ConfigError: it is not an image's name.
    """
    return date.fromisoformat(parse_image_name(image).run[:8])


def nights_in_order(nights: Sequence[date | None]) -> list[date]:
    """The nights of images in the order of the log, where some are unknown because a wrong clock named them.

    Args:
        nights: Oldest first; None where the name is wrong.

    Returns:
        For those the night of the nearest older image whose name is right, else of the nearest newer one: so that a
        night from the future never outlives the true ones.
    """
    known = [night for night in nights if night is not None]
    last = known[0] if known else date.min
    found = []
    for night in nights:
        last = night if night is not None else last
        found.append(last)
    return found


def judge(retention: Retention, candidates: Sequence[Candidate]) -> list[Verdict]:
    """What stays of one store at one destination, the newest image first.

    The rule:

    1. Of the *proved* images stay the ``keep_last`` newest, and the newest one of each of the last
       ``keep_daily`` nights, ``keep_weekly`` ISO weeks, ``keep_monthly`` months and ``keep_yearly`` years
       that have one. Periods without an image are not counted, so nothing expires because backups stopped.
    2. An image that is not proved (partial, or its copy here is not verified) takes no place from a proved
       one. It stays as long as it would if it were proved.
    3. What is spared stays.
    4. A rule without any number keeps everything.

    So the newest proved image of a store stays, whatever the numbers; so does everything newer than it; and
    of a store that has nothing proved here nothing goes. Judging again what stayed changes nothing, and a
    further night never brings back what had to go.
    """
    newest_first = sorted(candidates, key=_age, reverse=True)
    proved = [candidate for candidate in newest_first if candidate.proved]
    kept = _kept_by(retention, proved)
    verdicts = []
    for candidate in newest_first:
        by = kept.get(candidate.image, ())
        if not candidate.proved:
            among = sorted([*proved, candidate], key=_age, reverse=True)
            by = _kept_by(retention, among).get(candidate.image, ())
        if candidate.spared:
            verdicts.append(Verdict(candidate.image, True, candidate.spared))
        elif retention.keeps_everything:
            verdicts.append(Verdict(candidate.image, True, "the retention keeps everything"))
        elif by:
            verdicts.append(Verdict(candidate.image, True, ", ".join(by)))
        else:
            verdicts.append(Verdict(candidate.image, False, f"beyond {_numbers(retention)}"))
    return verdicts


def _age(candidate: Candidate) -> tuple[date, int, datetime, str]:
    return candidate.night, candidate.order, candidate.started, candidate.image


def _kept_by(retention: Retention, newest_first: Sequence[Candidate]) -> dict[str, tuple[str, ...]]:
    """Image → the keys of the retention that keep it; those that none keeps are left out."""
    kept: dict[str, tuple[str, ...]] = {}
    _add(kept, "keep_last", newest_first[: retention.keep_last])
    for key, period_of in _PERIODS:
        newest_of: dict[Hashable, Candidate] = {}
        for candidate in newest_first:
            newest_of.setdefault(period_of(candidate.night), candidate)
        _add(kept, key, list(newest_of.values())[: getattr(retention, key)])
    return kept


def _add(kept: dict[str, tuple[str, ...]], key: str, chosen: Iterable[Candidate]) -> None:
    for candidate in chosen:
        kept[candidate.image] = (*kept.get(candidate.image, ()), key)


def _numbers(retention: Retention) -> str:
    """``keep_last = 3, keep_daily = 7``: the numbers that say something."""
    keys = ("keep_last", *(key for key, _ in _PERIODS))
    return ", ".join(f"{key} = {getattr(retention, key)}" for key in keys if getattr(retention, key))
