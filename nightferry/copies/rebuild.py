"""The catalog from media alone: its newest copy at a destination, and what the destination itself shows.

It is put together in memory, and appears at its new place as one segment, last of all: what a rebuild that was
cut off leaves there is no catalog.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from nightferry.catalog.folder import FolderStorage, catalog_errors
from nightferry.catalog.indexes import IndexFiles
from nightferry.catalog.memory import MemoryStorage
from nightferry.catalog.query import Catalog
from nightferry.catalog.schema import ProvedRows, decode_copy
from nightferry.catalog.storage import Storage
from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.copies.delivery import Decisions, add_records
from nightferry.copies.encode import image_of
from nightferry.copies.reconcile import reconcile_copies, reconcile_elsewhere
from nightferry.copies.recover import NOTE, recovered
from nightferry.copies.side_files import record_in, require_side_files, side_files_of
from nightferry.destination.base import Destination, Found, Marked, Odd, SiteMark
from nightferry.destination.ours import MARKER, parse_marker
from nightferry.errors import (
    CatalogError,
    ConfigError,
    DestinationError,
    IntegrityError,
    MediumDamaged,
    NightferryError,
    OtherSite,
    Unavailable,
)
from nightferry.image.guard import require_proved
from nightferry.model.catalog_records import DeliveryRecord, RebuildRecord, SiteRecord
from nightferry.model.claim_records import DriveLeaseRecord, LeaseRecord
from nightferry.model.load import LoadedSite
from nightferry.model.names import parse_image_name, parse_run
from nightferry.model.records import CartridgeRecord, CopyRecord, ImageRecord, RunRecord
from nightferry.model.site import SiteFile, is_bucket
from nightferry.model.text import safe
from nightferry.progress import Cancel, Progress
from nightferry.site.destinations import destination_of
from nightferry.site.opened import OpenSite, operator
from nightferry.staging.owed import missing
from nightferry.transfer.durable import FOLDER_MODE
from nightferry.units import counted

MOST_FOREIGN = 24
"""What is not ours is named up to so many times, and counted."""
_LEFTOVERS = {"indexes"}
"""What a rebuild that was cut off left: it is written over."""


T = TypeVar("T")


@dataclass(slots=True)
class Rebuilt:
    """What came of it."""

    destination: str
    place: str
    begun_from: str = ""
    """The copy of the catalog that it began with; empty: there was none, only the copies' own side files."""
    events: int = 0
    images: int = 0
    added: list[str] = field(default_factory=list)
    """Images with a copy that the copy of the catalog did not know."""
    lost: list[str] = field(default_factory=list)
    """Images whose copy is on record there, and is not there."""
    lost_elsewhere: list[str] = field(default_factory=list)
    """Copies on record at other destinations of which nothing lies there, as ``IMAGE at DESTINATION``."""
    unseen: list[str] = field(default_factory=list)
    """Other destinations whose copies stay as recorded, and why they were not looked at."""
    missing: list[str] = field(default_factory=list)
    """Images that owe copies, and were found neither at a destination nor on staging as far as it can be seen."""
    elsewhere: list[str] = field(default_factory=list)
    """Images whose copy lies on cartridges that are not in the library: it stays as recorded."""
    cartridges: list[str] = field(default_factory=list)
    """Cartridges that the copy of the catalog did not know as they are."""
    recovered: list[str] = field(default_factory=list)
    """Images whose record was gone, and was made again from data, index and chunk table."""
    left_out: list[str] = field(default_factory=list)
    """Folders of images that could not be taken."""
    foreign: list[str] = field(default_factory=list)
    """What lies among the copies and is not called as an image: left alone. The first ``MOST_FOREIGN`` of them."""
    foreign_count: int = 0
    """How many there are in all."""
    unproved: bool = False
    """The copy of the catalog that it began with has no digest: an older release wrote it."""
    beside: int = 0
    """Holds, selections, approvals and seals taken from beside the copies."""
    notes: list[str] = field(default_factory=list)
    """What could not be read, or is not what it says."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing is lost, and nothing was left out."""
        return not (self.lost or self.lost_elsewhere or self.missing or self.notes or self.recovered)


def rebuild(
    loaded: LoadedSite,
    copy: str,
    to: str,
    *,
    clock: Clock = SYSTEM_CLOCK,
    progress: Progress,
    cancel: Cancel,
) -> Rebuilt:
    """Makes a catalog at ``to`` from what lies at a destination.

    The newest copy of the catalog that can be read is the beginning. Copies of images that it does not know
    are added, as ``whole``: `verify` proves them. Copies that it knows there, and that are not there, become
    ``lost``, and so do those at other destinations of objects that answer. Without a copy of the catalog everything
    comes from the side files of the images' copies.

    Images that owe copies by the copy of the catalog, and are nowhere, are named: `accept` gives them up.

    Args:
        loaded: The site file; its own catalog is not opened.
        copy: The destination's name.
        to: An empty or absent folder, or a bucket's URL below which nothing lies.
        clock: Dates the new records.
        progress: Told what is looked at.
        cancel: Seen between two images.

    Raises:
        ConfigError: ``to`` is neither.
        CatalogError: ``to`` is not empty or cannot be written; there is nothing at the destination.
        DestinationError: the destination is not there or does not answer.
        OtherSite: the destination is another site's.
    """
    with ExitStack() as stack:
        place = _empty_place(loaded.site, to, clock, stack)
        blank = Catalog(MemoryStorage(), node=os.uname().nodename, clock=clock)
        site = stack.enter_context(OpenSite(loaded, clock=clock, catalog=blank))
        done = Rebuilt(copy, str(place))
        destination = destination_of(site, copy)
        progress.say(f"reading every copy at {copy}", subject=copy)
        marker = _marker(destination, done)
        catalog, digest = _newest_copy(destination, marker, done, clock, cancel)
        last = catalog.last
        mark = _require_same_site(catalog, marker, loaded.site, copy)
        found, odd = _scan(destination, mark, loaded.site.site.name, done, cancel)
        mark = mark or _whose(found, done)
        progress.say(f"{counted(len(found), 'copy', 'copies')} found", subject=copy)
        for each in odd:
            cancel.check()
            found += _recovered(catalog, destination, each, done, loaded.site, cancel)
        if not found and catalog.is_empty:
            raise CatalogError(
                f"{copy} has neither copies of images nor a copy of the catalog"
                + "".join(f"; {note}" for note in done.notes[:5]),
                hint="name another destination with --copy, or correct this one's location in the site file",
                subject=copy,
            )
        indexes = IndexFiles(place)
        described = list(_with_records(destination, found, done, loaded.site, cancel))
        for one in _in_order(described, catalog):
            cancel.check()
            _add(catalog, destination, one, indexes, done, clock, cancel)
        done.lost, done.elsewhere = reconcile_copies(catalog, destination, found, odd)
        done.lost_elsewhere, done.unseen = reconcile_elsewhere(site, catalog, copy, mark)
        done.beside = _take_in_beside(catalog, destination, found, mark, last, done)
        _add_runs(catalog, loaded.site, copy)
        _add_cartridges(catalog, destination, done)
        for lease in catalog.all(LeaseRecord):
            if lease.state == "held":  # by whoever wrote the copy of the catalog: that run is long over
                catalog.append(lease.model_copy(update={"state": "free"}))
        for drive in catalog.all(DriveLeaseRecord):
            if drive.state == "held":
                catalog.append(drive.model_copy(update={"state": "free"}))
        if mark is not None and catalog.latest(SiteRecord, "site") is None:
            catalog.append(SiteRecord(name=mark.site, id=mark.id, who=operator(), at=clock.now()))
        if digest:  # the next copy there names this one as that before it
            catalog.append(
                DeliveryRecord(destination=copy, name=done.begun_from, digest=digest, at=clock.now())
            )
        catalog.append(
            RebuildRecord(
                rebuild=f"{clock.now():%Y%m%dT%H%M%S.%fZ}",
                copy_from=copy,
                begun_from=done.begun_from,
                left_out=tuple(f"{copy}/{path}" for path in done.left_out),
                who=operator(),
                at=clock.now(),
            )
        )
        with OpenSite(loaded, clock=clock, catalog=catalog) as rebuilt_site:
            done.missing = [image.image for image in missing(rebuilt_site)]
        data, _ = catalog.export()
        done.events = Catalog.from_export(data, place, clock=clock).last
        done.images = len(catalog.all(ImageRecord))
        return done


def _empty_place(site: SiteFile, to: str, clock: Clock, stack: ExitStack) -> Storage:
    if is_bucket(to):
        from nightferry.site.catalog_bucket import open_catalog_bucket

        bucket = open_catalog_bucket(site.catalog_bucket(to), clock=clock)
        stack.callback(bucket.close)
        bucket.require_claims()
        _require_empty(to, bucket.contents())
        return bucket
    folder = Path(to).absolute()
    with catalog_errors("make the catalog's folder", folder):
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{folder} is not a folder", hint="name an empty folder with --to", subject=to)
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        _require_empty(to, os.listdir(folder))
    return FolderStorage(folder)


def _require_empty(to: str, contents: Iterable[str]) -> None:
    other = sorted(set(contents) - _LEFTOVERS)
    if other:
        raise CatalogError(
            f"{to} is not empty: it has {safe(other[0])}",
            hint="name an empty folder or prefix with --to; nothing there is changed",
            subject=to,
        )


def _or_note(read: Callable[[], T], otherwise: T, done: Rebuilt) -> T:
    """What a destination says of itself; where something else lies in its place that is noted, and the copies of the
    images tell what they know.

    Raises:
        DestinationError: it is away, or another try can help.
    """
    try:
        return read()
    except DestinationError as error:
        if isinstance(error, Unavailable) or error.retryable:
            raise
        done.notes.append(error.message)
        return otherwise


def _marker(destination: Destination, done: Rebuilt) -> SiteMark | None:
    """Whose the destination is, as far as it says so."""
    if not isinstance(destination, Marked):
        return None
    text = _or_note(destination.marker, None, done)
    found = None if text is None else parse_marker(text)
    if text is not None and found is None:
        done.notes.append(f"{MARKER} at {destination.name} does not name its site")
    return found


def _require_same_site(
    catalog: Catalog, marker: SiteMark | None, site: SiteFile, copy: str
) -> SiteMark | None:
    """Whose marker and copy of the catalog are, with the name that it had last: that of the site file. None where
    neither says so.

    Raises:
        OtherSite: it is another one.
    """
    record = catalog.latest(SiteRecord, "site")
    last = SiteMark(record.name, record.id) if record is not None else marker
    if last is not None and last.site != site.site.name:
        raise OtherSite(
            f"the copies at {copy} belong to {last}, but the site file is for site {site.site.name}",
            hint="name a destination of this site with --copy, or correct [site] name in the site file",
            subject=copy,
        )
    return last


def _scan(
    destination: Destination, mark: SiteMark | None, site: str, done: Rebuilt, cancel: Cancel
) -> tuple[list[Found], list[Odd]]:
    """Whole copies, and folders of images that are none; what is another site's, or foreign, is only named."""
    found: list[Found] = []
    odd: list[Odd] = []

    def tell(each: Odd) -> None:
        cancel.check()
        if each.image:
            odd.append(each)
            return
        # Others may have any number of objects there: they are counted, not kept.
        done.foreign_count += 1
        if len(done.foreign) < MOST_FOREIGN:
            done.foreign.append(safe(each.path))

    for one in destination.scan(tell):
        cancel.check()
        if one.site is not None and (one.site.id != mark.id if mark is not None else one.site.site != site):
            done.left_out.append(f"images/{one.image}")
            done.notes.append(
                f"images/{safe(one.image)} at {destination.name} is left out: it belongs to {one.site}"
            )
        else:
            found.append(one)
            if one.note:
                done.notes.append(f"images/{safe(one.image)} at {destination.name}: {one.note}")
    return found, odd


def _whose(found: Iterable[Found], done: Rebuilt) -> SiteMark | None:
    """Whose the copies are, when no marker and no copy of the catalog says it."""
    marks = {one.site for one in found if one.site is not None}
    if len(marks) > 1:
        done.notes.append(f"the copies belong to several sites: {', '.join(sorted(map(str, marks)))}")
    return marks.pop() if len(marks) == 1 else None


def _recovered(
    catalog: Catalog, destination: Destination, odd: Odd, done: Rebuilt, site: SiteFile, cancel: Cancel
) -> list[Found]:
    """The copy with a record made again, when that can be; else it is left out, and named."""
    why = odd.why
    if odd.location is not None:
        epoch = odd.epoch or max(
            (c.epoch for c in catalog.all_copies(odd.image) if c.destination == destination.name), default=1
        )
        placed = replace(odd, epoch=epoch, location={**odd.location, "epoch": epoch})
        try:
            known = catalog.latest(ImageRecord, odd.image)
            one = recovered(destination, placed, known, site, cancel)
        except Unavailable:
            raise
        except (IntegrityError, DestinationError, ConfigError, ValidationError) as error:
            why = f"{why}, and {_reason(error)}"
        else:
            done.recovered.append(odd.image)
            return [one]
    done.left_out.append(odd.path)
    done.notes.append(f"{safe(odd.path)} at {destination.name} is left out: {why}")
    return []


def _take_in_beside(
    catalog: Catalog,
    destination: Destination,
    found: Iterable[Found],
    mark: SiteMark | None,
    last: int,
    done: Rebuilt,
) -> int:
    """What people decided, as it lies beside the copies: the newest of all, or what stands with each."""
    texts: list[bytes | MediumDamaged] = [one.records for one in found if one.records]
    if isinstance(destination, Marked):
        texts += _or_note(lambda: list(destination.records()), [], done)
    readable: list[Decisions] = []
    for text in texts:
        if isinstance(text, MediumDamaged):
            done.notes.append(text.message)
            continue
        try:
            one = Decisions(text)
        except ValueError:
            done.notes.append(f"records beside the copies at {destination.name} cannot be read")
            continue
        if mark is None or one.id == mark.id:
            readable.append(one)
    readable.sort(key=lambda one: one.through)
    if isinstance(destination, Marked):
        readable = readable[-1:]
    return sum(add_records(catalog, one, last) for one in readable)


def _newest_copy(
    destination: Destination, marker: SiteMark | None, done: Rebuilt, clock: Clock, cancel: Cancel
) -> tuple[Catalog, str]:
    """The newest copy of the catalog that can be read, in memory, and its digest; an empty one when there is none."""
    names = _or_note(destination.catalog_copies, list[str](), done)
    for place, name in enumerate(names):
        try:
            proved = _decode(destination, name, cancel)
            found = Catalog.from_rows(proved.rows, MemoryStorage(), clock=clock, name=name)
        except (CatalogError, IntegrityError, MediumDamaged) as error:
            done.notes.append(f"{safe(name)} cannot be used: {error}")
            continue
        record = found.latest(SiteRecord, "site")
        if record is not None and marker is not None and record.id != marker.id:
            whose = SiteMark(record.name, record.id)
            done.notes.append(f"{safe(name)} cannot be used: it belongs to {whose}, the location to {marker}")
            continue
        done.begun_from = name
        done.unproved = not proved.digest
        _require_chained(destination, name, proved.before, names[place + 1 :], done, cancel)
        return found, proved.digest
    return Catalog(MemoryStorage(), node=os.uname().nodename, clock=clock), ""


def _decode(destination: Destination, name: str, cancel: Cancel) -> ProvedRows:
    """A copy of the catalog.

    Raises:
        CatalogError, IntegrityError, MediumDamaged: it is of no use.
    """
    data = destination.get_catalog(name, cancel=cancel)
    require_proved(data, "events", safe(name), cancel)
    return decode_copy(data, name)


def _require_chained(
    destination: Destination, name: str, before: str, older: list[str], done: Rebuilt, cancel: Cancel
) -> None:
    """Says when the copy before this one is not the one that this one names. A tape's are not asked: each is proved by
    its trailer, and reading one may take a mount."""
    if not before or not older or not isinstance(destination, Marked):
        return
    try:
        found = _decode(destination, older[0], cancel).digest
    except (CatalogError, IntegrityError, MediumDamaged) as error:
        done.notes.append(f"{safe(older[0])} cannot be used: {error}")
        return
    if found != before:
        done.notes.append(f"{safe(older[0])} is not the copy that preceded {safe(name)}")


def _in_order(found: Iterable[Found], catalog: Catalog) -> list[Found]:
    """Copies in the order in which their images were made: as it stands beside them; of releases that did not write it,
    by the images' stamps. A record that was made again from the image itself does not say it: that image comes with the
    others of its run, or after those of the last night before its own, and is recorded so."""
    records = {one.image: _record_beside(one) for one in found}
    orders = {image.image: catalog.order_of(image.image) for image in catalog.images()}
    orders |= {name: record.order for name, record in records.items() if record is not None and record.order}
    nights = _Nights(orders)
    placed = []
    for one in found:
        record = records[one.image]
        if record is not None and not record.order and NOTE in record.notes:
            record = record.model_copy(update={"order": nights.order_at(record.run)})
            one = replace(one, meta=record.model_dump_json(indent=1).encode())
        # Without a record it will be left out, and named.
        age = (record.order, record.started) if record is not None else (0, datetime.min.replace(tzinfo=UTC))
        placed.append((*age, one.image, one))
    return [one for *_, one in sorted(placed, key=lambda each: each[:3])]


class _Nights:
    """Which orders the images of each run have, by the runs' nights.

    Args:
        orders: Image → its order.
    """

    def __init__(self, orders: Mapping[str, int]) -> None:
        self._of_run: dict[str, int] = {}
        for name, order in orders.items():
            run = parse_image_name(name).run
            self._of_run[run] = max(order, self._of_run.get(run, 0))
        runs = sorted(self._of_run, key=_night)
        self._nights = [_night(run) for run in runs]
        self._until = list(accumulate((self._of_run[run] for run in runs), max))

    def order_at(self, run: str) -> int:
        """The highest order of the run's own images, else of all from nights until its own; 0 when there is none."""
        before = bisect_right(self._nights, _night(run))
        return self._of_run.get(run) or (self._until[before - 1] if before else 0)


def _record_beside(found: Found) -> ImageRecord | None:
    try:
        record = image_of(found.meta)
    except ValidationError:
        return None
    return record if record.image == found.image else None


def _night(run: str) -> tuple[str, int]:
    name = parse_run(run)
    return name.window, name.number


def _add(
    catalog: Catalog,
    destination: Destination,
    found: Found,
    indexes: IndexFiles,
    done: Rebuilt,
    clock: Clock,
    cancel: Cancel,
) -> None:
    """Takes a copy that was found into the catalog, with the index and chunk table beside it."""
    try:
        image = _image(catalog, found)
        index, chunks = side_files_of(destination, found.location, image, cancel)
        require_side_files(found, image, index, chunks)
        require_proved(index, "index", f"the index of {found.image}", cancel)
        copy = CopyRecord(
            image=image.image,
            destination=destination.name,
            epoch=found.epoch,
            state="whole",
            run=image.run,
            location=found.location,
            size_bytes=_size(found, image),
            digest=image.digest,
            started=image.ended,
            ended=clock.now(),
            note="found by catalog rebuild",
        )
    except Unavailable:
        raise
    except (IntegrityError, DestinationError, ConfigError, ValidationError) as error:
        _leave_out(destination, found, error, done)
        return
    indexes.keep(image.image, index, chunks)
    before = catalog.latest(ImageRecord, image.image)
    # Of an image that only this copy tells of, nobody knows what other copies there are: none is owed.
    image = image.model_copy(update={"policy": () if before is None else before.policy})
    if before != image:
        catalog.append(image)
    known = catalog.latest(CopyRecord, copy.subject)
    # What is known as damaged or given up lies there still, and is no better for it.
    if known is None or known.state == "writing" or _moved(known, copy):
        catalog.append(copy)
        done.added.append(image.image)


def _with_records(
    destination: Destination, found: Iterable[Found], done: Rebuilt, site: SiteFile, cancel: Cancel
) -> Iterator[Found]:
    """The copies whose record is there, or can be made again; the others are left out, and named."""
    for one in found:
        cancel.check()
        try:
            yield _with_record(destination, one, done, site, cancel)
        except Unavailable:
            raise
        except (IntegrityError, DestinationError, ConfigError, ValidationError) as error:
            _leave_out(destination, one, error, done)


def _leave_out(
    destination: Destination, found: Found, error: NightferryError | ValidationError, done: Rebuilt
) -> None:
    done.left_out.append(f"images/{found.image}")
    done.notes.append(f"{safe(found.image)} at {destination.name} is left out: {_reason(error)}")


def _with_record(
    destination: Destination, found: Found, done: Rebuilt, site: SiteFile, cancel: Cancel
) -> Found:
    """The copy with its record; one that is cut off, or another image's, is made again as a missing one is. One that
    says what no record of ours says stays as it is, to be left out.

    Raises:
        IntegrityError, DestinationError: it cannot be made again either.
    """
    try:
        if image_of(found.meta).image == found.image:
            return found
        why = "its record belongs to another image"
    except ValidationError as error:
        if any(wrong["type"] != "json_invalid" for wrong in error.errors()):
            return found
        why = _reason(error)
    odd = Odd(f"images/{found.image}", why, found.image, found.epoch, "", found.location, found.site)
    try:
        made = recovered(destination, odd, None, site, cancel)
    except (IntegrityError, ValidationError) as error:
        raise IntegrityError(f"{why}; and {_reason(error)}", subject=found.image) from error
    done.recovered.append(found.image)
    return made


def _reason(error: NightferryError | ValidationError) -> str:
    if isinstance(error, ValidationError):
        wrong = error.errors()[0]
        return f"it is not a valid record: {safe('.'.join(map(str, wrong['loc'])))}: {wrong['msg'].lower()}"
    return str(error)


def _image(catalog: Catalog, found: Found) -> ImageRecord:
    """The record beside the copy, or the catalog's own when both are of one image.

    Raises:
        ConfigError, IntegrityError: see ``side_files.record_in``; or the catalog knows another image of that name.
    """
    beside = record_in(found)
    known = catalog.latest(ImageRecord, found.image)
    if known is None or known.digest == beside.digest:
        return known or beside
    if known.started >= beside.started:
        raise IntegrityError(f"the catalog knows a newer image of that name, of {known.started:%F %H:%M} UTC")
    return beside


def _moved(known: CopyRecord, copy: CopyRecord) -> bool:
    return known.state in ("whole", "verified", "suspect") and known.location != copy.location


def _size(found: Found, image: ImageRecord) -> int:
    """Bytes of the copy's data as they lie there: an encoded one has another length than the image."""
    size_bytes = found.location.get("size_bytes")
    return size_bytes if isinstance(size_bytes, int) else image.size_bytes


def _add_runs(catalog: Catalog, site: SiteFile, destination: str) -> None:
    """A record for every run that only its images tell of: its name must not be given to another one."""
    for name in dict.fromkeys(image.run for image in reversed(catalog.images())):
        if catalog.latest(RunRecord, name) is not None:
            continue
        images = catalog.images(run=name)
        stores: dict[str, tuple[str, ...]] = {}
        for image in reversed(images):
            stores[image.group] = (*stores.get(image.group, ()), image.store)
        parsed = parse_run(name)
        catalog.append(
            RunRecord(
                run=name,
                back_group=parsed.back_group,
                window=parsed.window,
                state="ended",
                result="partial",
                groups=tuple(stores),
                selection=stores,
                node=images[-1].node,
                started=min(image.started for image in images),
                ended=max(image.ended for image in images),
                note=f"known from its copies at {destination} alone",
            )
        )


def _add_cartridges(catalog: Catalog, destination: Destination, done: Rebuilt) -> None:
    """Cartridges that the catalog does not know, or knows by another label; what else is new on one that it
    knows is found when it is next written to."""
    from nightferry.destination.tape.library.destination import TapeDestination

    if not isinstance(destination, TapeDestination):
        return
    cartridges = destination.cartridges()
    done.notes += [f"{why}: it is left out" for _, why in sorted(destination.media.unread.items())]
    for record in cartridges:
        known = catalog.latest(CartridgeRecord, record.subject)
        if known is None or known.label != record.label:
            catalog.append(record)
            done.cartridges.append(record.barcode)
