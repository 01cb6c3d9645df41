"""The cartridges of a site's tape libraries: who has which, what is lost with one, what comes and goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nightferry.destination.tape.library.destination import TapeDestination
from nightferry.destination.tape.library.media import MediumView
from nightferry.errors import ConfigError, WrongCartridge
from nightferry.model.destinations import TapeSettings
from nightferry.model.records import CopyRecord
from nightferry.plan.restore_order import stops
from nightferry.site.destinations import destination_of
from nightferry.site.opened import OpenSite, operator
from nightferry.staging.images import seems_staged

_NO_TAPE = 'media are the cartridges of tape libraries: destinations of kind = "tape" in the site file'


def tapes(site: OpenSite, name: str | None = None) -> list[TapeDestination]:
    """The named tape destination, or all of them.

    Raises:
        ConfigError: there is none of that name, or none at all.
    """
    names = [d.name for d in site.file.destinations if isinstance(d, TapeSettings)]
    if name is not None:
        site.file.destination(name)
        if name not in names:
            raise ConfigError(
                f"destination {name} is not a tape library",
                hint=f"name one of the tape libraries: {', '.join(names)}" if names else _NO_TAPE,
                subject=name,
            )
        names = [name]
    if not names:
        raise ConfigError("the site has no tape library", hint=_NO_TAPE)
    found = [destination_of(site, n) for n in names]
    return [d for d in found if isinstance(d, TapeDestination)]


def holding(site: OpenSite, barcode: str, library: str | None = None) -> TapeDestination:
    """The tape destination that has a cartridge, or whose records know it.

    Raises:
        ConfigError: none, or several.
    """
    found = [d for d in tapes(site, library) if any(v.barcode == barcode for v in d.inventory())]
    if len(found) == 1:
        return found[0]
    if found:
        named = ", ".join(d.name for d in found)
        raise ConfigError(
            f"several libraries have a cartridge {barcode}: {named}",
            hint=f"name one with --library, as in `--library {found[0].name}`",
            subject=barcode,
        )
    raise ConfigError(
        f"no cartridge {barcode}", hint="`nightferry media list` lists the cartridges", subject=barcode
    )


def view_json(view: MediumView) -> dict[str, Any]:
    """A cartridge's line of ``media list``."""
    return {
        "barcode": view.barcode,
        "element": view.element or None,
        "state": view.state,
        "pool": view.pool or None,
        "used_bytes": view.used_bytes,
        "tape_files": view.tape_files,
        "images": list(view.images),
        "mounts": view.mounts,
        "errors": view.errors,
        "alerts": list(view.alerts),
        "worm": view.worm,
        "written": view.written.isoformat() if view.written else None,
        "note": view.note or None,
    }


def why(reason: str) -> str:
    """``who: reason``, as it is kept in the log."""
    return f"{operator()}: {reason}" if reason else operator()


@dataclass(frozen=True, slots=True)
class Loss:
    """An image that loses its copy with a cartridge. ``left`` are the places it can still be read from."""

    image: str
    size_bytes: int
    left: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {"image": self.image, "size_bytes": self.size_bytes, "left": list(self.left)}


def copies_on(site: OpenSite, destination: str, barcode: str) -> list[CopyRecord]:
    """The copies with a part on a cartridge that are neither lost nor expired, by image; those that are not finished,
    too, and those of which it is not on record what became of them."""
    site.catalog.refresh()
    found = {
        copy.subject: copy
        for copy in site.catalog.all(CopyRecord)
        if copy.destination == destination
        and copy.state not in ("lost", "expired")
        and any(stop.barcode == barcode for stop in stops(copy))
    }
    found |= {copy.subject: copy for copy in site.catalog.unfinished_on(destination, barcode)}
    return sorted(found.values(), key=lambda copy: (copy.image, copy.epoch))


def losses(site: OpenSite, copies: list[CopyRecord]) -> Iterator[Loss]:
    """What the images of these copies have left without them, those with the least first."""
    gone = {(copy.image, copy.destination) for copy in copies}
    found = []
    for copy in copies:
        image = site.catalog.image(copy.image)
        left = ["staging"] if seems_staged(site, image) else []
        left += [
            c.destination
            for c in site.catalog.copies(copy.image)
            if c.state in ("whole", "verified") and (c.image, c.destination) not in gone
        ]
        found.append(Loss(copy.image, image.size_bytes, tuple(left)))
    yield from sorted(found, key=lambda loss: (len(loss.left), loss.image))


@dataclass(frozen=True, slots=True)
class Retired:
    """A cartridge out of use, and what its copies were."""

    medium: MediumView
    losses: tuple[Loss, ...]

    @property
    def endangered(self) -> tuple[Loss, ...]:
        """Images that lost their last readable copy, or have one left."""
        return tuple(loss for loss in self.losses if len(loss.left) < 2)


def retire(site: OpenSite, tape: TapeDestination, barcode: str, reason: str) -> Retired:
    """Takes a cartridge out of use; its copies are lost from then on.

    The cartridge comes first: a second try, after this one was cut off, gives up the copies that are left.

    Raises:
        ConfigError: no reason.
        DestinationError: see ``Handling.retire``.
    """
    if not reason.strip():
        raise ConfigError("retiring a cartridge needs a reason", hint="add --reason TEXT", subject=barcode)
    medium = tape.handling.retire(barcode, why(reason))
    copies = copies_on(site, tape.name, barcode)
    lost = tuple(losses(site, copies))
    note = f"cartridge {barcode} was retired by {why(reason)}"[:500]
    for copy in copies:
        site.catalog.append(copy.model_copy(update={"state": "lost", "note": note}))
    return Retired(medium, lost)


@dataclass(frozen=True, slots=True)
class Erasure:
    """What would be lost when a cartridge is written over."""

    medium: MediumView
    lost: tuple[str, ...]
    """Images on it whose copies were given up before, or are not finished."""
    unfinished: tuple[CopyRecord, ...] = ()
    """Copies of which it holds whole parts, and that begin again without them."""

    def as_json(self) -> dict[str, Any]:
        again = [copy.image for copy in self.unfinished]
        return {**view_json(self.medium), "lost": list(self.lost), "unfinished": again}


def plan_erasure(site: OpenSite, tape: TapeDestination, barcode: str) -> Erasure:
    """What erasing a cartridge would write over.

    Raises:
        WrongCartridge: it may not be erased.
    """
    site.catalog.refresh()
    there = site.catalog.unfinished_on(tape.name, barcode)
    unknown = next((copy for copy in there if copy.ended is None), None)
    medium = tape.handling.require_erasable(barcode, {copy.image for copy in there})
    if unknown is not None and unknown.image in site.catalog.live_images(tape.name, barcode):
        raise WrongCartridge(
            f"it is unknown whether {barcode} holds a whole copy of {unknown.image}: its writer was stopped",
            subject=barcode,
            hint=f"the next run finds out (`nightferry backup --stage two`); or `nightferry media retire {barcode} "
            f"--reason TEXT` gives it up, then `nightferry media erase --yes {barcode}` writes over it",
        )
    return Erasure(medium, medium.images, tuple(there))


def erase(site: OpenSite, tape: TapeDestination, erasure: Erasure, reason: str) -> MediumView:
    """Writes over a cartridge. Copies whose parts are on it begin again: that is on record before.

    Raises:
        DestinationError: see ``Handling.erase``. Nothing was written.
    """
    barcode = erasure.medium.barcode
    note = f"a part of it was on {barcode}, to be erased by {why(reason)}"[:500]
    for copy in erasure.unfinished:
        site.catalog.append(copy.model_copy(update={"state": "lost", "note": note}))
    return tape.handling.erase(barcode, why(reason))


def describe_erasure(erasure: Erasure) -> str:
    """One line that says what would be gone."""
    medium = erasure.medium
    match medium.state:
        case "unknown" | "foreign":
            return f"{medium.barcode} is not ours, and its contents would be destroyed"
        case "blank":
            return f"{medium.barcode} is blank; it would be labelled"
    again = ", ".join(sorted({copy.image for copy in erasure.unfinished}))
    again = f"; the unfinished copy of {again} begins again" if again else ""
    images = ", ".join(erasure.lost[:5]) + (
        f" and {len(erasure.lost) - 5} more" if len(erasure.lost) > 5 else ""
    )
    return f"{medium.barcode} ({medium.state}) holds {images or 'no image'}: they would be destroyed{again}"
