"""Reading a cartridge in one drive, and once more in another when that one cannot."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

from nightferry.destination.tape.drives.base import MOST_LOST
from nightferry.destination.tape.library.bay import Bay
from nightferry.destination.tape.library.bays import Bays
from nightferry.destination.tape.library.watch import Watch
from nightferry.errors import DestinationError, MediumDamaged, PositionLost
from nightferry.progress import Cancel

T = TypeVar("T")


class Tries:
    """A leased bay that reads one cartridge after the other, and the bay that takes its place when its drive fails.

    A drive that does not answer is disabled. One that answers and cannot read is disabled when another reads the
    same: then it is the drive. When a second drive cannot read the cartridge to its end either, it is the cartridge:
    both drives stay in use, and no third is tried.

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
        self._failed: dict[str, Bay] = {}
        """The drive that failed at a cartridge, and whose place another took."""
        self._bay = lease.enter_context(bays.reading(barcode, cancel))

    def read(self, barcode: str, work: Callable[[Bay], T]) -> T:
        """What ``work`` reads of a cartridge. It mounts it in the bay it is given, and is begun again in another.

        Raises:
            MediumDamaged: two drives cannot read it, or one can not and there is no other; or what it reads is no
                record of ours, which another drive does not fix.
            Unavailable: a drive cannot read it, and no other is free to try: nothing is proved of the cartridge.
        """
        failed: DestinationError | None = None
        while True:
            bay = self._bay
            try:
                done = self._patiently(bay, work)
            except DestinationError as error:
                if not bay.drive.raised(error):
                    self._watch.failed(barcode, error, spoiled=False)
                    _forget(bay, error)
                    raise
                first = self._failed.get(barcode)
                if first is not None:
                    self._watch.failed(barcode, error, spoiled=False)
                    self._settle(barcode, first, bay, error)
                    raise
                self._bay = self._another(barcode, bay, error)
                self._failed[barcode] = bay
                failed = error
            except BaseException as error:
                _forget(bay, error)
                raise
            else:
                if failed is not None:
                    self._blame(barcode, self._failed[barcode], failed)
                return done

    def _patiently(self, bay: Bay, work: Callable[[Bay], T]) -> T:
        """Raises:
        PositionLost: for the third time; before that the cartridge is loaded again and its label read.
        """
        for _ in range(MOST_LOST - 1):
            try:
                return work(bay)
            except PositionLost:
                bay.forget()
        return work(bay)

    def _another(self, barcode: str, bay: Bay, error: DestinationError) -> Bay:
        if not isinstance(error, MediumDamaged):
            self._bays.set_aside(bay, error)
            self._watch.say(f"{bay.name} failed and is disabled: {error}")
            self._lease.close()
            return self._lease.enter_context(self._bays.reading(barcode, self._cancel))
        if not self._bays.has_other(bay):
            self._watch.failed(barcode, error, spoiled=False)
            _forget(bay, error)
            raise error
        self._watch.say(f"{bay.name} cannot read {barcode}: {error}; trying another drive")
        try:
            return self._lease.enter_context(self._bays.another(bay))
        except DestinationError as none_free:
            _forget(bay, none_free)
            raise none_free from error

    def _blame(self, barcode: str, bay: Bay, error: DestinationError) -> None:
        """The drive that failed, of what another could read."""
        if not bay.aside:
            said = f"{self._bay.name} reads what {bay.name} cannot: {error}"
            self._bays.set_aside(bay, MediumDamaged(said, subject=barcode))
            self._watch.say(f"{bay.name} is disabled: {said}")

    def _settle(self, barcode: str, first: Bay, second: Bay, error: DestinationError) -> None:
        """What it is when two drives failed at a cartridge: that, unless the second one lost its way, or does not
        answer any more; then that one is disabled.

        Raises:
            MediumDamaged: it is the cartridge.
        """
        unread = isinstance(error, MediumDamaged)
        try:
            second.forget()
            unread = unread or not isinstance(error, PositionLost)
        except DestinationError as silent:
            error.add_note(f"{second.name} could not be unloaded afterwards: {silent}")
        if not unread:
            self._bays.set_aside(second, error)
            return
        if first.aside:
            self._bays.take_back(first, f"{second.name} cannot read {barcode} either")
        raise MediumDamaged(
            f"neither {first.name} nor {second.name} can read {barcode}: {error}", subject=barcode
        ) from error


def _forget(bay: Bay, error: BaseException) -> None:
    """Where the tape stands after an error is not to be relied on."""
    try:
        bay.forget()
    except DestinationError as second:
        error.add_note(f"{bay.name} could not be unloaded afterwards: {second}")
