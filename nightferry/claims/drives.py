"""Which host may use which drive of a tape library, where the catalog is in a bucket.

A drive's lease is an event of the log, written against the event before it, as a run's is (``claims/log.py``);
that the holder lives is shown by one heartbeat file for all drives of a process. Who wants a drive watches that
file, and takes the lease over when it has not changed for ``LEASE_S`` by the watcher's own monotonic clock.

The log alone cannot stop a holder that only slept from writing on to the drive. So a lease comes with two duties,
which ``destination/tape/drives/scsi_device.py`` does for both sides:

- Whoever gets a drive that somebody else had last resets it, before anything else. Its next answer to everybody
  is a unit attention then, and what it was asked is not done.
- Whoever meets a unit attention asks the log whether the lease is still his (``confirm``) before his next command.
  A takeover that came before this question is seen in the log; one that comes after it resets the drive once more.

A lease that was given back is kept for a while, as one image follows the other: each claim costs requests.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from typing import NamedTuple

from nightferry.catalog.query import Catalog
from nightferry.catalog.storage import folder_of
from nightferry.claims.base import Say, quiet
from nightferry.claims.heartbeat import HEARTBEATS, LEASE_S, HolderWatch
from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.errors import BusyError, CatalogError, DriveTaken, Unavailable
from nightferry.model.claim_records import DriveLeaseRecord
from nightferry.units import format_duration

log = logging.getLogger(__name__)

WATCH_PAUSE_S = 1.0
"""A drive that another host has is not looked at more often."""


class _Sender(NamedTuple):
    """The thread that shows that this process lives, and what ends it."""

    ended: threading.Event
    thread: threading.Thread


class DriveLease:
    """A drive that this process may use; see ``destination.tape.drives.lease.Lease``."""

    def __init__(
        self,
        leases: DriveLeases,
        serial: str,
        sequence: int,
        *,
        untouched: bool,
        recorded: bool = True,
    ) -> None:
        self.serial = serial
        self.recorded = recorded
        """Whether the others know. Where the catalog cannot be written a restore uses the drive without."""
        self.sequence = sequence
        self.untouched = untouched
        """Nobody else had the drive since this process had it last."""
        self.user: int | None = threading.get_ident()
        """The thread that works with it; None: it is only kept."""
        self.was_used = True
        """Whether it was used since the last heartbeat."""
        self.taken_by = ""
        """Who has it now; empty while it is not known to be lost."""
        self._leases = leases

    @property
    def is_lost(self) -> bool:
        """Whether it is known to be lost."""
        return bool(self.taken_by)

    def is_newest(self) -> bool:
        """Whether by what is known of the log it is still held."""
        sequence, newest = self._leases.newest(self.serial)
        if sequence != self.sequence:
            self.taken_by = f"process {newest.pid} on {newest.node}" if newest is not None else "nobody"
        return not self.is_lost

    def require(self) -> None:
        """Raises:
        DriveTaken: the lease is known to be lost. Nobody is asked.
        """
        if self.is_lost:
            raise DriveTaken(
                f"the drive {self.serial} was taken over by {self.taken_by}", subject=self.serial
            )

    def require_newest(self) -> None:
        """Raises:
        DriveTaken: by what is known of the log, another has the drive.
        """
        if not self.is_newest():
            self.require()

    def confirm(self) -> None:
        """Asks the log.

        Raises:
            DriveTaken: another has the drive.
            Unavailable: the log cannot be asked.
        """
        self.require()
        try:
            self._leases.refresh()
        except CatalogError as error:
            raise Unavailable(
                f"it is unknown whether the drive {self.serial} still belongs to this host: {error.message}",
                hint=error.hint,
                subject=self.serial,
            ) from error
        self.require_newest()

    def release(self) -> None:
        """The thread is done with it."""
        self.user = None


class DriveLeases:
    """The leases of one process on the drives of one library.

    Args:
        catalog: Where they are written.
        say: Is told what is taken over, and from whom.
        clock: Dates leases, and times the watch of others'.
        lease_s: ``LEASE_S``.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        say: Say = quiet,
        clock: Clock = SYSTEM_CLOCK,
        lease_s: float = LEASE_S,
    ) -> None:
        self.token = secrets.token_hex(8)
        """Who holds them, in the log and in the host's lock files."""
        self._catalog = catalog
        self._say = say
        self._clock = clock
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._leases: dict[str, DriveLease] = {}
        self._watches: dict[str, HolderWatch] = {}
        self._looked: dict[str, float] = {}
        self._heartbeats = 0
        self._sender: _Sender | None = None

    def try_take(self, serial: str, dead: str) -> DriveLease | None:
        """Takes a drive; None while somebody else who lives has it.

        Args:
            serial: The drive's serial number.
            dead: The token of a holder that does not use the drive any more for certain; empty: none is known.

        Raises:
            BusyError: nothing more may be recorded by this process: the run it works for was taken over.
            CatalogError: the catalog cannot be read or written.
        """
        with self._lock:
            now = self._clock.monotonic()
            if now - self._looked.get(serial, -WATCH_PAUSE_S) < WATCH_PAUSE_S:
                return None
            self._catalog.refresh()
            before, newest = self.newest(serial)
            kept = self._leases.pop(serial, None)
            if kept is not None and kept.sequence == before and (kept.recorded or kept.user is not None):
                self._leases[serial] = kept
                if kept.user is not None:
                    return None
                kept.user, kept.was_used, kept.untouched = threading.get_ident(), True, True
                return kept
            held = newest is not None and newest.state == "held"
            if newest is not None and held and newest.holder != dead:
                if not self._is_silent(serial, before, newest, now):
                    return None
                who = f"process {newest.pid} on {newest.node}"
                self._say(f"{who} sent no heartbeat: the drive {serial} is taken over")
                log.warning("the drive %s of %s is taken over", serial, who)
            untouched = newest is not None and newest.holder == self.token
            return self._claim(serial, before, newest, untouched=untouched)

    def _claim(
        self, serial: str, before: int, former: DriveLeaseRecord | None, *, untouched: bool
    ) -> DriveLease | None:
        record = DriveLeaseRecord(
            serial=serial,
            state="held",
            holder=self.token,
            node=self._catalog.node,
            pid=os.getpid(),
            since=self._clock.now(),
        )
        try:
            self._start_heartbeats()
            placed = self._catalog.append(record, expect=before)
        except BusyError:
            if self.newest(serial)[0] == before:
                raise  # it is not this lease that is taken
            return None
        except CatalogError as error:
            # By what can be read the drive is nobody's, and whoever records a lease takes it: that ends this one.
            self._say(f"the lease of the drive {serial} cannot be recorded: {error.message}")
            lease = self._leases[serial] = DriveLease(self, serial, before, untouched=False, recorded=False)
            return lease
        self._watches.pop(serial, None)
        self._looked.pop(serial, None)
        self._clear_after(former)
        lease = self._leases[serial] = DriveLease(self, serial, placed.sequence, untouched=untouched)
        return lease

    def _clear_after(self, former: DriveLeaseRecord | None) -> None:
        """A holder that has no drive any more needs no heartbeat; one that lives takes its own away."""
        if former is None or former.state == "free":
            return
        leases = self._catalog.all(DriveLeaseRecord)
        if not any((lease.holder, lease.state) == (former.holder, "held") for lease in leases):
            self._remove_heartbeat(former.holder)

    def _is_silent(self, serial: str, sequence: int, newest: DriveLeaseRecord, now: float) -> bool:
        """Whether the holder sent no heartbeat for the lease's time."""
        self._looked[serial] = now
        watch = self._watches.setdefault(serial, HolderWatch(self._lease_s))
        life = watch.see(sequence, self._catalog.storage.read(_path(newest.holder)), now)
        if life == "met":
            self._say(
                f"the drive {serial} is in use by process {newest.pid} on {newest.node}; if it sends no "
                f"heartbeat for {format_duration(self._lease_s)}, the drive is taken over"
            )
        return life == "silent"

    def permit(self) -> None:
        """Asked before this thread records anything of a cartridge, when all that is in the log before is known.

        Raises:
            DriveTaken: a drive that the thread works with is another's by now.
        """
        # No lock: the catalog's own is held here, and is taken under ours elsewhere.
        for lease in tuple(self._leases.values()):
            if lease.user == threading.get_ident():
                lease.require_newest()

    def newest(self, serial: str) -> tuple[int, DriveLeaseRecord | None]:
        """A drive's newest lease that is known, and its event's number."""
        event = self._catalog.latest_event(DriveLeaseRecord, serial)
        return (0, None) if event is None else (event.sequence, DriveLeaseRecord.model_validate(event.body))

    def refresh(self) -> None:
        """Raises:
        CatalogError: the log cannot be read.
        """
        self._catalog.refresh()

    def close(self) -> None:
        """Gives every drive back.

        Raises:
            CatalogError: that cannot be written; the leases end by themselves then.
        """
        with self._lock:
            sender, self._sender = self._sender, None
            if sender is not None:
                sender.ended.set()
            for lease in list(self._leases.values()):
                self._give_back(lease)
        if sender is not None:
            sender.thread.join()  # a heartbeat that is on its way would leave its file
            self._remove_heartbeat(self.token)

    def heartbeat(self) -> None:
        """Shows that this process lives, finds what was taken over, and gives back what is only kept.

        Raises:
            CatalogError: it cannot be shown, or the log not be read.
        """
        self._show()
        self._catalog.refresh()
        with self._lock:
            for lease in list(self._leases.values()):
                if lease.user is None and not lease.was_used:
                    self._give_back(lease)
                    continue
                lease.was_used = lease.user is not None
                if not lease.is_lost and not lease.is_newest():
                    log.warning("the drive %s was taken over by %s", lease.serial, lease.taken_by)
                if lease.is_lost and lease.user is None:
                    del self._leases[lease.serial]
            if not self._leases and self._sender is not None:
                self._sender.ended.set()
                self._sender = None
                self._remove_heartbeat(self.token)

    def _show(self) -> None:
        self._heartbeats += 1
        self._catalog.storage.replace(_path(self.token), str(self._heartbeats).encode())

    def _give_back(self, lease: DriveLease) -> None:
        del self._leases[lease.serial]
        _, newest = self.newest(lease.serial)
        if newest is None or not lease.recorded:
            return
        try:
            self._catalog.append(newest.model_copy(update={"state": "free"}), expect=lease.sequence)
        except BusyError:
            log.info("the drive %s was taken over before it was given back", lease.serial)

    def _start_heartbeats(self) -> None:
        if self._sender is not None:
            return
        self._show()
        ended = threading.Event()
        thread = threading.Thread(
            target=self._send_heartbeats, args=(ended,), name="drive leases", daemon=True
        )
        self._sender = _Sender(ended, thread)
        thread.start()

    def _remove_heartbeat(self, holder: str) -> None:
        folder, name = folder_of(_path(holder))
        self._catalog.storage.remove(folder, [name])

    def _send_heartbeats(self, ended: threading.Event) -> None:
        while not ended.wait(self._lease_s / HEARTBEATS):
            try:
                self.heartbeat()
            except CatalogError as error:
                log.warning("cannot send the heartbeat for the tape drives: %s", error)


def _path(holder: str) -> str:
    return f"locks/drives.{holder}.beat"
