"""Claims that the log of the catalog keeps, where no operating system's lock reaches every node.

Who holds what is an event of the log, written against the event before it; so of several who want it one gets it, and
the log knows from which event on. A holder shows that it lives by its heartbeat, and is overtaken when it sent none for
``LEASE_S`` (``claims/heartbeat.py``).

What that is worth
    A holder that lives may look dead. It is then overtaken, and nothing goes wrong: every event it wants to add is
    refused once the new holder's claim is before it in the log (``permit`` of ``EventLog.append``), whatever it
    believes meanwhile. Heartbeats say how long to wait; the log says who is right. At its next heartbeat an
    overtaken holder also learns of it, and is told to stop.

    A late request of an overtaken holder can only change its own heartbeat file, which bears its claim's number.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from types import TracebackType
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from nightferry.catalog.query import Catalog
from nightferry.catalog.storage import Storage, check_name
from nightferry.claims.base import Holder, Reader, Say, busy, held_here, not_held, quiet
from nightferry.claims.heartbeat import HEARTBEATS, LEASE_S, HolderWatch
from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.errors import BusyError, CatalogError
from nightferry.model.claim_records import LeaseRecord
from nightferry.progress import Cancel
from nightferry.units import format_duration

log = logging.getLogger(__name__)

_MOVE = "move"
_READER = "reader-"


class LogClaims:
    """See ``Claims``.

    Args:
        catalog: The log that they are events of.
        clock: Dates them, and times the watch of others'.
        lease_s: How long a silent holder is waited for.
    """

    def __init__(self, catalog: Catalog, clock: Clock = SYSTEM_CLOCK, lease_s: float = LEASE_S) -> None:
        self._catalog = catalog
        self._clock = clock
        self._lease_s = lease_s

    def exclusive(self, back_group: str) -> LogClaim:
        return LogClaim(self._catalog, back_group, clock=self._clock, lease_s=self._lease_s)

    def shared(self, back_group: str) -> LogShared:
        return LogShared(self._catalog, back_group, self._clock, self._lease_s)


class Heartbeat(BaseModel):
    """What a heartbeat file says; ``number`` makes each one another."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    number: int
    holder: Holder


class LogClaim:
    """See ``Claim``.

    Args:
        catalog: The catalog that the lease is in; what is appended through it is fenced while this holds.
        back_group: Whose lock.
        what: What the lease is for; see ``LeaseRecord``.
        lease_s: ``LEASE_S``.
    """

    def __init__(
        self,
        catalog: Catalog,
        back_group: str,
        *,
        what: str = "",
        clock: Clock = SYSTEM_CLOCK,
        lease_s: float = LEASE_S,
    ) -> None:
        self.back_group = check_name(back_group)
        self._what = what
        self._subject = f"{back_group}.{what}" if what else back_group
        self._catalog = catalog
        self._storage: Storage = catalog.storage
        self._node = catalog.node
        self._clock = clock
        self._lease_s = lease_s
        self._sequence = 0
        self._number = 0
        self._holder: Holder | None = None
        self._watch = HolderWatch(self._lease_s)
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
        """See ``Claim.acquire``. A living holder is known by its next heartbeat, a dead one by the lease's time.

        What was watched is kept from one call to the next. ``permit`` may refuse, in view of all that is in the
        log before this lease.
        """
        if self.held:
            raise held_here(self.back_group)
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
        """See ``Claim.require``: by what is known of the log."""
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
        """See ``Claim.holder``; a dead one counts until somebody takes the lease over."""
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
            now = self._clock.monotonic()
            self._catalog.refresh()
            sequence, lease = self._newest()
            if lease is None or lease.state == "free":
                return
            match self._watch.see(sequence, self._storage.read(self._path(sequence)), now):
                case "met":
                    say(
                        f"{self.back_group} is locked by {_holder_of(lease)}; if it sends no heartbeat for "
                        f"{format_duration(self._lease_s)}, its lock is taken over"
                    )
                case "alive":
                    raise busy(self.back_group, self.holder())
                case "silent":
                    say(f"{_holder_of(lease)} sent no heartbeat: its lock is taken over")
                    log.warning("%s: the lock of %s is taken over", self.back_group, _holder_of(lease))
                    return
            self._clock.sleep(self._lease_s / HEARTBEATS / 4)

    def _lease(self, state: Literal["held", "free"], holder: Holder) -> LeaseRecord:
        return LeaseRecord(back_group=self.back_group, what=self._what, state=state, **holder.model_dump())

    def _held_by(self) -> Holder:
        if self._holder is None or not self._sequence:
            raise not_held(self.back_group)
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


class LogShared:
    """See ``Shared``: readers and the mover hold leases, each written only when the log before it holds none of the
    other kind. So no reader begins while the disk moves, and it never moves under a reader. Somebody who died holds
    nobody up for longer than a lease's time.

    Args:
        catalog: Where the leases are; what is appended through it is refused when its lease was taken away.
        back_group: Whose disk.
        clock: Dates leases, and times the watch of others'.
    """

    def __init__(
        self, catalog: Catalog, back_group: str, clock: Clock = SYSTEM_CLOCK, lease_s: float = LEASE_S
    ) -> None:
        self._catalog = catalog
        self._back_group = check_name(back_group)
        self._clock = clock
        self._lease_s = lease_s

    @contextmanager
    def read(self, who: str, *, warn: Say | None = None) -> Iterator[Reader]:
        """Keeps the disk where it is while the block runs.

        Args:
            who: What reads, for people: ``stage two of 20261130-TEX-BACK-1``.
            warn: Is told when the lease cannot be written, and the block runs without one. For restores; None:
                that is an error.

        Raises:
            BusyError: the disk is about to move.
            CatalogError: that cannot be written down.
        """
        mine = self._lock(f"{_READER}{secrets.token_hex(6)}")
        with ExitStack() as stack:
            try:
                self._lock(_MOVE).clear()
                stack.enter_context(mine.acquire(who, "", permit=self._require_no_mover))
            except BusyError as error:
                raise self._moving() from error
            except CatalogError as error:
                if warn is None:
                    raise
                warn(f"no lease for the {who}: {error.message}")
            since = mine.since if mine.held else self._clock.now()
            yield Reader(who=who, host=self._catalog.node, pid=os.getpid(), since=since)

    def readers(self) -> list[Reader]:
        """Who reads from the disk now, the oldest first; one who died counts until somebody wants the disk."""
        self._catalog.refresh()
        return sorted(
            (
                Reader(who=lease.run, host=lease.node, pid=lease.pid, since=lease.since)
                for lease in self._held(_READER)
            ),
            key=lambda reader: reader.since,
        )

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keeps readers out while the block runs: for the move.

        Raises:
            BusyError: somebody reads; the message names them.
            CatalogError: that cannot be written down.
        """
        self._catalog.refresh()
        try:
            for lease in self._held(_READER):
                self._lock(lease.what).clear()
        except BusyError as error:
            raise self._read_by() from error
        try:
            lock = self._lock(_MOVE).acquire("move", "", permit=self._require_no_reader)
        except BusyError as error:
            raise (self._read_by() if self._held(_READER) else self._moving()) from error
        with lock:
            yield

    def clear(self) -> None:
        """A dead reader's lease is an event of the log: nothing lies about."""

    def _lock(self, what: str) -> LogClaim:
        return LogClaim(self._catalog, self._back_group, what=what, clock=self._clock, lease_s=self._lease_s)

    def _held(self, what: str) -> list[LeaseRecord]:
        return [
            lease
            for lease in self._catalog.all(LeaseRecord)
            if (lease.back_group, lease.state) == (self._back_group, "held") and lease.what.startswith(what)
        ]

    def _require_no_mover(self) -> None:
        if self._held(_MOVE):
            raise self._moving()

    def _require_no_reader(self) -> None:
        if self._held(_READER):
            raise self._read_by()

    def _moving(self) -> BusyError:
        return BusyError(f"the disk of {self._back_group} is about to move", subject=self._back_group)

    def _read_by(self) -> BusyError:
        named = ", ".join(f"{r.run} (pid {r.pid} on {r.node})" for r in self._held(_READER))
        return BusyError(f"the disk of {self._back_group} is read by {named}", subject=self._back_group)
