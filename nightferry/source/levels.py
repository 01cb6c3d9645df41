"""A tree is walked by directory descriptors, of which a deep one would need more than a process may have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

KEPT_OPEN: Final = 64
"""Directories that are open at once, besides the top."""

DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class Level:
    """A directory being read: its path inside the store (empty at the top) and the names still to come.

    ``fd`` is None while it is closed, and when it was moved away meanwhile. ``missing`` are names that it listed and
    did not find, with what was known of them; ``last`` says that they have been looked for twice.
    """

    path: bytes
    name: bytes
    fd: int | None
    identity: tuple[int, int]
    names: Iterator[bytes] = field(default_factory=lambda: iter(()))
    missing: list[tuple[bytes, os.stat_result | None]] = field(default_factory=list)
    last: bool = False


class Levels:
    """The directories from a store's top to the one being read; the innermost ``KEPT_OPEN`` are open, and the top.

    Args:
        fd: The store's top directory, open; belongs to this object.
    """

    def __init__(self, fd: int) -> None:
        status = os.fstat(fd)
        self._top = fd
        self._stack = [Level(b"", b"", fd, (status.st_dev, status.st_ino))]

    def __len__(self) -> int:
        return len(self._stack)

    @property
    def innermost(self) -> Level:
        return self._stack[-1]

    def push(self, level: Level) -> None:
        """Goes one directory deeper."""
        self._stack.append(level)
        if len(self._stack) > KEPT_OPEN + 1:
            outer = self._stack[-KEPT_OPEN - 1]
            if outer.fd is not None and outer.fd != self._top:
                os.close(outer.fd)
                outer.fd = None

    def pop(self) -> None:
        """Goes back to the directory above, which is opened again when it was closed."""
        inner = self._stack.pop()
        if self._stack and self._stack[-1].fd is None:
            self._stack[-1].fd = self._reopened(inner)
        if inner.fd is not None:
            os.close(inner.fd)

    def close(self) -> None:
        """Closes all. May be called twice."""
        for level in self._stack:
            if level.fd is not None:
                os.close(level.fd)
        self._stack.clear()

    def _reopened(self, inner: Level) -> int | None:
        """The innermost directory, opened from the one below it or from the top; None when it is at neither place."""
        outer = self._stack[-1]
        if inner.fd is not None:
            fd = _opened(b"..", inner.fd, outer.identity)
            if fd is not None:
                return fd
        at = os.dup(self._top)
        for level in self._stack[1:]:
            fd = _opened(level.name, at, level.identity)
            os.close(at)
            if fd is None:
                return None
            at = fd
        return at


def _opened(name: bytes, parent: int, identity: tuple[int, int]) -> int | None:
    try:
        fd = os.open(name, DIRECTORY, dir_fd=parent)
    except OSError:
        return None
    status = os.fstat(fd)
    if (status.st_dev, status.st_ino) == identity:
        return fd
    os.close(fd)
    return None
