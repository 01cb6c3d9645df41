"""Which host may use which drive of a tape library, where the catalog is in a bucket.

A drive's lease is an event of the log, written against the event before it, as a run's is (``catalog/lease.py``);
that the holder lives is shown by one beat file for all drives of a process. Who wants a drive watches that file, and
takes the lease over when it has not changed for ``LEASE_S`` by the watcher's own monotonic clock.

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

from nightferry.catalog.lease import BEATS, LEASE_S
from nightferry.catalog.locks import Say, quiet
from nightferry.catalog.query import Catalog
from nightferry.catalog.storage import folder_of
from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.errors import BusyError, CatalogError, DriveTaken, Unavailable
from nightferry.model.claim_records import DriveLeaseRecord
from nightferry.units import format_duration

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""A drive that another host has is not looked at more often."""


class _Seen(NamedTuple):
    """A holder's beat as it was watched: of which lease, what it said, when it was seen first and looked at last
    (monotonic)."""

    sequence: int
    beat: bytes | None
    since: float
    looked: float


class _Beating(NamedTuple):
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
        """Whether it was used since the last beat."""
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
                f"whether the drive {self.serial} is still this host's cannot be told: {error.message}",
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
        lease_s: float | None = None,
    ) -> None:
        self.token = secrets.token_hex(8)
        """Who holds them, in the log and in the host's lock files."""
        self._catalog = catalog
        self._say = say
        self._clock = clock
        self._lease_s = LEASE_S if lease_s is None else lease_s
        self._lock = threading.Lock()
        self._leases: dict[str, DriveLease] = {}
        self._seen: dict[str, _Seen] = {}
        self._beats = 0
        self._beating: _Beating | None = None

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
            seen = self._seen.get(serial)
            if seen is not None and now - seen.looked < LOOK_S:
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
                self._say(f"{who} gave no sign of life: the drive {serial} is taken over")
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
            self._begin_beating()
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
        self._seen.pop(serial, None)
        self._clear_after(former)
        lease = self._leases[serial] = DriveLease(self, serial, placed.sequence, untouched=untouched)
        return lease

    def _clear_after(self, former: DriveLeaseRecord | None) -> None:
        """A holder that has no drive any more needs no beat; one that lives takes its own away."""
        if former is None or former.state == "free":
            return
        leases = self._catalog.all(DriveLeaseRecord)
        if not any((lease.holder, lease.state) == (former.holder, "held") for lease in leases):
            self._remove_beat(former.holder)

    def _is_silent(self, serial: str, sequence: int, newest: DriveLeaseRecord, now: float) -> bool:
        """Whether the holder gave no sign of life for the lease's time."""
        beat = self._catalog.storage.read(_path(newest.holder))
        seen = self._seen.get(serial)
        if seen is None or (seen.sequence, seen.beat) != (sequence, beat):
            if seen is None or seen.sequence != sequence:
                self._say(
                    f"the drive {serial} is in use by process {newest.pid} on {newest.node}; if that gives no "
                    f"sign of life for {format_duration(self._lease_s)}, the drive is taken over"
                )
            self._seen[serial] = _Seen(sequence, beat, now, now)
            return False
        self._seen[serial] = seen._replace(looked=now)
        return now - seen.since >= self._lease_s

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
            beating, self._beating = self._beating, None
            if beating is not None:
                beating.ended.set()
            for lease in list(self._leases.values()):
                self._give_back(lease)
        if beating is not None:
            beating.thread.join()  # a beat that is on its way would leave its file
            self._remove_beat(self.token)

    def beat(self) -> None:
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
            if not self._leases and self._beating is not None:
                self._beating.ended.set()
                self._beating = None
                self._remove_beat(self.token)

    def _show(self) -> None:
        self._beats += 1
        self._catalog.storage.replace(_path(self.token), str(self._beats).encode())

    def _give_back(self, lease: DriveLease) -> None:
        del self._leases[lease.serial]
        _, newest = self.newest(lease.serial)
        if newest is None or not lease.recorded:
            return
        try:
            self._catalog.append(newest.model_copy(update={"state": "free"}), expect=lease.sequence)
        except BusyError:
            log.info("the drive %s was taken over before it was given back", lease.serial)

    def _begin_beating(self) -> None:
        if self._beating is not None:
            return
        self._show()
        ended = threading.Event()
        thread = threading.Thread(target=self._beat_on, args=(ended,), name="drive leases", daemon=True)
        self._beating = _Beating(ended, thread)
        thread.start()

    def _remove_beat(self, holder: str) -> None:
        folder, name = folder_of(_path(holder))
        self._catalog.storage.remove(folder, [name])

    def _beat_on(self, ended: threading.Event) -> None:
        while not ended.wait(self._lease_s / BEATS):
            try:
                self.beat()
            except CatalogError as error:
                log.warning("no sign of life could be given for the tape drives: %s", error)


def _path(holder: str) -> str:
    return f"locks/drives.{holder}.beat"
