"""A drive with what this process knows of the cartridge in it, and what is told when that leaves it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nightferry.destination.tape.drives.base import TapeDrive
from nightferry.destination.tape.drives.watched import WatchedDrive
from nightferry.destination.tape.format.cartridge import Cartridge
from nightferry.destination.tape.library.changer import Address, DriveLock
from nightferry.errors import DestinationError, Unavailable


@dataclass(frozen=True, slots=True)
class Departure:
    """A cartridge that came out of a drive. ``cartridge`` is None when its state was not known any more."""

    barcode: str
    drive: int
    cartridge: Cartridge | None
    alerts: tuple[str, ...]
    mounted: bool
    """This process had brought it."""


class Watcher(Protocol):
    """Who keeps the records of cartridges and drives."""

    def left(self, departure: Departure) -> None:
        """A cartridge was unloaded, and is about to be carried away."""

    def set_aside(self, drive: int, barcode: str, alerts: tuple[str, ...], why: str) -> None:
        """A drive is not used any more in this process."""

    def taken_back(self, drive: int, why: str) -> None:
        """A disabled drive is enabled again."""

    def elsewhere(self, barcode: str) -> str:
        """Where the records say that a cartridge is which is in no slot and no drive; for people."""

    def say(self, text: str) -> None:
        """Tells who waits."""


class Bay:
    """A drive, and the cartridge in it while its state is known. Only the holder of the lease uses it."""

    def __init__(self, drive: TapeDrive) -> None:
        self.drive = WatchedDrive(drive)
        self.cartridge: Cartridge | None = None
        self.holder: int | None = None
        self.lock: DriveLock | None = None
        self.writing = False
        """An image is on its way through: the bay cannot be lent for reading, not even to its holder."""
        self.aside = ""
        """Why the drive is not used any more in this process; empty while it is."""
        self.stuck = ""
        """The cartridge that could not be taken out of a disabled drive."""
        self.spoiled: set[str] = set()
        """Cartridges that could not be written to here, since one last could."""

    @property
    def address(self) -> Address:
        return Address("drive", self.drive.number)

    @property
    def name(self) -> str:
        return f"drive {self.drive.number}"

    def is_astray(self) -> bool:
        """Whether something happened to the drive since it was last used: a reset, a session that ended while
        nobody used it, a hand that took the cartridge. What was known of it is not relied on then.

        Raises:
            Unavailable: the drive does not answer.
        """
        if self.cartridge is None:
            return False
        try:
            self.drive.position()
        except Unavailable:
            raise
        except DestinationError:
            return True
        return False

    def forget(self) -> None:
        """What is in the drive must be looked at again: after an error, or when somebody else was there."""
        self.cartridge = None
        self.drive.unload()
