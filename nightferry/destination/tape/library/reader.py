"""Reading a copy from tape by range: the cartridge, the tape file, the record."""

from __future__ import annotations

from collections.abc import Iterator

from nightferry.destination.tape.drives.base import LONGEST_RECORD, RECORD_BYTES, Mark
from nightferry.destination.tape.format.cartridge import Cartridge
from nightferry.destination.tape.format.layout import Location, Part
from nightferry.destination.tape.library.bay import Bay
from nightferry.destination.tape.library.bays import Bays
from nightferry.destination.tape.library.failover import Tries
from nightferry.errors import IntegrityError, MediumDamaged, WrongCartridge
from nightferry.progress import Cancel


def mounted(bays: Bays, bay: Bay, barcode: str, label: str, cancel: Cancel) -> Cartridge:
    """The cartridge with this barcode and label, in a leased bay.

    Raises:
        WrongCartridge: its label is another.
        Unavailable: it is not in the library.
    """
    if bay.cartridge is None or bay.cartridge.barcode != barcode:
        bays.fetch(bay, barcode, cancel)
        bay.cartridge = Cartridge(bay.drive, barcode)
    found = bay.cartridge.label
    if found is None or found.label != label:
        bay.cartridge = None
        has = f"the label {found.label}" if found is not None else "no label"
        raise WrongCartridge(
            f"wrong cartridge in {bay.name}: {barcode} has {has}, the catalog expects {label}",
            subject=barcode,
        )
    return bay.cartridge


class TapeReader:
    """See ``ByteReader``. Parts of a spanned copy are mounted in turn, in the one bay.

    Record *n* of the image is its chunk *n*; the newest record is kept, so that small reads in order cost
    one record. What one drive cannot read is read on in another, from the record where it failed.

    Args:
        tries: Reads the first part's cartridge.
        bays: The drives.
        location: Where the copy lies.
        cancel: Seen at every record.

    Raises:
        DestinationError: the first part's cartridge cannot be read.
    """

    def __init__(self, tries: Tries, bays: Bays, location: Location, cancel: Cancel) -> None:
        self._tries = tries
        self._bays = bays
        self._location = location
        self._cancel = cancel
        self._kept = (-1, b"")
        first = location.parts[0]
        tries.read(first.barcode, lambda bay: self._mounted(bay, first).seek(first.file))

    @property
    def size_bytes(self) -> int:
        return self._location.size_bytes

    def read(self, offset: int, length: int) -> bytes:
        return b"".join(self.stream(offset, length))

    def stream(self, offset: int, length: int) -> Iterator[memoryview]:
        if offset < 0 or length < 0 or offset + length > self.size_bytes:
            raise IntegrityError(
                f"bytes {offset} to {offset + length} lie beyond the copy's {self.size_bytes} bytes"
            )
        while length:
            number, skip = divmod(offset, RECORD_BYTES)
            piece = memoryview(self._record(number))[skip : skip + length]
            yield piece
            offset += len(piece)
            length -= len(piece)

    def _record(self, number: int) -> bytes:
        if self._kept[0] == number:
            return self._kept[1]
        part = next(p for p in self._location.parts if p.first_record <= number < p.first_record + p.records)
        self._cancel.check()
        data = self._tries.read(part.barcode, lambda bay: self._read(bay, part, number - part.first_record))
        self._kept = (number, data)
        return data

    def _mounted(self, bay: Bay, part: Part) -> Cartridge:
        return mounted(self._bays, bay, part.barcode, part.label, self._cancel)

    def _read(self, bay: Bay, part: Part, record: int) -> bytes:
        cartridge = self._mounted(bay, part)
        cartridge.seek(part.file, record)
        data = cartridge.drive.read_record(LONGEST_RECORD)
        expected = min(RECORD_BYTES, part.bytes - record * RECORD_BYTES)
        if isinstance(data, Mark) or len(data) != expected:
            found = f"a {data.value}" if isinstance(data, Mark) else f"{len(data)} bytes"
            raise MediumDamaged(
                f"record {record} of tape file {part.file} on {part.barcode}: {found}, not {expected} bytes",
                subject=part.barcode,
            )
        return data
