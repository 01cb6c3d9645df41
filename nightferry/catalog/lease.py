"""The run lock where no operating system's lock reaches every node: a lease in the catalog itself.

Who holds it is an event of the log, written against the event before it; so of several who want it one gets
it, and the log knows from which event on. A holder shows that it lives by replacing a small file of its own,
its *heartbeat*. Whoever wants the lease watches that file, and takes the lease over when it has not changed for
``LEASE_S`` by the watcher's own monotonic clock. No node's time of day is compared with another's.

What that is worth
    A holder that lives may look dead: stopped, cut off from the bucket, starved. It is then overtaken, and
    nothing goes wrong: every event it wants to add is refused once the new holder's lease is before it in the
    log (``permit`` of ``EventLog.append``), whatever it believes meanwhile. Heartbeats say how long to wait; the
    log says who is right. At its next heartbeat an overtaken holder also learns of it, and is told to stop.

    A late request of an overtaken holder can only change its own heartbeat file, which bears its lease's number.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Literal, NamedTuple, Protocol, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from nightferry.catalog.events import Phase
from nightferry.catalog.locks import Holder, Say, busy, locked_here, not_locked, quiet
from nightferry.catalog.storage import Storage, check_name
from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.errors import BusyError, CatalogError
from nightferry.model.claim_records import LeaseRecord
from nightferry.model.record import Record
from nightferry.model.records import Event
from nightferry.progress import Cancel
from nightferry.units import format_duration

log = logging.getLogger(__name__)

LEASE_S = 60.0
"""How long a lease must have been watched without a heartbeat before it is taken over."""
HEARTBEATS = 6
"""Heartbeats in that time."""


class Heartbeat(BaseModel):
    """What a heartbeat file says; ``number`` makes each one another."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    number: int
    holder: Holder


class _Seen(NamedTuple):
    """A heartbeat as it was watched: of which lease, what it said, when it was seen first (monotonic)."""

    sequence: int
    heartbeat: bytes | None
    at: float


class Log(Protocol):
    """What a lease needs of the catalog."""

    def append(
        self,
        record: Record,
        phase: Phase = "result",
        expect: int | None = None,
        permit: Callable[[], None] | None = None,
    ) -> Event: ...

    def latest_event(self, cls: type[Record], subject: str) -> Event | None: ...

    def refresh(self) -> int: ...

    def fence(self, lease: LeaseLock) -> None: ...

    def unfence(self, lease: LeaseLock) -> None: ...


class LeaseLock:
    """See ``RunLock``.

    Args:
        catalog: The catalog that the lease is in; what is appended through it is fenced while this holds.
        storage: Where that catalog lies.
        back_group: Whose lock.
        node: The name written into it.
        what: What the lease is for; see ``LeaseRecord``.
        lease_s: ``LEASE_S``.
    """

    def __init__(
        self,
        catalog: Log,
        storage: Storage,
        back_group: str,
        *,
        node: str,
        what: str = "",
        clock: Clock = SYSTEM_CLOCK,
        lease_s: float | None = None,
    ) -> None:
        self.back_group = check_name(back_group)
        self._what = what
        self._subject = f"{back_group}.{what}" if what else back_group
        self._catalog = catalog
        self._storage = storage
        self._node = node
        self._clock = clock
        self._lease_s = LEASE_S if lease_s is None else lease_s
        self._sequence = 0
        self._number = 0
        self._holder: Holder | None = None
        self._seen: _Seen | None = None
        self._ended = threading.Event()

    @property
    def held(self) -> bool:
        return self._sequence > 0

    @property
    def since(self) -> datetime:
        return self._held_by().since

    def acquire(
        self,
        run: str,
        window: str,
        *,
        say: Say = quiet,
        lost: Say = quiet,
        cancel: Cancel | None = None,
        permit: Callable[[], None] | None = None,
    ) -> Self:
        """See ``RunLock.acquire``. A living holder is known by its next heartbeat, a dead one by the lease's time.

        What was watched is kept from one call to the next. ``permit`` may refuse, in view of all that is in the
        log before this lease.
        """
        if self.held:
            raise locked_here(self.back_group)
        self._wait_until_free(say, cancel or Cancel())
        holder = Holder(run=run, window=window, node=self._node, pid=os.getpid(), since=self._clock.now())
        before, _ = self._newest()
        try:
            placed = self._catalog.append(self._lease("held", holder), expect=before, permit=permit)
        except BusyError as error:
            if self._newest()[0] == before:
                raise  # it is not this lease that is taken
            raise busy(self.back_group, self.holder()) from error
        self._holder, self._sequence, self._number = holder, placed.sequence, 0
        self._ended = threading.Event()
        self._catalog.fence(self)
        self.heartbeat()
        self._remove_others()
        threading.Thread(
            target=self._send_heartbeats, args=(self._ended, lost), name="lease", daemon=True
        ).start()
        return self

    def name_run(self, run: str) -> None:
        self._holder = self._held_by().model_copy(update={"run": run})
        self.heartbeat()

    def heartbeat(self) -> None:
        """Shows that this holder lives.

        Raises:
            CatalogError: it cannot be shown.
        """
        holder, sequence = self._held_by(), self._sequence
        self._number += 1
        said = Heartbeat(number=self._number, holder=holder)
        self._storage.replace(self._path(sequence), said.model_dump_json().encode())

    def require(self) -> None:
        """See ``RunLock.require``: by what is known of the log."""
        sequence, lease = self._newest()
        if self.held and sequence != self._sequence:
            by = f": {_holder_of(lease)} took it over" if lease is not None else ""
            raise BusyError(
                f"{self.back_group} is no longer held by this run{by}",
                hint="this run has stopped; the other run continues from what this one recorded",
                subject=self.back_group,
            )

    def release(self) -> None:
        sequence = self._sequence
        if not sequence:
            return
        self._ended.set()
        try:
            self._catalog.append(self._lease("free", self._held_by()), expect=sequence)
        except BusyError:
            return  # somebody took it over: there is nothing left to give back
        finally:
            self._sequence = 0
            self._catalog.unfence(self)
        self._storage.remove("locks", [self._name(sequence)])

    def clear(self, say: Say = quiet, cancel: Cancel | None = None) -> None:
        """Takes a dead holder's lease away, for somebody who wants something else.

        Raises:
            BusyError: its holder lives.
        """
        self._wait_until_free(say, cancel or Cancel())
        sequence, lease = self._newest()
        if lease is None or lease.state == "free":
            return
        self._catalog.append(lease.model_copy(update={"state": "free"}), expect=sequence)
        self._storage.remove("locks", [self._name(sequence)])

    def holder(self) -> Holder | None:
        """See ``RunLock.holder``; a dead one counts until somebody takes the lease over."""
        self._catalog.refresh()
        sequence, lease = self._newest()
        if lease is None or lease.state == "free":
            return None
        heartbeat = self._storage.read(self._path(sequence))
        try:
            return (
                Heartbeat.model_validate_json(heartbeat).holder
                if heartbeat is not None
                else _holder_of(lease)
            )
        except ValidationError:
            return _holder_of(lease)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _wait_until_free(self, say: Say, cancel: Cancel) -> None:
        """Returns when nobody holds the lease, or its holder sent no heartbeat for all of its time.

        Raises:
            BusyError: its holder lives.
        """
        while True:
            cancel.check()
            now = (
                self._clock.monotonic()
            )  # taken before the look: what is seen then was so until now at least
            self._catalog.refresh()
            sequence, lease = self._newest()
            if lease is None or lease.state == "free":
                return
            heartbeat = self._storage.read(self._path(sequence))
            seen = self._seen
            if seen is None or seen.sequence != sequence:
                self._seen = _Seen(sequence, heartbeat, now)
                say(
                    f"{self.back_group} is locked by {_holder_of(lease)}; if it sends no heartbeat for "
                    f"{format_duration(self._lease_s)}, its lock is taken over"
                )
            elif seen.heartbeat != heartbeat:
                self._seen = _Seen(sequence, heartbeat, now)
                raise busy(self.back_group, self.holder())
            elif now - seen.at >= self._lease_s:
                say(f"{_holder_of(lease)} sent no heartbeat: its lock is taken over")
                log.warning("%s: the lock of %s is taken over", self.back_group, _holder_of(lease))
                return
            self._clock.sleep(self._lease_s / HEARTBEATS / 4)

    def _lease(self, state: Literal["held", "free"], holder: Holder) -> LeaseRecord:
        return LeaseRecord(back_group=self.back_group, what=self._what, state=state, **holder.model_dump())

    def _held_by(self) -> Holder:
        if self._holder is None or not self._sequence:
            raise not_locked(self.back_group)
        return self._holder

    def _newest(self) -> tuple[int, LeaseRecord | None]:
        """The newest lease that is known, and its event's number."""
        event = self._catalog.latest_event(LeaseRecord, self._subject)
        return (0, None) if event is None else (event.sequence, LeaseRecord.model_validate(event.body))

    def _send_heartbeats(self, ended: threading.Event, lost: Say) -> None:
        while not ended.wait(self._lease_s / HEARTBEATS):
            try:
                self.heartbeat()
                self._catalog.refresh()
                self.require()
            except BusyError as error:
                if not ended.is_set():
                    log.warning("%s", error)
                    lost(str(error))
                return
            except CatalogError as error:
                log.warning("cannot send the heartbeat for %s: %s", self.back_group, error)

    def _remove_others(self) -> None:
        """What earlier holders left: nobody looks at it."""
        ours = re.compile(rf"{re.escape(self._subject)}\.[0-9]{{12}}\.beat")
        mine = self._name(self._sequence)
        others = [name for name in self._storage.names("locks") if ours.fullmatch(name) and name != mine]
        self._storage.remove("locks", others)

    def _name(self, sequence: int) -> str:
        return f"{self._subject}.{sequence:012d}.beat"

    def _path(self, sequence: int) -> str:
        return f"locks/{self._name(sequence)}"


def _holder_of(lease: LeaseRecord) -> Holder:
    return Holder(**lease.model_dump(include=set(Holder.model_fields)))
