"""A tape drive, reduced to what every drive can do: rewind, space forward, write, read.

Positions are (tape file, record), both from 0. Only forward spacing is asked for: reverse spacing and
LOCATE are not everywhere, and where they are a driver may use them inside these verbs. One drive is used by
one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

from nightferry.errors import MediumFull, PositionLost
from nightferry.transfer.base import CHUNK_BYTES

RECORD_BYTES = CHUNK_BYTES
LONGEST_RECORD = (16 << 20) - 1
"""The longest block a variable-block drive can be asked for (24-bit transfer length, SSC-5 §6.4)."""


MOST_LOST = 3
"""How often the position may be lost in one piece of work. A drive has an attention for each reset and each new
session, and one can come while the last is being seen to."""

T = TypeVar("T")


class Attention(PositionLost):
    """A unit attention: something happened to the drive behind our back; the command was not done."""


class EndOfMedium(MediumFull):
    """The hard end of the tape: the record was not written."""


Waiting = Callable[[str], None]
"""Called about every second with what a drive waits for; raises to give the wait up."""


def no_waiting(what: str) -> None:
    """Nobody listens, and nobody stops it."""


def again(work: Callable[[], T]) -> T:
    """Work that rewinds first and writes nothing, begun again when the drive has an attention for us meanwhile.

    Raises:
        Attention: for the third time: then it is the drive.
    """
    for _ in range(MOST_LOST - 1):
        with suppress(Attention):
            return work()
    return work()


class Mark(Enum):
    """What a read met in place of a record."""

    FILEMARK = "filemark"
    """The tape now stands behind it, at the first record of the next tape file."""
    END_OF_DATA = "end of data"


@dataclass(frozen=True, slots=True)
class Position:
    """Tape file and record, both from 0."""

    file: int
    record: int


class TapeDrive(Protocol):
    """One drive. Every verb may raise ``DestinationError``; what it means is said per verb.

    ``MediumDamaged``: the cartridge cannot be read or written there. ``PositionLost``: where the tape
    stands is not known, only ``rewind`` may follow. ``Unavailable``: the drive does not answer.
    ``DestinationError``: no cartridge is loaded.
    """

    @property
    def number(self) -> int:
        """Its number in the library, from 0; also its data transfer element."""

    @property
    def reserve_bytes(self) -> int:
        """Bytes that can surely still be written after the record that met early warning."""

    def is_loaded(self) -> bool: ...

    def load(self, waiting: Waiting = no_waiting) -> None:
        """Makes the cartridge the changer put in ready, rewound. Nothing to do when it is ready.

        That can take minutes, with a new cartridge two hours. With a cleaning cartridge the drive cleans itself:
        on return that is done, nothing is loaded, and the changer can take the cartridge out.

        Raises:
            Unavailable: the drive is empty or does not become ready.
        """

    def unload(self) -> None:
        """Writes out what is buffered and lets the cartridge go. Nothing to do when the drive is empty."""

    def alerts(self) -> tuple[str, ...]:
        """TapeAlert flags that are set, by name (``clean now``); empty where there are none, or no such page.

        May be asked at any time, with a cartridge loaded or not. Asking may clear a flag whose cause is gone.
        """

    def is_write_protected(self) -> bool:
        """Whether the loaded cartridge takes no writing at all: its switch, or a format that is only read.

        A WORM cartridge is not write-protected: it can be appended to, and refuses to be written over with
        ``WriteProtected``.
        """

    def rewind(self) -> None: ...

    def position(self) -> Position:
        """Where the tape stands; asks the drive whether anything has happened to it.

        Raises:
            PositionLost: something has, and where it stands is not known.
        """

    def locate(self, target: Position) -> None:
        """Goes to a place that the caller knows to be there, the fastest way the drive has.

        Raises:
            MediumDamaged: the tape ends before it. A drive that cannot tell may stand elsewhere instead: what
                is read there must be checked.
        """

    def space_filemarks(self, count: int) -> int:
        """Moves behind the next ``count`` filemarks; returns how many there were. Fewer: the tape stands at
        its end of data."""

    def space_records(self, count: int) -> int:
        """Moves over ``count`` records of this tape file; returns how many there were.

        Fewer: the tape stands behind the last one, before the filemark or at the end of data.
        """

    def read_record(self, limit: int = RECORD_BYTES) -> bytes | Mark:
        """The next record, or what is there instead.

        Raises:
            MediumDamaged: it is longer than ``limit`` (the tape stands behind it), or unreadable.
        """

    def write_record(self, data: bytes | memoryview) -> bool:
        """Writes one record of 1 byte to 16 MiB - 1; what lay behind the position is gone. True: early
        warning was met.

        Raises:
            EndOfMedium: the hard end; nothing was written.
            WriteProtected: the cartridge takes no writing, or not here; nothing was written.
            MediumFull: what the drive writes on has no room, though the cartridge has.
        """

    def write_filemarks(self, count: int, *, immediate: bool = False) -> bool:
        """Ends the tape file ``count`` times. True: early warning was met.

        Not immediate: on return everything written so far is on the medium. ``count`` 0 only writes out.
        """
