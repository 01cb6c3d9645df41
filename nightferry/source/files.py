"""A store of kind ``files``: a directory tree or a single file."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from nightferry.errors import ConfigError, StoreUnreadable
from nightferry.image.attributes import NO_ATTRIBUTES, Attributes, read_attributes
from nightferry.image.index import Outcome
from nightferry.image.writer import ImageWriter
from nightferry.model.patterns import Ignore
from nightferry.model.text import safe
from nightferry.progress import Cancel, Progress
from nightferry.source.base import Estimate, Pulse, describe_path

MAX_DEPTH: Final = 400
"""Directories are read by descriptors, one for each level that is open."""

_GONE: Final = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_REPLACED: Final = 3
"""How often a path that turns into something else under our hands is looked at again."""


@dataclass(slots=True)
class _Level:
    """A directory being read: its path inside the store (empty at the top) and the names still to come."""

    path: bytes
    fd: int
    names: Iterator[bytes] = field(default_factory=lambda: iter(()))


class FilesSource:
    """Reads a tree by directory descriptors, sorted by name, never following a symbolic link below its top.

    The top directory is the path ``.``; a single file is its base name. Only directories and regular files
    are ever opened. Holes stay holes, hard links inside the store stay links, access times stay where the
    rights allow it. Attributes of symbolic links are not kept.

    Args:
        path: The directory or file. A symbolic link *to* it is followed.
        exclude: Patterns as in ``.gitignore``, relative to the store; an excluded directory is not entered.
        one_file_system: Mount points below the top are stored as empty directories.
    """

    kind: ClassVar[str] = "files"

    def __init__(
        self, path: bytes | str | Path, exclude: Sequence[str] = (), *, one_file_system: bool = False
    ) -> None:
        self._path = os.fsencode(path)
        self._exclude = tuple(exclude)
        self._one_file_system = one_file_system
        try:
            self._excluded = Ignore(exclude)
        except ValueError as error:
            raise ConfigError(f"exclude of the store {safe(self._path)}: {error}") from error
        self._device = 0

    @property
    def description(self) -> dict[str, Any]:
        """Path, patterns and ``one_file_system``."""
        return {
            **describe_path(self._path),
            "exclude": list(self._exclude),
            "one_file_system": self._one_file_system,
        }

    def estimate(self) -> Estimate:
        """Bytes allocated to regular files, hard links once; and paths."""
        status = self._top_status()
        if not stat.S_ISDIR(status.st_mode):
            return Estimate(_stored_bytes(status), 1)
        total, count = 0, 1
        seen: set[tuple[int, int]] = set()
        for _, _, _, entry in self._walk(None):
            count += 1
            if entry is None or not stat.S_ISREG(entry.st_mode):
                continue
            if entry.st_nlink > 1:
                key = (entry.st_dev, entry.st_ino)
                if key in seen:
                    continue
                seen.add(key)
            total += _stored_bytes(entry)
        return Estimate(total, count)

    def write(self, image: ImageWriter, *, progress: Progress, cancel: Cancel, subject: str) -> None:
        """See :class:`nightferry.source.base.Source`."""
        pulse = Pulse(progress, cancel, subject)
        status = self._top_status()
        if not stat.S_ISDIR(status.st_mode):
            self._write_single(image, status, pulse)
            return
        for fd, name, path, entry in self._walk(image):
            pulse.current = path
            pulse(image.payload_bytes)
            if entry is not None and not stat.S_ISDIR(entry.st_mode):
                add_path(image, fd, name, path, entry, pulse)

    def close(self) -> None:
        """Nothing is held between calls."""

    def _top_status(self) -> os.stat_result:
        try:
            return os.stat(self._path)
        except OSError as error:
            if error.errno in _GONE:
                raise ConfigError(
                    f"the store's path {safe(self._path)} does not exist",
                    hint="correct the store's path in the site file, or mount it on this node",
                    subject=safe(self._path),
                ) from error
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> StoreUnreadable:
        return StoreUnreadable(
            f"cannot read the store {safe(self._path)}: {error.strerror}", subject=safe(self._path)
        )

    def _write_single(self, image: ImageWriter, status: os.stat_result, pulse: Pulse) -> None:
        real = os.path.realpath(self._path)
        name = os.path.basename(self._path.rstrip(b"/"))
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"the store {safe(self._path)} is neither a directory nor a regular file")
        try:
            fd = _open(real)
        except OSError as error:
            raise self._unreadable(error) from error
        try:
            image.add_file(name, fd, tick=pulse)
        finally:
            os.close(fd)

    def _walk(self, image: ImageWriter | None) -> Iterator[tuple[int, bytes, bytes, os.stat_result | None]]:
        """(descriptor of the parent, name, path inside the store, status) of everything below the top.

        A directory is yielded after its own member was added and before what is in it. Status is None for
        what could not be looked at; its row has been added. Without an image nothing is added.

        Raises:
            StoreUnreadable: the top directory cannot be read.
        """
        try:
            top = _open(self._path, _DIRECTORY & ~os.O_NOFOLLOW)
        except OSError as error:
            raise self._unreadable(error) from error
        stack = [_Level(b"", top)]
        try:
            try:
                status = os.fstat(top)
                stack[0].names = _names(top)
                if image is not None:
                    image.add_other(b".", status, attributes=read_attributes(top))
            except OSError as error:
                raise self._unreadable(error) from error
            self._device = status.st_dev
            while stack:
                level = stack[-1]
                name = next(level.names, None)
                if name is None:
                    os.close(stack.pop().fd)
                    continue
                path = level.path + b"/" + name if level.path else name
                entry = self._look(level.fd, name, path, image)
                if entry is not None and self._is_excluded(path, entry):
                    continue
                if entry is not None and stat.S_ISDIR(entry.st_mode):
                    below = self._enter(level.fd, name, path, entry, len(stack), image)
                    if below is not None:
                        stack.append(below)
                yield level.fd, name, path, entry
        finally:
            for level in stack:
                os.close(level.fd)

    def _look(
        self, parent: int, name: bytes, path: bytes, image: ImageWriter | None
    ) -> os.stat_result | None:
        try:
            return os.stat(name, dir_fd=parent, follow_symlinks=False)
        except OSError as error:
            if image is not None and not self._excluded.matches(path, directory=False):
                _add_failed(image, path, error, None)
            return None

    def _is_excluded(self, path: bytes, entry: os.stat_result) -> bool:
        return self._excluded.matches(path, directory=stat.S_ISDIR(entry.st_mode))

    def _enter(
        self,
        parent: int,
        name: bytes,
        path: bytes,
        entry: os.stat_result,
        depth: int,
        image: ImageWriter | None,
    ) -> _Level | None:
        """Adds a directory's member and opens it; None when nothing below it is to be read."""
        fd = -1
        try:
            if depth >= MAX_DEPTH:
                raise OSError(errno.ENAMETOOLONG, f"more than {MAX_DEPTH} directories deep")
            fd = _open(name, _DIRECTORY, parent)
            status = os.fstat(fd)
            names = _names(fd)
            attributes = read_attributes(fd)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            if image is not None:
                _add_failed(image, path, error, entry)
            return None
        if image is not None:
            image.add_other(path, status, attributes=attributes)
        if self._one_file_system and status.st_dev != self._device:
            os.close(fd)
            return None
        return _Level(path, fd, names)


def add_path(
    image: ImageWriter, parent: int, name: bytes, path: bytes, entry: os.stat_result, pulse: Pulse
) -> None:
    """Adds whatever is not a directory at ``name`` in the directory ``parent``; errors become its outcome."""
    for _ in range(_REPLACED):
        try:
            if stat.S_ISDIR(entry.st_mode):
                image.add_absent(path, "unreadable", "became a directory while it was read", entry)
                return
            if not stat.S_ISREG(entry.st_mode):
                _add_special(image, parent, name, path, entry)
                return
            if image.add_link(path, entry) is not None:
                return
            fd = _open(name, _FILE, parent)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO):
                _add_failed(image, path, error, entry)
                return
        else:
            try:
                if stat.S_ISREG(os.fstat(fd).st_mode):
                    image.add_file(path, fd, tick=pulse)
                    return
            finally:
                os.close(fd)
        # Between the look and the opening the name came to mean something else: look again.
        try:
            entry = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except OSError as error:
            _add_failed(image, path, error, entry)
            return
    image.add_absent(path, "unreadable", "replaced again and again while it was read", entry)


def _add_special(image: ImageWriter, parent: int, name: bytes, path: bytes, entry: os.stat_result) -> None:
    """A symbolic link, FIFO, device or socket: read without ever being opened."""
    attributes: Attributes = NO_ATTRIBUTES
    target = b""
    if stat.S_ISLNK(entry.st_mode):
        target = os.readlink(name, dir_fd=parent)
    else:
        attributes = read_attributes(b"/proc/self/fd/%d/%s" % (parent, name))
    image.add_other(path, entry, link_target=target, attributes=attributes)


def _add_failed(image: ImageWriter, path: bytes, error: OSError, entry: os.stat_result | None) -> None:
    outcome: Outcome = "vanished" if error.errno in _GONE else "unreadable"
    image.add_absent(path, outcome, error.strerror or str(error), entry)


def _names(fd: int) -> Iterator[bytes]:
    return iter(sorted(os.fsencode(name) for name in os.listdir(fd)))


def _open(name: bytes, flags: int = _FILE, parent: int | None = None) -> int:
    """Opens without touching the access time where the rights allow it."""
    try:
        return os.open(name, flags | os.O_NOATIME, dir_fd=parent)
    except PermissionError:
        return os.open(name, flags, dir_fd=parent)


def _stored_bytes(status: os.stat_result) -> int:
    return min(status.st_size, status.st_blocks * 512)
