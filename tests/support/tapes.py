"""Images, a register and readers for tests of tape libraries of any kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import xxhash

from nightferry.destination.base import Encoding, Receipt
from nightferry.destination.tape.library import TapeDestination
from nightferry.model.records import CartridgeRecord, DriveRecord
from nightferry.progress import QUIET, Cancel, Quiet

MIB = 1 << 20


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

    def live_images(self, barcode: str) -> list[str]:
        return self.live.get(barcode, [])


@dataclass
class PlainImage:
    """An image of bytes without meaning, with the side files that a tape wants."""

    image: str
    data: bytes
    index: bytes = b"index"
    digest: str = "d1"
    encoding: Encoding = ""
    on_chunk: Callable[[int], None] = lambda number: None
    side_files: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        pieces = [self.data[at : at + MIB] for at in range(0, len(self.data), MIB)]
        chunks = b"".join(xxhash.xxh3_64(piece).digest() for piece in pieces)
        self.side_files = {"index": self.index, "chunks": chunks, "meta.json": b"{}"}

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def chunks(self, first_chunk: int = 0) -> Iterator[memoryview]:
        for number, at in enumerate(range(first_chunk * MIB, len(self.data), MIB), first_chunk):
            self.on_chunk(number)
            yield memoryview(self.data)[at : at + MIB]


def put(tape: TapeDestination, image: PlainImage, epoch: int = 1, progress: Quiet = QUIET) -> Receipt:
    with tape.lane(progress=progress, cancel=Cancel()) as lane:
        return lane.put(image, epoch, progress=progress, cancel=Cancel())


def read_all(tape: TapeDestination, receipt: Receipt) -> bytes:
    with tape.open(receipt.location) as reader:
        return reader.read(0, reader.size_bytes)


def barcodes(receipt: Receipt) -> list[str]:
    return [part["barcode"] for part in receipt.location["parts"]]
