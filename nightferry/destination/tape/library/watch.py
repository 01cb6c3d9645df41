"""The catalog's records of cartridges and drives, as one library's destination keeps them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from nightferry.clock import Clock
from nightferry.destination.base import Register
from nightferry.destination.tape.drives.alerts import wants_cleaning
from nightferry.destination.tape.library.bay import Departure
from nightferry.destination.tape.library.pool import WRITING, is_being_written, settled
from nightferry.errors import CatalogError
from nightferry.model.records import CartridgeRecord, DriveRecord

_log = logging.getLogger(__name__)
_LATE_S = 1.0
"""How far the catalog may be behind a cartridge that images are appended to."""


@dataclass(frozen=True, slots=True)
class _Late:
    """``newest`` is true of a cartridge, and the catalog has ``recorded``: behind since ``since`` (monotonic)."""

    recorded: CartridgeRecord
    newest: CartridgeRecord
    since: float


class Watch:
    """Keeps what happens to cartridges and drives; implements ``bays.Watcher``.

    What images add to a cartridge that is marked as being written may be recorded a second late (``appended``): a
    thousand small images would else wait a thousand times for the catalog's disk. Whoever comes after a crash, or takes
    the drive over meanwhile, looks behind the end that the catalog knows and finds them by their trailers.

    Args:
        destination: Name under which the catalog keeps them.
        register: The catalog.
        clock: Time.
        tell: Is told what a reader waits for.
    """

    def __init__(
        self, destination: str, register: Register, clock: Clock, tell: Callable[[str], None]
    ) -> None:
        self.destination = destination
        self.register = register
        self._clock = clock
        self._tell = tell
        self._lock = threading.Lock()
        self._told: dict[int, tuple[str, ...]] = {}
        """The alerts of each drive that were recorded last."""
        self._late: dict[str, _Late] = {}

    def records(self) -> dict[str, CartridgeRecord]:
        return {
            r.barcode: self._newest(r)
            for r in self.register.cartridges()
            if r.destination == self.destination
        }

    def record_of(self, barcode: str) -> CartridgeRecord | None:
        record = self.register.cartridge(barcode)
        if record is None or record.destination != self.destination:
            return None
        return self._newest(record)

    def _newest(self, recorded: CartridgeRecord) -> CartridgeRecord:
        """What is true of a cartridge by the catalog and by what it will be told; if others recorded something
        since, they looked at the cartridge after us."""
        with self._lock:
            late = self._late.get(recorded.barcode)
            if late is None:
                return recorded
            if late.recorded != recorded:
                del self._late[recorded.barcode]
                return recorded
            return late.newest

    def now(self) -> datetime:
        """Aware UTC."""
        return self._clock.now()

    def change(self, record: CartridgeRecord, **changes: object) -> CartridgeRecord:
        """Records a cartridge with some fields changed, from now on."""
        changed = record.model_copy(update={**changes, "at": self._clock.now()})
        with self._lock:
            self._late.pop(record.barcode, None)
        self.register.record(changed)
        return changed

    def appended(self, record: CartridgeRecord, **changes: object) -> CartridgeRecord:
        """Like ``change`` of a cartridge that is marked as being written, in the catalog within a second of the
        next time, or at ``catch_up``."""
        if not is_being_written(record):
            return self.change(record, **changes)
        changed = record.model_copy(update={**changes, "at": self._clock.now()})
        now = self._clock.monotonic()
        with self._lock:
            late = self._late.get(record.barcode) or _Late(record, record, now)
            late = self._late[record.barcode] = replace(late, newest=changed)
        if now - late.since >= _LATE_S:
            self._record_late(record.barcode)
        return changed

    def catch_up(self) -> None:
        """Tells the catalog what it was not told yet."""
        for barcode in list(self._late):
            self._record_late(barcode)

    def _record_late(self, barcode: str) -> None:
        with self._lock:
            late = self._late.pop(barcode, None)
        if late is not None and not self.register.record_after(late.recorded, late.newest):
            _log.info("%s was used by another host after it was written here", barcode)

    def intend(self, barcode: str, note: str) -> None:
        """Who is about to do what with a cartridge, and why: in the log before it is done; what is true of the
        cartridge does not change by it."""
        record = self.record_of(barcode) or CartridgeRecord(
            barcode=barcode, destination=self.destination, pool="", state="unknown", at=self._clock.now()
        )
        self.register.record(
            record.model_copy(update={"note": note[:500], "at": self._clock.now()}), "intent"
        )

    def say(self, text: str) -> None:
        self._tell(text)

    def elsewhere(self, barcode: str) -> str:
        record = self.record_of(barcode)
        if record is None:
            return "the catalog does not know it"
        return f"{record.state}: {record.note}" if record.note else record.state

    @contextmanager
    def _use_mark(self, what: str) -> Iterator[None]:
        """Marks of use (mounts, alerts, failures) stop no work: a restore goes on when they cannot be written."""
        try:
            yield
        except CatalogError as error:
            self._tell(f"{what} cannot be recorded: {error.message}")

    def left(self, departure: Departure) -> None:
        with self._use_mark(f"the use of {departure.barcode}"):
            self._left(departure)

    def _left(self, departure: Departure) -> None:
        record = self.record_of(departure.barcode)
        if record is not None:
            changes: dict[str, object] = {}
            in_order = departure.cartridge is not None and departure.cartridge.record is not None
            if in_order and is_being_written(record):
                changes["note"] = settled(record.note)
            if departure.mounted:
                changes["mounts"] = record.mounts + 1
            if departure.alerts != record.alerts:
                changes["alerts"] = departure.alerts
            if changes:
                self.change(record, **changes)
            self._record_late(departure.barcode)
        self.heard(departure.drive, departure.barcode, departure.alerts)

    def heard(self, drive: int, barcode: str, alerts: tuple[str, ...]) -> None:
        """What a drive says of itself is recorded when it is something new."""
        with self._lock:
            if self._told.get(drive, ()) == alerts:
                return
            self._told[drive] = alerts
        state: Literal["wants cleaning", "ready"] = "wants cleaning" if wants_cleaning(alerts) else "ready"
        self._drive(drive, state, barcode, alerts, "")

    def set_aside(self, drive: int, barcode: str, alerts: tuple[str, ...], why: str) -> None:
        _log.warning("drive %d of %s is disabled: %s", drive, self.destination, why)
        self._drive(drive, "set aside", barcode, alerts, why)

    def taken_back(self, drive: int, why: str) -> None:
        self._drive(drive, "ready", "", (), why)

    def cleaned(self, drive: int, barcode: str, alerts: tuple[str, ...]) -> None:
        """A cleaning cartridge was in the drive; ``alerts`` are those that stand after it."""
        with self._lock:
            self._told[drive] = alerts
        self._drive(drive, "cleaned", barcode, alerts, "")

    def _drive(
        self,
        drive: int,
        state: Literal["ready", "wants cleaning", "cleaned", "set aside"],
        barcode: str,
        alerts: tuple[str, ...],
        note: str,
    ) -> None:
        record = DriveRecord(
            destination=self.destination,
            drive=drive,
            state=state,
            alerts=alerts,
            barcode=barcode,
            at=self._clock.now(),
            note=note[:500],
        )
        with self._use_mark(f"the state of drive {drive}"):
            self.register.record_drive(record)

    def failed(self, barcode: str, error: Exception, *, spoiled: bool) -> None:
        """Reading or writing a cartridge failed. ``spoiled``: it is not written to any more."""
        with self._use_mark(f"a failure of {barcode}"):
            self._failed(barcode, error, spoiled)

    def _failed(self, barcode: str, error: Exception, spoiled: bool) -> None:
        record = self.record_of(barcode)
        if record is None:
            return
        changes: dict[str, object] = {"errors": record.errors + 1}
        if spoiled:
            # Still marked as being written: its end is looked at before it rests.
            said = f"cannot be written to: {error}"[:400]
            changes |= {"state": "full", "note": f"{WRITING}; {said}" if is_being_written(record) else said}
        self.change(record, **changes)

    def acquit(self, barcode: str, note: str) -> None:
        """A cartridge that was given up as full is in order after all."""
        record = self.record_of(barcode)
        if record is not None and record.state == "full":
            note = f"{WRITING}; {note}" if is_being_written(record) else note
            self.change(record, state="appendable" if record.tape_files else "blank", note=note)
