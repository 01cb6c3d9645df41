"""Applying the retention: said before, done, said afterwards; and the holds that it must leave alone.

Every step is a record before it is a deed, and the next `expire` finishes what a killed one began. A copy is
``expiring`` on record before a byte of it goes, so no restore is ever offered half of one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from nightferry.copies.accept import not_accepted
from nightferry.copies.delivery import deliver_everywhere
from nightferry.destination.base import Destination
from nightferry.errors import (
    BusyError,
    Cancelled,
    ConfigError,
    DestinationError,
    ImplausibleExpiry,
    NightferryError,
    NotRemoved,
    Retained,
    Unavailable,
    worst_exit_code,
)
from nightferry.model.destinations import TapeSettings
from nightferry.model.records import (
    OUTLIVED,
    THERE,
    CartridgeRecord,
    CopyRecord,
    CopyState,
    ExpiryRecord,
    FreedRecord,
    HoldRecord,
    ImageRecord,
)
from nightferry.progress import Cancel, Progress
from nightferry.retention.outlook import (
    ABANDONED_AFTER,
    CopyOutlook,
    OrphanOutlook,
    Outlook,
    StagedOutlook,
    implausible,
    look_ahead,
    scratch_cartridges,
)
from nightferry.site.destinations import destination_of
from nightferry.site.opened import OpenSite, operator
from nightferry.site.stamps import require_plausible_clock
from nightferry.staging.images import is_staged
from nightferry.staging.orphans import forget_expired
from nightferry.staging.owed import describe_undeliverable, disk_is_here, undeliverable
from nightferry.staging.room import remove_staged

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Expiry:
    """What was done, or in a dry run what would be."""

    dry_run: bool
    copies: list[CopyOutlook] = field(default_factory=list)
    cartridges: list[CartridgeRecord] = field(default_factory=list)
    staged: list[StagedOutlook] = field(default_factory=list)
    orphans: list[OrphanOutlook] = field(default_factory=list)
    foreign: list[OrphanOutlook] = field(default_factory=list)
    """What lies there and is left alone."""
    undeliverable: list[str] = field(default_factory=list)
    """Images that owe copies which no night delivers, with the reason; they never expire."""
    errors: dict[str, NightferryError] = field(default_factory=dict)
    refused: ConfigError | None = None
    """In a dry run: why the same without it would do nothing."""
    undelivered: dict[str, NightferryError] = field(default_factory=dict)
    """Destinations to which no copy of the catalog came that knows what has gone; the next night brings one."""

    @property
    def gone(self) -> list[CopyOutlook]:
        return [row for row in self.copies if row.fate in ("expires", "expired")]

    @property
    def freed_bytes(self) -> int:
        """Bytes that come free: objects, cartridges as a whole, staging, orphans."""
        return (
            sum(row.freed_bytes for row in self.copies)
            + sum(cartridge.used_bytes for cartridge in self.cartridges)
            + sum(row.image.size_bytes for row in self.staged)
            + sum(row.orphan.size_bytes for row in self.orphans if not row.error)
        )

    @property
    def exit_code(self) -> int:
        """What the command ends with: 0, or the gravest of what failed at a destination."""
        failed = [row for row in self.copies if row.fate == "failed"]
        failed_orphans = [row for row in self.orphans if row.error]
        codes = [error.exit_code for error in self.errors.values()]
        codes += [self.refused.exit_code] if self.refused is not None else []
        return worst_exit_code([*codes, DestinationError.exit_code if failed or failed_orphans else 0])

    def as_json(self) -> dict[str, Any]:
        return {
            "dry_run": self.dry_run,
            "copies": [row.as_json() for row in self.copies],
            "cartridges": [
                {"destination": c.destination, "barcode": c.barcode, "used_bytes": c.used_bytes}
                for c in self.cartridges
            ],
            "staged": [
                {
                    "image": row.image.image,
                    "back_group": row.back_group,
                    "size_bytes": row.image.size_bytes,
                    "why": row.why,
                }
                for row in self.staged
            ],
            "orphans": [
                {
                    "destination": row.destination,
                    "what": row.orphan.what,
                    "image": row.orphan.image,
                    "path": row.orphan.path,
                    "since": row.orphan.since,
                    "size_bytes": row.orphan.size_bytes,
                    "error": row.error or None,
                }
                for row in self.orphans
            ],
            "foreign": [
                {
                    "destination": row.destination,
                    "path": row.orphan.path,
                    "size_bytes": row.orphan.size_bytes,
                    "why": row.why,
                }
                for row in self.foreign
            ],
            "undeliverable": list(self.undeliverable),
            "freed_bytes": self.freed_bytes,
            "refused": self.refused.message if self.refused is not None else None,
            "errors": [
                {"destination": name, "message": error.message, "hint": error.hint}
                for name, error in self.errors.items()
            ],
            "undelivered": [
                {"destination": name, "message": error.message, "hint": error.hint}
                for name, error in self.undelivered.items()
            ],
        }


def expire(
    site: OpenSite,
    destination: str | None = None,
    *,
    dry_run: bool = False,
    reason: str = "",
    progress: Progress,
    cancel: Cancel,
) -> Expiry:
    """Applies the retention everywhere, or at one destination.

    When something has gone, a copy of the catalog that knows it goes to every destination: what a rebuild begins from
    lists nothing that is not there any more. A destination that is away then is named, and gets it with the next night.

    Args:
        site: The site.
        destination: Only there, and nothing on staging.
        dry_run: Say it and do nothing.
        reason: Why it is right that more than ``retention.at_most`` goes at once; empty: then nothing does.
        progress: Told of every copy that goes.
        cancel: Seen between two copies.

    Raises:
        ConfigError: no such destination.
        NotAccepted: the catalog was rebuilt, and nobody accepted it; nothing was touched. A dry run says it in its
            result.
        ImplausibleExpiry: too much would go everywhere where something would, and nothing was touched. Where only some
            destinations refuse, the others go on, and the result tells. A dry run says it in its result.
        ClockAhead: a run is stamped later than now.
        Cancelled: stopped between two copies; the next call goes on.
    """
    outlook = look_ahead(site, destination)
    unaccepted = not_accepted(site.catalog)
    if unaccepted is not None:
        if dry_run:
            return _foreseen(site, outlook, unaccepted)
        raise unaccepted
    require_plausible_clock(site, "nothing expires")
    refused = {} if reason.strip() else implausible(site, outlook)
    if dry_run:
        return _foreseen(site, outlook, next(iter(refused.values()), None))
    outlook = _without(outlook, refused)
    if refused and not outlook.going:
        raise next(iter(refused.values()))
    done = Expiry(False, [row for row in outlook.copies if row.fate != "expires"], errors=outlook.errors)
    done.foreign += outlook.foreign
    done.undeliverable += describe_undeliverable(undeliverable(site))
    if outlook.going or outlook.staged:
        intent = _intend(site, outlook, reason)
        note = ""
        try:
            _expire_copies(site, outlook, done, progress, cancel)
            _free_staged(site, outlook.staged, done, cancel)
        except Cancelled:
            note = "stopped"
            raise
        finally:
            _conclude(site, intent, done, note)
    closed = _close_cut_off(site)
    names = [d.name for d in site.file.destinations if destination in (None, d.name)]
    for name in names:
        done.cartridges += _make_scratch(site, name)
    _remember_gone(site, done)
    site.catalog.refresh()
    forget_expired(site)
    _clear(site, outlook.orphans, done, cancel)
    if closed or done.gone or done.staged or done.cartridges:
        done.undelivered = deliver_everywhere(site)
    order = {row.copy.subject: number for number, row in enumerate(outlook.copies)}
    done.copies.sort(key=lambda row: order[row.copy.subject])
    return done


def _without(outlook: Outlook, refused: dict[str, ImplausibleExpiry]) -> Outlook:
    """The same, with nothing that goes at destinations that refuse."""
    return replace(
        outlook,
        copies=tuple(
            replace(row, fate="kept", why=f"refused: {refused[row.copy.destination].message}")
            if row.fate == "expires" and row.copy.destination in refused
            else row
            for row in outlook.copies
        ),
        orphans=tuple(row for row in outlook.orphans if row.destination not in refused),
        errors=outlook.errors | refused,
    )


def _foreseen(site: OpenSite, outlook: Outlook, refused: ConfigError | None) -> Expiry:
    rows = [
        replace(row, freed_bytes=_room_of(site, row)) if row.fate == "expires" else row
        for row in outlook.copies
    ]
    return Expiry(
        True,
        rows,
        list(outlook.cartridges),
        list(outlook.staged),
        list(outlook.orphans),
        list(outlook.foreign),
        describe_undeliverable(undeliverable(site)),
        outlook.errors,
        refused,
    )


def _room_of(site: OpenSite, row: CopyOutlook) -> int:
    """A copy's own room; one on tape has none: a cartridge comes free as a whole."""
    is_tape = isinstance(site.file.destination(row.copy.destination), TapeSettings)
    return 0 if is_tape else row.copy.size_bytes


def _intend(site: OpenSite, outlook: Outlook, reason: str) -> ExpiryRecord:
    now = site.clock.now()
    record = ExpiryRecord(
        expiry=f"{now:%Y%m%dT%H%M%S.%fZ}",
        who=operator(),
        reason=reason,
        copies=tuple(row.copy.subject for row in outlook.going),
        staged=tuple(row.image.image for row in outlook.staged),
        at=now,
    )
    site.catalog.append(record, "intent")
    return record


def _conclude(site: OpenSite, intent: ExpiryRecord, done: Expiry, note: str) -> None:
    site.catalog.append(
        intent.model_copy(
            update={
                "copies": tuple(row.copy.subject for row in done.copies if row.fate == "expired"),
                "staged": tuple(row.image.image for row in done.staged),
                "at": site.clock.now(),
                "note": note,
            }
        )
    )


def _close_cut_off(site: OpenSite) -> int:
    """Ends, on record, expiries whose process died: what they had begun is finished by now, or is going on; returns how
    many."""
    closed = 0
    for record in site.catalog.pending(ExpiryRecord):
        copies = [site.catalog.latest(CopyRecord, subject) for subject in record.copies]
        if any(copy is not None and copy.state == "expiring" for copy in copies):
            continue
        went = tuple(copy.subject for copy in copies if copy is not None and copy.state == "expired")
        staged = tuple(image for image in record.staged if site.catalog.freed(image))
        note = "interrupted; a later run finished it"
        site.catalog.append(record.model_copy(update={"copies": went, "staged": staged, "note": note}))
        closed += 1
    return closed


def _expire_copies(
    site: OpenSite, outlook: Outlook, done: Expiry, progress: Progress, cancel: Cancel
) -> None:
    away = set(outlook.away)
    for row in outlook.going:
        cancel.check()
        name = row.copy.destination
        if name in away:
            done.copies.append(replace(row, fate="failed", note=done.errors[name].message))
            continue
        try:
            outcome = _expire_copy(site, row)
        except (DestinationError, BusyError, ConfigError) as error:
            if isinstance(error, Unavailable | ConfigError):
                done.errors[name] = error
                away.add(name)
            outcome = replace(row, fate="failed", note=error.message)
        done.copies.append(outcome)
        progress.say(f"{outcome.fate} at {name}", row.image.image)


def _expire_copy(site: OpenSite, row: CopyOutlook) -> CopyOutlook:
    """Takes one copy, in all the epochs of it that are there.

    Raises:
        ConfigError: the key that expires cannot be resolved.
        DestinationError: the destination failed. Unless it says that nothing was removed, the copy stays
            ``expiring``, and the next `expire` goes on with it.
        BusyError: another process recorded something about the copy meanwhile.
    """
    target = destination_of(site, row.copy.destination)
    before = row.copy
    if site.catalog.latest(CopyRecord, before.subject) != before:
        raise BusyError(
            f"the copy of {before.image} at {before.destination} is being worked on by another process",
            hint="run `nightferry expire` again",
            subject=before.image,
        )
    newest = site.catalog.latest_event(CopyRecord, before.subject)
    expiring = before.model_copy(update={"state": "expiring", "note": f"by {operator()}: {row.why}"[:500]})
    site.catalog.append(expiring, expect=newest.sequence if newest is not None else 0)
    site.catalog.refresh()
    hold = site.catalog.hold(before.image)
    if hold is not None:
        _take_back(site, target, before)
        return replace(row, fate="kept", why=f"held: {hold.reason}")
    try:
        stays = target.expire(before.location, before.digest) if before.location else ""
    except (NotRemoved, ConfigError) as error:
        _take_back(site, target, before)
        if isinstance(error, Retained):
            return replace(row, fate="locked", why=error.message)
        raise
    note = f"{expiring.note}; {stays}" if stays else expiring.note
    for copy in site.catalog.all_copies(before.image):
        if copy.destination == before.destination and copy.state in (*THERE, "expiring", "writing"):
            site.catalog.append(copy.model_copy(update={"state": "expired", "note": note[:500]}))
    log.info("expired %s at %s: %s", before.image, before.destination, row.why)
    freed = 0 if stays else _room_of(site, row)
    return replace(row, copy=before, fate="expired", freed_bytes=freed, note=stays)


def _take_back(site: OpenSite, target: Destination, before: CopyRecord) -> None:
    """Says of a copy of which nothing was removed now what it was before. One that an earlier `expire` began
    with is only believed when it is found whole."""
    state: CopyState = before.state
    if state == "expiring":
        if target.find(before.image, before.epoch) is None:
            return
        state = "whole"
    site.catalog.append(before.model_copy(update={"state": state}))


def _make_scratch(site: OpenSite, destination: str) -> list[CartridgeRecord]:
    """Gives cartridges on which nothing lives back to their pool."""
    site.catalog.refresh()
    made = []
    for cartridge in scratch_cartridges(site, destination):
        newest = site.catalog.latest_event(CartridgeRecord, cartridge.subject)
        became = {"resumes" if cartridge.state == "offsite" else "state": "expired"}
        scratch = cartridge.model_copy(
            update={**became, "note": "all on it has expired", "at": site.clock.now()}
        )
        try:
            site.catalog.append(scratch, expect=newest.sequence if newest is not None else 0)
        except BusyError:
            # Somebody writes to it just now: then it is not scratch.
            continue
        made.append(cartridge)
    return made


def _free_staged(site: OpenSite, staged: Iterable[StagedOutlook], done: Expiry, cancel: Cancel) -> None:
    for row in staged:
        cancel.check()
        with site.claims.shared(row.back_group).read("expire"):
            # As with all room: on record first, so that a crash leaves bytes too many and nothing else.
            site.catalog.refresh()
            if site.catalog.hold(row.image.image) is not None:
                continue
            _free(site, row.image, row.why)
            remove_staged(site, row.image)
        done.staged.append(row)


def _free(site: OpenSite, image: ImageRecord, reason: str) -> None:
    site.catalog.append(FreedRecord(image=image.image, reason=reason, at=site.clock.now(), expired=True))


def _remember_gone(site: OpenSite, done: Expiry) -> None:
    """An image of which nothing is left is not listed for ever because a copy of it never arrived, or because
    staging lost it rather than freed it."""
    site.catalog.refresh()
    long_ago = site.clock.now() - ABANDONED_AFTER
    for image in {row.image.image: row.image for row in done.copies if row.fate == "expired"}.values():
        copies = site.catalog.all_copies(image.image)
        cut_off = [copy for copy in copies if copy.state == "writing" and copy.started < long_ago]
        left = [copy for copy in copies if copy.state not in ("expired", "lost") and copy not in cut_off]
        if left or is_staged(site, image) or not disk_is_here(site, image):
            continue
        for copy in cut_off:
            site.catalog.append(copy.model_copy(update={"state": "lost", "note": "it never arrived"}))
        if not site.catalog.freed(image.image):
            _free(site, image, "its last copy has expired, and staging does not have it")


def _clear(site: OpenSite, orphans: Iterable[OrphanOutlook], done: Expiry, cancel: Cancel) -> None:
    for row in orphans:
        cancel.check()
        try:
            destination_of(site, row.destination).clear(row.orphan)
        except DestinationError as error:
            done.orphans.append(replace(row, error=error.message))
        else:
            log.info("removed %s %s at %s", row.orphan.what, row.orphan.path, row.destination)
            done.orphans.append(row)


def add_hold(site: OpenSite, image: str, reason: str) -> HoldRecord:
    """Holds an image: its copies, and its place on staging, do not expire until the hold is removed.

    Raises:
        ConfigError: no reason, no such image, or copies of it are expired or about to be.
    """
    if not reason.strip():
        raise ConfigError("a hold needs a reason", hint="add --reason TEXT", subject=image)
    site.catalog.refresh()
    site.catalog.image(image)
    record = _record(site, image, True, reason)
    # The record comes before the look: an expiry looks at holds after it has said what it takes, so that one
    # of the two sees the other.
    site.catalog.refresh()
    states = {copy.state for copy in site.catalog.copies(image)}
    if site.catalog.expired(image) or (states and states <= {*OUTLIVED, "lost"}):
        _record(site, image, False, "every copy of it has expired")
        raise ConfigError(
            f"image {image} cannot be held: every copy of it has expired",
            hint="`nightferry images` lists the images",
            subject=image,
        )
    return record


def remove_hold(site: OpenSite, image: str, reason: str = "") -> HoldRecord:
    """Lets an image expire again when its time comes.

    Raises:
        ConfigError: it is not held.
    """
    site.catalog.refresh()
    if site.catalog.hold(image) is None:
        site.catalog.image(image)
        raise ConfigError(
            f"image {image} is not held", hint="`nightferry hold list` lists the held images", subject=image
        )
    return _record(site, image, False, reason)


def holds(site: OpenSite) -> list[HoldRecord]:
    """Every hold, the oldest first."""
    site.catalog.refresh()
    return site.catalog.holds()


def _record(site: OpenSite, image: str, held: bool, reason: str) -> HoldRecord:
    record = HoldRecord(image=image, held=held, reason=reason, who=operator(), at=site.clock.now())
    site.catalog.append(record)
    return record
