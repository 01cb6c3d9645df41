"""A drive that fails when a test wants it to, and does everything else as the drive behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from nightferry.destination.tape.drives.base import (
    RECORD_BYTES,
    Mark,
    Position,
    TapeDrive,
    Waiting,
    no_waiting,
)
from nightferry.errors import DestinationError, Unavailable

T = TypeVar("T")


@dataclass
class Fault:
    """From the ``at``-th call of ``verb`` on (once, unless it ``stays``) this error is raised.

    ``applied``: the drive has done what was asked before it fails to say so. ``on`` narrows it to one drive.
    """

    verb: str
    at: int = 1
    error: Callable[[str], DestinationError] = Unavailable
    stays: bool = False
    applied: bool = False
    on: int | None = None
    raised: int = 0


@dataclass
class FaultyDrive:
    """See ``TapeDrive``. ``calls`` counts each verb's calls."""

    drive: TapeDrive
    faults: list[Fault] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)

    @property
    def number(self) -> int:
        return self.drive.number

    @property
    def reserve_bytes(self) -> int:
        return self.drive.reserve_bytes

    def is_loaded(self) -> bool:
        return self._do("is_loaded", self.drive.is_loaded)

    def load(self, waiting: Waiting = no_waiting) -> None:
        self._do("load", lambda: self.drive.load(waiting))

    def unload(self) -> None:
        self._do("unload", self.drive.unload)

    def alerts(self) -> tuple[str, ...]:
        return self._do("alerts", self.drive.alerts)

    def is_write_protected(self) -> bool:
        return self._do("is_write_protected", self.drive.is_write_protected)

    def rewind(self) -> None:
        self._do("rewind", self.drive.rewind)

    def position(self) -> Position:
        return self._do("position", self.drive.position)

    def locate(self, target: Position) -> None:
        self._do("locate", lambda: self.drive.locate(target))

    def space_filemarks(self, count: int) -> int:
        return self._do("space_filemarks", lambda: self.drive.space_filemarks(count))

    def space_records(self, count: int) -> int:
        return self._do("space_records", lambda: self.drive.space_records(count))

    def read_record(self, limit: int = RECORD_BYTES) -> bytes | Mark:
        return self._do("read_record", lambda: self.drive.read_record(limit))

    def write_record(self, data: bytes | memoryview) -> bool:
        return self._do("write_record", lambda: self.drive.write_record(data))

    def write_filemarks(self, count: int, *, immediate: bool = False) -> bool:
        verb = "write_filemarks" if count else "flush"
        return self._do(verb, lambda: self.drive.write_filemarks(count, immediate=immediate))

    def _do(self, verb: str, call: Callable[[], T]) -> T:
        self.calls[verb] += 1
        for fault in self.faults:
            due = self.calls[verb] >= fault.at and (fault.stays or not fault.raised)
            if fault.verb == verb and due and fault.on in (None, self.number):
                if fault.applied:
                    call()
                fault.raised += 1
                raise fault.error(f"drive {self.number}: injected at call {self.calls[verb]} of {verb}")
        return call()
