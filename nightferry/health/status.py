"""Is every store restorable? Green, amber or red, from our own records alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any, Literal

from nightferry.copies.origin import new_line
from nightferry.model.names import parse_run, split_store
from nightferry.model.records import CopyRecord, ImageRecord, RunRecord
from nightferry.model.stores import Group, StoreRef
from nightferry.plan.window import night_start, window_start
from nightferry.site.opened import OpenSite
from nightferry.site.stamps import describe_clock, future_runs, wrong_runs
from nightferry.staging.images import seems_staged
from nightferry.staging.owed import Owed, describe_undeliverable, lost, owed, undeliverable
from nightferry.units import counted

Colour = Literal["green", "amber", "red"]
EXIT_CODES: dict[Colour, int] = {"green": 0, "amber": 3, "red": 30}


@dataclass(frozen=True, slots=True)
class Missing:
    """A copy that staging still owes after its destination's deadline."""

    image: str
    destination: str
    due: datetime


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """One store's standing.

    green: the newest whole image is young enough, every copy of its policy is verified, no older one's is missing,
    and no newer image is suspect; amber: it can be restored, but something of that is not so; red: nothing whole that
    is young enough can be restored.
    """

    group: str
    store: str
    colour: Colour
    image: ImageRecord | None
    staged: bool
    copies: tuple[CopyRecord, ...]
    proved: datetime | None
    reason: str
    missing: tuple[Missing, ...] = ()
    suspect: ImageRecord | None = None
    """A newer image that can hardly be what the store should be, and that nobody approved."""

    def as_json(self) -> dict[str, Any]:
        return {
            "store": f"{self.group}/{self.store}",
            "colour": self.colour,
            "image": self.image.image if self.image else None,
            "started": self.image.started if self.image else None,
            "state": self.image.state if self.image else None,
            "staged": self.staged,
            "copies": [{"destination": c.destination, "state": c.state} for c in self.copies],
            "proved": self.proved,
            "reason": self.reason,
            "missing": [{"image": m.image, "destination": m.destination, "due": m.due} for m in self.missing],
            "suspect_image": self.suspect.image if self.suspect else None,
            "suspect": self.suspect.suspect if self.suspect else None,
        }


def status(site: OpenSite, *, max_age: timedelta = timedelta(hours=26)) -> list[StoreStatus]:
    """Every store of the site file, in its order; then those that it names no more and that still owe copies."""
    site.catalog.refresh()
    now = site.clock.now()
    found = []
    for ref in site.file.stores:
        group, store = ref.group, ref.store
        of_store = _of_store(site, group.name, store.name, group.copies, now - max_age)
        of_store = _with_line(site, _with_suspect(site, of_store), ref)
        found.append(_with_missing(site, of_store, group, now))
    found += _orphaned_stores(site)
    return _with_clock(site, _with_owed(site, found), now)


def _orphaned_stores(site: OpenSite) -> Iterator[StoreStatus]:
    """Stores that the site file names no more and whose images still owe copies."""
    named = {ref.name for ref in site.file.stores}
    lines = {site.catalog.line_of(each.image) for each in owed(site)}
    for name in sorted(lines - named):
        group, store = split_store(name)
        image = site.catalog.image_as_of(group, store, None)
        copies = tuple(site.catalog.copies(image.image)) if image is not None else ()
        staged = image is not None and seems_staged(site, image)
        proved = max((c.verified for c in copies if c.verified and c.state == "verified"), default=None)
        reason = "not in the site file, but its images owe copies"
        yield StoreStatus(group, store, "amber", image, staged, copies, proved, reason)


def _with_owed(site: OpenSite, found: list[StoreStatus]) -> list[StoreStatus]:
    """Says of each store which of its images is lost, and which owe copies that no night delivers."""
    gone: dict[str, list[ImageRecord]] = {}
    stuck: dict[str, list[Owed]] = {}
    for image in lost(site):
        gone.setdefault(site.catalog.line_of(image), []).append(image)
    for each in undeliverable(site):
        stuck.setdefault(site.catalog.line_of(each.image), []).append(each)
    rows = []
    for row in found:
        name = f"{row.group}/{row.store}"
        for text in describe_undeliverable(stuck.get(name, [])):
            row = _amber(row, text)
        for image in gone.get(name, []):
            row = _red(
                row, f"image {image.image} is lost: damaged or gone on staging, and no copy can be read"
            )
        rows.append(row)
    return rows


def _with_clock(site: OpenSite, found: list[StoreStatus], now: datetime) -> list[StoreStatus]:
    """A stamp from the future makes every age a guess: red, until the clock is set or declared right and a night has
    run."""
    ahead = future_runs(site, now)
    wrong = wrong_runs(site)
    rows = []
    for row in found:
        if ahead:
            row = _red(row, describe_clock(site, ahead, now))
        elif row.image is not None and row.image.run in wrong and row.image.started > now:
            row = _red(
                row, f"image {row.image.image} was stamped by a wrong clock, and there is no newer one"
            )
        rows.append(row)
    return rows


def _red(found: StoreStatus, text: str) -> StoreStatus:
    return replace(found, colour="red", reason="; ".join(filter(None, (found.reason, text))))


def _with_suspect(site: OpenSite, found: StoreStatus) -> StoreStatus:
    good = found.image.image if found.image is not None else ""
    newer = takewhile(lambda image: image.image != good, site.catalog.images(found.group, found.store))
    suspect = next((i for i in newer if i.state == "suspect" and not site.catalog.accepted(i)), None)
    if suspect is None:
        return found
    return _amber(replace(found, suspect=suspect), f"image {suspect.image} is suspect: {suspect.suspect}")


def _with_line(site: OpenSite, found: StoreStatus, ref: StoreRef) -> StoreStatus:
    """Says that the path is another one: before the next image is made, and while that is the newest one."""
    text = new_line(site, ref) or (new_line(site, ref, found.image.image) if found.image else "")
    return replace(found, reason="; ".join(filter(None, (found.reason, text)))) if text else found


def _amber(found: StoreStatus, text: str) -> StoreStatus:
    colour: Colour = "amber" if found.colour == "green" else found.colour
    return replace(found, colour=colour, reason="; ".join(filter(None, (found.reason, text))))


def _with_missing(site: OpenSite, found: StoreStatus, group: Group, now: datetime) -> StoreStatus:
    missing = tuple(_missing(site, group, found.store, now))
    if not missing:
        return found
    latest = max(m.due for m in missing).astimezone(site.file.tz)
    where = ", ".join(dict.fromkeys(m.destination for m in missing))
    count = counted(len(missing), "copy", "copies")
    return _amber(replace(found, missing=missing), f"{count} missing at {where}, due {latest:%Y-%m-%d %H:%M}")


def _missing(site: OpenSite, group: Group, store: str, now: datetime) -> Iterator[Missing]:
    """Copies that are owed after their deadline, the oldest image's first. What staging has freed owes none."""
    deadlines = {name: site.file.destination(name) for name in group.copies}
    if all(destination.deadline is None for destination in deadlines.values()):
        return
    start = night_start(g.start for g in site.file.groups_of(group.back_group))
    of_store = (each for each in owed(site) if site.catalog.line_of(each.image) == f"{group.name}/{store}")
    for each in of_store:
        run = site.catalog.latest(RunRecord, each.image.run)
        begun = run.window_start if run is not None else None
        if begun is None:
            begun = window_start(parse_run(each.image.run).window, start, site.file.tz)
        destination = deadlines.get(each.destination)
        due = destination.deadline_after(begun.astimezone(site.file.tz)) if destination is not None else None
        if due is not None and due <= now:
            yield Missing(each.image.image, each.destination, due)


def _of_store(
    site: OpenSite, group: str, store: str, policy: tuple[str, ...], oldest: datetime
) -> StoreStatus:
    image = site.catalog.image_as_of(group, store, None)
    if image is None:
        return StoreStatus(group, store, "red", None, False, (), None, "never backed up whole")
    staged = seems_staged(site, image)
    copies = tuple(site.catalog.copies(image.image))
    reached = {d.name for d in site.file.destinations}
    good = {c.destination for c in copies if c.state in ("whole", "verified")} & reached
    proved = max((c.verified for c in copies if c.verified and c.state == "verified"), default=None)
    lacking = [d for d in policy if not any(c.destination == d and c.state == "verified" for c in copies)]
    colour: Colour
    if not good and not staged:
        colour, reason = "red", "no readable copy"
    elif image.started < oldest:
        colour, reason = "red", "the newest whole image is too old"
    elif lacking:
        colour, reason = "amber", f"no verified copy at {', '.join(lacking)}"
    else:
        colour, reason = "green", ""
    return StoreStatus(group, store, colour, image, staged, copies, proved, reason)


def stores_exit_code(stores: list[StoreStatus]) -> int:
    """0 all green, 3 some amber, 30 some red."""
    return max((EXIT_CODES[s.colour] for s in stores), default=0)
