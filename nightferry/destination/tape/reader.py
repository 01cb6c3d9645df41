"""Reading a copy from tape by range: the cartridge, the tape file, the record."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nightferry.destination.tape.bay import Bay
from nightferry.destination.tape.bays import Bays
from nightferry.destination.tape.cartridge import Cartridge
from nightferry.destination.tape.drive import LONGEST_RECORD, RECORD_BYTES, Mark
from nightferry.destination.tape.layout import Location, Part
from nightferry.destination.tape.watch import Watch
from nightferry.errors import DestinationError, IntegrityError, MediumDamaged, PositionLost, WrongCartridge
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
    one record. A drive that fails is set aside, and the record is read in another.

    Args:
        bay: A leased bay with the first part's cartridge.
        drive: Gives that bay back and leases another for a cartridge.
        watch: Is told of cartridges that cannot be read.
    """

    def __init__(
        self,
        bays: Bays,
        bay: Bay,
        location: Location,
        cancel: Cancel,
        drive: Callable[[str], Bay],
        watch: Watch,
    ) -> None:
        self._bays = bays
        self._bay = bay
        self._location = location
        self._cancel = cancel
        self._drive = drive
        self._watch = watch
        self._kept = (-1, b"")

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
        while True:
            try:
                data = self._read(part, number - part.first_record)
            except DestinationError as error:
                if not self._bay.drive.raised(error) or isinstance(error, MediumDamaged):
                    self._watch.failed(part.barcode, error, spoiled=False)
                    self._forget(error)
                    raise
                self._bays.set_aside(self._bay, error)
                self._watch.say(f"{self._bay.name} failed and is set aside: {error}")
                self._bay = self._drive(part.barcode)
            except BaseException as error:
                self._forget(error)
                raise
            else:
                self._kept = (number, data)
                return data

    def _forget(self, error: BaseException) -> None:
        """Where the tape stands after an error is not to be relied on."""
        try:
            self._bay.forget()
        except DestinationError as second:
            error.add_note(f"{self._bay.name} could not be unloaded after it: {second}")

    def _read(self, part: Part, record: int) -> bytes:
        """Raises:
        PositionLost: it was lost twice; the first time the cartridge is loaded anew and its label read.
        """
        try:
            return self._read_once(part, record)
        except PositionLost:
            self._bay.forget()
            return self._read_once(part, record)

    def _read_once(self, part: Part, record: int) -> bytes:
        cartridge = mounted(self._bays, self._bay, part.barcode, part.label, self._cancel)
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
