"""What an operator does with cartridges: carry them, give them away, take them back, write over them.

Each verb is in the catalog's log before it is done: who, what and why.
"""

from __future__ import annotations

from collections.abc import Collection

from nightferry.destination.tape.drives.base import EndOfMedium
from nightferry.destination.tape.format.cartridge import Cartridge
from nightferry.destination.tape.library.bays import Bays
from nightferry.destination.tape.library.changer import UNREADABLE, Address, Element, doubled
from nightferry.destination.tape.library.media import Media, MediumView
from nightferry.destination.tape.library.pool import is_being_written
from nightferry.destination.tape.library.stock import Stock, gives_up
from nightferry.errors import DestinationError, MediumDamaged, WriteProtected, WrongCartridge
from nightferry.model.records import CartridgeRecord
from nightferry.progress import Cancel


class Handling:
    """The verbs of one library. ``why`` is ``who: reason``, as it is to be kept."""

    def __init__(self, bays: Bays, stock: Stock, media: Media, cancel: Cancel) -> None:
        self._bays = bays
        self._stock = stock
        self._watch = stock.watch
        self._media = media
        self._cancel = cancel

    def require_erasable(self, barcode: str, given_up: Collection[str] = ()) -> MediumView:
        """What is known of a cartridge that may be written over.

        Args:
            barcode: The cartridge.
            given_up: Images whose unfinished parts on it need not be kept.

        Raises:
            WrongCartridge: a live copy is on it, it is a cleaning cartridge, or nobody knows it.
        """
        view = self._media.view(barcode)
        self._media.require_data(barcode)
        live = self._stock.register.live_images(barcode, given_up)
        if live:
            more = f" and {len(live) - 3} more" if len(live) > 3 else ""
            raise WrongCartridge(
                f"{barcode} holds live copies: {', '.join(live[:3])}{more}",
                subject=barcode,
                hint=gives_up(barcode),
            )
        return view

    def erase(self, barcode: str, why: str) -> MediumView:
        """Writes a fresh label over whatever is on a cartridge: from then on nothing behind it can be read by a
        drive, and it is scratch of this pool. One that was retired stays so.

        Raises:
            WrongCartridge: see ``require_erasable``. Nothing was written.
            WriteProtected: its switch is set, or it is WORM. Nothing was written.
        """
        self.require_erasable(barcode)
        self._bays.require_here(barcode)
        with self._bays.reading(barcode, self._cancel) as bay:
            bay.cartridge = None
            if bay.drive.is_write_protected():
                raise WriteProtected(
                    f"{barcode} is write-protected",
                    subject=barcode,
                    hint=f"clear its write-protect switch: `nightferry media export {barcode}` moves it to a port",
                )
            before = self._watch.record_of(barcode)
            self._watch.intend(barcode, f"to be erased by {why}")
            cartridge = Cartridge(bay.drive, barcode, unread=True)
            try:
                self._stock.label(cartridge, self._stock.pool.name)
            except EndOfMedium as error:
                raise MediumDamaged(
                    f"{barcode} cannot be overwritten: {error}",
                    subject=barcode,
                    hint=f"take it out of use: `nightferry media retire {barcode} --reason TEXT`",
                ) from error
            if before is not None and before.state == "retired":
                self._stock.keep(cartridge, cartridge.entry, state="retired", note=before.note)
            bay.cartridge = cartridge
        return self._media.view(barcode)

    def retire(self, barcode: str, why: str) -> MediumView:
        """Takes a cartridge out of use for good; the copies on it are the caller's to give up.

        Raises:
            WrongCartridge: nobody knows it.
            BusyError: it is in a drive that is in use.
        """
        view = self._media.view(barcode)
        self._watch.intend(barcode, f"to be retired by {why}")
        if view.element:
            self._bays.out_of_drive(barcode)
        self._watch.change(
            self._known(barcode), state="retired", resumes=None, note=f"retired by {why}"[:500]
        )
        return self._media.view(barcode)

    def _known(self, barcode: str) -> CartridgeRecord:
        return self._watch.record_of(barcode) or CartridgeRecord(
            barcode=barcode,
            destination=self._watch.destination,
            pool="",
            state="cleaning" if self._stock.pool.cleans(barcode) else "unknown",
            at=self._watch.now(),
        )

    def move(self, barcode: str, slot: int, why: str) -> MediumView:
        """Carries a cartridge to a slot.

        Raises:
            BusyError: it is in a drive that is in use.
            Unavailable: it is not in the library.
            DestinationError: the slot is not there or not empty, or the cartridge is in a port.
        """
        place = self._bays.out_of_drive(barcode)
        if place.kind == "port":
            raise DestinationError(
                f"{barcode} is in {place}",
                subject=barcode,
                hint="`nightferry media import` moves it into the library",
            )
        target = Address("slot", slot)
        if place != target:
            self._watch.intend(barcode, f"to be moved from {place} to {target} by {why}")
            self._bays.changer.move(place, target)
            self._done(barcode)
        return self._media.view(barcode)

    def _done(self, barcode: str) -> None:
        """Follows an intent that changed nothing of what is known of the cartridge."""
        record = self._watch.record_of(barcode)
        if record is not None:
            self._watch.change(record)

    def export(self, barcode: str, why: str) -> MediumView:
        """Carries a cartridge to a port, where a hand takes it out; it is ``offsite`` until it is imported.

        Raises:
            BusyError: it is in a drive that is in use.
            Unavailable: it is not in the library.
            DestinationError: every port is full.
        """
        place = self._bays.out_of_drive(barcode)
        record = self._watch.record_of(barcode)
        if place.kind != "port":
            target = self._free_port(barcode)
            if record is not None and is_being_written(record):
                self._settle(barcode)
                place = self._bays.out_of_drive(barcode)
            self._watch.intend(barcode, f"to be exported by {why}")
            self._bays.changer.move(place, target)
        record = self._known(barcode)
        if record.state != "offsite":
            resumes = record.state
            self._watch.change(record, state="offsite", resumes=resumes, note=f"exported by {why}"[:500])
        return self._media.view(barcode)

    def _free_port(self, barcode: str) -> Address:
        ports = [e for e in self._bays.inventory() if e.address.kind == "port"]
        free = [e.address for e in ports if not e.barcode]
        if free:
            return free[0]
        if not ports:
            raise DestinationError(
                f"the library has no import/export port for {barcode}",
                subject=barcode,
                hint="take it out through the library's door; `nightferry media list` then shows it as absent",
            )
        held = ", ".join(f"{e.address} holds {e.barcode}" for e in ports)
        raise DestinationError(
            f"no import/export port is free for {barcode}: {held}",
            subject=barcode,
            hint="empty the ports by hand, or `nightferry media import` it",
        )

    def _settle(self, barcode: str) -> None:
        """Looks at the end of a cartridge that a stopped process was writing, before it goes away."""
        with self._bays.reading(barcode, self._cancel) as bay:
            self._stock.recover(bay, barcode, self._cancel)

    def take_in(self, why: str) -> list[MediumView]:
        """Carries what lies in the ports to slots; a cartridge that was ``offsite`` takes up its state again, also
        one that somebody put straight into a slot.

        Raises:
            DestinationError: no slot is empty, or what lies in a port has a barcode that cannot be read, or that
                another cartridge bears; everything else was taken in.
        """
        taken = []
        elements = self._bays.inventory()
        twice = doubled(elements)
        for element in elements:
            if element.address.kind == "port" and element.barcode not in ("", UNREADABLE, *twice):
                self._watch.intend(element.barcode, f"to be imported by {why}")
                self._carry_in(element)
                self._back(element.barcode, why)
                taken.append(element.barcode)
        for element in self._bays.inventory():
            record = self._watch.record_of(element.barcode) if element.barcode else None
            if element.address.kind != "port" and record is not None and record.state == "offsite":
                self._back(element.barcode, why)
                taken.append(element.barcode)
        for element in elements:
            if element.address.kind == "port" and element.barcode in (UNREADABLE, *twice):
                also = "cannot be read"
                if element.barcode in twice:
                    others = [str(place) for place in twice[element.barcode] if place != element.address]
                    also = f"{element.barcode} is also that of the cartridge in {' and '.join(others)}"
                raise DestinationError(
                    f"the cartridge in {element.address} is not imported: its barcode {also}",
                    subject=str(element.address),
                    hint="take it out of the port and give it a readable barcode of its own",
                )
        return [self._media.view(barcode) for barcode in taken]

    def _carry_in(self, element: Element) -> None:
        target = self._bays.home_of(element, self._bays.inventory())
        self._bays.changer.move(element.address, target)

    def _back(self, barcode: str, why: str) -> None:
        record = self._watch.record_of(barcode)
        if record is None:
            return
        if record.state == "offsite":
            state = record.resumes or ("full" if record.label else "unknown")
            self._watch.change(record, state=state, resumes=None, note=f"imported by {why}"[:500])
        else:
            self._watch.change(record)
