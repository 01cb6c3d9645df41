"""Who may use which drive: leases inside this process, locks between processes, and the way of a cartridge
into a drive.

A bay is a drive with what this process knows of the cartridge in it. A leased bay belongs to one thread;
the drive's lock is held as long as the lease. Between leases the cartridge stays in the drive, where anyone
may fetch it: the lock tells the next lease whether somebody did.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nightferry.destination.tape.cartridge import Cartridge
from nightferry.destination.tape.changer import Address, DriveLock, Element, Library
from nightferry.destination.tape.drive import TapeDrive
from nightferry.errors import BusyError, DestinationError, Unavailable
from nightferry.progress import Cancel

_log = logging.getLogger(__name__)
_LOOK_AGAIN_S = 0.1


class Bay:
    """A drive, and the cartridge in it while its state is known. Only the holder of the lease uses it."""

    def __init__(self, drive: TapeDrive) -> None:
        self.drive = drive
        self.cartridge: Cartridge | None = None
        self.holder: int | None = None
        self.lock: DriveLock | None = None
        self.writing = False
        """An image is on its way through: the bay cannot be lent for reading, not even to its holder."""

    @property
    def address(self) -> Address:
        return Address("drive", self.drive.number)

    @property
    def name(self) -> str:
        return f"drive {self.drive.number}"

    def forget(self) -> None:
        """What is in the drive must be looked at again: after an error, or when somebody else was there."""
        self.cartridge = None
        self.drive.unload()


class Bays:
    """All drives of a library.

    Args:
        library: The changer and the drives.
        leaving: Called with a cartridge before it is taken out of a drive in good order.
        patience_s: How long a drive or cartridge that is in use is waited for when reading.
    """

    def __init__(self, library: Library, leaving: Callable[[Cartridge], None], patience_s: float) -> None:
        self._library = library
        self._leaving = leaving
        self._patience_s = patience_s
        self._bays = [Bay(drive) for drive in library.drives]
        self._touched: set[int] = set()
        self._turn = threading.Condition()

    def __len__(self) -> int:
        return len(self._bays)

    def inventory(self) -> list[Element]:
        return self._library.changer.inventory()

    def is_idle(self, number: int) -> bool:
        """Whether no thread of this process has leased the drive."""
        return self._bays[number].holder is None

    def mine(self) -> Bay | None:
        """The bay this thread has leased and does not write through at this moment."""
        me = threading.get_ident()
        return next((bay for bay in self._bays if bay.holder == me and not bay.writing), None)

    @contextmanager
    def lease(self, rank: Callable[[str], int], cancel: Cancel) -> Iterator[Bay]:
        """A free bay, the one with the lowest ``rank`` of the barcode in it (empty when none); waits while
        all are taken.

        Raises:
            BusyError: the one who asks has all of them.
            Cancelled: while it waited.
        """
        while (bay := self._take_best(rank)) is None:
            if all(bay.holder == threading.get_ident() for bay in self._bays):
                raise BusyError(
                    f"every drive of {self._library.name} is in use by the one who asks for another",
                    hint="one drive cannot read and write at once: give the library a second one",
                )
            self._wait(cancel)
        try:
            yield bay
        finally:
            self._give_back(bay)

    @contextmanager
    def borrow(self) -> Iterator[Bay | None]:
        """The bay this thread has, else any free one, else None; never waits."""
        mine = self.mine()
        bay = mine or self._take_best(len)
        try:
            yield bay
        finally:
            if bay is not None and mine is None:
                self._give_back(bay)

    @contextmanager
    def reading(self, barcode: str, cancel: Cancel) -> Iterator[Bay]:
        """A bay for reading a cartridge, which is brought into it; the bay this thread already has, if any.

        Raises:
            Unavailable: the cartridge is not in the library.
            BusyError: others kept it, or all drives, for longer than the patience.
        """
        bay = self.mine()
        if bay is not None:
            self.fetch(bay, barcode, cancel)
            yield bay
            return
        deadline = time.monotonic() + self._patience_s
        while (bay := self._take_for(barcode)) is None:
            self._be_patient(deadline, barcode, cancel)
        try:
            self.fetch(bay, barcode, cancel)
            yield bay
        finally:
            self._give_back(bay)

    def fetch(self, bay: Bay, barcode: str, cancel: Cancel) -> None:
        """Brings a cartridge into a leased bay, waiting while others use it.

        The bay's own cartridge goes to its slot first, so that two threads never wait for each other's.
        """
        deadline = time.monotonic() + self._patience_s
        while not self.bring(bay, barcode):
            self.put_away(bay)
            self._be_patient(deadline, barcode, cancel)

    def bring_or_wait(self, bay: Bay, barcode: str, cancel: Cancel) -> bool:
        """Like ``bring``, but waits while another thread of this process has the cartridge."""
        deadline = time.monotonic() + self._patience_s
        while not self.bring(bay, barcode):
            place = next((e.address for e in self.inventory() if e.barcode == barcode), None)
            if place is not None and place.kind == "drive" and self.is_idle(place.number):
                return False
            self._be_patient(deadline, barcode, cancel)
        return True

    def bring(self, bay: Bay, barcode: str) -> bool:
        """Brings a cartridge into a leased bay and loads it; False when somebody else has it.

        Raises:
            Unavailable: it is not in the library, or drive or changer do not answer.
        """
        place = next((e for e in self.inventory() if e.barcode == barcode), None)
        if place is None:
            raise Unavailable(
                f"cartridge {barcode} is not in the library {self._library.name}",
                subject=barcode,
                hint=f"put {barcode} into a slot of the library",
            )
        if place.address == bay.address:
            bay.drive.load()
            return True
        if place.address.kind == "drive":
            other = self._bays[place.address.number]
            if not self._take(other):
                return False
            try:
                self.put_away(other)
            finally:
                self._give_back(other)
            return self.bring(bay, barcode)
        self.put_away(bay)
        try:
            self._library.changer.move(place.address, bay.address)
        except Unavailable:
            raise
        except DestinationError:
            if any(e.barcode == barcode and e.address == place.address for e in self.inventory()):
                raise
            return False
        self._touched.add(bay.drive.number)
        bay.drive.load()
        return True

    def put_away(self, bay: Bay) -> None:
        """Takes the cartridge out of a leased bay: to the slot it came from, else to an empty one.

        Raises:
            DestinationError: no slot is empty.
        """
        if bay.cartridge is not None:
            self._leaving(bay.cartridge)
        bay.forget()
        elements = self.inventory()
        held = next(e for e in elements if e.address == bay.address)
        if held.barcode:
            empty = [e.address for e in elements if e.address.kind == "slot" and not e.barcode]
            if not empty:
                raise DestinationError(
                    f"no slot is empty for {held.barcode} in {bay.name}", subject=held.barcode
                )
            self._library.changer.move(bay.address, held.home if held.home in empty else empty[0])
        self._touched.discard(bay.drive.number)

    def close(self) -> None:
        """Puts away what this process brought and nobody else has taken over; what cannot be put away stays
        where it is, for whoever leases that drive next."""
        for bay in self._bays:
            if bay.drive.number in self._touched and self._take(bay):
                try:
                    if bay.lock is not None and bay.lock.untouched:
                        self.put_away(bay)
                except DestinationError as error:
                    _log.warning("%s keeps its cartridge: %s", bay.name, error)
                finally:
                    self._give_back(bay)

    def _take_best(self, rank: Callable[[str], int]) -> Bay | None:
        inside = {e.address: e.barcode for e in self.inventory() if e.address.kind == "drive"}
        with self._turn:
            free = [bay for bay in self._bays if bay.holder is None]
        free.sort(key=lambda bay: rank(inside.get(bay.address, "")))
        return next((bay for bay in free if self._take(bay)), None)

    def _take_for(self, barcode: str) -> Bay | None:
        inside = {e.address: e.barcode for e in self.inventory() if e.address.kind == "drive"}
        for bay in self._bays:
            if inside.get(bay.address) == barcode:
                return bay if self._take(bay) else None
        return self._take_best(len)

    def _take(self, bay: Bay) -> bool:
        with self._turn:
            if bay.holder is not None:
                return False
            lock = self._library.try_lock(bay.drive.number)
            if lock is None:
                return False
            bay.holder, bay.lock = threading.get_ident(), lock
        if not lock.untouched:
            try:
                bay.forget()
            except BaseException:
                self._give_back(bay)
                raise
        return True

    def _give_back(self, bay: Bay) -> None:
        with self._turn:
            if bay.lock is not None:
                bay.lock.release()
            bay.holder = bay.lock = None
            self._turn.notify_all()

    def _wait(self, cancel: Cancel) -> None:
        cancel.check()
        with self._turn:
            self._turn.wait(_LOOK_AGAIN_S)

    def _be_patient(self, deadline: float, barcode: str, cancel: Cancel) -> None:
        if time.monotonic() > deadline:
            raise BusyError(
                f"{barcode} or every drive has been in use for {self._patience_s:.0f} s", subject=barcode
            )
        self._wait(cancel)
