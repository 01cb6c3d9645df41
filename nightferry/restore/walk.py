"""Directories below a root, reached by descriptor one component at a time, through no symbolic link."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

from nightferry.errors import ConfigError

_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class EntryRefused(Exception):
    """One entry cannot be restored safely, and why; becomes a line of the report."""


def components(path: bytes) -> tuple[bytes, ...]:
    """The names a relative path is made of.

    Raises:
        Refused: absolute, empty, with an empty, ``.`` or ``..`` component, or with a NUL byte.
    """
    if path.startswith(b"/"):
        raise EntryRefused("the path is absolute")
    if b"\0" in path:
        raise EntryRefused("the path holds a NUL byte")
    names = tuple(path.split(b"/"))
    for name in names:
        if name in (b"", b".", b".."):
            raise EntryRefused(f"the path has a component {name.decode()!r}")
    return names


OPEN_FOLDERS: Final = 64
"""Directories that stay open at once, besides the root."""


class DirectoryWalk:
    """Descriptors of the directories below ``root``. Not for several threads.

    Args:
        root: Where walks begin.
        below: When given, ``root`` must lie in it and is itself walked from it without following a link.
            Without it ``root`` is the operator's own word, and links in it are followed.

    Raises:
        ConfigError: ``root`` is there and cannot be opened, or does not lie in ``below``.
    """

    def __init__(self, root: Path, below: Path | None = None) -> None:
        self.root = Path(os.path.abspath(root))
        self._below = None if below is None else Path(os.path.abspath(below))
        self._root_fd: int | None = None
        self._trail: list[int | None] = []
        self._trail_names: tuple[bytes, ...] = ()
        self.made: set[bytes] = set()
        """Paths of the directories that these walks made."""
        with contextlib.suppress(FileNotFoundError):
            self._open_root(create=False)

    def close(self) -> None:
        """Closes all descriptors. May be called twice."""
        self.forget()
        if self._root_fd is not None:
            os.close(self._root_fd)
            self._root_fd = None

    def forget(self) -> None:
        """Lets the directories walked last go, so that the next walk begins at the root."""
        self._go_back(0)

    def to(self, names: tuple[bytes, ...], *, create: bool) -> int:
        """The descriptor of a directory, valid until the next walk; the root's for no names.

        The innermost directories walked last stay open, and a walk below one of them begins there: it is the same
        directory, whatever was put at its name meanwhile. Missing directories are made 0700 when ``create``
        says so.

        Raises:
            FileNotFoundError: it is missing and not to be made.
            Refused: something that is not a directory is in the way.
            OSError: the file system refuses.
        """
        root = self._open_root(create=create)
        self._go_back(self._shared(names))
        self._trail_names = names  # as far as the trail goes
        last = self._trail[-1] if self._trail else None
        at = root if last is None else last
        for depth in range(len(self._trail), len(names)):
            at, made = _enter(at, names[depth], create=create)
            self._trail.append(at)
            if made:
                self.made.add(b"/".join(names[: depth + 1]))
            if depth >= OPEN_FOLDERS and (outer := self._trail[depth - OPEN_FOLDERS]) is not None:
                os.close(outer)
                self._trail[depth - OPEN_FOLDERS] = None
        return at

    def _shared(self, names: tuple[bytes, ...]) -> int:
        """How many levels of the last walk lead to ``names`` and end in a directory that is open; 0 for the root."""
        low, high = 0, min(len(names), len(self._trail))
        middle = high  # mostly the one lies in the other
        while low < high:
            if names[:middle] == self._trail_names[:middle]:
                low = middle
            else:
                high = middle - 1
            middle = (low + high + 1) // 2
        while low and self._trail[low - 1] is None:
            low -= 1
        return low

    def _go_back(self, depth: int) -> None:
        for fd in self._trail[depth:]:
            if fd is not None:
                os.close(fd)
        del self._trail[depth:]

    def _open_root(self, *, create: bool) -> int:
        if self._root_fd is None:
            try:
                self._root_fd = _open_target(self.root, self._below, create=create)
            except FileNotFoundError:
                raise
            except (OSError, EntryRefused) as error:
                reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
                raise ConfigError(
                    f"cannot restore into {self.root}: {reason.lower()}",
                    hint="name a directory that this user may write to",
                    subject=str(self.root),
                ) from error
        return self._root_fd


def _open_target(root: Path, below: Path | None, *, create: bool) -> int:
    if below is not None:
        if not root.is_relative_to(below):
            raise EntryRefused(f"it does not lie in {below}")
        names = tuple(os.fsencode(name) for name in root.relative_to(below).parts)
        return _descend(os.open(below, _DIRECTORY_FLAGS), names, create=create)
    try:
        return os.open(root, _DIRECTORY_FLAGS)
    except FileNotFoundError:
        if not create:
            raise
    os.makedirs(root, 0o700)
    return os.open(root, _DIRECTORY_FLAGS)


def _descend(fd: int, names: tuple[bytes, ...], *, create: bool) -> int:
    """From the directory ``fd``, which is closed, to the one below it, which the caller closes."""
    try:
        for name in names:
            inner, _ = _enter(fd, name, create=create)
            os.close(fd)
            fd = inner
    except BaseException:
        os.close(fd)
        raise
    return fd


def _enter(directory: int, name: bytes, *, create: bool) -> tuple[int, bool]:
    """Opens one directory in another, never through a link; returns whether it had to be made."""
    try:
        return os.open(name, _DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=directory), False
    except FileNotFoundError:
        if not create:
            raise
    except OSError as error:
        status = entry_status(directory, name)
        if error.errno in (errno.ENOTDIR, errno.ELOOP) and status is not None:
            raise EntryRefused(in_the_way(status, name)) from error
        raise
    try:
        os.mkdir(name, 0o700, dir_fd=directory)
    except FileExistsError:
        return _enter(directory, name, create=False)
    return _enter(directory, name, create=False)[0], True


def entry_status(directory: int, name: bytes) -> os.stat_result | None:
    """The name itself, not what a link leads to; None when nothing is there."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def in_the_way(status: os.stat_result, name: bytes) -> str:
    """Why a directory cannot be at ``name``."""
    what = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "something that is not a directory"
    return f"{what} is in the way at {name.decode('utf-8', 'backslashreplace')}"


def remove_tree(path: Path) -> None:
    """Removes a directory and all below it, however deep, by descriptor and through no symbolic link.

    Raises:
        OSError: something cannot be removed, or was moved meanwhile; what is removed by then stays so.
    """
    at = os.open(path, _DIRECTORY_FLAGS | os.O_NOFOLLOW)
    try:
        # (a directory's name and which one it is, the names of its directories still to be removed)
        levels: list[tuple[bytes, tuple[int, int], list[bytes]]] = [(b"", _identity(at), _emptied(at))]
        while levels:
            name, _, inner = levels[-1]
            if inner:
                fd = os.open(inner[-1], _DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=at)
                os.close(at)
                at = fd
                levels.append((inner.pop(), _identity(at), _emptied(at)))
                continue
            levels.pop()
            if levels:
                fd = os.open(b"..", _DIRECTORY_FLAGS, dir_fd=at)
                os.close(at)
                at = fd
                if _identity(at) != levels[-1][1]:
                    raise OSError(errno.ESTALE, "moved while it was removed", os.fsdecode(name))
                os.rmdir(name, dir_fd=at)
    finally:
        os.close(at)
    os.rmdir(path)


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _emptied(fd: int) -> list[bytes]:
    """Removes everything in a directory but its directories, and gives those."""
    directories = []
    for name in map(os.fsencode, os.listdir(fd)):
        if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
            directories.append(name)
        else:
            os.unlink(name, dir_fd=fd)
    return directories
