"""What cartridges were found to hold of an image: each is looked at at most once a run, and the answer remembered."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import xxhash
from blake3 import blake3
from pydantic import ValidationError

from nightferry.destination.tape.drives.base import LONGEST_RECORD, Mark
from nightferry.destination.tape.format.cartridge import Cartridge
from nightferry.destination.tape.format.layout import CHUNK_DIGEST_BYTES, Location, Part, Trailer
from nightferry.destination.tape.library.bays import Bays
from nightferry.destination.tape.library.reader import mounted
from nightferry.destination.tape.library.watch import Watch
from nightferry.errors import MediumDamaged, WrongCartridge
from nightferry.model.records import CartridgeRecord
from nightferry.progress import Cancel

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Met:
    """A whole trailer of an image as it was read. ``edges``: of a part that goes on elsewhere, the digests of its first
    and its last record as these were read; empty when they could not be."""

    trailer: Trailer
    edges: bytes = b""


@dataclass(frozen=True, slots=True)
class FoundParts:
    """What the cartridges of an image hold of it. ``complete``: every one that may was read to its beginning."""

    met: tuple[Met, ...]
    complete: bool

    def final(self, epoch: int) -> Trailer | None:
        """The trailer that makes the copy of an epoch whole."""
        return next((m.trailer for m in self.met if m.trailer.final and m.trailer.epoch == epoch), None)


class History:
    """See above.

    Args:
        bays: The drives.
        watch: The catalog's records of the cartridges.
        cancel: Ends waits.
    """

    def __init__(self, bays: Bays, watch: Watch, cancel: Cancel) -> None:
        self._bays = bays
        self._watch = watch
        self._cancel = cancel
        self._read: dict[tuple[str, str], tuple[Met, ...] | None] = {}
        """Barcode and label → what was met there; None: it could not be read."""

    def of(self, image: str) -> FoundParts:
        """What the cartridges that the catalog names for an image hold of it, newest first on each.

        A retired cartridge is never looked at: what is on it was given up. One that is not in the library is not waited
        for.

        Raises:
            BusyError: another process has a cartridge, or all drives, for longer than the patience.
            DestinationError: a drive or the changer failed.
        """
        met: list[Met] = []
        complete = True
        here = {e.barcode for e in self._bays.inventory() if e.address.kind != "port"}
        for barcode, record in self._watch.records().items():
            if image not in record.images or not record.last_trailer or record.state == "retired":
                continue
            found = self._look(barcode, record) if barcode in here else None
            complete &= found is not None
            met += [each for each in found or () if each.trailer.image == image]
        return FoundParts(tuple(met), complete)

    def _look(self, barcode: str, record: CartridgeRecord) -> tuple[Met, ...] | None:
        key = barcode, record.label
        if key not in self._read:
            with self._bays.reading(barcode, self._cancel) as bay:
                try:
                    cartridge = mounted(self._bays, bay, barcode, record.label, self._cancel)
                    heads = [trailer for trailer, _ in cartridge.newest_first(record.last_trailer)]
                    self._read[key] = tuple(
                        Met(t, b"" if t.final else _edges(cartridge, t.this)) for t in heads
                    )
                except (MediumDamaged, WrongCartridge) as error:
                    # A copy that cannot be found on its cartridge is none; the next attempt is another's.
                    _log.warning("the content of %s is unknown: %s", barcode, error)
                    self._read[key] = None
                    bay.forget()
        return self._read[key]


def _edges(cartridge: Cartridge, part: Part) -> bytes:
    found = []
    for record in sorted({0, part.records - 1}) if part.records else ():
        try:
            cartridge.seek(part.file, record)
            data = cartridge.drive.read_record(LONGEST_RECORD)
        except MediumDamaged as error:
            _log.warning("record %d of tape file %d on %s: %s", record, part.file, part.barcode, error)
            return b""
        if isinstance(data, Mark):
            return b""
        found.append(xxhash.xxh3_64(data).digest())
    return b"".join(found)


def chain(met: Iterable[Met], fits: Callable[[Met], bool]) -> tuple[Part, ...]:
    """The longest row of parts that an image can go on behind: from its first on, each named by the next one's trailer.

    Args:
        met: What was read.
        fits: Whether a part is one of this copy, and good.
    """
    parts = {m.trailer.this: m.trailer for m in met if not m.trailer.final and fits(m)}
    for tail in sorted(parts.values(), key=lambda trailer: -trailer.part):
        row: list[Part] = []
        at: Trailer | None = tail
        while at is not None and at.part == tail.part - len(row):
            row.insert(0, at.this)
            at = parts.get(at.previous) if at.previous is not None else None
        if len(row) == tail.part and parts[row[0]].previous is None and _joins(row):
            return tuple(row)
    return ()


def _joins(row: list[Part]) -> bool:
    try:
        Location(parts=tuple(row))
    except ValidationError:
        return False
    return True


def is_part_of(met: Met, epoch: int, digest: str, chunks: memoryview) -> bool:
    """Whether a part is of this very image, and what was read of it is as the image's chunk table says."""
    trailer, part = met.trailer, met.trailer.this
    table = chunks[part.first_record * CHUNK_DIGEST_BYTES :][: part.records * CHUNK_DIGEST_BYTES]
    edges = bytes(table[:CHUNK_DIGEST_BYTES])
    if part.records > 1:
        edges += bytes(table[-CHUNK_DIGEST_BYTES:])
    return (
        trailer.kind == "image"
        and (trailer.epoch, trailer.digest) == (epoch, digest)
        and len(table) == part.records * CHUNK_DIGEST_BYTES
        and trailer.members.get("records") == (len(table), blake3(table).hexdigest())
        and met.edges == edges
    )
