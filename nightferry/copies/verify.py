"""Reading copies back on demand, and re-making the ones that are missing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nightferry.copies.media import tapes
from nightferry.copies.passes import in_passes
from nightferry.copies.read_back import mark_damaged, verify_copy
from nightferry.copies.side_files import proven_chunks
from nightferry.copies.sources import Turns, open_image_from, recall, sources_of
from nightferry.copies.stream import earlier_copy, make_copy, stream_image
from nightferry.errors import (
    BusyError,
    CatalogError,
    ConfigError,
    CopyMissing,
    DestinationError,
    IntegrityError,
    MediumDamaged,
    NeedsRecall,
    NightferryError,
    OtherSite,
    StagingFull,
    Unavailable,
)
from nightferry.model.destinations import TapeSettings
from nightferry.model.records import OUTLIVED, CopyRecord, ImageRecord
from nightferry.plan.restore_order import Choice, stops
from nightferry.progress import Cancel, Progress
from nightferry.site.destinations import offsite
from nightferry.site.marker import require_ours
from nightferry.site.nodes import require_disk, working_on
from nightferry.site.opened import OpenSite
from nightferry.staging.images import back_group_of, is_staged
from nightferry.staging.owed import disk_is_here, is_lost, note_loss, policy_of
from nightferry.staging.room import free_room
from nightferry.staging.scratch import scratch_file
from nightferry.staging.staged import StagedDamage, StagedOutgoing
from nightferry.transfer.files import NO_SPACE
from nightferry.units import format_size

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Checked:
    """One copy that was read back. ``error`` is empty when every byte read was right."""

    copy: CopyRecord
    error: str = ""
    exit_code: int = 0
    note: str = ""
    """Why it was not read, where that is well."""

    def as_json(self) -> dict[str, object]:
        return {
            "image": self.copy.image,
            "destination": self.copy.destination,
            "state": self.copy.state,
            "error": self.error or None,
            "note": self.note or None,
        }


def copies_to_verify(site: OpenSite, destination: str | None = None) -> list[CopyRecord]:
    """Every copy that claims to be readable, newest image first."""
    if destination is not None:
        site.file.destination(destination)
    site.catalog.refresh()
    return [
        copy
        for image in site.catalog.images()
        for copy in site.catalog.copies(image.image)
        if copy.state in ("whole", "verified", "suspect", "damaged")
        and (destination is None or copy.destination == destination)
    ]


def verify_copies(
    site: OpenSite,
    destination: str | None = None,
    *,
    sample: float = 1.0,
    recalling: bool = False,
    progress: Progress,
    cancel: Cancel,
) -> Iterator[Checked]:
    """Reads copies back; a damaged one is recorded and the next one goes on.

    On tape cartridge by cartridge, as many at once as there are drives. No cartridge is waited for: what lies on one in
    a vault is left out, and said; of one that should be there and is not each copy says so.

    Args:
        site: The site.
        destination: Only its copies.
        sample: See ``copies.read_back.verify_copy``.
        recalling: Whether copies in an archive are asked for and waited for; else they are left out, and that is
            said.
        progress: Told of every copy.
        cancel: Seen at every chunk.
    """
    vault = offsite(site)
    names = [destination] if destination is not None else [d.name for d in site.file.destinations]
    for name in names:
        _require_ours_if_there(site, name)
    loadable = {name: _loadable(site, name) for name in names}
    here = []
    for copy in copies_to_verify(site, destination):
        barcodes = [stop.barcode for stop in stops(copy)]
        away = [barcode for barcode in barcodes if barcode in vault.get(copy.destination, ())]
        known = loadable.get(copy.destination)
        absent = [barcode for barcode in barcodes if known is not None and barcode not in known]
        if away:
            yield Checked(copy, note=f"{away[0]} is offsite")
        elif absent:
            yield Checked(copy, f"cartridge {absent[0]} is not in the library", Unavailable.exit_code)
        else:
            here.append(copy)

    def check(copy: CopyRecord) -> Checked:
        return check_one(site, copy, sample=sample, recalling=recalling, progress=progress, cancel=cancel)

    yield from in_passes(site, here, lambda copy: copy, check, cancel)


def _loadable(site: OpenSite, name: str) -> set[str] | None:
    """The cartridges that a drive of the destination can have; None where there are none, or nobody can say."""
    if not isinstance(next((d for d in site.file.destinations if d.name == name), None), TapeSettings):
        return None
    try:
        (library,) = tapes(site, name)
        views = library.inventory()
    except (DestinationError, ConfigError) as error:
        log.info("cannot find out which cartridges %s has: %s", name, error.message)
        return None
    return {view.barcode for view in views if view.element and not view.element.startswith("port")}


def _require_ours_if_there(site: OpenSite, name: str) -> None:
    """Raises:
    OtherSite: it is another site's. Of a destination that cannot be looked at each copy says so.
    """
    try:
        require_ours(site, name)
    except OtherSite:
        raise
    except (DestinationError, ConfigError) as error:
        log.info("cannot find out which site owns %s: %s", name, error.message)


def check_one(
    site: OpenSite,
    copy: CopyRecord,
    *,
    sample: float,
    recalling: bool = False,
    progress: Progress,
    cancel: Cancel,
) -> Checked:
    """One copy's result as a value; only a stop is raised."""
    try:
        if recalling:
            recall(site, copy, progress=progress, cancel=cancel)
        checked = verify_copy(site, copy, sample=sample, must_record=False, progress=progress, cancel=cancel)
        if checked.state in ("damaged", "suspect"):
            known = f"it was found {checked.state} before, and a sample cannot clear it: {checked.note}"
            return Checked(checked, known, IntegrityError.exit_code)
        return Checked(checked)
    except NeedsRecall as error:
        return Checked(copy, note=f"not read back: {error}; --recall asks for it")
    except (IntegrityError, DestinationError, BusyError, CatalogError) as error:
        # A catalog without this image's index says nothing of the next one.
        site.catalog.refresh()
        newest = next((c for c in site.catalog.copies(copy.image) if c.destination == copy.destination), copy)
        # What has expired meanwhile is gone, and nobody misses it.
        found_damaged = isinstance(error, MediumDamaged) and newest.state not in OUTLIVED
        return Checked(newest, str(error), IntegrityError.exit_code if found_damaged else error.exit_code)


def missing_copies(site: OpenSite, destination: str) -> list[ImageRecord]:
    """Images whose policy wants a copy at the destination that is not there, or not to be trusted; one that
    expired there is not missed. One that can be read nowhere is among them while its damaged copy is on record:
    who asks for what is missing must hear of it."""
    site.file.destination(destination)
    site.catalog.refresh()
    wanted = {group.name for group in site.file.groups if destination in group.copies}
    missing = []
    for image in reversed(site.catalog.images()):
        if site.catalog.forgotten(image.image):
            continue
        if image.group not in wanted and destination not in policy_of(site, image).destinations:
            continue
        states = {c.state for c in site.catalog.copies(image.image) if c.destination == destination}
        if not states and image.state != "whole" and not site.catalog.accepted(image):
            continue  # it owes no copy
        if states.isdisjoint({*OUTLIVED, "whole", "verified"}) and (
            "damaged" in states or _readable_elsewhere(site, image) or is_lost(site, image)
        ):
            missing.append(image)
    return missing


def _readable_elsewhere(site: OpenSite, image: ImageRecord) -> bool:
    try:
        return bool(sources_of(site, image))
    except CopyMissing:
        return False


def remake_copy(
    site: OpenSite, image: ImageRecord, destination: str, *, progress: Progress, cancel: Cancel
) -> CopyRecord:
    """Makes a verified copy at a destination, from staging or from the nearest other copy.

    From another copy the image is first brought to a scratch file below the staging path, so that a slow
    source never keeps a tape drive stopping and starting, and so that it is proved whole before a byte is
    written.

    Raises:
        CopyMissing: the image cannot be read anywhere else.
        IntegrityError: the image is lost.
        StagingFull: the scratch file does not fit beside what staging keeps free.
        ConfigError: the destination is not in the site file.
        NotOwner: the disk that it lies on, or would lie on in between, is on another node.
    """
    site.file.destination(destination)
    damage: StagedDamage | None = None
    if is_staged(site, image):
        back_group = back_group_of(site, image)
        with site.claims.shared(back_group).read(f"copy of {image.image} to {destination}"):
            try:
                return stream_image(site, image, destination, progress=progress, cancel=cancel)
            except StagedDamage as error:
                damage = error
        if not _readable_elsewhere(site, image):
            raise damage
        progress.say(f"{damage}: making it again from another copy")
    there = earlier_copy(site, image, destination, progress=progress, cancel=cancel)
    if there is not None:
        return there
    require_disk(site, back_group_of(site, image), f"a copy of {image.image} by way of staging")
    if damage is None and not site.catalog.freed(image.image) and disk_is_here(site, image):
        note_loss(site, image, "it is no longer on staging")
    if is_lost(site, image):
        raise IntegrityError(
            f"image {image.image} is lost: damaged or gone on staging, and no copy can be read",
            hint=f"`nightferry forget {image.image} --reason TEXT` gives it up",
            subject=image.image,
        )
    last: NightferryError | None = None
    # A tape's trailer cannot be written again in its place: what it describes is read, proved, and written behind all.
    turns = Turns(site, [p for p in sources_of(site, image) if p.source != destination or p.doubtful])
    for place in turns:
        with (
            working_on(site, back_group=back_group_of(site, image), cancel=cancel) as narrower,
            scratch_file(site, image) as scratch,
        ):
            try:
                turns.ready(place, progress=progress, cancel=narrower)
                _fetch(site, image, place, scratch, narrower)
            except (IntegrityError, DestinationError, BusyError) as error:
                if isinstance(error, NeedsRecall) and turns.postpone(place, error, progress):
                    continue
                last = error
                progress.say(f"cannot read {image.image} from {place.source}: {error}")
                if place.copy is not None and isinstance(error, IntegrityError | MediumDamaged):
                    mark_damaged(site, place.copy, error)
                continue
            outgoing = StagedOutgoing(
                image,
                scratch,
                chunks=proven_chunks(site, image),
                order=site.catalog.order_of(image.image),
                cancel=narrower,
            )
            return make_copy(site, outgoing, destination, progress=progress, cancel=narrower)
    if last is not None:
        raise last
    raise CopyMissing(f"image {image.image} can only be read at {destination}", subject=image.image)


def _fetch(site: OpenSite, image: ImageRecord, place: Choice, scratch: Path, cancel: Cancel) -> None:
    """Brings an image from a copy to a scratch file, every chunk proved."""
    if free_room(site, back_group_of(site, image)) < image.size_bytes:
        raise _no_room(image, scratch)
    with open_image_from(site, image, place) as reader:
        pieces = reader.stream(0, image.size_bytes)
        try:
            with scratch.open("wb") as out:
                for piece in pieces:
                    cancel.check()
                    out.write(piece)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise _no_room(image, scratch) from error
            raise


def _no_room(image: ImageRecord, scratch: Path) -> StagingFull:
    return StagingFull(
        f"{image.image} needs {format_size(image.size_bytes)} of scratch space in {scratch.parent}",
        subject=image.image,
    )
