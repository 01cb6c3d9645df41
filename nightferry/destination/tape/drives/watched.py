"""A drive as its bay sees it: every verb passed on, every failure of its own remembered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar

from nightferry.destination.tape.drives.base import (
    RECORD_BYTES,
    Mark,
    Position,
    TapeDrive,
    Waiting,
    no_waiting,
)
from nightferry.errors import DestinationError, MediumFull, NotACartridge

T = TypeVar("T")
_REMEMBERED = 8
"""Errors: one, and what follows from it when the drive is unloaded."""


class WatchedDrive:
    """See ``TapeDrive``.

    Who catches an error can ask whether it came from here, or from the changer, the source, the catalog.
    """

    def __init__(self, drive: TapeDrive) -> None:
        self._drive = drive
        self._raised: deque[BaseException] = deque(maxlen=_REMEMBERED)

    def raised(self, error: BaseException) -> bool:
        """Whether the drive raised this very error lately. That a cartridge is full, or none, is not an error of a
        drive."""
        return any(error is each for each in self._raised) and not isinstance(error, NotACartridge)

    @property
    def number(self) -> int:
        return self._drive.number

    @property
    def reserve_bytes(self) -> int:
        return self._drive.reserve_bytes

    def is_loaded(self) -> bool:
        return self._ask(self._drive.is_loaded)

    def load(self, waiting: Waiting = no_waiting) -> None:
        self._ask(lambda: self._drive.load(waiting))

    def unload(self) -> None:
        self._ask(self._drive.unload)

    def alerts(self) -> tuple[str, ...]:
        return self._ask(self._drive.alerts)

    def is_write_protected(self) -> bool:
        return self._ask(self._drive.is_write_protected)

    def rewind(self) -> None:
        self._ask(self._drive.rewind)

    def position(self) -> Position:
        return self._ask(self._drive.position)

    def locate(self, target: Position) -> None:
        self._ask(lambda: self._drive.locate(target))

    def space_filemarks(self, count: int) -> int:
        return self._ask(lambda: self._drive.space_filemarks(count))

    def space_records(self, count: int) -> int:
        return self._ask(lambda: self._drive.space_records(count))

    def read_record(self, limit: int = RECORD_BYTES) -> bytes | Mark:
        return self._ask(lambda: self._drive.read_record(limit))

    def write_record(self, data: bytes | memoryview) -> bool:
        return self._ask(lambda: self._drive.write_record(data))

    def write_filemarks(self, count: int, *, immediate: bool = False) -> bool:
        return self._ask(lambda: self._drive.write_filemarks(count, immediate=immediate))

    def _ask(self, verb: Callable[[], T]) -> T:
        try:
            return verb()
        except MediumFull:
            raise
        except DestinationError as error:
            self._raised.append(error)
            raise
