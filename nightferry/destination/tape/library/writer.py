"""Writing an image to tape: records, trailer, spanning (docs/tape-layout.md)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from nightferry.clock import Clock
from nightferry.destination.base import Encoding, Measure, Outgoing, Span
from nightferry.destination.copies import plain_spans
from nightferry.destination.tape.drives.base import RECORD_BYTES, EndOfMedium
from nightferry.destination.tape.format.cartridge import Cartridge
from nightferry.destination.tape.format.layout import (
    CHUNK_DIGEST_BYTES,
    HEAD_BYTES,
    Location,
    Part,
    Trailer,
    now_to_the_second,
    records_of,
    render_trailer,
)
from nightferry.destination.tape.format.readback import Appending, digests_of
from nightferry.destination.tape.library.bay import Bay
from nightferry.destination.tape.library.feed import BUFFER_BYTES, Waits, fed
from nightferry.destination.tape.library.shortage import Need
from nightferry.destination.tape.library.stock import Stock
from nightferry.errors import ConfigError, IntegrityError, MediumFull, NoScratch
from nightferry.model.records import StreamStatistics
from nightferry.progress import Cancel, Progress

_MEMBERS = ("meta.json", "chunks", "index", "site.json", "records.json", "site.toml", "recovery.md")


_TRAILER_HEAD_BYTES = 16 << 10
"""What a final trailer takes besides the side files: its record, the heads of its members, the padding of the tar."""


def need_of(
    outgoing: Outgoing, written: int, progress: Progress, cancel: Cancel, wait_s: float, besides: str = ""
) -> Need:
    """What the rest of an image needs behind so many records, and its final trailer."""
    left = max(outgoing.size_bytes - written * RECORD_BYTES, 1)
    trailer = _TRAILER_HEAD_BYTES + sum(map(len, outgoing.side_files.values()))
    return Need(outgoing.image, left, progress, cancel, wait_s, besides, trailer)


@dataclass(slots=True)
class TapeImageWriter:
    """One image on its way to tape through one leased bay.

    ``write`` leaves the image whole, or leaves parts that are closed by a trailer, on other cartridges, and dead space
    that the next look at the cartridge finds: after any exception the bay's cartridge must be looked at again.

    ``behind`` are parts of the same epoch that are proven: it goes on behind the last of them. ``wanted`` is a
    cartridge that was reserved.
    """

    stock: Stock
    bay: Bay
    clock: Clock
    outgoing: Outgoing
    epoch: int
    kind: Literal["image", "catalog"]
    progress: Progress
    cancel: Cancel
    wait_s: float
    buffer_bytes: int = BUFFER_BYTES
    behind: tuple[Part, ...] = ()
    wanted: str = ""
    committing: bool = False
    """The final trailer has been begun: whether the image is whole can only be told by looking."""
    _parts: list[Part] = field(default_factory=list)
    _written: int = 0
    _chunks: bytes = b""
    _waits: Waits = field(default_factory=Waits)
    _seconds: float = 0.0

    def __post_init__(self) -> None:
        self._parts = list(self.behind)
        self._written = sum(part.records for part in self.behind)

    @property
    def _total(self) -> int:
        return -(-self.outgoing.size_bytes // RECORD_BYTES)

    def _need(self, besides: str = "") -> Need:
        return need_of(self.outgoing, self._written, self.progress, self.cancel, self.wait_s, besides)

    def write(self) -> Location:
        """Writes the image; on return it is whole on the medium and the catalog knows its cartridges.

        Raises:
            ConfigError: the image is encoded.
            IntegrityError: the chunk table does not fit the image, or the outgoing bytes are damaged.
            NoScratch: the pool stayed full.
            MediumFull: the image's index does not fit on a cartridge.
            DestinationError: drive or changer failed.
            Cancelled: stopped between two records.
        """
        if self.outgoing.encoding:
            # A record is a chunk of the image, proved by the chunk table when it is read.
            raise ConfigError(
                f"{self.outgoing.image} is encoded, but images on tape are plain", subject=self.outgoing.image
            )
        self._chunks = self.outgoing.side_files["chunks"]
        if len(self._chunks) != self._total * CHUNK_DIGEST_BYTES:
            raise IntegrityError(
                f"{self.outgoing.image}: a chunk table of {len(self._chunks)} bytes for {self._total} chunks",
                subject=self.outgoing.image,
            )
        wanted = self.wanted
        while True:
            before = self._written
            left = self._total - before
            with fed(
                self.outgoing.chunks(before), left, self.buffer_bytes, self._waits, self.cancel
            ) as source:
                while True:
                    cartridge = self.stock.writable(self.bay, self._need(), wanted)
                    self.stock.begin_writing(cartridge)
                    before = self._written
                    try:
                        wanted = self._part(cartridge, source)
                    except EndOfMedium as error:
                        # Without early warning no trailer fits: what it holds of the image is dead space.
                        note = f"reached the end without early warning: {error}"
                        self.stock.keep(cartridge, cartridge.entry, state="full", note=note)
                        self.bay.forget()
                        self._written, wanted, self.committing = before, "", False
                        break
                    if not wanted:
                        return Location(parts=tuple(self._parts))

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that are closed by a trailer so far."""
        return tuple(self._parts)

    @property
    def streamed(self) -> StreamStatistics:
        """How it went through the drive, once it is written."""
        waits = self._waits
        return StreamStatistics(
            size_bytes=self.outgoing.size_bytes - sum(part.bytes for part in self.behind),
            seconds=round(self._seconds, 6),
            waits=waits.waits,
            waited_s=round(waits.waited_s, 6),
            repositions=waits.repositions,
        )

    def _part(self, cartridge: Cartridge, source: Iterator[memoryview]) -> str:
        """Writes what fits on a cartridge and its trailer; returns the barcode to go on with, empty when
        whole."""
        drive = cartridge.drive
        first, file = self._written, cartridge.entry.tape_files
        most = (drive.reserve_bytes - HEAD_BYTES) // CHUNK_DIGEST_BYTES
        image = self._appending(cartridge, file, memoryview(self._chunks)[first * CHUNK_DIGEST_BYTES :])
        full, size = False, 0
        began = 0.0
        while not full and self._written < self._total:
            chunk = next(source, None)
            began = began or time.monotonic()  # only now the ring is filled and the drive starts
            self.cancel.check()
            if chunk is None or len(chunk) != self._chunk_bytes(self._written):
                raise IntegrityError(
                    f"chunk {self._written} of {self.outgoing.image} is not as long as it must be"
                )
            full = image.write(chunk) or image.records >= most
            self._written += 1
            size += len(chunk)
            self.progress.advance(
                self.outgoing.image, min(self._written * RECORD_BYTES, self.outgoing.size_bytes)
            )
        full |= image.end(immediate=True)
        file += 1  # the trailer's
        self._seconds += time.monotonic() - began if began else 0.0
        label = cartridge.label.label if cartridge.label else ""

        def part(trailer_file: int) -> Part:
            return Part(
                barcode=cartridge.barcode,
                label=label,
                file=image.file,
                first_record=first,
                records=self._written - first,
                bytes=size,
                trailer=trailer_file,
            )

        if self._written == self._total:
            this = part(file)
            final = self._trailer(cartridge, this, Location(parts=(*self._parts, this)), "")
            if not full or len(final) <= drive.reserve_bytes:
                self.committing = True
                since = time.monotonic()
                met = self._write_trailer(cartridge, file, final, full)
                self._seconds += time.monotonic() - since
                if met != "given up":
                    self._done(cartridge, this, size + len(final), full=full or met == "full")
                    return ""
                self.committing = False
                file += 1
            if first == self._written and cartridge.entry.tape_files == 1:
                raise MediumFull(
                    f"the index of {self.outgoing.image} ({len(final)} bytes) does not fit on any cartridge",
                    subject=self.outgoing.image,
                    hint="use larger cartridges, or split the store",
                )
        none_left, following = None, ""
        try:
            following = self.stock.claim(self.bay, self._need(cartridge.barcode))
        except NoScratch as error:
            none_left = error
        this = part(file)
        short = self._trailer(cartridge, this, None, following)
        self._write_trailer(cartridge, file, short, True)
        self._done(cartridge, this, size + len(short), full=True)
        if none_left is not None:
            # The part is closed all the same: nobody has to look over it to find where the tape ends.
            self.stock.settle(cartridge)
            raise none_left
        return following

    def _appending(self, cartridge: Cartridge, file: int, digests: memoryview, what: str = "") -> Appending:
        def say(text: str) -> None:
            self.progress.say(text, self.outgoing.image)

        return Appending(cartridge, file, digests, what, say, self.cancel)

    def _chunk_bytes(self, number: int) -> int:
        return min(RECORD_BYTES, self.outgoing.size_bytes - number * RECORD_BYTES)

    def _trailer(self, cartridge: Cartridge, this: Part, location: Location | None, following: str) -> bytes:
        trailer = Trailer(
            kind=self.kind,
            image=self.outgoing.image,
            epoch=self.epoch,
            digest=self.outgoing.digest,
            size_bytes=self.outgoing.size_bytes,
            part=len(self._parts) + 1,
            parts=len(location.parts) if location else None,
            this=this,
            previous=self._parts[-1] if self._parts else None,
            next={"barcode": following} if following else None,
            location=location,
            previous_trailer=cartridge.entry.last_trailer or None,
            written=now_to_the_second(self.clock.now()),
        )
        if location is None:
            table = self._chunks[this.first_record * CHUNK_DIGEST_BYTES :][
                : this.records * CHUNK_DIGEST_BYTES
            ]
            return render_trailer(trailer, {"records": table})
        sides: Mapping[str, bytes] = self.outgoing.side_files
        return render_trailer(trailer, {name: sides[name] for name in _MEMBERS if name in sides})

    def _write_trailer(
        self, cartridge: Cartridge, file: int, data: bytes, sure: bool
    ) -> Literal["whole", "full", "given up"]:
        """Writes a trailer file and its filemark, synchronously; ``sure``: early warning came before and it
        fits. One that is given up is ended too."""
        reserve = cartridge.drive.reserve_bytes
        digests = memoryview(digests_of(records_of(data)))
        trailer = self._appending(cartridge, file, digests, "the trailer")
        left, met = len(data), False
        for record in records_of(data):
            early = trailer.write(record)
            left -= len(record)
            if early and not met:
                met = True
                if not sure and left > reserve:
                    trailer.end(immediate=True)
                    return "given up"
        met |= trailer.end()
        return "full" if met else "whole"

    def _done(self, cartridge: Cartridge, this: Part, size_bytes: int, *, full: bool) -> None:
        self._parts.append(this)
        before = cartridge.entry
        mine = (
            () if self.kind == "catalog" or self.outgoing.image in before.images else (self.outgoing.image,)
        )
        self.stock.keep(
            cartridge,
            before,
            state="full" if full else "appendable",
            tape_files=this.trailer + 1,
            last_trailer=this.trailer,
            used_bytes=before.used_bytes + size_bytes,
            images=before.images + mine,
            written=True,
            late=not full,
        )


class Bytes:
    """Plain bytes as an ``Outgoing``: a copy of the catalog on its way to tape."""

    def __init__(
        self,
        name: str,
        data: bytes,
        digest: str,
        table: Callable[[memoryview], bytes],
        pages: Mapping[str, bytes],
    ) -> None:
        self.image = name
        self.size_bytes = self.most_bytes = len(data)
        self.digest = digest
        self.encoding: Encoding = ""
        self._data = memoryview(data)
        pieces = range(0, len(data), RECORD_BYTES)
        chunks = b"".join(table(self._data[at : at + RECORD_BYTES]) for at in pieces)
        self.side_files = {"chunks": chunks, **pages}

    def chunks(self, first_chunk: int = 0) -> Iterator[memoryview]:
        for at in range(first_chunk * RECORD_BYTES, self.size_bytes, RECORD_BYTES):
            yield self._data[at : at + RECORD_BYTES]

    def spans(self, span_bytes: int, measure: Measure) -> Iterator[Span]:
        return plain_spans(self.chunks, span_bytes, measure)
