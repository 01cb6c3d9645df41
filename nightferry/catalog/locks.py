"""One run per BACK group, and how another process asks it to make room.

In a folder the lock is the operating system's (flock on a file in the catalog's folder), so it ends with the
process that holds it, however that process ends; the file's content only says who that is. In a bucket it is a
lease (``catalog/lease.py``). The drain request is a file: a run looks at it between two images and then stops
with what it still owes on record.

On NFS Linux carries flock to the server, so the lock holds between nodes, unless the folder is mounted with
``nolock`` or ``local_lock``.
"""

from __future__ import annotations

import fcntl
import os
import platform
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from nightferry.catalog.folder import catalog_errors
from nightferry.catalog.storage import Storage, check_name
from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.errors import BusyError, CatalogError
from nightferry.progress import Cancel
from nightferry.transfer.below import folder_below
from nightferry.transfer.durable import FILE_MODE, FOLDER_MODE
from nightferry.transfer.regular import open_regular

_TRIES = 20
_PAUSE_S = 0.02
_LARGEST_NOTE = 65536

Say = Callable[[str], None]


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

    def __str__(self) -> str:
        called = f"run {self.run}" if self.run else "a run"
        return f"{called} on node {self.node} (process {self.pid}) since {self.since:%F %H:%M} UTC"


class DrainRequest(BaseModel):
    """Somebody asks the run of a BACK group to end at the next image boundary.

    ``since`` says which run: it is the moment its holder took the lock, by that holder's own clock.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    by: str
    since: AwareDatetime


def quiet(text: str) -> None:
    """Says nothing."""


class RunLock(Protocol):
    """The right to run a BACK group: at most one process on all nodes has it."""

    back_group: str

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""

    @property
    def since(self) -> datetime:
        """When this object took the lock.

        Raises:
            BusyError: it has not.
        """

    def acquire(
        self, run: str, window: str, *, say: Say = quiet, lost: Say = quiet, cancel: Cancel | None = None
    ) -> Self:
        """Takes the lock, or says who has it.

        Args:
            run: The run it is for, if that is known yet.
            window: Its window.
            say: Is told what is waited for.
            lost: Is called, from another thread, when the lock was taken over by somebody else.
            cancel: Ends the waiting.

        Raises:
            BusyError: another run holds it; names the run, the node and the process.
            CatalogError: it cannot be taken.
        """

    def name_run(self, run: str) -> None:
        """Writes into the lock which run holds it, for whoever finds it taken.

        Raises:
            BusyError: this object has not taken the lock.
        """

    def require(self) -> None:
        """Raises:
        BusyError: somebody else took the lock over.
        """

    def release(self) -> None:
        """Gives the lock back; may be called twice."""

    def holder(self) -> Holder | None:
        """Who holds the lock now; None when nobody does.

        Raises:
            CatalogError: that cannot be seen.
        """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class FolderLock:
    """See ``RunLock``: flock on a file, which lasts as long as its process.

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
        return self._fd is not None

    @property
    def since(self) -> datetime:
        if self._holder is None:
            raise not_locked(self.back_group)
        return self._holder.since

    def acquire(
        self, run: str, window: str, *, say: Say = quiet, lost: Say = quiet, cancel: Cancel | None = None
    ) -> Self:
        """See ``RunLock.acquire``; answers within half a second, and is never lost."""
        if self._fd is not None:
            raise locked_here(self.back_group)
        with catalog_errors("lock", self._path):
            folder = self._path.parent
            with folder_below(folder.parent, [folder.name], mode=FOLDER_MODE) as place:
                fd = open_regular(place / self._path.name, os.O_RDWR | os.O_CREAT, mode=FILE_MODE)
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

    def name_run(self, run: str) -> None:
        if self._fd is None or self._holder is None:
            raise not_locked(self.back_group)
        self._holder = self._holder.model_copy(update={"run": run})
        with catalog_errors("write", self._path):
            _write_note(self._fd, self._holder)

    def require(self) -> None:
        """The system takes it from nobody who lives."""

    def release(self) -> None:
        fd, self._fd = self._fd, None
        if fd is None:
            return
        with catalog_errors("unlock", self._path):
            try:
                os.ftruncate(fd, 0)
            finally:
                os.close(fd)

    def holder(self) -> Holder | None:
        with catalog_errors("look at the lock", self._path):
            try:
                with folder_below(self._path.parents[1], [self._path.parent.name]) as place:
                    fd = open_regular(place / self._path.name)
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

    def __enter__(self) -> Self:
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
        raise busy(self.back_group, _read_note(fd))


def busy(back_group: str, holder: Holder | None) -> BusyError:
    """What whoever comes second is told."""
    return BusyError(f"{back_group} is busy: {holder or 'another process'}", subject=back_group)


def locked_here(back_group: str) -> BusyError:
    return BusyError(f"{back_group} is already locked by this process", subject=back_group)


def not_locked(back_group: str) -> BusyError:
    return BusyError(f"{back_group} is not locked by this object", subject=back_group)


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


def request_drain(storage: Storage, back_group: str, by: str, since: datetime) -> None:
    """Asks the run of a BACK group that took its lock at ``since`` to end at its next image boundary; durable
    on return.

    Raises:
        CatalogError: the request cannot be written.
    """
    request = DrainRequest(by=by, since=since)
    storage.replace(_drain_path(back_group), request.model_dump_json().encode())


def drain_requested(storage: Storage, back_group: str, since: datetime) -> DrainRequest | None:
    """The request to drain, when there is one for the run that took the lock at ``since``.

    No clock is compared with another: both times are the holder's own.

    Raises:
        CatalogError: the request cannot be read.
    """
    path = _drain_path(back_group)
    text = storage.read(path)
    if text is None:
        return None
    try:
        request = DrainRequest.model_validate_json(text)
    except ValidationError as error:
        raise CatalogError(
            f"the drain request {path} in {storage} is garbled", hint="remove it", subject=back_group
        ) from error
    return request if request.since == since else None


def clear_drain(storage: Storage, back_group: str) -> None:
    """Takes the request back; none is fine.

    Raises:
        CatalogError: it cannot be removed.
    """
    storage.remove("locks", [f"{check_name(back_group)}.drain"])


def _drain_path(back_group: str) -> str:
    return f"locks/{check_name(back_group)}.drain"
