"""Cleaning: a drive that asks for it is drained at an image boundary, cleaned, and used again."""

from __future__ import annotations

import threading

from nightferry.destination.tape.drives.alerts import CLEANING_FAILED, wants_cleaning
from nightferry.destination.tape.library.bay import Bay
from nightferry.destination.tape.library.bays import Bays
from nightferry.destination.tape.library.pool import Pool
from nightferry.destination.tape.library.watch import Watch
from nightferry.model.records import CartridgeRecord
from nightferry.progress import Cancel, Progress


class Care:
    """The cleaning cartridges of a library."""

    def __init__(self, bays: Bays, pool: Pool, watch: Watch) -> None:
        self._bays = bays
        self._pool = pool
        self._watch = watch
        self._one_at_a_time = threading.Lock()
        self._done: set[int] = set()
        """Drives that were cleaned, or could not be: once a process, else one whose flag stays would wear out the
        cleaning cartridges."""

    def look_after(self, bay: Bay, progress: Progress, cancel: Cancel) -> None:
        """Between two images: hears what a leased drive says, and cleans it when it asks for that.

        Without a usable cleaning cartridge the drive goes on, which is said.

        Raises:
            DestinationError: drive or changer failed.
        """
        alerts = bay.drive.alerts()
        if not wants_cleaning(alerts):
            self._watch.heard(bay.drive.number, bay.cartridge.barcode if bay.cartridge else "", alerts)
            return
        if bay.drive.number in self._done:
            return
        with self._one_at_a_time:
            cleaned = any(self._clean(bay, barcode, progress, cancel) for barcode in self._cleaners())
        self._done.add(bay.drive.number)
        if not cleaned:
            self._watch.heard(bay.drive.number, "", alerts)
            progress.say(
                f"{bay.name} requests cleaning, and the library has no usable cleaning cartridge "
                f"({', '.join(self._pool.cleaning)}): it continues without cleaning",
                self._watch.destination,
            )

    def _cleaners(self) -> list[str]:
        used_up = {b for b, record in self._watch.records().items() if record.state == "retired"}
        slots = (e.barcode for e in self._bays.inventory() if e.address.kind == "slot")
        return [barcode for barcode in slots if self._pool.cleans(barcode) and barcode not in used_up]

    def _clean(self, bay: Bay, barcode: str, progress: Progress, cancel: Cancel) -> bool:
        """Puts a cleaning cartridge through the drive; False when it is used up, which is recorded, or somebody
        else has it."""
        progress.say(
            f"{bay.name} requests cleaning: loading cleaning cartridge {barcode}", self._watch.destination
        )
        if not self._bays.bring(bay, barcode, cancel):
            return False
        alerts = bay.drive.alerts()
        self._watch.cleaned(bay.drive.number, barcode, alerts)
        known = self._watch.record_of(barcode) or self._watch.change(
            CartridgeRecord(
                barcode=barcode,
                destination=self._watch.destination,
                pool="",
                state="cleaning",
                at=self._watch.now(),
            )
        )
        self._bays.put_away(bay)
        if CLEANING_FAILED.isdisjoint(alerts):
            return True
        self._watch.change(self._watch.record_of(barcode) or known, state="retired", note="used up")
        progress.say(f"cleaning cartridge {barcode} is used up: take it out", self._watch.destination)
        return False
