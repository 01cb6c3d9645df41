"""The catalog: what was run, what each image is, where its copies lie."""

from __future__ import annotations

import difflib
import os
import platform
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar, cast

from pydantic_core import PydanticSerializationError

from nightferry.catalog.events import SEGMENTS, EventLog, Phase, segment_name
from nightferry.catalog.folder import FolderStorage, catalog_errors, make_folder
from nightferry.catalog.indexes import IndexFiles
from nightferry.catalog.schema import Row, decode_copy, encode_copy, encode_segment
from nightferry.catalog.shelf import CopyIndex, Placed, Shelf, require_sound
from nightferry.catalog.storage import Storage
from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.errors import CatalogError, ConfigError
from nightferry.model.cartridges import live_by_cartridge, unfinished_on
from nightferry.model.claim_records import OwnerRecord
from nightferry.model.record import Record
from nightferry.model.records import (
    OUTLIVED,
    RECORDS,
    AdoptionRecord,
    ApprovalRecord,
    CartridgeRecord,
    CopyRecord,
    CopyState,
    Event,
    FailureRecord,
    ForgottenRecord,
    FreedRecord,
    HoldRecord,
    ImageRecord,
    RunRecord,
    SealRecord,
    SelectionRecord,
    StagingLossRecord,
)
from nightferry.transfer.spool import Content

R = TypeVar("R", bound=Record)


class Fence(Protocol):
    """A claim that what is appended rests on."""

    def require(self) -> None:
        """Raises:
        BusyError: it was taken over.
        """


class Catalog:
    """One process's catalog; any number of threads may share it, and any number of processes the place.

    Queries answer from what is known; `refresh` and every `append` learn what other processes wrote
    meanwhile.

    Args:
        place: Where it lies, a folder or what is handed in for a bucket. It must be there: an absent folder
            is more likely not mounted than new (`create` makes a new one).
        node: This node's name; with the process id it is the ``writer`` of each event.

    Raises:
        CatalogError: the place is not there, or what is in it cannot be read.
    """

    def __init__(self, place: Path | Storage, *, node: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self.storage: Storage = FolderStorage(place) if isinstance(place, Path) else place
        self.node = node
        self._clock = clock
        self._lock = threading.RLock()
        self._shelves: dict[str, Shelf[Any]] = {kind: Shelf(cls) for kind, cls in RECORDS.items()}
        self._copies = CopyIndex()
        self._fences: list[Fence] = []
        self._indexes = IndexFiles(self.storage)
        self._log = EventLog(self.storage, writer=f"{node}:{os.getpid()}", clock=clock, observe=self._learn)
        self._log.refresh()

    @classmethod
    def create(cls, path: Path, *, node: str, clock: Clock = SYSTEM_CLOCK) -> Catalog:
        """Makes the folder, for its owner only, when it is not there, and opens it.

        Raises:
            CatalogError: it cannot be made.
        """
        with catalog_errors("make the catalog's folder", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            make_folder(path)
        return cls(path, node=node, clock=clock)

    @classmethod
    def from_export(
        cls,
        data: bytes,
        place: Storage,
        *,
        node: str = "",
        clock: Clock = SYSTEM_CLOCK,
        name: str = "the export",
    ) -> Catalog:
        """A new catalog from what `export` gave; indexes are not in it. It is there as a whole or not at all.

        Args:
            place: Without any event.
            node: This machine's name by default.
            name: What the data are called in messages.

        Raises:
            CatalogError: there is a catalog already, or the data are not a whole one.
        """
        return cls.from_rows(decode_copy(data, name).rows, place, node=node, clock=clock, name=name)

    @classmethod
    def from_rows(
        cls,
        rows: list[Row],
        place: Storage,
        *,
        node: str = "",
        clock: Clock = SYSTEM_CLOCK,
        name: str = "the export",
    ) -> Catalog:
        """The same from the rows of a copy.

        Raises:
            CatalogError: as `from_export`.
        """
        require_sound(rows, name)
        fresh = cls(place, node=node or platform.node(), clock=clock)
        if not fresh.is_empty:
            raise CatalogError(
                f"{place} already holds a catalog", hint="name an empty folder or prefix", subject=str(place)
            )
        if rows:
            place.create(f"{SEGMENTS}/{segment_name(1, rows[-1].sequence)}", encode_segment(rows))
            fresh.refresh()
        return fresh

    @property
    def is_empty(self) -> bool:
        """Whether no event is known."""
        return self.last == 0

    @property
    def last(self) -> int:
        """Number of the last event known; 0 before the first."""
        with self._lock:
            return self._log.last

    # --- the log

    def append(
        self,
        record: Record,
        phase: Phase = "result",
        expect: int | None = None,
        permit: Callable[[], None] | None = None,
    ) -> Event:
        """Records the whole truth about a subject; durable on return, and true for every query after it.

        Args:
            phase: ``intent`` before something is begun, ``result`` when it is so.
            expect: Sequence of the last event of this subject that the caller decided upon (see
                `latest_event`; 0 for none).
            permit: Asked when every event before this one is known; what it raises ends the attempt.

        Raises:
            BusyError: with ``expect``: somebody recorded something newer about the subject. A lock that this
                catalog was fenced with was taken over.
            CatalogError: it cannot be recorded.
        """
        try:
            body = record.model_dump(mode="json")
        except PydanticSerializationError as error:
            raise CatalogError(
                f"cannot record {record.kind} {record.subject!r}: {error}", subject=record.subject
            ) from error

        def all_permit() -> None:
            self._permit()
            if permit is not None:
                permit()

        with self._lock:
            return self._log.append(record.kind, record.subject, phase, body, expect, all_permit)

    def refresh(self) -> int:
        """Learns what other processes wrote; returns how many events.

        Raises:
            CatalogError: the place cannot be read, or an event is garbled or missing.
        """
        with self._lock:
            return self._log.refresh()

    def compact(self) -> bool:
        """Gathers the event files into an immutable segment. False: another process is at it."""
        with self._lock:
            return self._log.compact()

    def tidy(self) -> None:
        """Removes the unfinished files of writers that died.

        Raises:
            CatalogError: they cannot be removed.
        """
        for folder in ("", "events", "segments", "indexes", "locks"):
            self.storage.tidy(folder)

    def export(self, before: str = "") -> tuple[bytes, str]:
        """All events so far as one Parquet file that proves itself (see `from_export`), and its digest.

        Args:
            before: Digest of the copy that lies at the same place before it.
        """
        with self._lock:
            return encode_copy(self._log.rows(), before)

    # --- any kind

    def latest(self, cls: type[R], subject: str) -> R | None:
        """The newest result about a subject; of an owner, the one with the highest epoch."""
        with self._lock:
            placed = self._shelf(cls).result(subject)
            return None if placed is None else placed.record

    def latest_event(self, cls: type[Record], subject: str) -> Event | None:
        """The newest event about a subject, an intent included."""
        with self._lock:
            row = self._shelf(cls).newest(subject)
            return None if row is None else row.event()

    def all(self, cls: type[R]) -> list[R]:
        """The newest result about every subject of a kind, in the log's order."""
        with self._lock:
            return [placed.record for placed in self._shelf(cls).results()]

    def pending(self, cls: type[R]) -> list[R]:
        """Intents that no result of the same subject followed: begun, and not known how it ended."""
        with self._lock:
            return [placed.record for placed in self._shelf(cls).pending()]

    # --- runs

    def runs(self, back_group: str | None = None) -> list[RunRecord]:
        """Runs, newest first."""
        found = self._placed(RunRecord, back_group=back_group)
        return [p.record for p in sorted(found, key=lambda p: p.first, reverse=True)]

    def run(self, name: str) -> RunRecord:
        """The run of this name.

        Raises:
            ConfigError: there is none; names the nearest ones.
        """
        return self.latest(RunRecord, name) or self._unknown("run", name, (r.run for r in self.runs()))

    def failures(self, run: str) -> list[FailureRecord]:
        """Stores that the run could not stage and has not staged since."""
        staged: dict[tuple[str, str], int] = {}
        for placed in self._placed(ImageRecord, run=run):
            staged[placed.record.group, placed.record.store] = placed.sequence
        return [
            placed.record
            for placed in self._placed(FailureRecord, run=run)
            if staged.get((placed.record.group, placed.record.store), 0) < placed.sequence
        ]

    def seal(self, run: str) -> SealRecord | None:
        """The run's newest seal."""
        return self.latest(SealRecord, run)

    def approvals(self, run: str) -> list[ApprovalRecord]:
        """What operators approved for the run, oldest first; each names the seal it is for."""
        return [placed.record for placed in self._placed(ApprovalRecord, run=run)]

    def accepted(self, image: ImageRecord) -> bool:
        """Whether an operator approved the image's store since this image was recorded.

        An approval from before it was of another image of that name, or of none at all.
        """
        with self._lock:
            recorded = self._shelf(ImageRecord).result(image.image)
            return recorded is not None and any(
                f"{image.group}/{image.store}" in approval.record.stores
                for approval in self._shelf(ApprovalRecord).results(run=image.run)
                if approval.sequence > recorded.sequence
            )

    def is_whole(self, image: ImageRecord) -> bool:
        """Whether the image is whole, or was suspect and an operator approved it as what the store is now."""
        return image.state == "whole" or (image.state == "suspect" and self.accepted(image))

    def selection(self, group: str) -> SelectionRecord | None:
        """The storage group's fixed list of stores."""
        return self.latest(SelectionRecord, group)

    def owner(self, back_group: str) -> OwnerRecord | None:
        """Who owns the BACK group's disk: the record with the highest epoch."""
        return self.latest(OwnerRecord, back_group)

    # --- images

    def images(
        self, group: str | None = None, store: str | None = None, run: str | None = None
    ) -> list[ImageRecord]:
        """Images, newest first by the log; ``store`` is its name within the group, and has the images of the stores
        that it adopted, too."""
        found = self._placed(ImageRecord, group=group, store=store, run=run)
        if group is not None and store is not None:
            for old in self.adopted_by(f"{group}/{store}"):
                old_group, _, old_store = old.partition("/")
                found += self._placed(ImageRecord, group=old_group, store=old_store, run=run)
        return _newest_first(found)

    def place_in_log(self, image: str) -> int:
        """Where in the log the image was recorded; 0 when it is unknown. What is newer has a higher place."""
        with self._lock:
            placed = self._shelf(ImageRecord).result(image)
            return 0 if placed is None else placed.sequence

    def order_of(self, image: str) -> int:
        """The image's place among all of the site, also of those from before the catalog was made from copies."""
        known = self.latest(ImageRecord, image)
        if known is not None and known.order:
            return known.order
        place = self.place_in_log(image)
        return self._order_before(place) + place

    @property
    def order(self) -> int:
        """The place of the last event known, counted as `order_of` counts; what comes later has a higher one."""
        return self._order_before(self.last) + self.last

    def _order_before(self, place: int) -> int:
        """The highest order among the images that were taken over from copies up to a place in the log."""
        return max((p.record.order for p in self._placed(ImageRecord) if p.sequence <= place), default=0)

    def adopted_by(self, store: str) -> list[str]:
        """The stores (``GROUP/STORE``) whose images a store goes on with, also by way of others."""
        old_of: dict[str, list[str]] = defaultdict(list)
        for record in self.all(AdoptionRecord):
            old_of[record.new].append(record.old)
        found: list[str] = []
        waiting = [store]
        while waiting:
            for old in old_of.get(waiting.pop(), ()):
                if old not in found and old != store:
                    found.append(old)
                    waiting.append(old)
        return found

    def line_of(self, image: ImageRecord) -> str:
        """The store (``GROUP/STORE``) whose line the image belongs to: its own, or the one that adopted that."""
        name = f"{image.group}/{image.store}"
        seen = {name}
        while (record := self.latest(AdoptionRecord, name)) is not None and record.new not in seen:
            name = record.new
            seen.add(name)
        return name

    def image(self, name: str) -> ImageRecord:
        """The image of this name.

        Raises:
            ConfigError: there is none; names the nearest ones.
        """
        return self.latest(ImageRecord, name) or self._unknown(
            "image", name, (i.image for i in self.all(ImageRecord))
        )

    def image_as_of(self, group: str, store: str, when: datetime | None) -> ImageRecord | None:
        """The store's newest image whose start is not later than ``when``, and that is whole and not expired.

        Args:
            when: Aware; None: the newest of all, also when another node's clock goes ahead of this one's.
        """
        for image in self.images(group, store):
            in_time = when is None or image.started <= when
            if in_time and self.is_whole(image) and not self.expired(image.image):
                return image
        return None

    def forgotten(self, image: str) -> bool:
        """Whether an operator gave up what the image owes."""
        return self.latest(ForgottenRecord, image) is not None

    def lost_on_staging(self, image: ImageRecord) -> bool:
        """Whether the image was found damaged or gone on staging since it was recorded."""
        with self._lock:
            lost = self._shelf(StagingLossRecord).result(image.image)
            made = self._shelf(ImageRecord).result(image.image)
        return lost is not None and (made is None or lost.sequence > made.sequence)

    def freed(self, image: str) -> bool:
        """Whether staging gave the image's room back."""
        return self.latest(FreedRecord, image) is not None

    def expired(self, image: str) -> bool:
        """Whether the retention has taken all of the image, or an operator gave it up when it was lost: it can be read
        neither on staging nor anywhere else, and nobody is meant to miss it."""
        freed = self.latest(FreedRecord, image)
        states = {copy.state for copy in self.all_copies(image)}
        gone: set[CopyState] = {*OUTLIVED, "lost"}
        if self.forgotten(image):
            gone |= {"damaged", "writing"}
        return freed is not None and (freed.expired or not states.isdisjoint(OUTLIVED)) and states <= gone

    def hold(self, image: str) -> HoldRecord | None:
        """The hold that keeps the image from expiring; None when there is none."""
        found = self.latest(HoldRecord, image)
        return found if found is not None and found.held else None

    def holds(self) -> list[HoldRecord]:
        """Every hold, the oldest first."""
        return [record for record in self.all(HoldRecord) if record.held]

    # --- copies and cartridges

    def copies(self, image: str) -> list[CopyRecord]:
        """The image's copies, one per destination (the highest epoch that has a result), by destination. While a
        new attempt is being written a suspect copy goes before it: it can be read."""
        newest: dict[str, CopyRecord] = {}
        for copy in self.all_copies(image):
            older = newest.get(copy.destination)
            if copy.state != "writing" or older is None or older.state != "suspect":
                newest[copy.destination] = copy
        return list(newest.values())

    def all_copies(self, image: str) -> list[CopyRecord]:
        """Every copy of the image that has a result, by destination and epoch."""
        with self._lock:
            shelf = self._shelf(CopyRecord)
            found = [placed.record for s in self._copies.subjects(image) if (placed := shelf.result(s))]
        return sorted(found, key=lambda copy: (copy.destination, copy.epoch))

    def next_epoch(self, image: str, destination: str) -> int:
        """The number of the next attempt to write this copy: one above every attempt begun, from 1 on."""
        with self._lock:
            return self._copies.epoch(image, destination) + 1

    def cartridges(self, destination: str) -> list[CartridgeRecord]:
        """The destination's cartridges by barcode."""
        found = self._placed(CartridgeRecord, destination=destination)
        return sorted((placed.record for placed in found), key=lambda cartridge: cartridge.barcode)

    def live_images(self, destination: str, barcode: str, given_up: Collection[str] = ()) -> list[str]:
        """Images that keep this cartridge from being written over; see ``model.cartridges.live_by_cartridge``."""
        return sorted(self.live_by_cartridge(destination, given_up).get(barcode, ()))

    def live_by_cartridge(self, destination: str, given_up: Collection[str] = ()) -> dict[str, set[str]]:
        """Barcode → what `live_images` says of it; cartridges without any are left out."""
        copies = [placed.record for placed in self._placed(CopyRecord, destination=destination)]
        forgotten = {record.image for record in self.all(ForgottenRecord)}
        return live_by_cartridge(self.cartridges(destination), copies, forgotten.union(given_up))

    def unfinished_on(self, destination: str, barcode: str) -> list[CopyRecord]:
        """Copies at the destination that are not finished, and have, or may have, something on a cartridge."""
        copies = [placed.record for placed in self._placed(CopyRecord, destination=destination)]
        return unfinished_on(self.cartridges(destination), copies, barcode)

    # --- indexes

    def keep_index(self, image: str, index: Content, chunks: Content) -> None:
        """Keeps an image's index and chunk table; durable on return.

        Raises:
            CatalogError: they cannot be written.
        """
        with self._lock:
            if self._fences:  # an index is replaced, not claimed: whoever was overtaken must not get that far
                self._log.refresh()
                self._permit()
        self._indexes.keep(image, index, chunks)

    def index(self, image: str) -> Content:
        """The image's index.

        Raises:
            CatalogError: it is not here.
        """
        return self._indexes.index(image)

    def chunks(self, image: str) -> bytes:
        """The image's chunk table.

        Raises:
            CatalogError: it is not here.
        """
        return self._indexes.chunks(image)

    def drop_indexes(self, images: Iterable[str]) -> None:
        """Gives the room of images' indexes, chunk tables and samples back; those that are not here are fine.

        Raises:
            CatalogError: they cannot be removed.
        """
        self._indexes.drop(images)

    def keep_samples(self, image: str, lines: str) -> None:
        """Keeps the samples of an image's transfer, one JSON object a line.

        Raises:
            CatalogError: they cannot be written.
        """
        self._indexes.keep_samples(image, lines)

    def samples(self, image: str) -> str:
        """The samples of an image's transfer as they were kept; empty when there are none."""
        return self._indexes.samples(image)

    def add_log(self, run: str, image: str, text: str) -> None:
        """Adds to a run's log for people."""
        self.storage.add_log(run, image, text)

    def drop_logs(self, runs: Collection[str]) -> None:
        """Removes the logs of runs; those that are not there are fine.

        Raises:
            CatalogError: they cannot be removed.
        """
        self.storage.drop_logs(runs)

    # --- claims

    def fence(self, claim: Fence) -> None:
        """From now on nothing is appended once the claim was taken over."""
        with self._lock:
            self._fences.append(claim)

    def unfence(self, claim: Fence) -> None:
        """Ends what `fence` began."""
        with self._lock:
            self._fences.remove(claim)

    # --- inside

    def _permit(self) -> None:
        for lease in self._fences:
            lease.require()

    def _learn(self, row: Row) -> None:
        shelf = self._shelves.get(row.kind)
        if shelf is not None:  # a newer release may know more kinds; they stay in the log
            shelf.put(row)
        if row.kind == CopyRecord.kind:
            self._copies.put(row)

    def _shelf(self, cls: type[R]) -> Shelf[R]:
        return cast(Shelf[R], self._shelves[cls.kind])

    def _placed(self, cls: type[R], **fields: str | None) -> list[Placed[R]]:
        with self._lock:
            return list(self._shelf(cls).results(**fields))

    def _unknown(self, what: str, name: str, known: Iterable[str]) -> NoReturn:
        nearest = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
        raise ConfigError(
            f"no {what} {name!r} in the catalog",
            hint=f"the nearest: {', '.join(nearest)}" if nearest else f"`nightferry {what}s` lists them",
            subject=name,
        )


def _newest_first(found: Iterable[Placed[R]]) -> list[R]:
    """By the log's order, never by stamps: a clock may have been wrong when one was made. What was made again under its
    old name, in a run that was held, is as new as that."""
    return [p.record for p in sorted(found, key=lambda p: p.sequence, reverse=True)]
