"""Which cartridges are for one use, and which of them comes next."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from nightferry.destination.tape.library.changer import UNREADABLE
from nightferry.model.records import CartridgeRecord

WRITING = "being written"
"""How the note of a cartridge begins between its first append and its orderly leaving of the drive."""


def is_being_written(record: CartridgeRecord) -> bool:
    """Whether a process appends to it, or was stopped while it did."""
    return record.note.startswith(WRITING)


def settled(note: str) -> str:
    """The note of a cartridge that is not being written any more."""
    return note.removeprefix(WRITING).removeprefix("; ")


@dataclass(frozen=True, slots=True)
class Pool:
    """Cartridges for one use.

    ``barcodes`` are shell patterns; ``autolabel`` ``blank``: truly blank cartridges that match are labelled
    when needed, ``never``: only those that `media label` labelled are written. ``wait_for_media_s``: how
    long a full pool, or a cartridge that is elsewhere, is waited for. ``cleaning``: patterns of cleaning
    cartridges, which are never written.
    """

    name: str
    barcodes: tuple[str, ...] = ("*",)
    autolabel: Literal["blank", "never"] = "blank"
    wait_for_media_s: float = 8 * 3600.0
    cleaning: tuple[str, ...] = ("CLN*",)

    def holds(self, barcode: str) -> bool:
        known = barcode != UNREADABLE and not self.cleans(barcode)
        return known and _matches(barcode, self.barcodes)

    def cleans(self, barcode: str) -> bool:
        """Whether it is a cleaning cartridge."""
        return _matches(barcode, self.cleaning)

    def in_order(self, barcodes: Iterable[str], records: Mapping[str, CartridgeRecord]) -> list[str]:
        """The cartridges that may be written, best first: the fullest appendable one, then blank, then
        expired ones."""
        ranked = []
        for barcode in barcodes:
            record = records.get(barcode)
            if not self.holds(barcode) or (record is not None and record.pool not in ("", self.name)):
                continue
            if record is None or record.state in ("blank", "unknown"):
                if self.autolabel == "blank":
                    ranked.append((1, 0, barcode))
            elif record.state == "appendable":
                ranked.append((0, -record.used_bytes, barcode))
            elif record.state == "expired":
                ranked.append((2, 0, barcode))
        return [barcode for _, _, barcode in sorted(ranked)]


def _matches(barcode: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(barcode, pattern) for pattern in patterns)
