"""Files opened for what they are: a regular file, under its own name, within a limit.

Where a file is expected, anything may lie: a FIFO that nobody writes to would hold its opener up for ever, a device
never ends, a symbolic link leads elsewhere, and a sparse file of terabytes costs its maker nothing.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
}
_SCOOP_BYTES = 8 << 20
NO_FILE = errno.EINVAL
"""What ``open_regular`` says of something that is not a regular file."""


def open_regular(
    path: str | Path,
    flags: int = os.O_RDONLY,
    *,
    mode: int = 0o600,
) -> int:
    """Opens a file, at once whatever is there; the caller closes the descriptor.

    Args:
        path: The file.
        flags: More than ``O_RDONLY`` for one that is to be written.
        mode: Of one that ``flags`` make.

    Raises:
        OSError: it cannot be opened, or is not a regular file (``EINVAL``, and ``strerror`` says what it is).
    """
    more = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(path, flags | more, mode)
    except OSError as error:
        kind = _KINDS[stat.S_IFLNK] if error.errno == errno.ELOOP else ""
        kind = _KINDS[stat.S_IFSOCK] if error.errno == errno.ENXIO else kind
        if not kind:
            raise
        raise _no_file(kind, path) from error
    kind = _KINDS.get(stat.S_IFMT(os.fstat(fd).st_mode), "")
    if kind:
        os.close(fd)
        raise _no_file(kind, path)
    return fd


def read_regular(path: str | Path, most_bytes: int) -> bytes:
    """All of a file of at most ``most_bytes``.

    Raises:
        OSError: see ``open_regular``; ``EFBIG``: it is longer.
    """
    fd = open_regular(path)
    try:
        size = os.fstat(fd).st_size
        if size > most_bytes:
            raise OSError(errno.EFBIG, f"it has {size} bytes, and may have {most_bytes}", str(path))
        return read_at(fd, 0, size)
    finally:
        os.close(fd)


def read_at(fd: int, offset: int, length: int) -> bytes:
    """Up to ``length`` bytes, fewer only at the end of the file: one read may stop at 2 GiB.

    Raises:
        OSError: they cannot be read.
    """
    pieces = []
    while length:
        piece = os.pread(fd, min(length, _SCOOP_BYTES), offset)
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _no_file(kind: str, path: str | Path) -> OSError:
    return OSError(NO_FILE, f"it is {kind}, not a file", str(path))
