"""Locks of the operating system on drives and changers, kept in plain files."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nightferry.transfer.regular import open_regular

_log = logging.getLogger(__name__)

UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)
"""What a file system says that cannot be written, or has no room."""


class FileLock:
    """An exclusive flock on a file, held until ``release`` or the process ends.

    The file's body names the holder (``pid token``) and stays after the release, so that the next holder
    sees whether anyone else was there in between.
    """

    def __init__(self, fd: int, untouched: bool, former: str) -> None:
        self._fd = fd
        self._untouched = untouched
        self.former = former
        """The token of the holder before; empty when there was none."""

    @property
    def untouched(self) -> bool:
        return self._untouched

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def try_lock(path: Path, token: str) -> FileLock | None:
    """Takes the lock, or returns None when it is held, also by another part of this process.

    Args:
        path: The lock file; created with mode 0600.
        token: Who we are. The lock is ``untouched`` when the last holder had the same token.

    Where nothing can be written the lock that is there is taken as it is: a restore needs drives, too.

    Raises:
        OSError: there is none, and none can be made.
    """
    fd = _open(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError:
        os.close(fd)
        raise
    body = f"{os.getpid()} {token}\n".encode()
    before = os.pread(fd, 256, 0)
    if before != body:
        try:
            os.pwrite(fd, body, 0)
            os.ftruncate(fd, len(body))
        except OSError as error:
            if error.errno not in (*UNWRITABLE, errno.EBADF):
                os.close(fd)
                raise
            _log.info("%s does not name its holder: %s", path, error.strerror)
    _, _, former = before.decode(errors="replace").strip().partition(" ")
    return FileLock(fd, before == body, former)


def _open(path: Path) -> int:
    try:
        return open_regular(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        try:
            return open_regular(path)
        except FileNotFoundError:
            raise error from None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock of ``path`` for a short critical section, waiting for it."""
    fd = open_regular(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
