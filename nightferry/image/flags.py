"""Inode flags, as ``lsattr`` shows and ``chattr`` sets them.

Source: ``<linux/fs.h>`` (FS_IOC_GETFLAGS, FS_*_FL), ioctl_iflags(2), chattr(1) for the letters.
"""

from __future__ import annotations

import errno
import fcntl
import struct
from typing import Final

_LONG: Final = struct.calcsize("l")
_GETFLAGS: Final = 2 << 30 | _LONG << 16 | ord("f") << 8 | 1
_SETFLAGS: Final = 1 << 30 | _LONG << 16 | ord("f") << 8 | 2

APPEND: Final = 0x20
IMMUTABLE: Final = 0x10
_LETTERS: Final = {
    "s": 0x1, "u": 0x2, "S": 0x8, "D": 0x1_0000, "i": IMMUTABLE, "a": APPEND, "d": 0x40, "A": 0x80, "c": 0x4,
    "j": 0x4000, "t": 0x8000, "T": 0x2_0000, "m": 0x400, "C": 0x80_0000, "x": 0x200_0000, "P": 0x2000_0000,
    "F": 0x4000_0000,
}  # fmt: skip
"""The flags an operator sets. Those that say how a file system stores a file (extents, inline data, encryption,
verity) are its own affair."""
_KEPT: Final = sum(_LETTERS.values())

FREEZING: Final = APPEND | IMMUTABLE
"""Nothing can be written, renamed or linked any more where these are set, and only root may set them."""

_NO_FLAGS: Final = {errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EACCES}


def read_flags(fd: int) -> int:
    """The flags of an open file or directory that ``chattr`` can set; 0 where the file system has none.

    Raises:
        OSError: they cannot be read.
    """
    return _get(fd) & _KEPT


def add_flags(fd: int, flags: int) -> int:
    """Sets flags as far as the file system and the caller's rights go; those that are set stay.

    Returns:
        The flags that are not set afterwards.

    Raises:
        OSError: they cannot be read.
    """
    now = _get(fd)
    missing = flags & ~now
    if missing and not _set(fd, now | missing):
        # One flag that this file system does not know must not cost the others.
        for flag in _LETTERS.values():
            if flag & missing and _set(fd, now | flag):
                now |= flag
    return flags & ~_get(fd) if missing else 0


def letters(flags: int) -> str:
    """As ``lsattr`` writes them, without the dashes."""
    return "".join(letter for letter, flag in _LETTERS.items() if flags & flag)


def _get(fd: int) -> int:
    try:
        found = fcntl.ioctl(fd, _GETFLAGS, bytes(_LONG))
    except OSError as error:
        if error.errno in _NO_FLAGS:
            return 0
        raise
    return int(struct.unpack_from("=I", found)[0])  # the kernel fills an int, whatever the call's name says


def _set(fd: int, flags: int) -> bool:
    try:
        fcntl.ioctl(fd, _SETFLAGS, struct.pack("=I", flags).ljust(_LONG, b"\0"))
    except OSError:
        return False  # what came of it is read back
    return True
