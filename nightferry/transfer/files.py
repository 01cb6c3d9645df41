"""What the system can do for a large file: unbuffered opening, allocation, extents, a rename that lasts."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import math
import os
from collections.abc import Callable
from functools import cache

ALIGNMENT = 4096
"""Offsets, lengths and addresses of unbuffered I/O are multiples of this: the page, and the largest common
sector.
"""

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What the system says where there is no room."""
_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM})
_STEP_BYTES = 1 << 30
"""How much is allocated between two looks at the room that is left."""


def room_hint(error: OSError, place: object) -> str:
    """What to do about an error of a place that has no room; empty when it is another one."""
    return f"free room on the file system of {place}" if error.errno in NO_SPACE else ""


def round_up(count: int) -> int:
    """The next multiple of ``ALIGNMENT``."""
    return -(-count // ALIGNMENT) * ALIGNMENT


def reopen_direct(fd: int) -> int | None:
    """A second, unbuffered descriptor of the file behind ``fd``, for reading; the caller closes it.

    ``fd`` itself keeps its flags, so several threads may read the same descriptor meanwhile. None when the
    file system or the rights do not allow it.
    """
    kept = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NOATIME
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC | kept)
    except OSError:
        return None


def preallocate(fd: int, size_bytes: int) -> bool:
    """Gives the file ``size_bytes`` of room and size; False when the file system cannot.

    This is fallocate(2) itself: the C library's posix_fallocate would write a byte into every block where the
    file system refuses, which over a network takes hours. A call for more than there is would take all the room
    before it fails (ext4 does), and whoever else writes there would meet a full disk; so the room is looked at
    first, and again after every step, since others allocate too.

    Raises:
        OSError: there is no room (``NO_SPACE``), or the disk failed.
    """
    call = _fallocate()
    if call is None:
        return False
    done = 0
    while done < size_bytes:
        if _room(fd) < size_bytes - done:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        step = min(_STEP_BYTES, size_bytes - done)
        if call(fd, 0, done, step) == 0:
            done += step
            continue
        code = ctypes.get_errno()
        if code in _UNSUPPORTED:
            return False
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))
    return True


def _room(fd: int) -> float:
    """The free bytes of the file system that holds ``fd``; infinite where it does not count them (some of FUSE)."""
    status = os.fstatvfs(fd)
    return status.f_bavail * status.f_frsize if status.f_blocks else math.inf


@cache
def _fallocate() -> Callable[[int, int, int, int], int] | None:
    libc = ctypes.CDLL(None, use_errno=True)
    # glibc's `fallocate` takes a 32-bit off_t on 32-bit machines; `fallocate64` is the same everywhere.
    call = getattr(libc, "fallocate64", None) or getattr(libc, "fallocate", None)
    if call is None:
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    call.restype = ctypes.c_int
    found: Callable[[int, int, int, int], int] = call
    return found


def data_extents(fd: int, size: int) -> list[tuple[int, int]]:
    """Where the first ``size`` bytes of a file hold data: ``(offset, length)`` in order, without the holes.

    A file system that does not know holes answers with one extent. Moves the descriptor's file offset.
    """
    extents: list[tuple[int, int]] = []
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
            end = os.lseek(fd, start, os.SEEK_HOLE) if start < size else size
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole up to the end
                break
            if error.errno == errno.EINVAL and not extents:
                return [(0, size)]
            raise
        if start >= size:
            break
        extents.append((start, min(end, size) - start))
        at = end
    return extents
