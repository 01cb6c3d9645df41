"""Images, a register and readers for tests of tape libraries of any kind."""

from __future__ import annotations

from collections.abc import Callable, Collection

from nightferry.destination.base import Receipt
from nightferry.destination.tape.library.destination import TapeDestination
from nightferry.model.records import CartridgeRecord, DriveRecord
from nightferry.progress import Quiet


def named(store: str) -> str:
    """The name of a store's image in one and the same run: records take nothing that is not an image's name."""
    return f"20261130-TEX-BACK-1.SG1.{store}.L0"


class Said(Quiet):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str, subject: str = "") -> None:
        self.lines.append(text)


class MemoryRegister:
    """The catalog's cartridges, in memory, shared by the destinations of one test."""

    def __init__(self) -> None:
        self.kept: dict[str, CartridgeRecord] = {}
        self.live: dict[str, list[str]] = {}
        self.drives: list[DriveRecord] = []
        self.on_record: Callable[[CartridgeRecord], None] = lambda record: None

    def cartridge(self, barcode: str) -> CartridgeRecord | None:
        return self.kept.get(barcode)

    def cartridges(self) -> list[CartridgeRecord]:
        return list(self.kept.values())

    def record(self, cartridge: CartridgeRecord, phase: str = "result") -> None:
        self.on_record(cartridge)
        self.kept[cartridge.barcode] = cartridge

    def record_after(self, known: CartridgeRecord, cartridge: CartridgeRecord) -> bool:
        if self.cartridge(cartridge.barcode) != known:
            return False
        self.record(cartridge)
        return True

    def record_drive(self, drive: DriveRecord) -> None:
        self.drives.append(drive)

    def live_images(self, barcode: str, given_up: Collection[str] = ()) -> list[str]:
        return [image for image in self.live.get(barcode, []) if image not in given_up]


def read_all(tape: TapeDestination, receipt: Receipt) -> bytes:
    with tape.open(receipt.location) as reader:
        return reader.read(0, reader.size_bytes)


def barcodes(receipt: Receipt) -> list[str]:
    return [part["barcode"] for part in receipt.location["parts"]]
