"""Directories below a root, reached by descriptor one component at a time, through no symbolic link."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

from nightferry.errors import ConfigError

_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Refused(Exception):
    """One entry cannot be restored safely, and why; becomes a line of the report."""


def components(path: bytes) -> tuple[bytes, ...]:
    """The names a relative path is made of.

    Raises:
        Refused: absolute, empty, with an empty, ``.`` or ``..`` component, or with a NUL byte.
    """
    if path.startswith(b"/"):
        raise Refused("the path is absolute")
    if b"\0" in path:
        raise Refused("the path holds a NUL byte")
    names = tuple(path.split(b"/"))
    for name in names:
        if name in (b"", b".", b".."):
            raise Refused(f"the path has a component {name.decode()!r}")
    return names


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
        self._last_names: tuple[bytes, ...] = ()
        self._last_fd: int | None = None
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
        """Lets the directory walked last go, so that the next walk begins at the root."""
        if self._last_fd is not None:
            os.close(self._last_fd)
        self._last_names, self._last_fd = (), None

    def to(self, names: tuple[bytes, ...], *, create: bool) -> int:
        """The descriptor of a directory, valid until the next walk; the root's for no names.

        The last one stays open, and a walk into or below it begins there: it is the same directory,
        whatever was put at its name meanwhile. Missing directories are made 0700 when ``create`` says so.

        Raises:
            FileNotFoundError: it is missing and not to be made.
            Refused: something that is no directory is in the way.
            OSError: the file system refuses.
        """
        if names and names == self._last_names and self._last_fd is not None:
            return self._last_fd
        root = self._open_root(create=create)
        if not names:
            return root
        depth = len(self._last_names)
        if self._last_fd is not None and names[:depth] == self._last_names:
            start = self._last_fd
        else:
            start, depth = root, 0
        fd, there = _descend(os.dup(start), names[depth:], create=create)
        self.made.update(b"/".join(names[:end]) for end in range(depth + there + 1, len(names) + 1))
        self.forget()
        self._last_names, self._last_fd = names, fd
        return fd

    def _open_root(self, *, create: bool) -> int:
        if self._root_fd is None:
            try:
                self._root_fd = _open_target(self.root, self._below, create=create)
            except FileNotFoundError:
                raise
            except (OSError, Refused) as error:
                reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
                raise ConfigError(
                    f"cannot restore into {self.root}: {reason.lower()}",
                    hint="name a directory that this user may write to",
                    operation="restore",
                    subject=str(self.root),
                ) from error
        return self._root_fd


def _open_target(root: Path, below: Path | None, *, create: bool) -> int:
    if below is not None:
        if not root.is_relative_to(below):
            raise Refused(f"it does not lie in {below}")
        names = tuple(os.fsencode(name) for name in root.relative_to(below).parts)
        return _descend(os.open(below, _DIRECTORY_FLAGS), names, create=create)[0]
    try:
        return os.open(root, _DIRECTORY_FLAGS)
    except FileNotFoundError:
        if not create:
            raise
    os.makedirs(root, 0o700)
    return os.open(root, _DIRECTORY_FLAGS)


def _descend(fd: int, names: tuple[bytes, ...], *, create: bool) -> tuple[int, int]:
    """From the directory ``fd``, which is closed, to the one below it, which the caller closes.

    Returns:
        The descriptor, and how many of ``names`` were there; the others were made.
    """
    there = 0
    try:
        for name in names:
            inner, made = _enter(fd, name, create=create)
            os.close(fd)
            fd = inner
            there += not made
    except BaseException:
        os.close(fd)
        raise
    return fd, there


def _enter(directory: int, name: bytes, *, create: bool) -> tuple[int, bool]:
    """Opens one directory in another, never through a link; returns whether it had to be made."""
    try:
        return os.open(name, _DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=directory), False
    except FileNotFoundError:
        if not create:
            raise
    except OSError as error:
        status = status_of(directory, name)
        if error.errno in (errno.ENOTDIR, errno.ELOOP) and status is not None:
            raise Refused(in_the_way(status, name)) from error
        raise
    try:
        os.mkdir(name, 0o700, dir_fd=directory)
    except FileExistsError:
        return _enter(directory, name, create=False)
    return _enter(directory, name, create=False)[0], True


def status_of(directory: int, name: bytes) -> os.stat_result | None:
    """The name itself, not what a link leads to; None when nothing is there."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def in_the_way(status: os.stat_result, name: bytes) -> str:
    """Why a directory cannot be at ``name``."""
    what = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "something that is no directory"
    return f"{what} is in the way at {name.decode('utf-8', 'backslashreplace')}"
