"""Writing at the end of a cartridge: what became of a write whose outcome is not known is read from the medium, and
nothing is sent again before that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import xxhash

from nightferry.destination.tape.drives.base import (
    LONGEST_RECORD,
    MOST_LOST,
    Mark,
    Position,
    Waiting,
    again,
    no_waiting,
)
from nightferry.destination.tape.format.cartridge import Cartridge
from nightferry.destination.tape.format.label import Label
from nightferry.destination.tape.format.layout import CHUNK_DIGEST_BYTES
from nightferry.errors import DestinationError, MediumDamaged, PositionLost, WrongCartridge
from nightferry.progress import Cancel

T = TypeVar("T")


def digests_of(records: Iterable[memoryview]) -> bytes:
    """The records' digests (xxh3-64), 8 bytes each, as a chunk table has them."""
    return b"".join(xxhash.xxh3_64(record).digest() for record in records)


@dataclass(slots=True)
class Appending:
    """The tape file that a cartridge ends with, record after record and then its filemark, each sent once.

    After a ``PositionLost`` the cartridge is loaded again and its label read: it may be another one by now. The last
    record that was acknowledged tells by its digest where the tape stands, what is behind it whether the write was
    done; and it goes on behind what is there.

    Args:
        cartridge: The cartridge, positioned at its end.
        file: The number that the tape file has.
        digests: Those of every record that is to come, 8 bytes each.
        what: What is written, for messages (``the trailer``); empty for an image.
        say: Told what became of a write in doubt.
        cancel: Ends a wait for the drive.
    """

    cartridge: Cartridge
    file: int
    digests: memoryview
    what: str
    say: Callable[[str], None]
    cancel: Cancel
    records: int = 0
    """How many records are written."""

    def write(self, data: memoryview) -> bool:
        """Writes the next record. True: early warning was met.

        Raises:
            PositionLost: what had been acknowledged is not there, or it happened for the third time.
            DestinationError: see ``TapeDrive.write_record``.
        """
        drive = self.cartridge.drive
        early = self._once(
            lambda: drive.write_record(data),
            f"record {self.records}",
            lambda met: self._is(met, self.records),
        )
        self.records += 1
        return early

    def end(self, *, immediate: bool = False) -> bool:
        """Writes the filemark; see ``TapeDrive.write_filemarks`` and ``write``."""
        drive = self.cartridge.drive
        return self._once(
            lambda: drive.write_filemarks(1, immediate=immediate),
            "the filemark",
            lambda met: met is Mark.FILEMARK,
        )

    def _once(self, write: Callable[[], bool], name: str, is_it: Callable[[bytes | Mark], bool]) -> bool:
        """Writes, unless that turns out to be done. ``is_it``: whether what was read there is what was sent."""
        step = write
        for _ in range(MOST_LOST - 1):
            try:
                return step()
            except PositionLost as error:
                if self._was_done(error, name, is_it):
                    # The answer is lost, and with it whether the write met early warning.
                    step = partial(self.cartridge.drive.write_filemarks, 0)
        return step()

    def _was_done(self, error: PositionLost, write: str, is_it: Callable[[bytes | Mark], bool]) -> bool:
        """Looks at the medium; the tape stands where it goes on.

        Raises:
            PositionLost: ``error`` itself, when that is unknown, or something else is there than was sent.
        """
        barcode = self.cartridge.barcode
        done = look_again(
            self.cartridge,
            error,
            lambda: self._is_there(is_it),
            waiting=lambda what: self.cancel.check(),
        )
        name = f"{write} of {self.what}" if self.what else write
        self.say(f"{error}; on {barcode}, {name} was {'' if done else 'not '}written: continuing after it")
        return done

    def _is_there(self, is_it: Callable[[bytes | Mark], bool]) -> bool:
        """Whether it is what the tape ends with.

        Raises:
            MediumDamaged: something else is there.
        """
        met = self._behind_acknowledged()
        done = is_it(met)
        if (self.cartridge.drive.read_record() if done else met) is not Mark.END_OF_DATA:
            raise MediumDamaged(
                f"in tape file {self.file}, behind {self.records} records, is not what was written",
                subject=self.cartridge.barcode,
            )
        return done

    def _behind_acknowledged(self) -> bytes | Mark:
        """What is behind the last record that was acknowledged.

        Raises:
            MediumDamaged: it is not there.
        """
        drive, last = self.cartridge.drive, max(self.records - 1, 0)
        drive.locate(Position(self.file, last))
        if self.records and not self._is(drive.read_record(LONGEST_RECORD), last):
            raise MediumDamaged(
                f"of tape file {self.file} the last of {self.records} acknowledged records is not there",
                subject=self.cartridge.barcode,
            )
        return drive.read_record(LONGEST_RECORD)

    def _is(self, record: bytes | Mark, number: int) -> bool:
        at = number * CHUNK_DIGEST_BYTES
        return (
            not isinstance(record, Mark)
            and xxhash.xxh3_64(record).digest() == self.digests[at : at + CHUNK_DIGEST_BYTES]
        )


def look_again(
    cartridge: Cartridge,
    error: PositionLost,
    look: Callable[[], T],
    *others: Label | None,
    waiting: Waiting = no_waiting,
) -> T:
    """Loads a cartridge again, reads its label and looks at it, after an error that says nothing of what was done.

    Args:
        cartridge: The cartridge in the drive.
        error: The error.
        look: Looks at what is behind the label; can be begun again.
        others: Labels that it may have besides the one it had; None: it may be blank.
        waiting: Is told of the wait for the drive.

    Raises:
        PositionLost: ``error`` itself, when the drive does not answer, or another cartridge is in it.
    """
    drive, barcode = cartridge.drive, cartridge.barcode

    def loaded_anew() -> T:
        drive.unload()
        drive.load(waiting)
        found = Cartridge(drive, barcode).label
        if found not in (cartridge.label, *others):
            raise WrongCartridge(f"another cartridge is in drive {drive.number}", subject=barcode)
        return look()

    try:
        return again(loaded_anew)
    except DestinationError as second:
        raise _after(error, second, barcode) from second


def _after(error: PositionLost, second: DestinationError, barcode: str) -> PositionLost:
    error.add_note(f"{barcode} as it was found after it: {second}")
    return error
