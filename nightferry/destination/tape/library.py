"""A tape library as a destination: one lane a drive, one pool of cartridges."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Literal

import xxhash
from blake3 import blake3

from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.destination.base import SIDE_FILES, Found, Leftover, Outgoing, Receipt, Register
from nightferry.destination.tape.bays import Bay, Bays
from nightferry.destination.tape.cartridge import Cartridge
from nightferry.destination.tape.changer import Library
from nightferry.destination.tape.layout import Location, Trailer, parse_location
from nightferry.destination.tape.media import CartridgeView, Media, MediumView
from nightferry.destination.tape.pool import Pool, is_being_written
from nightferry.destination.tape.reader import TapeReader, mounted
from nightferry.destination.tape.stock import Stock
from nightferry.destination.tape.writer import Bytes, ImageWriter
from nightferry.errors import DestinationError, MediumDamaged, NightferryError, WrongCartridge
from nightferry.model.findings import Finding
from nightferry.progress import QUIET, Cancel, Progress
from nightferry.transfer.base import ByteReader


class TapeLane:
    """See ``Lane``: a leased drive."""

    def __init__(self, destination: TapeDestination, bay: Bay) -> None:
        self._destination = destination
        self._bay = bay

    @property
    def name(self) -> str:
        return self._bay.name

    def put(self, outgoing: Outgoing, epoch: int, *, progress: Progress, cancel: Cancel) -> Receipt:
        found = self._destination.find(outgoing.image, epoch)
        if found is not None:
            return found
        wait_s = self._destination.pool.wait_for_media_s
        return self.write(outgoing, epoch, "image", progress=progress, cancel=cancel, wait_s=wait_s)

    def write(
        self,
        outgoing: Outgoing,
        epoch: int,
        kind: Literal["image", "catalog"],
        *,
        progress: Progress,
        cancel: Cancel,
        wait_s: float,
    ) -> Receipt:
        """Writes without looking for an earlier copy."""
        return self._destination.write(self._bay, outgoing, epoch, kind, progress, cancel, wait_s)


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
    ) -> None:
        self._name = name
        self._library = library
        self.pool = pool
        self._clock = clock
        self._cancel = cancel or Cancel()
        self._bays = Bays(library, self._leaving, pool.wait_for_media_s)
        self._stock = Stock(name, pool, self._bays, register, library.cartridge_bytes, clock)
        self._media = Media(self._bays, self._stock, self._cancel)
        self._recovery = threading.Lock()
        self._open: set[str] | None = None
        self._doubtful: deque[str] = deque()
        """Cartridges on which a write of this process failed, for the next look."""
        self._known: set[str] = set()
        self._whole: dict[tuple[str, int], Receipt] = {}

    @property
    def name(self) -> str:
        return self._name

    @property
    def lanes(self) -> int:
        return len(self._bays)

    def _leaving(self, cartridge: Cartridge) -> None:
        self._stock.left(cartridge)

    def check(self) -> list[Finding]:
        try:
            return self._media.check()
        except NightferryError as error:
            return [
                Finding(
                    "NF-TAPE-001", "fail", f"the library of {self._name} does not answer: {error}", error.hint
                )
            ]

    @contextmanager
    def lane(self, *, progress: Progress, cancel: Cancel) -> Iterator[TapeLane]:
        self._recover(cancel)
        with self._bays.lease(self._stock.rank, cancel) as bay, self._stock.claims_of(bay):
            self._stock.refresh(bay)
            yield TapeLane(self, bay)

    def write(
        self,
        bay: Bay,
        outgoing: Outgoing,
        epoch: int,
        kind: Literal["image", "catalog"],
        progress: Progress,
        cancel: Cancel,
        wait_s: float,
    ) -> Receipt:
        """Writes an image through a leased bay; after a failure the cartridge is looked at afresh before it
        is used."""
        writer = ImageWriter(self._stock, bay, self._clock, outgoing, epoch, kind, progress, cancel, wait_s)
        bay.writing = True
        try:
            location = writer.write()
        except BaseException as error:
            if bay.cartridge is not None:
                # The error may have come after the last filemark: what became of the image is looked up there.
                self._doubtful.append(bay.cartridge.barcode)
            try:
                bay.forget()
            except DestinationError as second:
                error.add_note(f"{bay.name} could not be unloaded after it: {second}")
            raise
        finally:
            bay.writing = False
        receipt = Receipt(location.as_json(), location.size_bytes, lane=bay.name)
        if kind == "image":
            self._whole[outgoing.image, epoch] = receipt
        return receipt

    def find(self, image: str, epoch: int) -> Receipt | None:
        self._recover(self._cancel)
        known = self._whole.get((image, epoch))
        if known is not None:
            return known
        trailer = self._stock.adopted.get((image, epoch))
        if trailer is None and image in self._known:
            trailer = self._look_back(image, epoch)
        if trailer is None or trailer.location is None:
            return None
        receipt = self._whole[image, epoch] = _receipt(trailer.location)
        return receipt

    def _recover(self, cancel: Cancel) -> None:
        """Looks at the cartridges that a stopped process was writing.

        This comes before the first lane is given out, so that nothing is written again that is whole
        already. What another process has at that time is looked at when it can be had.
        """
        while not self._recovery.acquire(timeout=0.1):
            cancel.check()
        try:
            if self._open is None:
                records = self._stock.records()
                here = {e.barcode for e in self._bays.inventory()}
                left_open = {b for b, record in records.items() if b in here and is_being_written(record)}
                if left_open and self._bays.mine() is None:
                    with self._bays.lease(_holding(min(left_open)), cancel) as bay:
                        left_open -= self._examine(bay, left_open, cancel)
                self._open = left_open
                self._known |= {image for record in self._stock.records().values() for image in record.images}
            while self._doubtful:
                self._open.add(self._doubtful.popleft())
            if self._open:
                # Later nobody is waited for: who waits for a drive here would keep those out who have one.
                with self._bays.borrow() as borrowed:
                    if borrowed is not None:
                        self._open -= self._examine(borrowed, self._open, cancel)
        finally:
            self._recovery.release()

    def _examine(self, bay: Bay, barcodes: set[str], cancel: Cancel) -> set[str]:
        """The cartridges among ``barcodes`` of which nothing is unknown any more."""
        examined = {barcode for barcode in sorted(barcodes) if self._stock.recover(bay, barcode, cancel)}
        for barcode in examined:
            record = self._stock.record_of(barcode)
            self._known.update(record.images if record is not None else ())
        return examined

    def _look_back(self, image: str, epoch: int) -> Trailer | None:
        """Looks for an image on the cartridges that the catalog names, newest tape file first."""
        for barcode, record in self._stock.records().items():
            if image not in record.images or not record.last_trailer:
                continue
            with self._bays.reading(barcode, self._cancel) as bay:
                try:
                    cartridge = mounted(self._bays, bay, barcode, record.label, self._cancel)
                    for trailer, _ in cartridge.newest_first(record.last_trailer):
                        if (trailer.image, trailer.epoch, trailer.final) == (image, epoch, True):
                            return trailer
                except (MediumDamaged, WrongCartridge):
                    # A copy that cannot be found on its cartridge is none; the next put writes another.
                    bay.forget()
        return None

    @contextmanager
    def open(self, location: Mapping[str, Any]) -> Iterator[ByteReader]:
        where = parse_location(location)
        first = where.parts[0]
        with self._bays.reading(first.barcode, self._cancel) as bay:
            mounted(self._bays, bay, first.barcode, first.label, self._cancel).seek(first.file)
            yield TapeReader(self._bays, bay, where, self._cancel)

    def side_file(self, location: Mapping[str, Any], name: str) -> bytes:
        if name not in SIDE_FILES:
            raise DestinationError(f"{name!r} is no side file", subject=name)
        last = parse_location(location).parts[-1]
        with self._bays.reading(last.barcode, self._cancel) as bay:
            cartridge = mounted(self._bays, bay, last.barcode, last.label, self._cancel)
            _, members = cartridge.trailer(last.trailer)
        if name not in members:
            raise MediumDamaged(
                f"tape file {last.trailer} of {last.barcode} has no {name}", subject=last.barcode
            )
        return members[name]

    def remove(self, location: Mapping[str, Any]) -> None:
        parse_location(location)

    def locked(self, location: Mapping[str, Any]) -> None:
        """A cartridge keeps nothing against our will: its copies go when all of them have expired."""

    def expire(self, location: Mapping[str, Any]) -> str:
        """See ``Destination.expire``. Nothing is written: a cartridge is scratch once all on it expired."""
        parse_location(location)
        return ""

    def leftovers(self, before: datetime) -> Iterator[Leftover]:
        """None: dead space on a cartridge goes with the cartridge."""
        return iter(())

    def clear(self, leftover: Leftover) -> None:
        """There are none."""

    def scan(self) -> Iterator[Found]:
        return self._media.scan()

    def put_catalog(self, name: str, data: bytes) -> None:
        outgoing = Bytes(name, data, blake3(data).hexdigest(), lambda piece: xxhash.xxh3_64(piece).digest())
        mine = self._bays.mine()
        if mine is not None:
            self.write(mine, outgoing, 1, "catalog", QUIET, self._cancel, 0)
            return
        with self.lane(progress=QUIET, cancel=self._cancel) as lane:
            lane.write(outgoing, 1, "catalog", progress=QUIET, cancel=self._cancel, wait_s=0)

    def inventory(self) -> list[MediumView]:
        """See ``Media.inventory``."""
        return self._media.inventory()

    def show(self, barcode: str) -> CartridgeView:
        """See ``Media.show``."""
        return self._media.show(barcode)

    def label(self, barcode: str, pool: str) -> MediumView:
        """See ``Media.label``."""
        return self._media.label(barcode, pool)

    def close(self) -> None:
        try:
            self._bays.close()
        finally:
            self._library.close()


def _holding(barcode: str) -> Callable[[str], int]:
    """Ranks the drive that has this cartridge in it first."""
    return lambda inside: int(inside != barcode)


def _receipt(location: Location) -> Receipt:
    return Receipt(location.as_json(), location.size_bytes)
