"""The log of write-once events in a place that all nodes reach: a folder they share, or a bucket.

One total order over everything: event ``n`` is the file ``events/<n, 12 digits>.json`` and, once gathered, a
row of ``segments/<first>-<last>.parquet``. Nothing is ever changed; the latest event of a kind and subject is
its truth. What a place must guarantee stands in ``catalog/storage.py``; in a folder a name is claimed by a
hard link, in a bucket by ``PUT`` with ``If-None-Match: *``.

How it stays right without a lock
    *Claiming.* A writer reads all it can see up to event ``n``, then claims the name of ``n+1`` with its own
    event in it. That fails when the name is taken; the writer then reads on and tries the next number. Since
    every earlier event was read before ``n+1`` was claimed, an ``expect`` (the last event the caller knew of
    its subject) is a true compare-and-swap, and a ``permit`` is asked with all of that in view.

    *Gathering.* A segment is there for good before the first event file, or smaller segment, that it covers
    goes. So a reader that lists the events first and the segments second sees every event in one of the two,
    and takes what both have from the segment. What it listed may be gone when it is read, because a larger
    segment took its place: it lists again. A gap can only come from an event added while the place was being
    listed: it lists again, and says which event is missing when that does not help.

    *A writer that slept.* Between reading and claiming, others may have written ``n+1`` and gathered it, so
    that its name is free again. The segment is visible before the name is free; the writer therefore looks at
    the segments once more after its claim. If ``n+1`` is covered by another event it takes its own file back
    and tries the next number; readers never saw it, because the segment wins.

    *A claim whose answer was lost.* The place asks again, and meets its own file: a link's count of names, or
    a mark in the object, tells it from another's. A request that was given up and still arrives later finds
    the name taken, or puts its file below a segment that covers it, where nobody looks. A request that
    arrives when its writer is gone is an event whose writer was not told; see below.

Where a crash may fall
    - Before the claim: nothing, but in a folder a temporary file, which no reader looks at; gathering removes
      it after a day.
    - After the claim, before the folder is durable: every process sees the event, whole (its content was
      durable before its name). The caller was not told, so it reads the log again when it is rerun and finds
      it. If the machine that holds the folder loses power at this very moment the event may be gone; then no
      later event is there either, because each writer makes the same folder, and so all earlier names,
      durable before it returns. Either way it is the old truth or the new one, and nobody was promised the
      new one. A bucket's object is durable when it can be seen.
    - After that: the event stays; in a folder the temporary name is left over.
    - After a claim of a number that a segment covers, before it is taken back: the file is ignored, and
      removed by the next gathering. The caller was not told.
    - In a gathering: before the segment's claim nothing happened; after it, covered files that are still
      there are duplicates, ignored, and removed by the next one.
"""

from __future__ import annotations

import os
import platform
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from nightferry.catalog.folder import FolderStorage
from nightferry.catalog.schema import (
    Row,
    decode_event,
    decode_segment,
    encode_body,
    encode_event,
    encode_segment,
    microseconds,
)
from nightferry.catalog.storage import Storage
from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.errors import BusyError, CatalogError
from nightferry.model.records import Event

EVENTS, SEGMENTS = "events", "segments"
MOST_LOOSE = 64
"""Event files beyond which the next writer gathers them: whoever opens the catalog reads each one alone."""

_EVENT = re.compile(r"([0-9]{12})\.json")
_SEGMENT = re.compile(r"([0-9]{12})-([0-9]{12})\.parquet")

_TRIES = 8
_PAUSE_S = 0.05

Phase = Literal["intent", "result"]


def _event_name(sequence: int) -> str:
    return f"{sequence:012d}.json"


def segment_name(first: int, last: int) -> str:
    """The file name of the segment that covers events ``first`` to ``last``."""
    return f"{first:012d}-{last:012d}.parquet"


class EventLog:
    """One process's view of the log; any number of threads may share it.

    Args:
        place: Where the catalog lies; it must be there. ``events`` and ``segments`` in it begin with the first
            that is written.
        writer: Who writes, ``node:pid``; this machine and process by default.
        clock: Where ``at`` comes from.
        observe: Is handed every event exactly once, in order, as it becomes known.

    Raises:
        CatalogError: the place is not there.
    """

    def __init__(
        self,
        place: Path | Storage,
        *,
        writer: str = "",
        clock: Clock = SYSTEM_CLOCK,
        observe: Callable[[Row], None] | None = None,
    ) -> None:
        self.storage: Storage = FolderStorage(place) if isinstance(place, Path) else place
        self.writer = writer or f"{platform.node()}:{os.getpid()}"
        self._clock = clock
        self._observe = observe
        self._lock = threading.RLock()
        self._last = 0
        self._loose = 0
        self._heads: dict[tuple[str, str], int] = {}
        self.storage.require()

    @property
    def last(self) -> int:
        """Sequence of the last event known; 0 before the first."""
        return self._last

    def head(self, kind: str, subject: str) -> int:
        """Sequence of the last event known of a kind and subject, of either phase; 0 when there is none."""
        with self._lock:
            return self._heads.get((kind, subject), 0)

    def refresh(self) -> int:
        """Reads what is new.

        Returns:
            How many events became known.

        Raises:
            CatalogError: the place cannot be read, an event is garbled or missing, or it holds less than
                before.
        """
        with self._lock:
            before = self._last
            for row in self._read(before):
                self._learn(row)
            return self._last - before

    def rows(self) -> list[Row]:
        """Every event, in order, read again.

        Raises:
            CatalogError: as `refresh`.
        """
        with self._lock:
            return list(self._read(0))

    def append(
        self,
        kind: str,
        subject: str,
        phase: Phase,
        body: dict[str, Any],
        expect: int | None = None,
        permit: Callable[[], None] | None = None,
    ) -> Event:
        """Adds one event; on return it is durable and every node can see it.

        Args:
            expect: The last sequence the caller knew of this kind and subject (0: none); None asks for
                nothing.
            permit: Asked before each claim, when every event before it is known; what it raises ends the
                attempt. So nothing is added after an event that makes it refuse.

        Raises:
            BusyError: somebody wrote a newer event of this kind and subject than ``expect``.
            CatalogError: the place cannot be written, or not read as in `refresh`. If the error came while
                the event was being made durable it may be in the log all the same.
        """
        text = encode_body(body, kind, subject)
        with self._lock:
            idle = 0
            while True:
                if self.refresh():
                    idle = 0
                if self._loose >= MOST_LOOSE:
                    self.compact()
                self._check_expected(kind, subject, expect)
                if permit is not None:
                    permit()
                at = self._clock.now()
                row = Row(self._last + 1, microseconds(at), self.writer, phase, kind, subject, text)
                name = _event_name(row.sequence)
                if self.storage.create(f"{EVENTS}/{name}", encode_event(row)):
                    if self._is_ours(row):
                        self._learn(row)
                        return row.event()
                    self.storage.remove(EVENTS, [name])
                # Somebody else's event took the number, so the next refresh must show it: every lost try is
                # another writer's success. Only a folder that shows old listings makes no headway.
                idle += 1
                if idle > _TRIES:
                    raise CatalogError(
                        f"event {row.sequence} exists already, but {self.storage} does not show it",
                        hint="mount the catalog's folder with a shorter attribute cache (NFS: actimeo=1)",
                        subject=name,
                    )
                if idle > 1:
                    self._clock.sleep(_PAUSE_S * idle)

    def compact(self) -> bool:
        """Gathers all event files into one immutable segment, together with those before it that are at most
        twice as large as what comes after them: so their number grows with the logarithm of the events'.

        Returns:
            False: another process is at it and this one left it to it.

        Raises:
            CatalogError: the place cannot be read or written; what was there is still there.
        """
        with self._lock, self.storage.alone("compact") as alone:
            # Two at once would only write the same events twice, and readers take each sequence once.
            if alone:
                self._compact()
            return alone

    def _compact(self) -> None:
        segments, events = self._list_segments(), self._list_events()
        start = max((last for _, last in segments), default=0)
        gathered = sum(sequence > start for sequence in events)
        if gathered:
            for first, last in sorted(segments, reverse=True):
                if last == start and last - first + 1 <= 2 * gathered:
                    start, gathered = first - 1, gathered + last - first + 1
            rows = list(self._read(start))
            name = segment_name(rows[0].sequence, rows[-1].sequence)
            self.storage.create(f"{SEGMENTS}/{name}", encode_segment(rows))
            segments = self._list_segments()
        covered = [n for n in events if any(first <= n <= last for first, last in segments)]
        self.storage.remove(EVENTS, [_event_name(n) for n in covered])
        smaller = [s for s in segments if any(o != s and o[0] <= s[0] and s[1] <= o[1] for o in segments)]
        self.storage.remove(SEGMENTS, [segment_name(*segment) for segment in smaller])
        self._loose = 0

    def _learn(self, row: Row) -> None:
        self._last = row.sequence
        self._heads[row.key] = row.sequence
        if self._observe is not None:
            self._observe(row)

    def _check_expected(self, kind: str, subject: str, expect: int | None) -> None:
        if expect is None:
            return
        head = self._heads.get((kind, subject), 0)
        if head > expect:
            raise BusyError(
                f"{kind} {subject} was changed by somebody else: event {head} is newer than {expect}",
                hint="run the command again: it reads the newer event first",
                subject=subject,
            )
        if head < expect:
            raise CatalogError(
                f"{kind} {subject} is at event {head}, before the expected {expect}",
                hint="check that every node has the same catalog folder mounted",
                subject=subject,
            )

    def _is_ours(self, row: Row) -> bool:
        """Whether the number just claimed was still free: no segment gives it to another event."""
        for _ in range(_TRIES):
            covering = [s for s in self._list_segments() if s[0] <= row.sequence <= s[1]]
            if not covering:
                return True
            rows = self._read_segment(*covering[0])
            if rows is not None:
                return rows[row.sequence - covering[0][0]] == row
        raise self._never_still()

    def _read(self, after: int) -> Iterator[Row]:
        """Every event later than ``after``, one by one in order; what was handed out is final."""
        last = after
        for attempt in range(_TRIES):
            if attempt:
                self._clock.sleep(_PAUSE_S * attempt)
            listed = self._list_events()
            # A gathering may take them away meanwhile; its segment is there before.
            loose = self.storage.read_all(EVENTS, [_event_name(n) for n in listed if n > last])
            segments = self._list_segments()
            self._loose = sum(not any(first <= n <= end for first, end in segments) for n in listed)
            for first, end in segments:
                if first <= last + 1 <= end:
                    rows = self._read_segment(first, end)
                    if rows is None:
                        break
                    for row in rows[last + 1 - first :]:
                        last = row.sequence
                        yield row
            for sequence in listed:
                name = _event_name(sequence)
                if sequence == last + 1 and name in loose:
                    last = sequence
                    yield decode_event(loose[name], sequence, f"{EVENTS}/{name}")
            end = max([*listed, *(end for _, end in segments)], default=0)
            if last == max(end, after) and end >= self._last:
                return
        if end > last:
            raise CatalogError(
                f"event {last + 1} is missing from the catalog in {self.storage}",
                hint="restore the file from a copy of the catalog, or rebuild it from a destination",
                subject=f"{last + 1:012d}",
            )
        raise CatalogError(
            f"the catalog in {self.storage} ended at event {self._last} before and now ends at {end}",
            hint="check that the same catalog is still there",
            subject=str(self.storage),
        )

    def _list_events(self) -> list[int]:
        found = map(_EVENT.fullmatch, self.storage.names(EVENTS))
        return sorted(int(match[1]) for match in found if match)

    def _list_segments(self) -> list[tuple[int, int]]:
        """By their first event, of those that begin with the same one the longest first."""
        found = map(_SEGMENT.fullmatch, self.storage.names(SEGMENTS))
        ranges = [(int(match[1]), int(match[2])) for match in found if match]
        return sorted(ranges, key=lambda segment: (segment[0], -segment[1]))

    def _read_segment(self, first: int, last: int) -> list[Row] | None:
        """The rows of a segment; None when a larger one took its place since it was listed."""
        name = segment_name(first, last)
        data = self.storage.read(f"{SEGMENTS}/{name}")
        if data is None:
            return None
        rows = decode_segment(data, name)
        if not rows or rows[0].sequence != first or rows[-1].sequence != last:
            raise CatalogError(f"segment {name} does not hold the events its name says", subject=name)
        return rows

    def _never_still(self) -> CatalogError:
        return CatalogError(
            f"the segments of the catalog in {self.storage} change while they are read",
            hint="check that nothing but nightferry writes there",
            subject=str(self.storage),
        )
