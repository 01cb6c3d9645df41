"""Reading a cartridge in one drive, and once more in another when that one cannot."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

from nightferry.destination.tape.bay import Bay
from nightferry.destination.tape.bays import Bays
from nightferry.destination.tape.watch import Watch
from nightferry.errors import DestinationError, MediumDamaged, PositionLost
from nightferry.progress import Cancel

T = TypeVar("T")


class Tries:
    """A leased bay that reads one cartridge after the other, and the bay that takes its place when its drive fails.

    A drive that does not answer is set aside. One that answers and cannot read is set aside when another reads the
    same: then it is the drive. When neither can, it is the cartridge, and both drives stay in use.

    Args:
        bays: The drives.
        watch: Is told of drives that fail and cartridges that cannot be read.
        cancel: Ends waits.
        lease: Gives everything back that is leased here.
        barcode: The cartridge that is read first.
    """

    def __init__(self, bays: Bays, watch: Watch, cancel: Cancel, lease: ExitStack, barcode: str) -> None:
        self._bays = bays
        self._watch = watch
        self._cancel = cancel
        self._lease = lease
        self._bay = lease.enter_context(bays.reading(barcode, cancel))

    def read(self, barcode: str, work: Callable[[Bay], T]) -> T:
        """What ``work`` reads of a cartridge. It mounts it in the bay it is given, and is begun anew in another.

        Raises:
            MediumDamaged: two drives cannot read it, or one can not and there is no other; or what it reads is no
                record of ours, which another drive does not mend.
            Unavailable: a drive cannot read it, and no other is free to try: nothing is proved of the cartridge.
        """
        failed: tuple[Bay, DestinationError] | None = None
        while True:
            bay = self._bay
            try:
                done = self._patiently(bay, work)
            except DestinationError as error:
                if not bay.drive.raised(error):
                    self._watch.failed(barcode, error, spoiled=False)
                    _forget(bay, error)
                    raise
                if failed is not None:
                    self._watch.failed(barcode, error, spoiled=False)
                    raise self._neither(barcode, failed[0], bay, error) from error
                failed = bay, error
                self._bay = self._another(barcode, bay, error)
            except BaseException as error:
                _forget(bay, error)
                raise
            else:
                if failed is not None:
                    self._blame(barcode, *failed)
                return done

    def _patiently(self, bay: Bay, work: Callable[[Bay], T]) -> T:
        """Raises:
        PositionLost: it was lost twice; the first time the cartridge is loaded anew and its label read.
        """
        try:
            return work(bay)
        except PositionLost:
            bay.forget()
            return work(bay)

    def _another(self, barcode: str, bay: Bay, error: DestinationError) -> Bay:
        if not isinstance(error, MediumDamaged):
            self._bays.set_aside(bay, error)
            self._watch.say(f"{bay.name} failed and is set aside: {error}")
            self._lease.close()
            return self._lease.enter_context(self._bays.reading(barcode, self._cancel))
        if not self._bays.has_other(bay):
            self._watch.failed(barcode, error, spoiled=False)
            _forget(bay, error)
            raise error
        self._watch.say(f"{bay.name} cannot read {barcode}: {error}; it is tried in another drive")
        try:
            return self._lease.enter_context(self._bays.another(bay))
        except DestinationError as none_free:
            raise none_free from error

    def _blame(self, barcode: str, bay: Bay, error: DestinationError) -> None:
        """The drive that failed, of what another could read."""
        if not bay.aside:
            said = f"{self._bay.name} reads what {bay.name} cannot: {error}"
            self._bays.set_aside(bay, MediumDamaged(said, subject=barcode))
            self._watch.say(f"{bay.name} is set aside: {said}")

    def _neither(self, barcode: str, first: Bay, second: Bay, error: DestinationError) -> DestinationError:
        """What it is when two drives fail at a cartridge: that, unless the second one does not answer any more."""
        try:
            second.forget()
        except DestinationError:
            self._bays.set_aside(second, error)
            if not isinstance(error, MediumDamaged):
                return error
        if first.aside:
            self._bays.take_back(first, f"{second.name} cannot read {barcode} either")
        return MediumDamaged(
            f"neither {first.name} nor {second.name} can read {barcode}: {error}", subject=barcode
        )


def _forget(bay: Bay, error: BaseException) -> None:
    """Where the tape stands after an error is not to be relied on."""
    try:
        bay.forget()
    except DestinationError as second:
        error.add_note(f"{bay.name} could not be unloaded after it: {second}")
