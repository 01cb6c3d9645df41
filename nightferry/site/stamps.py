"""Stamps against the log: times that a wrong clock wrote are found, and an operator says which clock was wrong.

The log's order is the truth; a stamp is what some node's clock said. While a run or an image is stamped later than now,
one of the two clocks is wrong: no night begins and nothing expires until the clock is set, or somebody says that it is
right and the stamps are not.
"""

from __future__ import annotations

from datetime import datetime

from nightferry.clock import CLOCKS_APART
from nightferry.errors import ClockAhead, ConfigError
from nightferry.model.records import ApprovalRecord, ClockRecord, ImageRecord, RunRecord, SealRecord
from nightferry.site.opened import OpenSite, operator
from nightferry.units import format_duration


def future_runs(site: OpenSite, now: datetime | None = None) -> dict[str, datetime]:
    """Run → its latest stamp, of the runs stamped later than now that nobody has declared wrong yet."""
    limit = (now or site.clock.now()) + CLOCKS_APART
    wrong = wrong_runs(site)
    found: dict[str, datetime] = {}

    def note(run: str, stamp: datetime) -> None:
        if stamp > limit and run not in wrong:
            found[run] = max(stamp, found.get(run, stamp))

    for run in site.catalog.all(RunRecord):
        note(run.run, run.started)
        if run.ended is not None:
            note(run.run, run.ended)
    for seal in site.catalog.all(SealRecord):
        note(seal.run, seal.at)
    for approval in site.catalog.all(ApprovalRecord):
        note(approval.run, approval.at)
    for image in site.catalog.all(ImageRecord):
        note(image.run, image.ended)
    return found


def wrong_runs(site: OpenSite) -> set[str]:
    """Runs whose stamps an operator declared wrong."""
    return {run for record in site.catalog.all(ClockRecord) for run in record.wrong}


def require_plausible_clock(site: OpenSite, what: str) -> None:
    """Raises:
    ClockAhead: a run is stamped later than now; ``what`` is not done.
    """
    found = future_runs(site)
    if found:
        raise ClockAhead(f"{what}: {describe_clock(site, found)}", subject=max(found, key=found.__getitem__))


def describe_clock(site: OpenSite, found: dict[str, datetime], now: datetime | None = None) -> str:
    """Names the run with the latest of the stamps in the future."""
    run = max(found, key=found.__getitem__)
    ahead = found[run] - (now or site.clock.now())
    stamp = found[run].astimezone(site.file.tz)
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return (
        f"run {run} is stamped {stamp:%Y-%m-%d %H:%M}, {format_duration(ahead.total_seconds())} from now{more}: "
        "this clock is slow, or that one was fast"
    )


def accept_clock(site: OpenSite, reason: str) -> ClockRecord | None:
    """Records an operator's word that this clock is right, and that later stamps are wrong; None when there are none.

    Raises:
        ConfigError: no reason.
    """
    if not reason.strip():
        raise ConfigError("--clock-is-right needs a reason", hint="add how you know that this clock is right")
    site.catalog.refresh()
    found = future_runs(site)
    if not found:
        return None
    record = ClockRecord(wrong=tuple(sorted(found)), reason=reason, who=operator(), at=site.clock.now())
    site.catalog.append(record)
    return record
