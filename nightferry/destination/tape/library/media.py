"""What an operator asks about cartridges: what is there, what is on it, make this one ours."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from nightferry.clock import Clock
from nightferry.destination.base import Found
from nightferry.destination.ours import MARKER, is_image, parse_marker
from nightferry.destination.tape.format.cartridge import Cartridge, not_ours
from nightferry.destination.tape.format.label import Label
from nightferry.destination.tape.format.layout import Trailer
from nightferry.destination.tape.library.bays import Bays
from nightferry.destination.tape.library.changer import Address, doubled
from nightferry.destination.tape.library.stock import Stock
from nightferry.errors import MediumDamaged, NotACartridge, WrongCartridge
from nightferry.model.findings import Finding
from nightferry.model.records import CartridgeRecord
from nightferry.progress import Cancel

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MediumView:
    """A cartridge as changer and catalog see it; ``state`` is ``unknown`` when the catalog has not met it.

    ``element`` is ``slot 3``, ``drive 0``, or empty when the catalog knows it and the library does not have
    it.
    """

    barcode: str
    element: str
    state: str
    pool: str = ""
    label: str = ""
    used_bytes: int = 0
    tape_files: int = 0
    images: tuple[str, ...] = ()
    note: str = ""
    mounts: int = 0
    errors: int = 0
    alerts: tuple[str, ...] = ()
    written: datetime | None = None
    """When something was last written to it."""
    worm: bool = False


@dataclass(frozen=True, slots=True)
class TapeFileView:
    """One tape file behind the label: ``image`` (with its part), ``trailer``, ``catalog`` or ``dead``."""

    file: int
    kind: str
    image: str = ""
    epoch: int = 0
    part: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CartridgeView:
    """A cartridge as the cartridge itself says: the label (None while blank) and what stands behind it."""

    medium: MediumView
    on_medium: Label | None
    files: tuple[TapeFileView, ...] = field(default=())
    problem: str = ""
    """Why it cannot be read as one of ours; empty when it can."""


_DESCRIBING = ("meta.json", MARKER, "records.json")


@dataclass(frozen=True, slots=True)
class _Walked:
    """What was met on a cartridge: its label when it is one of the pool's, trailers each with the small members that
    describe an image."""

    label: Label | None
    trailers: tuple[tuple[Trailer, Mapping[str, bytes]], ...]


class Media:
    """The media verbs of one pool in one library."""

    def __init__(self, bays: Bays, stock: Stock, clock: Clock, cancel: Cancel) -> None:
        self._bays = bays
        self._stock = stock
        self._clock = clock
        self._walked: dict[str, _Walked] = {}
        self.unread: dict[str, str] = {}
        """Cartridges that were walked, and in whose place something else lies: barcode → what."""
        self._cancel = cancel

    def inventory(self) -> list[MediumView]:
        """Every cartridge of the library and of the catalog, by place, those elsewhere last."""
        records = self._stock.watch.records()
        elements = [element for element in self._bays.inventory() if element.barcode]
        twice = doubled(elements)
        views = [
            self._view(element.barcode, str(element.address), records.get(element.barcode))
            for element in elements
        ]
        views = [
            replace(view, note="; ".join(filter(None, [_same(twice[view.barcode]), view.note])))
            if view.barcode in twice
            else view
            for view in views
        ]
        elsewhere = sorted(records.keys() - {element.barcode for element in elements})
        return views + [self._view(barcode, "", records[barcode]) for barcode in elsewhere]

    def _view(self, barcode: str, element: str, record: CartridgeRecord | None) -> MediumView:
        if record is None:
            return MediumView(barcode, element, "cleaning" if self._stock.pool.cleans(barcode) else "unknown")
        return MediumView(
            barcode,
            element,
            record.state,
            record.pool,
            record.label,
            record.used_bytes,
            record.tape_files,
            record.images,
            record.note,
            record.mounts,
            record.errors,
            record.alerts,
            record.written,
            record.worm,
        )

    def view(self, barcode: str) -> MediumView:
        """Raises:
        WrongCartridge: neither library nor catalog know it.
        Unavailable: several cartridges bear its barcode.
        """
        self._bays.place_of(barcode)
        for view in self.inventory():
            if view.barcode == barcode:
                return view
        raise WrongCartridge(
            f"no cartridge {barcode} in the library or the catalog",
            subject=barcode,
            hint="`nightferry media list` lists the cartridges",
        )

    def show(self, barcode: str) -> CartridgeView:
        """Mounts a cartridge and tells what its medium says."""
        view = self.view(barcode)
        if self._stock.pool.cleans(barcode):
            return CartridgeView(view, None, problem="it is a cleaning cartridge")
        self._bays.require_here(barcode)
        with self._bays.reading(barcode, self._cancel) as bay:
            try:
                cartridge = Cartridge(bay.drive, barcode)
                files = tuple(_files(cartridge)) if cartridge.label else ()
            except (WrongCartridge, MediumDamaged) as error:
                return CartridgeView(view, None, problem=str(error))
            finally:
                bay.forget()
        return CartridgeView(view, cartridge.label, files)

    def label(self, barcode: str, pool: str) -> MediumView:
        """Labels a truly blank cartridge for a pool, or one that was retired and erased since: it is in use again.

        Raises:
            WrongCartridge: it is not blank, or the catalog knows images on it. Nothing was written.
        """
        self.require_data(barcode)
        self._bays.require_here(barcode)
        record = self._stock.watch.record_of(barcode)
        erased = record is not None and record.state == "retired" and not record.images
        if record is not None and record.tape_files and not erased:
            raise WrongCartridge(
                f"{barcode} is labelled for pool {record.pool} already",
                hint=f"nothing was written; `nightferry media erase {barcode}` labels it again for pool "
                f"{self._stock.pool.name} once nothing on it is needed",
                subject=barcode,
            )
        with self._bays.reading(barcode, self._cancel) as bay:
            bay.cartridge = None
            cartridge = Cartridge(bay.drive, barcode)
            known = record.label if record is not None else ""
            if cartridge.label is not None and cartridge.label.label != known:
                raise WrongCartridge(
                    f"{barcode} is labelled for pool {cartridge.label.pool} ({cartridge.label.label})",
                    subject=barcode,
                    hint=not_ours(barcode),
                )
            self._stock.label(cartridge, pool)
        return self.view(barcode)

    def require_data(self, barcode: str) -> None:
        """Raises:
        WrongCartridge: it is a cleaning cartridge.
        """
        if self._stock.pool.cleans(barcode):
            raise WrongCartridge(
                f"{barcode} is a cleaning cartridge",
                subject=barcode,
                hint="nothing is ever written to one; `pool.cleaning` in the site file says which they are",
            )

    def scan(self) -> Iterator[Found]:
        """Every whole copy of the pool, from the media alone, cartridge by cartridge; spanned ones when all
        parts were met."""
        self.forget()
        met: set[tuple[str, int, int, str]] = set()
        waiting: list[tuple[Trailer, Mapping[str, bytes]]] = []
        for barcode in self._barcodes():
            for trailer, members in self._walk(barcode).trailers:
                met.add((trailer.image, trailer.epoch, trailer.part, trailer.this.label))
                if trailer.location is not None and trailer.kind == "image":
                    waiting.append((trailer, members))
            ready = [item for item in waiting if _parts(item[0]) <= met]
            waiting = [item for item in waiting if item not in ready]
            for trailer, members in ready:
                yield found_in(trailer, members)

    def catalogs(self) -> dict[str, Trailer]:
        """The final trailer of every copy of the catalog by its name, from the media alone."""
        return {
            trailer.image: trailer
            for barcode in self._barcodes()
            for trailer, _ in self._walk(barcode).trailers
            if trailer.kind == "catalog" and trailer.final
        }

    def cartridges(self) -> list[CartridgeRecord]:
        """What the media alone say of the pool's cartridges that bear one of our labels.

        Whether one is full is not written on it: it is found when it is appended to.
        """
        return [
            _record(walked.label, walked.trailers, self._stock.destination, self._clock.now())
            for barcode in self._barcodes()
            if (walked := self._walk(barcode)).label is not None
        ]

    def forget(self) -> None:
        """Reads the media again when next asked."""
        self._walked.clear()
        self.unread.clear()

    def _barcodes(self) -> list[str]:
        return [e.barcode for e in self._bays.inventory() if e.barcode and self._stock.pool.holds(e.barcode)]

    def _walk(self, barcode: str) -> _Walked:
        """The cartridge's label and every whole trailer on it; empty when it is none of this pool's.

        It is walked once, until something is written. What cannot be read ends the walk: the rest of the library
        may be all the better.
        """
        if barcode in self._walked:
            return self._walked[barcode]
        label, trailers = None, []
        try:
            with self._bays.reading(barcode, self._cancel) as bay:
                try:
                    cartridge = Cartridge(bay.drive, barcode)
                    if cartridge.label is not None and cartridge.label.pool == self._stock.pool.name:
                        label = cartridge.label
                        for _, trailer, members, _ in cartridge.walk():
                            if trailer is not None:
                                told = {name: members[name] for name in _DESCRIBING if name in members}
                                trailers.append((trailer, told))
                except (WrongCartridge, MediumDamaged) as error:
                    _log.warning("reading of %s stops here: %s", barcode, error)
                finally:
                    bay.forget()
        except NotACartridge as error:
            self.unread[barcode] = error.message
        self._walked[barcode] = _Walked(label, tuple(trailers))
        return self._walked[barcode]

    def check(self) -> list[Finding]:
        """Whether the pool can take a night's images, and what in the library is not ours."""
        findings = []
        views = self.inventory()
        pool = self._stock.pool
        here = [v for v in views if v.element and pool.holds(v.barcode)]
        twice = doubled(self._bays.inventory())
        for barcode, places in twice.items():
            findings.append(
                Finding(
                    "NF-TAPE-004",
                    "warn",
                    f"{_same(places)} ({barcode} of {self._stock.destination}); none of them is used",
                    "find out which one is right; take the other out of the library, or give it a new barcode label",
                )
            )
        records: dict[str, CartridgeRecord] = self._stock.watch.records()
        if not pool.in_order((v.barcode for v in here if v.barcode not in twice), records):
            findings.append(
                Finding(
                    "NF-TAPE-002",
                    "fail",
                    f"pool {pool.name} of {self._stock.destination} has no cartridge that may be written",
                    "put blank cartridges into the library"
                    + (" and label them with `nightferry media label`" if pool.autolabel == "never" else "")
                    + "; `nightferry media list` shows them all, `nightferry media erase` makes one scratch",
                )
            )
        for view in here:
            if view.state == "foreign":
                findings.append(
                    Finding(
                        "NF-TAPE-003",
                        "warn",
                        f"{view.barcode} in {view.element} is not ours, and is never written to: {view.note}",
                        f"take it out of the library, or out of the pool's barcodes; if nobody needs what is on it, "
                        f"`nightferry media erase --yes {view.barcode}` makes it scratch",
                    )
                )
        return findings


def found_in(trailer: Trailer, members: Mapping[str, bytes]) -> Found:
    """The copy that a final trailer ends."""
    return Found(
        trailer.image,
        trailer.epoch,
        trailer.location.as_json() if trailer.location is not None else {},
        members.get("meta.json", b""),
        parse_marker(members.get(MARKER, b"")),
        members.get("records.json", b""),
        digest=trailer.digest,
    )


def _same(places: tuple[Address, ...]) -> str:
    return f"the cartridges in {' and '.join(map(str, places))} have the same barcode"


def _record(
    label: Label, trailers: tuple[tuple[Trailer, Mapping[str, bytes]], ...], destination: str, now: datetime
) -> CartridgeRecord:
    last = trailers[-1][0] if trailers else None
    images = dict.fromkeys(
        trailer.image for trailer, _ in trailers if trailer.kind == "image" and is_image(trailer.image)
    )
    return CartridgeRecord(
        barcode=label.barcode,
        destination=destination,
        pool=label.pool,
        # An image that goes on elsewhere went on because this one was full.
        state="appendable" if last is None or last.final else "full",
        label=label.label,
        used_bytes=sum(trailer.this.bytes for trailer, _ in trailers),
        tape_files=last.this.trailer + 1 if last is not None else 1,
        last_trailer=last.this.trailer if last is not None else 0,
        images=tuple(images),
        at=now,
        note="as the cartridge itself says",
    )


def _parts(trailer: Trailer) -> set[tuple[str, int, int, str]]:
    parts = trailer.location.parts if trailer.location is not None else ()
    return {(trailer.image, trailer.epoch, number, part.label) for number, part in enumerate(parts, 1)}


def _files(cartridge: Cartridge) -> list[TapeFileView]:
    files: dict[int, TapeFileView] = {}
    for number, trailer, _, records in cartridge.walk():
        if trailer is None:
            files[number] = TapeFileView(number, "dead", size_bytes=records << 20)
            continue
        this = trailer.this
        files[this.file] = TapeFileView(
            this.file, trailer.kind, trailer.image, trailer.epoch, trailer.part, this.bytes
        )
        files[number] = TapeFileView(number, "trailer", trailer.image, trailer.epoch, trailer.part)
    return [files[number] for number in sorted(files)]
