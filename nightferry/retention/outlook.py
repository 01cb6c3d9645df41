"""What the retention says of every copy, of staging, cartridges and orphans. Changes nothing.

The rule itself is ``plan.retention``; here it meets the records.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from nightferry.copies.accept import named_left_out
from nightferry.destination.base import Orphan
from nightferry.destination.tape.library.pool import is_being_written
from nightferry.errors import ConfigError, DestinationError, ImplausibleExpiry, NightferryError, OtherSite
from nightferry.model.destinations import TapeSettings
from nightferry.model.names import parse_image_name
from nightferry.model.records import THERE, CartridgeRecord, CopyRecord, ImageRecord, RunRecord
from nightferry.plan.lines import lines
from nightferry.plan.retention import Candidate, judge, night_of, nights_in_order
from nightferry.site.destinations import destination_of
from nightferry.site.marker import require_ours
from nightferry.site.opened import OpenSite
from nightferry.site.stamps import wrong_runs
from nightferry.staging.images import back_group_of, is_staged
from nightferry.staging.owed import owes
from nightferry.units import counted

ABANDONED_AFTER = timedelta(days=2)
"""What nobody has written to for so long no longer belongs to a night."""

_Series = tuple[str, int | None, str]
"""Store, shard and line of images: what is judged together."""
Fate = Literal["kept", "locked", "expires", "expired", "failed"]


@dataclass(frozen=True, slots=True)
class CopyOutlook:
    """One copy: whether it stays, and why.

    ``kept`` by the retention; ``locked`` by the destination itself; ``expires`` now, or has ``expired``;
    ``failed``: it should go and could not.
    """

    image: ImageRecord
    copy: CopyRecord
    fate: Fate
    why: str
    freed_bytes: int = 0
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "image": self.image.image,
            "store": f"{self.image.group}/{self.image.store}",
            "destination": self.copy.destination,
            "started": self.image.started,
            "state": self.fate,
            "why": self.why,
            "size_bytes": self.copy.size_bytes,
            "freed_bytes": self.freed_bytes,
            "note": self.note or None,
        }


@dataclass(frozen=True, slots=True)
class StagedOutlook:
    """A partial or suspect image that staging gives back."""

    image: ImageRecord
    back_group: str
    why: str


@dataclass(frozen=True, slots=True)
class OrphanOutlook:
    """Something at a destination that belongs to no copy; ``error`` says why it could not be removed, ``why``,
    of what is left alone, for what reason."""

    destination: str
    orphan: Orphan
    error: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Outlook:
    """All of it. ``errors``: destination → what could not be found out, or done, there."""

    copies: tuple[CopyOutlook, ...] = ()
    staged: tuple[StagedOutlook, ...] = ()
    orphans: tuple[OrphanOutlook, ...] = ()
    """Of ours, and to be removed."""
    foreign: tuple[OrphanOutlook, ...] = ()
    """Left alone: nothing proves that it is ours, or the catalog knows nothing of it."""
    cartridges: tuple[CartridgeRecord, ...] = ()
    """Those that are scratch once the copies have gone."""
    errors: dict[str, NightferryError] = field(default_factory=dict)
    away: frozenset[str] = frozenset()
    """Destinations that do not answer: nothing goes there."""

    @property
    def going(self) -> tuple[CopyOutlook, ...]:
        return tuple(row for row in self.copies if row.fate == "expires")


def look_ahead(site: OpenSite, destination: str | None = None) -> Outlook:
    """What `expire` would do now.

    Args:
        site: The site.
        destination: Only the copies there, and nothing on staging; None: everywhere.

    Raises:
        ConfigError: no such destination.
    """
    if destination is not None:
        site.file.destination(destination)
    site.catalog.refresh()
    names = [d.name for d in site.file.destinations if destination in (None, d.name)]
    rows: list[CopyOutlook] = []
    errors: dict[str, NightferryError] = {}
    away: set[str] = set()
    orphans: list[OrphanOutlook] = []
    spared = _spared(site)
    for name in names:
        found = list(_copies_at(site, name, spared))
        try:
            _require_ours(site, name, used=bool(found))
            found = [_unless_locked(site, row) for row in found]
        except (DestinationError, ConfigError) as error:
            errors[name] = error
            away.add(name)
        else:
            try:
                orphans += _orphans(site, name)
            except (DestinationError, ConfigError) as error:
                errors[name] = error
        rows += found
    going: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        if row.fate == "expires":
            going[row.copy.destination].add(row.image.image)
    return Outlook(
        tuple(rows),
        tuple(_staged(site)) if destination is None else (),
        tuple(row for row in orphans if not row.why),
        tuple(row for row in orphans if row.why),
        tuple(c for name in names for c in scratch_cartridges(site, name, going[name])),
        errors,
        frozenset(away),
    )


def _require_ours(site: OpenSite, destination: str, *, used: bool) -> None:
    """Raises:
    OtherSite: it is another site's.
    DestinationError, ConfigError: it cannot be looked at, and was ``used``.
    """
    try:
        require_ours(site, destination)
    except OtherSite:
        raise
    except (DestinationError, ConfigError):
        if used:
            raise


def implausible(site: OpenSite, outlook: Outlook) -> dict[str, ImplausibleExpiry]:
    """Destination → why so much must not go there without somebody's word: more than ``at_most`` of its copies, orphans
    among them."""
    limit = site.file.retention.at_most
    orphans = Counter(row.destination for row in outlook.orphans)
    all_there = Counter(row.copy.destination for row in outlook.copies) + orphans
    going = Counter(row.copy.destination for row in outlook.going) + orphans
    return {
        destination: ImplausibleExpiry(
            f"{count} of {all_there[destination]} copies at {destination} would expire at once"
            + (f", {counted(orphans[destination], 'orphan')} among them" if orphans[destination] else "")
            + f", more than {limit:.0%}",
            subject=destination,
        )
        for destination, count in going.items()
        if count > limit * all_there[destination]
    }


def scratch_cartridges(
    site: OpenSite, destination: str, besides: Collection[str] = ()
) -> list[CartridgeRecord]:
    """Cartridges of a tape library on which nothing lives any more.

    Never one that is being written, that nothing was ever written to, or that is written once (WORM). One that is
    offsite is scratch when it comes home.

    Args:
        site: The site.
        destination: Any destination; only a tape library has cartridges.
        besides: Images whose copies there count as gone.
    """
    if not isinstance(site.file.destination(destination), TapeSettings):
        return []
    live = site.catalog.live_by_cartridge(destination)
    return [
        cartridge
        for cartridge in site.catalog.cartridges(destination)
        if (cartridge.resumes if cartridge.state == "offsite" else cartridge.state) in ("appendable", "full")
        and cartridge.images
        and not cartridge.worm
        and not is_being_written(cartridge)
        and live.get(cartridge.barcode, set()) <= set(besides)
    ]


def _copies_at(site: OpenSite, destination: str, spared: dict[str, str]) -> Iterator[CopyOutlook]:
    """Every copy there and what the retention says of it; what an earlier expiry began comes first."""
    retention = site.file.retention_of(destination)
    series: dict[_Series, list[tuple[ImageRecord, CopyRecord, bool, str]]] = defaultdict(list)
    series_of = _series(site)
    for image in site.catalog.images():
        copies = [c for c in site.catalog.all_copies(image.image) if c.destination == destination]
        begun = next((c for c in copies if c.state == "expiring"), None)
        there = [c for c in copies if c.state in THERE]
        if begun is not None:
            yield CopyOutlook(image, begun, "expires", "begun before")
        elif there:
            at_work = (
                copies[-1].state == "writing" and site.clock.now() - copies[-1].started < ABANDONED_AFTER
            )
            why = spared.get(image.image) or ("a copy of it is being made" if at_work else "")
            proved = site.catalog.is_whole(image) and there[-1].state == "verified"
            series[series_of[image.image]].append((image, there[-1], proved, why))
    for _, found in sorted(series.items(), key=lambda item: str(item[0])):
        of = {image.image: (image, copy) for image, copy, _, _ in found}
        rows = [(image, proved, why) for image, _, proved, why in found]
        for verdict in judge(retention, list(_candidates(site, rows))):
            image, copy = of[verdict.image]
            yield CopyOutlook(image, copy, "kept" if verdict.stays else "expires", verdict.why)


def _series(site: OpenSite) -> dict[str, _Series]:
    """Image → what it is judged with. What a store adopted belongs to the oldest line of its own."""
    stores: dict[str, list[ImageRecord]] = defaultdict(list)
    for image in site.catalog.images():
        stores[site.catalog.line_of(image)].append(image)
    found: dict[str, _Series] = {}
    for store, images in stores.items():
        own = [image for image in images if f"{image.group}/{image.store}" == store]
        line_of = lines(own or images)
        oldest = line_of[(own or images)[-1].image]
        for image in images:
            line = line_of.get(image.image, oldest)
            found[image.image] = (store, parse_image_name(image.image).shard, line)
    return found


def _spared(site: OpenSite) -> dict[str, str]:
    """Image → why it stays whatever the numbers say: held, of a run that has not ended, or still owed."""
    found: dict[str, str] = {}
    for image in site.catalog.images():
        hold = site.catalog.hold(image.image)
        run = site.catalog.latest(RunRecord, image.run)
        if hold is not None:
            found[image.image] = f"held: {hold.reason}"
        elif run is not None and run.state != "ended":
            found[image.image] = f"run {run.run} has not ended"
        elif owes(site, image):
            found[image.image] = "a copy of it is still owed"
    return found


def _unless_locked(site: OpenSite, row: CopyOutlook) -> CopyOutlook:
    if row.fate != "expires" or not row.copy.location:
        return row
    lock = destination_of(site, row.copy.destination).locked(row.copy.location)
    if lock is None:
        return row
    return CopyOutlook(row.image, row.copy, "locked", f"{row.why}; {lock}")


def _orphans(site: OpenSite, destination: str) -> Iterator[OrphanOutlook]:
    """What is left at a destination, but for what a run at work may still want, and damage for `verify`.

    Each put is on record before it begins. What bears our first side file, and the catalog has never heard of, is
    left alone: the catalog may be the one that is wrong.

    Where nothing was ever copied to nothing is left, and looking might make its root.
    """
    if all(copy.destination != destination for copy in site.catalog.all(CopyRecord)):
        return
    for orphan in destination_of(site, destination).orphans(site.clock.now() - ABANDONED_AFTER):
        if orphan.what == "foreign":
            yield OrphanOutlook(destination, orphan, why="nothing proves that it is ours")
            continue
        copies = [c for c in site.catalog.all_copies(orphan.image) if c.destination == destination]
        known = copies or named_left_out(site.catalog, destination, orphan.path)
        if orphan.image and not known:
            yield OrphanOutlook(destination, orphan, why="the catalog knows no copy of it there")
            continue
        if orphan.what == "unfinished" and any(copy.state in THERE for copy in copies):
            continue
        image = site.catalog.latest(ImageRecord, orphan.image)
        back_group = back_group_of(site, image) if image is not None else ""
        at_work = back_group and site.claims.exclusive(back_group).holder() is not None
        if not at_work:
            yield OrphanOutlook(destination, orphan)


def _staged(site: OpenSite) -> Iterator[StagedOutlook]:
    """Partial and suspect images on staging that nobody approved, and that the store has outlived.

    They owe no copy, so nothing else would ever free them. The rule is that of copies, with the store's whole
    images, on staging or verified anywhere, as what is proved.
    """
    series: dict[_Series, list[ImageRecord]] = defaultdict(list)
    series_of = _series(site)
    for image in site.catalog.images():
        series[series_of[image.image]].append(image)
    for images in series.values():
        refused = {image.image: image for image in images if _is_forgotten(site, image)}
        if not refused:
            continue
        rows = [
            (image, image.image not in refused, _held(site, image))
            for image in images
            if image.image in refused or _is_sound(site, image)
        ]
        for verdict in judge(site.file.retention, list(_candidates(site, rows))):
            if not verdict.stays and verdict.image in refused:
                image = refused[verdict.image]
                why = f"{image.state}, never approved, {verdict.why}"
                yield StagedOutlook(image, back_group_of(site, image), why)


def _held(site: OpenSite, image: ImageRecord) -> str:
    hold = site.catalog.hold(image.image)
    return f"held: {hold.reason}" if hold is not None else ""


def _candidates(site: OpenSite, rows: Iterable[tuple[ImageRecord, bool, str]]) -> Iterator[Candidate]:
    """Images of one line for the retention, in the log's order; a night that a wrong clock named counts as the one
    before it."""
    wrong = wrong_runs(site)
    in_order = sorted(rows, key=lambda row: site.catalog.place_in_log(row[0].image))
    nights = nights_in_order([None if i.run in wrong else night_of(i.image) for i, _, _ in in_order])
    for order, ((image, proved, spared), night) in enumerate(zip(in_order, nights, strict=True)):
        yield Candidate(image.image, night, image.started, proved, spared, order)


def _is_forgotten(site: OpenSite, image: ImageRecord) -> bool:
    run = site.catalog.latest(RunRecord, image.run)
    return (
        image.state != "whole"
        and (run is None or run.state == "ended")
        and not site.catalog.accepted(image)
        and not site.catalog.all_copies(image.image)
        and is_staged(site, image)
    )


def _is_sound(site: OpenSite, image: ImageRecord) -> bool:
    return site.catalog.is_whole(image) and (
        is_staged(site, image) or any(copy.state == "verified" for copy in site.catalog.copies(image.image))
    )
