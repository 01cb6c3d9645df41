"""A cartridge in a drive: its label, its trailers, and whether its end is where the catalog says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nightferry.destination.tape.drives.base import (
    LONGEST_RECORD,
    RECORD_BYTES,
    EndOfMedium,
    Mark,
    Position,
    TapeDrive,
    again,
)
from nightferry.destination.tape.format.label import Label, NotALabel, parse
from nightferry.destination.tape.format.layout import Trailer, begins_a_trailer, read_trailer, records_of
from nightferry.errors import DestinationError, MediumDamaged, WrongCartridge
from nightferry.model.records import CartridgeRecord

_ALL = (1 << 31) - 1
"""More records than a tape file holds, in a count that a drive still takes."""


def not_ours(barcode: str) -> str:
    """What to do with a cartridge that holds something else than it should."""
    return (
        f"nothing was written; `nightferry media show {barcode}` lists what is on it; if nobody needs that, "
        f"`nightferry media erase --yes {barcode}` makes it scratch"
    )


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found behind the tape files that the catalog counts.

    ``tape_files`` on the medium now, all closed; ``adopted`` trailers the catalog did not know yet;
    ``dead`` tape files that no trailer names, of about ``dead_bytes``; ``full``: early warning was met.
    """

    tape_files: int
    adopted: tuple[Trailer, ...]
    dead: tuple[int, ...]
    dead_bytes: int
    full: bool


class Cartridge:
    """A loaded cartridge whose label was read. ``label`` is None while it is truly blank.

    Args:
        drive: The drive that has it.
        barcode: What the changer read on it.
        unread: Its label is not looked at: whatever is on it is to be written over.

    Raises:
        WrongCartridge: it holds something that is not a label of ours, or the label of another barcode.
    """

    def __init__(self, drive: TapeDrive, barcode: str, *, unread: bool = False) -> None:
        self.drive = drive
        self.barcode = barcode
        self.label = None if unread else again(self._read_label)
        self.record: CartridgeRecord | None = None
        """Set once the cartridge was proved fit to be appended to; the catalog's newest record of it."""

    @property
    def entry(self) -> CartridgeRecord:
        """The catalog's record of a cartridge that was proved fit.

        Raises:
            DestinationError: it was not.
        """
        if self.record is None:
            raise DestinationError(f"{self.barcode} has not been checked for writing", subject=self.barcode)
        return self.record

    def is_proved(self, barcode: str) -> bool:
        """Whether it is this cartridge, and was proved fit."""
        return self.barcode == barcode and self.record is not None

    @property
    def is_appendable(self) -> bool:
        return self.record is not None and self.record.state == "appendable"

    def _read_label(self) -> Label | None:
        self.drive.rewind()
        first = self.drive.read_record(LONGEST_RECORD)
        where = f"drive {self.drive.number}"
        if first is Mark.END_OF_DATA:
            return None
        if isinstance(first, Mark):
            raise WrongCartridge(
                f"{self.barcode} in {where} is not blank and has no label",
                subject=self.barcode,
                hint=not_ours(self.barcode),
            )
        try:
            label = parse(first)
        except NotALabel as error:
            raise WrongCartridge(
                f"{self.barcode} in {where} is not blank and not ours: its first record {error}",
                subject=self.barcode,
                hint=not_ours(self.barcode),
            ) from None
        if label.barcode != self.barcode:
            raise WrongCartridge(
                f"wrong cartridge in {where}: expected {self.barcode}, found {label.barcode}",
                subject=self.barcode,
                hint=not_ours(self.barcode),
            )
        return label

    def write_label(self, label: Label, pages: Iterable[bytes] = ()) -> None:
        """Writes a label and pages of text behind it at the beginning; whatever was on the cartridge is gone.
        Durable on return."""
        self.drive.rewind()
        self.drive.write_record(label.render())
        for page in pages:
            for record in records_of(page):
                self.drive.write_record(record)
        self.drive.write_filemarks(1)
        self.label = label

    def seek(self, file: int, record: int = 0) -> None:
        """Positions on a record of a tape file.

        Raises:
            MediumDamaged: the tape ends before it.
        """
        self.drive.locate(Position(file, record))

    def trailer(self, file: int) -> tuple[Trailer, dict[str, bytes]]:
        """The whole trailer in a tape file, with its members.

        Raises:
            MediumDamaged: there is none, or it is not this cartridge's.
        """
        self.seek(file)
        first = self.drive.read_record(LONGEST_RECORD)
        if isinstance(first, Mark) or not begins_a_trailer(first):
            raise MediumDamaged(f"tape file {file} of {self.barcode} is not a trailer", subject=self.barcode)
        return self._finish_trailer(first, file)

    def _finish_trailer(
        self, first: bytes, file: int, *, closed: bool = True
    ) -> tuple[Trailer, dict[str, bytes]]:
        where = f"tape file {file} of {self.barcode}"
        trailer, members = read_trailer(
            first, lambda: self.drive.read_record(LONGEST_RECORD), where, closed=closed
        )
        this = trailer.this
        if self.label is None or (this.label, this.trailer) != (self.label.label, file):
            raise MediumDamaged(f"the trailer in {where} belongs elsewhere", subject=self.barcode)
        return trailer, members

    def newest_first(self, last: int) -> Iterator[tuple[Trailer, dict[str, bytes]]]:
        """Trailers from tape file ``last`` back to the first, by each one's reference to the one before.

        Raises:
            MediumDamaged: one of them leads forward.
        """
        file: int | None = last or None
        while file is not None:
            trailer, members = self.trailer(file)
            yield trailer, members
            if trailer.previous_trailer is not None and trailer.previous_trailer >= file:
                raise MediumDamaged(
                    f"the trailers of {self.barcode} do not form a chain", subject=self.barcode
                )
            file = trailer.previous_trailer

    def walk(
        self, file: int = 1, *, closed: bool = True
    ) -> Iterator[tuple[int, Trailer | None, dict[str, bytes], int]]:
        """Every tape file from ``file`` on: number, the whole trailer it is or None, its members, records
        passed.

        Ends behind the last record of the tape; a tape file that no filemark closes is the last one given. A trailer
        that lacks only its filemark counts as whole unless it must be ``closed``.
        """
        self.seek(file)
        while (first := self.drive.read_record(LONGEST_RECORD)) is not Mark.END_OF_DATA:
            if isinstance(first, Mark):
                yield file, None, {}, 0
                file += 1
                continue
            if begins_a_trailer(first):
                try:
                    found, members = self._finish_trailer(first, file, closed=closed)
                except MediumDamaged:
                    # What a cut-off writer left behind: it is dead space, passed over like any other.
                    self.seek(file)
                    first = b""
                else:
                    yield file, found, members, 0
                    file += 1
                    continue
            records = bool(first) + self.drive.space_records(_ALL)
            ended = self.drive.space_filemarks(1) == 1
            yield file, None, {}, records
            if not ended:
                return
            file += 1

    def audit(self, record: CartridgeRecord) -> Audit:
        """Proves that the cartridge can be appended to, and finds what the catalog does not know of.

        The tape stands at its end afterwards; an open tape file there was closed by a filemark. A trailer that lacked
        only that is whole then, so it is adopted: else the filemark would make a second copy of what is written again.
        At the end of the medium no filemark fits any more: the cartridge is full, and counts as far as it is closed.

        Raises:
            MediumDamaged: fewer tape files than the catalog says, or its last trailer cannot be read.
        """
        if record.last_trailer:
            self.trailer(record.last_trailer)
        start = max(record.tape_files, 1)
        strange: dict[int, int] = {}
        adopted: list[Trailer] = []
        end = start
        for file, trailer, _, records in self.walk(start, closed=False):
            end = file + 1
            if trailer is None:
                strange[file] = records
            else:
                adopted.append(trailer)
                strange.pop(trailer.this.file, None)
        closed = self.drive.position().file
        try:
            full = self.drive.write_filemarks(end - closed)
        except EndOfMedium:
            # What no filemark closes is not whole, a trailer neither; what is before it is.
            whole = tuple(trailer for trailer in adopted if trailer.this.trailer < closed)
            dead = tuple(file for file in strange if file < closed)
            dead += tuple(t.this.file for t in adopted if t not in whole and t.this.file >= start)
            return Audit(closed, whole, dead, sum(strange.values()) * RECORD_BYTES, full=True)
        return Audit(end, tuple(adopted), tuple(strange), sum(strange.values()) * RECORD_BYTES, full)
