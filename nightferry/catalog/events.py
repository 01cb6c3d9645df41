"""The log of write-once events in a folder that all nodes share.

One total order over everything: event ``n`` is the file ``events/<n, 12 digits>.json`` and, once compacted, a
row of ``segments/<first>-<last>.parquet``. Nothing is ever changed; the latest event of a kind and subject is
its truth.

How it stays right without a lock
    *Claiming.* A writer reads all it can see up to event ``n``, writes its own to a temporary file, makes
    that durable and links it to the name of ``n+1``. The link fails when the name is taken; the writer then
    reads on and tries the next number. Since every earlier event was read before ``n+1`` was claimed, an
    ``expect`` (the last event the caller knew of its subject) is a true compare-and-swap.

    *Compaction.* A segment is linked and durable before the first event file it covers goes. So a reader that
    lists the events first and the segments second sees every event in one of the two, and takes what both
    have from the segment. A gap can only come from an event added while the folder was being listed: it
    lists again, and says which event is missing when that does not help.

    *A writer that slept.* Between reading and linking, others may have written ``n+1`` and compacted it away,
    so that its name is free again. The segment is visible before the name is free; the writer therefore looks
    at the segments once more after its link. If ``n+1`` is covered by another event it takes its own file
    back and tries the next number; readers never saw it, because the segment wins.

Where a crash may fall
    - Before the link: nothing but a temporary file, which no reader looks at; compaction removes it after a
      day.
    - After the link, before the folder is durable: every process sees the event, whole (its content was
      durable before its name). The caller was not told, so it reads the log again when it is rerun and finds
      it. If the machine that holds the folder loses power at this very moment the event may be gone; then no
      later event is there either, because each writer makes the same folder, and so all earlier names,
      durable before it returns. Either way it is the old truth or the new one, and nobody was promised the
      new one.
    - After the folder is durable: the event stays; only the temporary name is left over.
    - After a link to a number that a segment covers, before it is taken back: the file is ignored, and
      removed by the next compaction. The caller was not told.
    - In a compaction: before the segment's link nothing happened; after it, covered event files that are
      still there are duplicates, ignored, and removed by the next compaction.

The shared folder must have hard links, and show a finished link on one node to the next listing on another (a
network file system's attribute cache of a few seconds only delays readers; writers are stopped by the link).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from nightferry.catalog.durable import (
    catalog_errors,
    make_folder,
    publish,
    remove_stale_drafts,
)
from nightferry.catalog.schema import (
    Row,
    decode_event,
    decode_segment,
    encode_body,
    encode_event,
    encode_segment,
    microseconds,
)
from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.errors import BusyError, CatalogError
from nightferry.model.records import Event
from nightferry.transfer.durable import FILE_MODE, sync_folder

_EVENT = re.compile(r"([0-9]{12})\.json")
_SEGMENT = re.compile(r"([0-9]{12})-([0-9]{12})\.parquet")

_TRIES = 8
_PAUSE_S = 0.05
_STALE_TEMP_S = 86400.0

Phase = Literal["intent", "result"]


def _event_name(sequence: int) -> str:
    return f"{sequence:012d}.json"


def segment_name(first: int, last: int) -> str:
    """The file name of the segment that covers events ``first`` to ``last``."""
    return f"{first:012d}-{last:012d}.parquet"


class EventLog:
    """One process's view of the log; any number of threads may share it.

    Args:
        folder: The catalog's folder; it must exist. ``events`` and ``segments`` below it are made when first
            written, for their owner only.
        writer: Who writes, ``node:pid``; this machine and process by default.
        clock: Where ``at`` comes from.
        observe: Is handed every event exactly once, in order, as it becomes known.

    Raises:
        CatalogError: the folder is not there.
    """

    def __init__(
        self,
        folder: Path,
        *,
        writer: str = "",
        clock: Clock = SYSTEM_CLOCK,
        observe: Callable[[Row], None] | None = None,
    ) -> None:
        self.folder = folder
        self.writer = writer or f"{platform.node()}:{os.getpid()}"
        self._events = folder / "events"
        self._segments = folder / "segments"
        self._clock = clock
        self._observe = observe
        self._lock = threading.RLock()
        self._last = 0
        self._heads: dict[tuple[str, str], int] = {}
        with catalog_errors("open the catalog in", folder):
            os.listdir(folder)

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
            CatalogError: the folder cannot be read, an event is garbled or missing, or the folder holds less
                than before.
        """
        with self._lock:
            before = self._last
            for row in self._read(before):
                self._learn(row)
            return self._last - before

    def rows(self, after: int = 0) -> list[Row]:
        """Every event later than ``after``, in order, read anew from the folder.

        Raises:
            CatalogError: as `refresh`.
        """
        with self._lock:
            return list(self._read(after))

    def append(
        self, kind: str, subject: str, phase: Phase, body: dict[str, Any], expect: int | None = None
    ) -> Event:
        """Adds one event; on return it is durable and every node can see it.

        Args:
            expect: The last sequence the caller knew of this kind and subject (0: none); None asks for
                nothing.

        Raises:
            BusyError: somebody wrote a newer event of this kind and subject than ``expect``.
            CatalogError: the folder cannot be written, or not read as in `refresh`. If the error came while
                the event was being made durable it may be in the log all the same.
        """
        text = encode_body(body, kind, subject)
        with self._lock, catalog_errors("write the catalog in", self.folder):
            make_folder(self._events)
            idle = 0
            while True:
                if self.refresh():
                    idle = 0
                self._check_expected(kind, subject, expect)
                at = self._clock.now()
                row = Row(self._last + 1, microseconds(at), self.writer, phase, kind, subject, text)
                name = _event_name(row.sequence)
                if publish(self._events / name, encode_event(row)):
                    if self._is_ours(row):
                        self._learn(row)
                        return row.event()
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(self._events / name)
                # Somebody else's event took the number, so the next refresh must show it: every lost try is
                # another writer's success. Only a folder that shows old listings makes no headway.
                idle += 1
                if idle > _TRIES:
                    raise CatalogError(
                        f"event {row.sequence} is taken, and {self._events} does not show it",
                        hint="mount the catalog's folder with a shorter attribute cache (NFS: actimeo=1)",
                        subject=name,
                    )
                if idle > 1:
                    self._clock.sleep(_PAUSE_S * idle)

    def loose(self) -> int:
        """How many event files there are: what a compaction would gather."""
        with self._lock, catalog_errors("read the catalog in", self.folder):
            return len(self._list_events())

    def compact(self) -> bool:
        """Gathers all event files into one immutable segment, then removes them and old temporary files.

        Returns:
            False: another compaction is at work and this one left it to it.

        Raises:
            CatalogError: the folder cannot be read or written; what was there is still there.
        """
        with self._lock, catalog_errors("compact the catalog in", self.folder):
            make_folder(self._events)
            make_folder(self._segments)
            # The lock only saves work: two compactions at once would write the same events twice, and readers
            # take each sequence once.
            fd = os.open(self.folder / "compact.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            try:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                self._compact()
            finally:
                os.close(fd)
            return True

    def _compact(self) -> None:
        rows = list(self._read(max((last for _, last in self._list_segments()), default=0)))
        if rows:
            publish(self._segments / segment_name(rows[0].sequence, rows[-1].sequence), encode_segment(rows))
        covered = self._list_segments()
        for sequence in self._list_events():
            if any(first <= sequence <= last for first, last in covered):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._events / _event_name(sequence))
        sync_folder(self._events)
        before = self._clock.now().timestamp() - _STALE_TEMP_S
        for folder in (self._events, self._segments):
            remove_stale_drafts(folder, before)

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
                hint="read it again and decide anew",
                operation="append",
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
        for first, last in self._list_segments():
            if first <= row.sequence <= last:
                return self._read_segment(first, last)[row.sequence - first] == row
        return True

    def _read(self, after: int) -> Iterator[Row]:
        """Every event later than ``after``, one by one in order; what was handed out is final."""
        last = after
        with catalog_errors("read the catalog in", self.folder):
            for attempt in range(_TRIES):
                if attempt:
                    self._clock.sleep(_PAUSE_S * attempt)
                listed = self._list_events()
                loose: dict[int, bytes] = {}
                for sequence in listed:
                    if sequence > last:
                        # A compaction may take it away meanwhile; its segment is there before.
                        with contextlib.suppress(FileNotFoundError):
                            loose[sequence] = (self._events / _event_name(sequence)).read_bytes()
                segments = self._list_segments()
                for first, end in segments:
                    if first <= last + 1 <= end:
                        for row in self._read_segment(first, end)[last + 1 - first :]:
                            last = row.sequence
                            yield row
                for sequence in sorted(loose):
                    if sequence == last + 1:
                        last = sequence
                        yield decode_event(loose[sequence], sequence, f"events/{_event_name(sequence)}")
                end = max([*listed, *(end for _, end in segments)], default=0)
                if last == max(end, after) and end >= self._last:
                    return
        if end > last:
            raise CatalogError(
                f"event {last + 1} is missing from the catalog in {self.folder}",
                hint="put the file back from a copy of the catalog, or rebuild it from a destination",
                subject=f"{last + 1:012d}",
            )
        raise CatalogError(
            f"the catalog in {self.folder} ended at event {self._last} and ends at {end} now",
            hint="check that the same folder is still mounted there",
            subject=str(self.folder),
        )

    def _list_events(self) -> list[int]:
        return sorted(int(match[1]) for match in _matches(_EVENT, self._events))

    def _list_segments(self) -> list[tuple[int, int]]:
        return sorted((int(match[1]), int(match[2])) for match in _matches(_SEGMENT, self._segments))

    def _read_segment(self, first: int, last: int) -> list[Row]:
        name = segment_name(first, last)
        rows = decode_segment((self._segments / name).read_bytes(), name)
        if not rows or rows[0].sequence != first or rows[-1].sequence != last:
            raise CatalogError(f"segment {name} does not hold the events its name says", subject=name)
        return rows


def _matches(pattern: re.Pattern[str], folder: Path) -> list[re.Match[str]]:
    """The names in a folder that match; a folder that was never written to has none."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return [match for name in names if (match := pattern.fullmatch(name))]
