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
from typing import Literal

from nightferry.destination.tape.drives.base import Waiting
from nightferry.destination.tape.library.bay import Bay, Departure, Watcher
from nightferry.destination.tape.library.changer import Address, Changer, Element, Library, doubled
from nightferry.errors import BusyError, DestinationError, MediumDamaged, Unavailable
from nightferry.progress import Cancel
from nightferry.units import format_duration

_log = logging.getLogger(__name__)
_LOOK_AGAIN_S = 0.1
_LOOKS = 3
_LOOK_FOR_CARTRIDGE_S = 2.0
_SAY_EVERY_S = 300.0


class Bays:
    """All drives of a library.

    Args:
        library: The changer and the drives.
        watcher: Is told what leaves the drives, and which fail.
        patience_s: How long a drive or cartridge that is in use, or a cartridge that is elsewhere, is waited for
            when reading.
    """

    def __init__(self, library: Library, watcher: Watcher, patience_s: float) -> None:
        self._library = library
        self._watcher = watcher
        self._patience_s = patience_s
        self._bays = [Bay(drive) for drive in library.drives]
        self._touched: set[int] = set()
        self._unloadable: dict[str, Bay] = {}
        """Cartridges that a drive could not load, until another has tried."""
        self._turn = threading.Condition()

    def __len__(self) -> int:
        return len(self._bays)

    @property
    def changer(self) -> Changer:
        return self._library.changer

    @property
    def reserve_bytes(self) -> int:
        """What a cartridge keeps behind early warning, at most."""
        return max((bay.drive.reserve_bytes for bay in self._bays), default=0)

    def inventory(self) -> list[Element]:
        return self._library.changer.inventory()

    def place_of(self, barcode: str) -> Address | None:
        """Where a cartridge is; None: not in the library.

        An inventory is asked for in parts: what another host moves meanwhile may be in none of them, or in two.
        So it is asked for again then.

        Raises:
            Unavailable: several cartridges bear its barcode, and none of them is touched.
        """
        for _ in range(_LOOKS):
            elements = self.inventory()
            places = doubled(elements).get(barcode)
            place = next((e.address for e in elements if e.barcode == barcode), None)
            if place is not None and places is None:
                return place
        if places is not None:
            raise Unavailable(
                f"{len(places)} cartridges have the barcode {barcode}, in {' and '.join(map(str, places))}; "
                "none of them is used",
                subject=barcode,
                hint="find out which one is right; take the other out of the library, or give it a new barcode label",
            )
        return None

    def is_idle(self, number: int) -> bool:
        """Whether no thread of this process has leased the drive, and it is used at all."""
        bay = self._bay_of(Address("drive", number))
        return bay is not None and bay.holder is None and not bay.aside

    def _bay_of(self, place: Address) -> Bay | None:
        """The bay at a drive's place; None when it is a drive that this site does not use: another host's."""
        return self._bays[place.number] if place.number < len(self._bays) else None

    def is_stuck(self, barcode: str) -> bool:
        """Whether a cartridge is stuck in a disabled drive."""
        return any(bay.stuck == barcode for bay in self._bays)

    @property
    def have_failed(self) -> bool:
        """Whether a drive is disabled."""
        return any(bay.aside for bay in self._bays)

    def mine(self) -> Bay | None:
        """The bay this thread has leased and does not write through at this moment."""
        me = threading.get_ident()
        return next(
            (bay for bay in self._bays if bay.holder == me and not bay.writing and not bay.aside), None
        )

    @contextmanager
    def lease(self, rank: Callable[[str], int], cancel: Cancel) -> Iterator[Bay]:
        """A free bay, the one with the lowest ``rank`` of the barcode in it (empty when none); waits while
        all are taken.

        Raises:
            BusyError: the one who asks has all of them.
            Unavailable: every drive is disabled.
            Cancelled: while it waited.
        """
        while (bay := self._take_best(rank)) is None:
            self._require_one()
            if all(bay.holder == threading.get_ident() for bay in self._bays if not bay.aside):
                raise BusyError(
                    f"every drive of {self._library.name} is already held by the same process, which asks for another",
                    hint="one drive cannot read and write at the same time: give the library a second drive",
                )
            self._wait(cancel)
        try:
            yield bay
        finally:
            self._give_back(bay)

    def _require_one(self) -> None:
        """Raises:
        Unavailable: every drive is disabled.
        """
        if all(bay.aside for bay in self._bays):
            named = "; ".join(f"{bay.name}: {bay.aside}" for bay in self._bays)
            raise Unavailable(
                f"all drives of library {self._library.name} are disabled after errors ({named})",
                hint="check the drives; the next run enables them again and makes the missing copies",
                subject=self._library.name,
            )

    def are_mine(self) -> bool:
        """Whether no other process uses a drive of the library at this moment."""
        for bay in self._bays:
            if bay.holder is None and not bay.aside:
                if not self._take(bay):
                    return False
                self._give_back(bay)
        return True

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

        A cartridge that is elsewhere is waited for, and that is said, before a drive is taken.

        Raises:
            Unavailable: the cartridge did not come into the library in time, or every drive is disabled.
            BusyError: others kept it, or all drives, for longer than the patience.
        """
        bay = self.mine()
        if bay is not None:
            self.fetch(bay, barcode, cancel)
            yield bay
            return
        bay = self._mounted(barcode, cancel)
        try:
            yield bay
        finally:
            self._give_back(bay)

    def has_other(self, bay: Bay) -> bool:
        """Whether there is another drive that is enabled."""
        return any(other is not bay and not other.aside for other in self._bays)

    @contextmanager
    def another(self, bay: Bay) -> Iterator[Bay]:
        """A free bay besides a leased one, whose cartridge is unloaded for it; never waits.

        Raises:
            Unavailable: no other is free.
            DestinationError: the cartridge does not come out; the drive is disabled then.
        """
        other = self._take_best(len)
        if other is None:
            raise Unavailable(
                f"no other drive of {self._library.name} is free to read what {bay.name} cannot",
                hint="try again when another drive is free; the cartridge may be good",
                subject=self._library.name,
            )
        try:
            try:
                self.put_away(bay)
            except DestinationError as error:
                if bay.drive.raised(error):
                    self.set_aside(bay, error)
                raise
            yield other
        finally:
            self._give_back(other)

    def _mounted(self, barcode: str, cancel: Cancel) -> Bay:
        """A newly leased bay with the cartridge in it; drives that fail at it are disabled."""
        self._await_arrival(barcode, cancel)
        deadline = time.monotonic() + self._patience_s
        while True:
            bay = self._take_for(barcode)
            if bay is None:
                self._require_one()
                self._be_patient(deadline, barcode, cancel)
                continue
            try:
                self.fetch(bay, barcode, cancel)
            except BaseException as error:
                failed = isinstance(error, DestinationError) and bay.drive.raised(error)
                if failed and isinstance(error, DestinationError):
                    self.set_aside(bay, error)
                self._give_back(bay)
                if not failed:
                    raise
            else:
                return bay

    def fetch(self, bay: Bay, barcode: str, cancel: Cancel) -> None:
        """Brings a cartridge into a leased bay, waiting while others use it, or while it is elsewhere.

        The bay's own cartridge goes to its slot first, so that two threads never wait for each other's.
        """
        self._await_arrival(barcode, cancel)
        deadline = time.monotonic() + self._patience_s
        while not self.bring(bay, barcode, cancel):
            self.put_away(bay)
            self._be_patient(deadline, barcode, cancel)

    def _await_arrival(self, barcode: str, cancel: Cancel) -> None:
        """Returns when the cartridge is in a slot or drive.

        Raises:
            Unavailable: it did not come in time.
            Cancelled: while it waited.
        """
        since = time.monotonic()
        said = -_SAY_EVERY_S
        while not self._is_here(barcode):
            waited = time.monotonic() - since
            if waited >= self._patience_s:
                raise self._not_here(barcode)
            if waited - said >= _SAY_EVERY_S:
                said = waited
                left = format_duration(self._patience_s - waited)
                self._watcher.say(
                    f"waiting for cartridge {barcode} ({self._watcher.elsewhere(barcode)}), up to {left} more: "
                    "put it into a port, then `nightferry media import`"
                )
            cancel.wait(min(_LOOK_FOR_CARTRIDGE_S, self._patience_s))

    def require_here(self, barcode: str) -> None:
        """Raises:
        Unavailable: the cartridge is in no slot and no drive.
        """
        if not self._is_here(barcode):
            raise self._not_here(barcode)

    def _is_here(self, barcode: str) -> bool:
        place = self.place_of(barcode)
        return place is not None and place.kind != "port"

    def _not_here(self, barcode: str) -> Unavailable:
        return Unavailable(
            f"cartridge {barcode} is not in the library {self._library.name}: "
            f"{self._watcher.elsewhere(barcode)}",
            subject=barcode,
            hint=f"put {barcode} into a port of the library, then `nightferry media import`",
        )

    def bring_or_wait(self, bay: Bay, barcode: str, cancel: Cancel) -> Literal["brought", "proved", "away"]:
        """Like ``bring``, but waits while another thread of this process has the cartridge.

        ``proved``: that thread looked at its end. ``away``: another process has it.
        """
        deadline = time.monotonic() + self._patience_s
        while True:
            if any(
                b is not bay and b.cartridge is not None and b.cartridge.is_proved(barcode)
                for b in self._bays
            ):
                return "proved"
            if self.bring(bay, barcode, cancel):
                return "brought"
            place = self.place_of(barcode)
            in_drive = place is not None and place.kind == "drive"
            if place is not None and in_drive and (not self._bay_of(place) or self.is_idle(place.number)):
                return "away"
            self._be_patient(deadline, barcode, cancel)

    def bring(self, bay: Bay, barcode: str, cancel: Cancel) -> bool:
        """Brings a cartridge into a leased bay and loads it; False when somebody else has it.

        Raises:
            Unavailable: it is not in the library, or drive or changer do not answer.
            Cancelled: while the drive became ready.
        """
        place = self.place_of(barcode)
        if place is None or place.kind == "port":
            raise self._not_here(barcode)
        if self.is_stuck(barcode):
            raise Unavailable(
                f"{barcode} is stuck in {place}, which is disabled",
                subject=barcode,
                hint=f"move {barcode} from {place} to a slot by hand",
            )
        if place == bay.address:
            self._load(bay, barcode, cancel)
            return True
        if place.kind == "drive":
            other = self._bay_of(place)
            if other is None or not self._take(other):
                return False
            try:
                self.put_away(other)
            finally:
                self._give_back(other)
            return self.bring(bay, barcode, cancel)
        self.put_away(bay)
        try:
            self._library.changer.move(place, bay.address)
        except Unavailable:
            raise
        except DestinationError:
            if any(e.barcode == barcode and e.address == place for e in self.inventory()):
                raise
            return False
        self._touched.add(bay.drive.number)
        self._load(bay, barcode, cancel)
        return True

    def _load(self, bay: Bay, barcode: str, cancel: Cancel) -> None:
        """Raises:
        MediumDamaged: another drive could not load it either: it is the cartridge, and not the drives.
        """
        try:
            bay.drive.load(self._telling(cancel))
        except Unavailable as error:
            first = self._unloadable.setdefault(barcode, bay)
            if first is bay:
                raise
            del self._unloadable[barcode]
            if first.aside:
                self.take_back(first, f"{bay.name} cannot load {barcode} either")
            raise MediumDamaged(
                f"neither {first.name} nor {bay.name} can load {barcode}: {error}", subject=barcode
            ) from error
        self._unloadable.pop(barcode, None)

    def _telling(self, cancel: Cancel) -> Waiting:
        """Says what a drive waits for, at once and every five minutes."""
        said = -_SAY_EVERY_S

        def waiting(what: str) -> None:
            nonlocal said
            cancel.check()
            if time.monotonic() - said >= _SAY_EVERY_S:
                said = time.monotonic()
                self._watcher.say(what)

        return waiting

    def out_of_drive(self, barcode: str) -> Address:
        """Where a cartridge is when it is in no drive any more; one that is in a drive is unloaded first.

        Raises:
            BusyError: its drive is in use.
            Unavailable: it is not in the library.
        """
        for _ in self._bays:
            place = self.place_of(barcode)
            if place is None:
                raise self._not_here(barcode)
            if place.kind != "drive":
                return place
            bay = self._bay_of(place)
            if bay is None or not self._take(bay):
                break
            try:
                self.put_away(bay)
            finally:
                self._give_back(bay)
        raise BusyError(f"{barcode} is in use in {place}", hint="wait for the run to end", subject=barcode)

    def put_away(self, bay: Bay) -> None:
        """Takes the cartridge out of a leased bay: to the slot it came from, else to an empty one.

        Raises:
            DestinationError: no slot is empty.
        """
        cartridge = bay.cartridge
        bay.forget()
        elements = self.inventory()
        held = next(e for e in elements if e.address == bay.address)
        if held.barcode:
            mounted = bay.drive.number in self._touched
            self._watcher.left(
                Departure(held.barcode, bay.drive.number, cartridge, bay.drive.alerts(), mounted)
            )
            self._library.changer.move(bay.address, self.home_of(held, elements))
        self._touched.discard(bay.drive.number)

    def home_of(self, held: Element, elements: list[Element]) -> Address:
        """Where a cartridge in a drive or port belongs: the slot it came from, else an empty one.

        Raises:
            DestinationError: no slot is empty.
        """
        empty = [e.address for e in elements if e.address.kind == "slot" and not e.barcode]
        if not empty:
            raise DestinationError(
                f"no empty slot for {held.barcode} in {held.address}",
                subject=held.barcode,
                hint="free a slot: `nightferry media export BARCODE` moves a cartridge to a port",
            )
        return held.home if held.home in empty and held.home is not None else empty[0]

    def try_again(self) -> None:
        """When every drive is disabled, perhaps the library was away and is back: all get another chance."""
        if all(bay.aside for bay in self._bays):
            self._unloadable.clear()
            for bay in self._bays:
                self.take_back(bay, "every drive was disabled")

    def take_back(self, bay: Bay, why: str) -> None:
        """Enables a drive again."""
        bay.aside = bay.stuck = ""
        self._watcher.taken_back(bay.drive.number, why)

    def set_aside(self, bay: Bay, why: DestinationError) -> None:
        """Does not use a drive any more; its cartridge goes to a slot, or is stuck. The lease stays the
        caller's, to be given back."""
        bay.aside = str(why)
        inside = next((e.barcode for e in self.inventory() if e.address == bay.address), "")
        alerts: tuple[str, ...] = ()
        try:
            alerts = bay.drive.alerts()
            self.put_away(bay)
        except DestinationError as second:
            bay.stuck = inside
            self._touched.discard(bay.drive.number)
            why.add_note(f"{inside or 'nothing'} could be taken out of {bay.name} after it: {second}")
        self._watcher.set_aside(bay.drive.number, inside, alerts, str(why))

    def close(self) -> None:
        """Unloads what this process loaded and nobody else has taken over; what cannot be unloaded stays
        where it is, for whoever leases that drive next."""
        for bay in self._bays:
            if bay.drive.number in self._touched and self._take(bay):
                try:
                    if bay.lock is not None and bay.lock.untouched:
                        self.put_away(bay)
                except DestinationError as error:
                    _log.warning("%s still holds its cartridge: %s", bay.name, error)
                finally:
                    self._give_back(bay)

    def _take_best(self, rank: Callable[[str], int]) -> Bay | None:
        inside = {e.address: e.barcode for e in self.inventory() if e.address.kind == "drive"}
        with self._turn:
            free = [bay for bay in self._bays if bay.holder is None and not bay.aside]
        free.sort(key=lambda bay: rank(inside.get(bay.address, "")))
        return next((bay for bay in free if self._take(bay)), None)

    def _take_for(self, barcode: str) -> Bay | None:
        inside = {e.address: e.barcode for e in self.inventory() if e.address.kind == "drive"}
        for bay in self._bays:
            if inside.get(bay.address) == barcode and not bay.aside:
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
        try:
            if not lock.untouched or bay.is_astray():
                bay.forget()
        except DestinationError as error:
            self.set_aside(bay, error)
            self._give_back(bay)
            return False
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
