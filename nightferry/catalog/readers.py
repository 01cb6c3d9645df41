"""Who reads from a BACK group's disk and must end before it moves, where the catalog is in a bucket.

Readers and the mover hold leases of the log (``catalog/lease.py``). Each is written only when the log before it holds
none of the other kind: so no reader begins while the disk moves, and it never moves under a reader. Somebody
who died holds nobody up for longer than a lease's time.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import NamedTuple

from nightferry.catalog.lease import LeaseLock
from nightferry.catalog.query import Catalog
from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.errors import BusyError, CatalogError
from nightferry.model.claim_records import LeaseRecord

_MOVE = "move"
_READER = "reader-"


class DiskReader(NamedTuple):
    """Somebody who reads from the disk, or did until he died."""

    who: str
    host: str
    pid: int
    since: datetime


class DiskReaders:
    """The readers of one BACK group's disk.

    Args:
        catalog: Where the leases are; what is appended through it is refused when its lease was taken away.
        back_group: Whose disk.
        clock: Dates leases, and times the watch of others'.
    """

    def __init__(self, catalog: Catalog, back_group: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._catalog = catalog
        self._back_group = back_group
        self._clock = clock

    @contextmanager
    def read(self, who: str, *, warn: Callable[[str], None] | None = None) -> Iterator[DiskReader]:
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
            yield DiskReader(who, self._catalog.node, os.getpid(), since)

    def readers(self) -> list[DiskReader]:
        """Who reads from the disk now, the oldest first; one who died counts until somebody wants the disk."""
        self._catalog.refresh()
        return sorted(
            (DiskReader(lease.run, lease.node, lease.pid, lease.since) for lease in self._held(_READER)),
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

    def _lock(self, what: str) -> LeaseLock:
        return LeaseLock(
            self._catalog,
            self._catalog.storage,
            self._back_group,
            node=self._catalog.node,
            what=what,
            clock=self._clock,
        )

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
