"""The Linux calls a restore needs and Python does not offer: renameat2 and syncfs."""

from __future__ import annotations

import ctypes
import errno
import os

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
"""Flags of renameat2. Source: renameat2(2), <linux/fs.h>."""

AT_FDCWD = -100
"""Paths are taken from the working directory. Source: openat(2), <fcntl.h>."""

_libc = ctypes.CDLL(None, use_errno=True)


def _raise_last(name: bytes) -> None:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number), name)


def _renameat2(source_dir: int, source: bytes, target_dir: int, target: bytes, flags: int) -> None:
    if _libc.renameat2(source_dir, source, target_dir, target, flags) != 0:
        _raise_last(target)


def rename_noreplace(source: bytes, target: bytes, *, dir_fd: int = AT_FDCWD) -> None:
    """Renames within one directory, never over something.

    Where the file system knows no RENAME_NOREPLACE (NFS, some FUSE), a hard link and an unlink do the
    same for everything but directories.

    Raises:
        FileExistsError: ``target`` is there, also when it appeared this moment; nothing changed.
        OSError: any other refusal of the file system.
    """
    try:
        _renameat2(dir_fd, source, dir_fd, target, RENAME_NOREPLACE)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        where = None if dir_fd == AT_FDCWD else dir_fd
        os.link(source, target, src_dir_fd=where, dst_dir_fd=where, follow_symlinks=False)
        os.unlink(source, dir_fd=where)


def rename_exchange(first: bytes, second: bytes) -> None:
    """Exchanges two names in one step: whoever looks sees the one or the other, never neither.

    Raises:
        OSError: EINVAL or ENOSYS where the file system cannot do it; EXDEV across file systems; EBUSY on
            a mount point.
    """
    _renameat2(AT_FDCWD, first, AT_FDCWD, second, RENAME_EXCHANGE)


def syncfs(fd: int) -> None:
    """Makes durable all that was written to the file system of ``fd``.

    Raises:
        OSError: a write failed meanwhile, also an earlier one not yet reported.
    """
    if _libc.syncfs(fd) != 0:
        _raise_last(b"")
