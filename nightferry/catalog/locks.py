"""One run per BACK group, and how another process asks it to make room.

The lock is the operating system's (flock on a file in the catalog's folder), so it ends with the process that
holds it, however that process ends; the file's content only says who that is. The drain request is a file: a
run looks at it between two images and then stops with what it still owes on record.

On NFS Linux carries flock to the server, so the lock holds between nodes, unless the folder is mounted with
``nolock`` or ``local_lock``.
"""

from __future__ import annotations

import fcntl
import os
import platform
from datetime import datetime
from pathlib import Path
from types import TracebackType

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from nightferry.catalog.durable import (
    catalog_errors,
    check_name,
    make_folder,
)
from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.errors import BusyError, CatalogError
from nightferry.transfer.durable import FILE_MODE, replace_file, sync_folder

_TRIES = 20
_PAUSE_S = 0.02
_LARGEST_NOTE = 65536


class Holder(BaseModel):
    """Who holds a BACK group's lock."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    run: str
    window: str
    node: str
    pid: int
    since: AwareDatetime

    @property
    def key(self) -> str:
        """Tells this holding of the lock from every other."""
        return f"{self.node}/{self.pid}/{self.since.isoformat()}"


class DrainRequest(BaseModel):
    """Somebody asks the run of a BACK group to end at the next image boundary."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    by: str
    at: AwareDatetime


class RunLock:
    """The right to run a BACK group: at most one process on all nodes has it.

    A child made by ``os.fork`` without exec would share the lock and keep it while it lives; programs started
    by ``subprocess`` do not.

    Args:
        catalog_path: The catalog's folder; it must exist.
        back_group: Whose lock.
        node: The name written into it; this machine's by default.
    """

    def __init__(
        self, catalog_path: Path, back_group: str, *, node: str = "", clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.back_group = check_name(back_group)
        self._path = catalog_path / "locks" / f"{back_group}.lock"
        self._node = node or platform.node()
        self._clock = clock
        self._fd: int | None = None
        self._holder: Holder | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._fd is not None

    def acquire(self, run: str, window: str) -> RunLock:
        """Takes the lock, or says within half a second who has it.

        Raises:
            BusyError: another run holds it; names the run, the node and the process.
            CatalogError: the lock's file cannot be made or locked.
        """
        if self._fd is not None:
            raise BusyError(f"{self.back_group} is already locked by this process", subject=self.back_group)
        with catalog_errors("lock", self._path):
            make_folder(self._path.parent)
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            try:
                self._lock(fd)
                since = self._clock.now()
                holder = Holder(run=run, window=window, node=self._node, pid=os.getpid(), since=since)
                _write_note(fd, holder)
            except BaseException:
                os.close(fd)
                raise
        self._fd = fd
        self._holder = holder
        return self

    @property
    def key(self) -> str:
        """What other processes that work under this lock know it by.

        Raises:
            BusyError: this object has not taken the lock.
        """
        return self._holding.key

    @property
    def since(self) -> datetime:
        """When this object took the lock.

        Raises:
            BusyError: it has not.
        """
        return self._holding.since

    def name_run(self, run: str) -> None:
        """Writes into the lock which run holds it, for whoever finds it taken.

        Raises:
            BusyError: this object has not taken the lock.
        """
        if self._fd is None or self._holder is None:
            raise BusyError(f"{self.back_group} is not locked by this object", subject=self.back_group)
        self._holder = self._holder.model_copy(update={"run": run})
        with catalog_errors("write", self._path):
            _write_note(self._fd, self._holder)

    def release(self) -> None:
        """Gives the lock back; may be called twice."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        with catalog_errors("unlock", self._path):
            try:
                os.ftruncate(fd, 0)
            finally:
                os.close(fd)

    def holder(self) -> Holder | None:
        """Who holds the lock now; None when nobody does.

        Raises:
            CatalogError: the lock's file cannot be read.
        """
        with catalog_errors("look at the lock", self._path):
            try:
                fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            try:
                # Only the system knows; the note may be a dead process's. The shared lock lasts until the
                # close below, and `acquire` tries for longer than that.
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None
            except BlockingIOError:
                return _read_note(fd)
            finally:
                os.close(fd)

    def __enter__(self) -> RunLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    @property
    def _holding(self) -> Holder:
        if self._holder is None:
            raise BusyError(f"{self.back_group} is not locked by this object", subject=self.back_group)
        return self._holder

    def _lock(self, fd: int) -> None:
        # Several tries: `holder` of another process may be looking, and a holder that has just locked may
        # not have written its name yet.
        for _ in range(_TRIES):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                self._clock.sleep(_PAUSE_S)
        holder = _read_note(fd)
        who = (
            f"run {holder.run} on node {holder.node} (process {holder.pid}) since {holder.since:%F %H:%M} UTC"
            if holder
            else "another process"
        )
        raise BusyError(
            f"{self.back_group} is busy: {who}",
            operation="lock",
            subject=self.back_group,
        )


def _write_note(fd: int, holder: Holder) -> None:
    note = holder.model_dump_json().encode()
    os.ftruncate(fd, 0)
    os.pwrite(fd, note, 0)
    os.fsync(fd)


def _read_note(fd: int) -> Holder | None:
    try:
        return Holder.model_validate_json(os.pread(fd, _LARGEST_NOTE, 0))
    except ValidationError:
        return None  # not written yet, or cut off by a crash: the lock itself stays what it is


def request_drain(catalog_path: Path, back_group: str, by: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
    """Asks the run of a BACK group to end at its next image boundary; durable on return.

    Raises:
        CatalogError: the request cannot be written.
    """
    path = _drain_path(catalog_path, back_group)
    with catalog_errors("write", path):
        make_folder(path.parent)
        replace_file(path, DrainRequest(by=by, at=clock.now()).model_dump_json().encode())


def drain_requested(catalog_path: Path, back_group: str, since: datetime) -> DrainRequest | None:
    """The request to drain, when there is one that was made at ``since`` (the run's start) or later.

    Raises:
        CatalogError: the request cannot be read.
    """
    path = _drain_path(catalog_path, back_group)
    with catalog_errors("read", path):
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return None
    try:
        request = DrainRequest.model_validate_json(text)
    except ValidationError as error:
        raise CatalogError(
            f"the drain request {path} is garbled", hint="remove it", subject=back_group
        ) from error
    return request if request.at >= since else None


def clear_drain(catalog_path: Path, back_group: str) -> None:
    """Takes the request back; none is fine.

    Raises:
        CatalogError: it cannot be removed.
    """
    path = _drain_path(catalog_path, back_group)
    with catalog_errors("remove", path):
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        sync_folder(path.parent)


def _drain_path(catalog_path: Path, back_group: str) -> Path:
    return catalog_path / "locks" / f"{check_name(back_group)}.drain"
