"""Folders below a root, reached by descriptor: one name at a time, and through no symbolic link.

The root is what an operator chose, and may be a link. What lies below it may have been in other hands: a link in the
place of a folder would lead whatever is written, read or removed there to somewhere else.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LINK = errno.ELOOP
"""What ``open_folder`` answers where a symbolic link stands in the place of a folder."""

_THROUGH = re.compile(r"(/proc/self/fd/[0-9]+)(.*)", re.DOTALL)
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def open_folder(root: str | Path, names: Iterable[str] = (), *, mode: int | None = None) -> int:
    """A descriptor of a folder; the caller closes it.

    Args:
        root: Where to begin.
        names: The names that lead from there to the folder, each of one folder.
        mode: With a mode the folders below the root are made where they are missing, with that mode whatever the
            umask, durably.

    Raises:
        OSError: a folder is not there, or cannot be made; ``LINK``: one is a symbolic link.
    """
    path, fd = Path(root), os.open(root, _FLAGS)
    try:
        for name in names:
            path /= name
            made = mode is not None and _make(name, mode, fd)
            inner = _open(name, fd, path)
            above, fd = fd, inner
            try:
                if made and mode is not None:
                    os.fchmod(fd, mode)
                    os.fsync(above)
            finally:
                os.close(above)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def folder_below(root: str | Path, names: Iterable[str] = (), *, mode: int | None = None) -> Iterator[Path]:
    """The folder under a path that leads to its descriptor, whatever is moved meanwhile. See ``open_folder``; errors
    name the real path."""
    fd = open_folder(root, names, mode=mode)
    try:
        yield Path(f"/proc/self/fd/{fd}")
    except OSError as error:
        name_really(error)
        raise
    finally:
        os.close(fd)


def name_really(error: OSError) -> None:
    """Gives an error the path that people know, while the descriptor that its own leads through is open."""
    found = _THROUGH.fullmatch(str(error.filename))
    if found is not None:
        with suppress(OSError):
            error.filename = os.readlink(found[1]) + found[2]


def _open(name: str, folder: int, path: Path) -> int:
    try:
        return os.open(name, _FLAGS | os.O_NOFOLLOW, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(name, folder):
            raise OSError(LINK, "it is a symbolic link, not a folder", str(path)) from error
        raise OSError(error.errno, error.strerror, str(path)) from error


def _is_link(name: str, folder: int) -> bool:
    with suppress(FileNotFoundError):
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    return False


def _make(name: str, mode: int, folder: int) -> bool:
    """Whether it was missing, and is there now."""
    try:
        os.mkdir(name, mode, dir_fd=folder)
    except FileExistsError:
        return False
    return True
