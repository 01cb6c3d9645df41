"""A tape library as a destination: one lane a drive, one pool of cartridges."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from typing import Any, Literal

import xxhash
from blake3 import blake3

from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.destination.base import (
    MAXIMUM,
    SIDE_FILES,
    Found,
    Odd,
    Orphan,
    Outgoing,
    Receipt,
    Register,
    ignore,
)
from nightferry.destination.copies import require_length
from nightferry.destination.ours import age_of
from nightferry.destination.tape.format.layout import Location, Part, Trailer, parse_location
from nightferry.destination.tape.library import reader as reading
from nightferry.destination.tape.library.bay import Bay
from nightferry.destination.tape.library.bays import Bays
from nightferry.destination.tape.library.changer import Library, doubled
from nightferry.destination.tape.library.cleaning import Care
from nightferry.destination.tape.library.failover import Tries
from nightferry.destination.tape.library.feed import BUFFER_BYTES
from nightferry.destination.tape.library.history import History, chain, is_part_of
from nightferry.destination.tape.library.media import CartridgeView, Media, MediumView, found_in
from nightferry.destination.tape.library.operations import Handling
from nightferry.destination.tape.library.pool import Pool, is_being_written
from nightferry.destination.tape.library.stock import Stock
from nightferry.destination.tape.library.watch import Watch
from nightferry.destination.tape.library.writer import Bytes, TapeImageWriter, need_of
from nightferry.errors import (
    DestinationError,
    MediumDamaged,
    NightferryError,
    Unavailable,
    WriteProtected,
)
from nightferry.model.findings import Finding
from nightferry.model.records import CartridgeRecord
from nightferry.progress import QUIET, Cancel, Progress
from nightferry.transfer.base import ByteReader
from nightferry.transfer.digest import digest_of
from nightferry.transfer.spool import Content, spooled

log = logging.getLogger(__name__)
_LOOKS = 2
"""How often a run tries to look at a cartridge that a stopped process was writing."""


class TapeLane:
    """See ``Lane``: a leased drive, and another one when that fails."""

    def __init__(self, destination: TapeDestination, progress: Progress, cancel: Cancel) -> None:
        self._destination = destination
        self._progress = progress
        self._cancel = cancel
        self._lease = ExitStack()
        self.bay = self._take()

    @property
    def name(self) -> str:
        return self.bay.name

    def close(self) -> None:
        """Gives the drive back."""
        self._lease.close()

    def put(self, outgoing: Outgoing, epoch: int, *, progress: Progress, cancel: Cancel) -> Receipt:
        """See ``Lane.put``. What this epoch has written in whole parts before is gone on behind."""
        destination = self._destination
        reserved: str | None = None
        while True:
            try:
                if reserved is None:
                    reserved = destination.begin(self.bay, outgoing, epoch, progress, cancel)
                found = destination.find(outgoing.image, epoch)
                if found is not None:
                    return found
                behind = destination.whole_parts(outgoing, epoch)
                if behind:
                    last = behind[-1].barcode
                    progress.say(
                        f"{outgoing.image} continues after part {len(behind)}, on {last}", destination.name
                    )
                wait_s = destination.pool.wait_for_media_s
                return destination.write(
                    self.bay,
                    outgoing,
                    epoch,
                    "image",
                    progress,
                    cancel,
                    wait_s,
                    behind=behind,
                    wanted=reserved,
                )
            except DestinationError as error:
                if not self.bay.drive.raised(error):
                    raise
                self._go_on_elsewhere(outgoing.image, error)
                reserved = None

    def put_catalog(self, outgoing: Outgoing) -> None:
        """Writes a copy of the catalog, which is never looked for, on what there is."""
        self._destination.write(self.bay, outgoing, 1, "catalog", self._progress, self._cancel, 0)

    def _go_on_elsewhere(self, image: str, error: DestinationError) -> None:
        """A cartridge that cannot be written to is left for another; a drive that failed, or spoils one cartridge
        after the other, is disabled."""
        bay, destination = self.bay, self._destination
        if isinstance(error, MediumDamaged | WriteProtected) and len(bay.spoiled) < 2:
            self._progress.say(f"{error}; {image} continues on another cartridge", destination.name)
            return
        self._progress.say(f"{bay.name} failed and is disabled: {error}", destination.name)
        destination.bays.set_aside(bay, error)
        destination.acquit(bay)
        self._lease.close()
        try:
            self.bay = self._take()
        except DestinationError as none_left:
            raise none_left from error
        self._progress.say(f"{image} continues in {self.name}", destination.name)

    def _take(self) -> Bay:
        """Leases a drive that is clean; one that fails at that is disabled."""
        while True:
            bay = self._lease.enter_context(self._destination.leased(self._cancel))
            try:
                self._destination.care.look_after(bay, self._progress, self._cancel)
            except BaseException as error:
                aside = isinstance(error, DestinationError) and bay.drive.raised(error)
                if aside and isinstance(error, DestinationError):
                    self._destination.bays.set_aside(bay, error)
                self._lease.close()
                if not aside:
                    raise
            else:
                return bay


class TapeDestination:
    """See ``Destination``. Copies go to one pool of a library's cartridges; the catalog is asked through
    ``register``.

    Args:
        name: The destination's name.
        library: Changer and drives.
        pool: Which cartridges, and how they become ours.
        register: The catalog's cartridges.
        clock: Time, for waiting for media.
        cancel: Stops waits that have no cancel of their own (reading).
        tell: Is told of those waits.
        buffer_bytes: Each drive's ring.
        pages: Text by name (``recovery.md``, ``site.toml``) that goes onto every cartridge, so that one which is
            found explains itself.
    """

    def __init__(
        self,
        name: str,
        library: Library,
        pool: Pool,
        register: Register,
        *,
        clock: Clock = SYSTEM_CLOCK,
        cancel: Cancel | None = None,
        tell: Callable[[str], None] = lambda text: None,
        buffer_bytes: int = BUFFER_BYTES,
        pages: Mapping[str, bytes] | None = None,
    ) -> None:
        self._name = name
        self._library = library
        self.pool = pool
        self._clock = clock
        self._cancel = cancel or Cancel()
        self._buffer_bytes = buffer_bytes
        self._watch = Watch(name, register, clock, tell)
        self.bays = Bays(library, self._watch, pool.wait_for_media_s)
        self.care = Care(self.bays, pool, self._watch)
        self._stock = Stock(pool, self.bays, self._watch, library.cartridge_bytes, clock, pages or {})
        self.media = Media(self.bays, self._stock, clock, self._cancel)
        self.handling = Handling(self.bays, self._stock, self.media, self._cancel)
        self._recovery = threading.Lock()
        self._open: set[str] | None = None
        self._doubtful: deque[str] = deque()
        """Cartridges on which a write of this process failed, for the next look."""
        self._unknown: dict[tuple[str, int], str] = {}
        """Copies that may be whole on the cartridge named, which has not been looked at yet."""
        self._unseen: dict[str, int] = {}
        """Cartridges that could not be looked at after a failure, and how often that was tried."""
        self._history = History(self.bays, self._watch, self._cancel)
        self._written: dict[tuple[str, int], tuple[Part, ...]] = {}
        """Whole parts of copies that this process began and did not finish."""
        self._untouched: set[tuple[str, int]] = set()
        """Copies that were asked for, and of which nothing was written yet."""
        self._before: dict[tuple[str, int], Mapping[str, Any]] = {}
        """What the catalog had of whole parts of copies when this process went on with them."""
        self._whole: dict[tuple[str, int], Receipt] = {}

    @property
    def name(self) -> str:
        return self._name

    @property
    def lanes(self) -> int:
        return len(self.bays)

    def check(self) -> list[Finding]:
        try:
            return [*self._library.check(), *self.media.check()]
        except NightferryError as error:
            return [
                Finding(
                    "NF-TAPE-001", "fail", f"the library of {self._name} does not answer: {error}", error.hint
                )
            ]

    @contextmanager
    def lane(self, *, progress: Progress, cancel: Cancel) -> Iterator[TapeLane]:
        self.bays.try_again()
        self._recover(cancel)
        lane = TapeLane(self, progress, cancel)
        try:
            yield lane
        finally:
            lane.close()

    @contextmanager
    def leased(self, cancel: Cancel) -> Iterator[Bay]:
        """A drive for writing, the best there is, and what is claimed for it meanwhile."""
        with self.bays.lease(self._stock.ranking(), cancel) as bay, self._stock.claims_of(bay):
            self._stock.refresh(bay)
            yield bay

    def write(
        self,
        bay: Bay,
        outgoing: Outgoing,
        epoch: int,
        kind: Literal["image", "catalog"],
        progress: Progress,
        cancel: Cancel,
        wait_s: float,
        *,
        behind: tuple[Part, ...] = (),
        wanted: str = "",
    ) -> Receipt:
        """Writes an image through a leased bay, behind the parts that are proven; after a failure the cartridge is
        looked at afresh before it is used."""
        self.media.forget()
        writer = TapeImageWriter(
            self._stock,
            bay,
            self._clock,
            outgoing,
            epoch,
            kind,
            progress,
            cancel,
            wait_s,
            self._buffer_bytes,
            behind,
            wanted,
        )
        self._untouched.discard((outgoing.image, epoch))
        bay.writing = True
        try:
            location = writer.write()
        except BaseException as error:
            self._failed(bay, error, (outgoing.image, epoch) if writer.committing else None)
            if kind == "image":
                self._written[outgoing.image, epoch] = writer.parts
            raise
        finally:
            bay.writing = False
        bay.spoiled.clear()
        receipt = Receipt(location.as_json(), location.size_bytes, lane=bay.name, streamed=writer.streamed)
        if kind == "image":
            self._whole[outgoing.image, epoch] = receipt
        return receipt

    def _failed(self, bay: Bay, error: BaseException, unknown: tuple[str, int] | None) -> None:
        """The cartridge at hand is looked at afresh before it is used again."""
        if bay.cartridge is not None:
            # The error may have come after the last filemark: what became of the image is looked up there.
            barcode = bay.cartridge.barcode
            self._doubtful.append(barcode)
            if unknown is not None:
                self._unknown[unknown] = barcode
            if isinstance(error, DestinationError) and bay.drive.raised(error):
                spoiled = isinstance(error, MediumDamaged | WriteProtected)
                self._watch.failed(barcode, error, spoiled=spoiled)
                if spoiled:
                    bay.spoiled.add(barcode)
        try:
            bay.forget()
        except DestinationError as second:
            error.add_note(f"{bay.name} could not be unloaded afterwards: {second}")

    def acquit(self, bay: Bay) -> None:
        """Cartridges that only a failing drive could not write may be written again."""
        if len(bay.spoiled) > 1:
            for barcode in bay.spoiled:
                self._watch.acquit(barcode, f"{bay.name} failed on it, and on other cartridges")
        bay.spoiled.clear()

    def begin(self, bay: Bay, outgoing: Outgoing, epoch: int, progress: Progress, cancel: Cancel) -> str:
        """Reserves the cartridge that an image is to begin on, before anything is mounted for it; an empty pool costs
        no mounts. Empty: it is known to be whole already.

        Raises:
            NoScratch, Cancelled: see ``Stock.claim``.
        """
        if self._known(outgoing.image, epoch) is not None:
            return ""
        if (outgoing.image, epoch) not in self._written:
            self._untouched.add((outgoing.image, epoch))
        parts = self._before.get((outgoing.image, epoch), {}).get("parts", ())
        written = sum(part["records"] for part in parts)
        need = need_of(outgoing, written, progress, cancel, self.pool.wait_for_media_s)
        return self._stock.reserve(bay, need)

    def find(self, image: str, epoch: int) -> Receipt | None:
        known = self._known(image, epoch)
        if known is not None or (image, epoch) in self._written:
            return known
        trailer = self._history.of(image).final(epoch)
        if trailer is None or trailer.location is None:
            return None
        receipt = self._whole[image, epoch] = _receipt(trailer.location)
        return receipt

    def _known(self, image: str, epoch: int) -> Receipt | None:
        """A whole copy, as far as that is known without mounting what the catalog names.

        Raises:
            Unavailable: this process may have made it whole, and the cartridge cannot be looked at.
        """
        self._recover(self._cancel)
        known = self._whole.get((image, epoch))
        if known is not None:
            return known
        barcode = self._unknown.get((image, epoch))
        if barcode is not None and (barcode in (self._open or ()) or barcode in self._unseen):
            raise Unavailable(
                f"it is unknown whether {image} is whole on {barcode} until {barcode} can be read",
                subject=image,
                hint=f"move {barcode} from the drive to a slot; the next run checks it",
            )
        trailer = self._stock.adopted.get((image, epoch))
        if trailer is None or trailer.location is None:
            return None
        receipt = self._whole[image, epoch] = _receipt(trailer.location)
        return receipt

    def remember(self, image: str, epoch: int, location: Mapping[str, Any]) -> None:
        """See ``Continues.remember``."""
        self._before[image, epoch] = location

    def unfinished(self, image: str, epoch: int) -> dict[str, Any] | None:
        """See ``Continues.unfinished``."""
        key = image, epoch
        if key in self._untouched:
            return dict(self._before.get(key, {}))
        parts = self._written.get(key)
        if parts is None or key in self._unknown:
            self._recover(self._cancel)
        if parts is None:
            # Who was killed leaves no word; as long as others are at work it may be one of them.
            if not self.bays.are_mine() or self._open or self._unseen:
                return None
            found = self._history.of(image)
            if not found.complete or found.final(epoch) is not None:
                return None
            parts = chain(found.met, lambda met: met.trailer.epoch == epoch and met.trailer.kind == "image")
        elif key in self._unknown and self._unknown[key] in {*(self._open or ()), *self._unseen}:
            return None
        return {"parts": [part.model_dump(mode="json") for part in parts]} if parts else {}

    def whole_parts(self, outgoing: Outgoing, epoch: int) -> tuple[Part, ...]:
        """The parts that an epoch of an image can go on behind: this process wrote them, or they were read back."""
        known = self._written.get((outgoing.image, epoch))
        if known is not None:
            return known
        chunks = memoryview(outgoing.side_files["chunks"])
        met = self._history.of(outgoing.image).met
        return chain(met, lambda each: is_part_of(each, epoch, outgoing.digest, chunks))

    def _recover(self, cancel: Cancel) -> None:
        """Looks at the cartridges that a stopped process was writing.

        This comes before the first lane is given out, so that nothing is written again that is whole
        already. What another process has at that time is looked at when it can be had; one that cannot be looked at
        stops nobody: it is looked at before it is written to, and what it may hold is not relied on.
        """
        while not self._recovery.acquire(timeout=0.1):
            cancel.check()
        try:
            if self._open is None:
                records = self._watch.records()
                elements = self.bays.inventory()
                here = {e.barcode for e in elements if e.address.kind != "port"} - doubled(elements).keys()
                left_open = {b for b, record in records.items() if b in here and is_being_written(record)}
                if left_open and self.bays.mine() is None:
                    with self.bays.lease(_holding(min(left_open)), cancel) as bay:
                        left_open -= self._examine(bay, left_open, cancel)
                self._open = left_open
            while self._doubtful:
                self._open.add(self._doubtful.popleft())
            if self._open:
                # Later nobody is waited for: who waits for a drive here would keep those out who have one.
                with self.bays.borrow() as borrowed:
                    if borrowed is not None:
                        self._open -= self._examine(borrowed, self._open, cancel)
        finally:
            self._recovery.release()

    def _examine(self, bay: Bay, barcodes: set[str], cancel: Cancel) -> set[str]:
        """The cartridges among ``barcodes`` of which nothing is unknown any more, or that cannot be looked at."""
        done: set[str] = set()
        for barcode in sorted(barcodes):
            try:
                looked_at = self._stock.recover(bay, barcode, cancel)
            except DestinationError as error:
                self._watch.say(f"{barcode} cannot be checked: {error}")
                self._unseen[barcode] = self._unseen.get(barcode, 0) + 1
                if self._unseen[barcode] >= _LOOKS:
                    done.add(barcode)
                if bay.drive.raised(error):
                    self.bays.set_aside(bay, error)
                    break
                continue
            if looked_at:
                self._unseen.pop(barcode, None)
                done.add(barcode)
        return done

    @contextmanager
    def open(self, location: Mapping[str, Any]) -> Iterator[ByteReader]:
        where = parse_location(location)
        with self._tries(where.parts[0].barcode) as tries:
            yield reading.TapeReader(tries, self.bays, where, self._cancel)

    @contextmanager
    def _tries(self, barcode: str) -> Iterator[Tries]:
        with ExitStack() as lease:
            yield Tries(self.bays, self._watch, self._cancel, lease, barcode)

    @contextmanager
    def kept_in_drive(self, barcode: str) -> Iterator[None]:
        """Keeps a cartridge in a drive of this thread's: what it opens meanwhile is read there, in one pass."""
        with self.bays.reading(barcode, self._cancel):
            yield

    def side_file(
        self,
        location: Mapping[str, Any],
        name: str,
        *,
        most_bytes: int = MAXIMUM,
        cancel: Cancel | None = None,
    ) -> Content:
        if name not in SIDE_FILES:
            raise DestinationError(f"{name!r} is not a side file", subject=name)
        last = parse_location(location).parts[-1]

        with self._tries(last.barcode) as tries:
            _, members = tries.read(last.barcode, lambda bay: self._trailer(bay, last))
        if name not in members:
            raise MediumDamaged(
                f"tape file {last.trailer} of {last.barcode} has no {name}", subject=last.barcode
            )
        require_length(self._name, f"{name} in tape file {last.trailer}", len(members[name]), most_bytes)
        return members[name]

    def describe(self, location: Mapping[str, Any]) -> Found:
        """See ``Destination.describe``. The last cartridge comes first: who has read the data has it in a drive."""
        where = parse_location(location)
        last = where.parts[-1]
        with self._tries(last.barcode) as tries:
            final, members = tries.read(last.barcode, lambda bay: self._trailer(bay, last))
            for part in reversed(where.parts[:-1]):
                earlier, _ = tries.read(part.barcode, partial(self._trailer, part=part))
                if (earlier.image, earlier.epoch) != (final.image, final.epoch):
                    raise MediumDamaged(
                        f"tape file {part.trailer} of {part.barcode} is the trailer of {earlier.image}",
                        subject=part.barcode,
                    )
        if final.location != where or final.kind != "image":
            raise MediumDamaged(
                f"the trailer in tape file {last.trailer} of {last.barcode} does not list this copy's parts",
                subject=last.barcode,
            )
        lacking = [name for name in SIDE_FILES if name not in members]
        if lacking:
            raise MediumDamaged(
                f"tape file {last.trailer} of {last.barcode} has no {lacking[0]}", subject=last.barcode
            )
        return found_in(final, members)

    def _trailer(self, bay: Bay, part: Part) -> tuple[Trailer, dict[str, bytes]]:
        cartridge = reading.mounted(self.bays, bay, part.barcode, part.label, self._cancel)
        return cartridge.trailer(part.trailer)

    def remove(self, location: Mapping[str, Any]) -> None:
        parse_location(location)

    def locked(self, location: Mapping[str, Any]) -> None:
        """A cartridge keeps nothing against our will: its copies go when all of them have expired."""

    def expire(self, location: Mapping[str, Any], digest: str) -> str:
        """See ``Destination.expire``. Nothing is written: a cartridge is scratch once all on it expired."""
        parse_location(location)
        return ""

    def orphans(self, before: datetime) -> Iterator[Orphan]:
        """None: dead space on a cartridge goes with the cartridge."""
        return iter(())

    def clear(self, orphan: Orphan) -> None:
        """There are none."""

    def scan(self, odd: Callable[[Odd], None] = ignore) -> Iterator[Found]:
        return self.media.scan()

    def put_catalog(self, name: str, data: bytes) -> None:
        digest = blake3(data).hexdigest()
        table: Callable[[memoryview], bytes] = lambda piece: xxhash.xxh3_64(piece).digest()  # noqa: E731
        outgoing = Bytes(name, data, digest, table, self._stock.pages)
        mine = self.bays.mine()
        if mine is not None:
            self.write(mine, outgoing, 1, "catalog", QUIET, self._cancel, 0)
            return
        with self.lane(progress=QUIET, cancel=self._cancel) as lane:
            lane.put_catalog(outgoing)

    def catalog_copies(self) -> list[str]:
        return sorted(self.media.catalogs(), key=age_of, reverse=True)

    def get_catalog(self, name: str, *, cancel: Cancel | None = None) -> Content:
        trailer = self.media.catalogs().get(name)
        if trailer is None or trailer.location is None:
            raise MediumDamaged(f"no cartridge of {self._name} holds {name} whole", subject=self._name)
        with self.open(trailer.location.as_json()) as reader:
            data = spooled(reader.stream(0, reader.size_bytes), cancel)
        if digest_of(data) != trailer.digest:
            raise MediumDamaged(f"{name} is not what was written to {self._name}", subject=self._name)
        return data

    def cartridges(self) -> list[CartridgeRecord]:
        """See ``Media.cartridges``."""
        return self.media.cartridges()

    def inventory(self) -> list[MediumView]:
        """See ``Media.inventory``."""
        return self.media.inventory()

    def show(self, barcode: str) -> CartridgeView:
        """See ``Media.show``."""
        return self.media.show(barcode)

    def label(self, barcode: str, pool: str) -> MediumView:
        """See ``Media.label``."""
        return self.media.label(barcode, pool)

    def close(self) -> None:
        try:
            self.bays.close()
            self._watch.catch_up()
        finally:
            try:
                self._library.close()
            except DestinationError as error:
                # That a drive failed is on record; what was written through the others is not worse for it.
                if not self.bays.have_failed:
                    raise
                log.warning("library %s could not be closed cleanly: %s", self._library.name, error)


def _holding(barcode: str) -> Callable[[str], int]:
    """Ranks the drive that has this cartridge in it first."""
    return lambda inside: int(inside != barcode)


def _receipt(location: Location) -> Receipt:
    return Receipt(location.as_json(), location.size_bytes)
