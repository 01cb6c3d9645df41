"""Claims that the operating system keeps: flock on files in a folder that every node reaches, which lasts as long as
the process that holds it, however that ends.

What the files say is only for people. On NFS Linux carries flock to the server, so a claim holds between nodes, unless
the folder is mounted with ``nolock`` or ``local_lock``.
"""

from __future__ import annotations

import fcntl
import os
import platform
import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import ValidationError

from nightferry.catalog.folder import catalog_errors
from nightferry.catalog.storage import check_name
from nightferry.claims.base import Holder, Reader, Say, busy, held_here, not_held, quiet
from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.errors import BusyError, ClusterError
from nightferry.progress import Cancel
from nightferry.transfer.below import folder_below, open_folder
from nightferry.transfer.durable import FILE_MODE, FOLDER_MODE, write_all
from nightferry.transfer.files import room_hint
from nightferry.transfer.regular import open_regular

_TRIES = 20
_PAUSE_S = 0.02
_LARGEST_NOTE = 65536


class FlockClaims:
    """See ``Claims``.

    Args:
        catalog_path: The catalog's folder; it must exist.
        node: The name written into claims; this machine's by default.
        clock: Dates them.
    """

    def __init__(self, catalog_path: Path, *, node: str = "", clock: Clock = SYSTEM_CLOCK) -> None:
        self._path = catalog_path
        self._node = node
        self._clock = clock

    def exclusive(self, back_group: str) -> FlockClaim:
        return FlockClaim(self._path, back_group, node=self._node, clock=self._clock)

    def shared(self, back_group: str) -> FlockShared:
        folder = self._path / "locks" / f"{check_name(back_group)}.readers"
        return FlockShared(folder, back_group, self._clock)


class FlockClaim:
    """See ``Claim``: flock on a file, which lasts as long as its process.

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
            raise not_held(self.back_group)
        return self._holder.since

    def acquire(
        self, run: str, window: str, *, say: Say = quiet, lost: Say = quiet, cancel: Cancel | None = None
    ) -> Self:
        """See ``Claim.acquire``; answers within half a second, and is never lost."""
        if self._fd is not None:
            raise held_here(self.back_group)
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
            raise not_held(self.back_group)
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


class FlockShared:
    """See ``Shared``: a lock file that readers share, and a file of each reader that says who it is.

    The leases lie in a folder that every node reaches, not on the disk: whoever moves the disk sees them from any node,
    and neither a lease nor the mover's lock keeps the disk's file system busy while it is to be unmounted.

    Args:
        folder: ``locks/<name>`` of the catalog: theirs alone, the same one on every node; made when first used.
        back_group: Whose disk, for messages.
        clock: Dates leases.
    """

    def __init__(self, folder: Path, back_group: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._folder = folder
        self._back_group = back_group
        self._clock = clock

    @contextmanager
    def read(self, who: str, *, warn: Say | None = None) -> Iterator[Reader]:
        """Keeps the disk where it is while the block runs. A killed holder's lease ends with its process.

        Args:
            who: What reads, for people: ``stage two of 20261130-TEX-BACK-1``.
            warn: Is told when the folder cannot be written, and the block runs all the same: under the lock where
                that is there, so that the disk stays, and without any lease where it is not. For restores; None:
                that is an error.

        Raises:
            BusyError: the disk is about to move.
            ClusterError: the folder cannot be written.
        """
        reader = Reader(who=who, host=socket.gethostname(), pid=os.getpid(), since=self._clock.now())
        with ExitStack() as stack:
            try:
                lock = self._lock_file()
            except ClusterError as error:
                if warn is None:
                    raise
                there = self._lock_file_as_it_is()
                if there is None:
                    warn(f"no lease for the {who}: {error.message}")
                    yield reader
                    return
                lock = there
            stack.callback(os.close, lock)
            self._flock(lock, fcntl.LOCK_SH)
            try:
                stack.enter_context(self._described(reader))
            except OSError as error:
                refused = self._unwritable(error)
                if warn is None:
                    raise refused from error
                warn(f"the lease of the {who} has no name: {refused.message}")
            yield reader

    @contextmanager
    def _described(self, reader: Reader) -> Iterator[None]:
        """Shows who reads while the block runs.

        Raises:
            OSError: it cannot be written.
        """
        folder = self._opened()
        path = Path(f"/proc/self/fd/{folder}") / f"{reader.host}-{reader.pid}-{secrets.token_hex(6)}.json"
        draft = path.with_suffix(".draft")
        try:
            fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except BaseException:
            os.close(folder)
            raise
        try:
            # The lock on the description tells a living holder from one that was killed, so the
            # description gets the name that others look for only when it is locked.
            fcntl.flock(fd, fcntl.LOCK_EX)
            write_all(fd, reader.model_dump_json(indent=2).encode())
            draft.rename(path)
            yield
        finally:
            # What cannot be removed is a dead holder's once it is closed, and goes with the next look.
            for name in (draft, path):
                with suppress(OSError):
                    name.unlink(missing_ok=True)
            os.close(fd)
            os.close(folder)

    def readers(self) -> list[Reader]:
        """Who reads from the disk now, the oldest first."""
        try:
            with folder_below(*self._below) as folder:
                living = [_living(path) for path in folder.iterdir() if path.suffix == ".json"]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unwritable(error) from error
        return sorted((reader for reader in living if reader is not None), key=lambda reader: reader.since)

    def clear(self) -> None:
        """Removes what readers that were killed left; drafts only while nobody reads, as nobody begins then.

        Raises:
            ClusterError: the folder cannot be written.
        """
        if not self._folder.is_dir():
            return
        self.readers()
        lock = self._lock_file()
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with folder_below(*self._below) as folder:
                for draft in folder.glob("*.draft"):
                    draft.unlink(missing_ok=True)
        except BlockingIOError:
            return
        finally:
            os.close(lock)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keeps readers out while the block runs: for the move.

        Raises:
            BusyError: somebody reads; the message names them.
            ClusterError: the folder cannot be written.
        """
        lock = self._lock_file()
        try:
            self._flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    @property
    def _below(self) -> tuple[Path, tuple[str, str]]:
        """The catalog's folder, which may be a link, and the names below it, which may not."""
        return self._folder.parents[1], (self._folder.parent.name, self._folder.name)

    def _opened(self) -> int:
        """A descriptor of the folder, made where it is missing."""
        return open_folder(*self._below, mode=0o700)

    def _lock_file(self) -> int:
        try:
            with folder_below(*self._below, mode=0o700) as folder:
                return open_regular(folder / "lock", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise self._unwritable(error) from error

    def _lock_file_as_it_is(self) -> int | None:
        """The lock on a file system that cannot be written; None where it was never made."""
        try:
            with folder_below(*self._below) as folder:
                return open_regular(folder / "lock")
        except OSError:
            return None

    def _unwritable(self, error: OSError) -> ClusterError:
        return ClusterError(
            f"cannot lock the disk of {self._back_group} in {self._folder}: {error.strerror}",
            hint=room_hint(error, self._folder)
            or "the folder of the catalog must be there and writable on every node",
            subject=str(self._folder),
        )

    def _flock(self, fd: int, mode: int) -> None:
        try:
            fcntl.flock(fd, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            readers = self.readers()
            if readers:
                named = ", ".join(f"{r.who} (pid {r.pid} on {r.host})" for r in readers)
                raise BusyError(
                    f"the disk of {self._back_group} is read by {named}", subject=self._back_group
                ) from None
            what = "is about to move" if mode == fcntl.LOCK_SH else "is read by a restore without a name"
            raise BusyError(f"the disk of {self._back_group} {what}", subject=self._back_group) from None


def _living(path: Path) -> Reader | None:
    """The description, if its holder still holds it; what a killed holder left is removed."""
    try:
        fd = open_regular(path)
    except FileNotFoundError:
        return None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return Reader.model_validate_json(os.read(fd, _LARGEST_NOTE))
        with suppress(OSError):  # who may only look leaves it to others
            path.unlink(missing_ok=True)
        return None
    finally:
        os.close(fd)
