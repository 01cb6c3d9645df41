"""A store of kind ``files``: a directory tree or a single file."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

from nightferry.errors import ConfigError, NightferryError, StoreUnreadable
from nightferry.image.attributes import NO_ATTRIBUTES, Attributes, read_attributes
from nightferry.image.index import FileOutcome
from nightferry.image.writer import ImageWriter
from nightferry.model.patterns import Ignore
from nightferry.model.text import safe
from nightferry.progress import Cancel, Progress
from nightferry.source.base import Estimate, Pulse, describe_path

KEPT_OPEN: Final = 64
"""Directories that are open at once, besides the top."""

DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

MAX_DEPTH: Final = 4000
"""Levels of directories below a store's top that are entered."""
_NO_PATH: Final = {errno.ENOENT, errno.ENOTDIR}
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_LOOK_AGAIN: Final = {errno.ELOOP, errno.ENXIO, errno.ENOTDIR, errno.EISDIR, errno.ESTALE}
"""What a name answers that means something else than a moment ago, or whose server forgot it."""
_LOOKS: Final = 3
"""How often such a name is looked at."""


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


class FilesSource:
    """Reads a tree by directory descriptors, sorted by name, never following a symbolic link below its top.

    The top directory is the path ``.``; a single file is its base name. Only directories and regular files
    are ever opened. Holes stay holes, hard links inside the store stay links, access times stay where the
    rights allow it. Attributes of symbolic links are not kept.

    No single entry stops the walk, whatever it raises. A name has vanished when its own directory does not list it any
    more; everything else that cannot be read is ``unreadable``, and a directory that cannot be listed is counted
    apart, since nobody knows how much is missing.

    Args:
        path: The directory or file. A symbolic link *to* it is followed.
        exclude: Patterns as in ``.gitignore``, relative to the store; an excluded directory is not entered.
    """

    kind: ClassVar[str] = "files"

    def __init__(self, path: bytes | str | Path, exclude: Sequence[str] = ()) -> None:
        self._path = os.fsencode(path)
        self._exclude = tuple(exclude)
        try:
            self._excluded = Ignore(exclude)
        except ValueError as error:
            raise ConfigError(f"exclude of the store {safe(self._path)}: {error}") from error

    @property
    def description(self) -> dict[str, Any]:
        """Path and patterns."""
        return {
            **describe_path(self._path),
            "exclude": list(self._exclude),
        }

    def estimate(self) -> Estimate:
        """Bytes allocated to regular files, hard links once; and paths."""
        status = self._top_status()
        if not stat.S_ISDIR(status.st_mode):
            return Estimate(_stored_bytes(status), 1)
        found = _Estimate()
        _Walk(self._path, self._excluded, found).run()
        return Estimate(found.bytes, found.paths)

    def write(self, image: ImageWriter, *, progress: Progress, cancel: Cancel, subject: str) -> None:
        """See :class:`nightferry.source.base.StoreSource`."""
        pulse = Pulse(progress, cancel, subject)
        status = self._top_status()
        if not stat.S_ISDIR(status.st_mode):
            self._write_single(image, status, pulse)
            return
        _Walk(self._path, self._excluded, _Stored(image, pulse)).run()

    def close(self) -> None:
        """Nothing is held between calls."""

    def _top_status(self) -> os.stat_result:
        try:
            return os.stat(self._path)
        except OSError as error:
            if error.errno in _NO_PATH:
                raise ConfigError(
                    f"the store's path {safe(self._path)} does not exist",
                    hint="correct the store's path in the site file, or mount it on this node",
                    subject=safe(self._path),
                ) from error
            raise _store_unreadable(self._path, error) from error

    def _write_single(self, image: ImageWriter, status: os.stat_result, pulse: Pulse) -> None:
        real = os.path.realpath(self._path)
        name = os.path.basename(self._path.rstrip(b"/"))
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"the store {safe(self._path)} is neither a directory nor a regular file")
        try:
            fd = _open(real)
        except OSError as error:
            raise _store_unreadable(self._path, error) from error
        try:
            image.add_file(name, fd, tick=pulse)
        except OSError as error:
            raise _store_unreadable(self._path, error) from error
        finally:
            os.close(fd)


class _Visitor(Protocol):
    """What becomes of a tree's entries."""

    def directory(self, path: bytes, fd: int, status: os.stat_result) -> None:
        """A directory that could be listed; before what is in it."""

    def other(self, parent: int, name: bytes, path: bytes, status: os.stat_result) -> None:
        """Anything else. What it raises is this entry's alone; it is asked again about what was replaced."""

    def failed(self, path: bytes, outcome: FileOutcome, why: str, status: os.stat_result | None) -> None:
        """What could not be looked at, opened or listed. Without a status nobody knows what it is."""


class _Estimate:
    """Counts bytes of content, hard links once, and paths."""

    def __init__(self) -> None:
        self.bytes = self.paths = 0
        self._seen: set[tuple[int, int]] = set()

    def directory(self, path: bytes, fd: int, status: os.stat_result) -> None:
        self.paths += 1

    def other(self, parent: int, name: bytes, path: bytes, status: os.stat_result) -> None:
        self.paths += 1
        if not stat.S_ISREG(status.st_mode):
            return
        if status.st_nlink > 1:
            key = (status.st_dev, status.st_ino)
            if key in self._seen:
                return
            self._seen.add(key)
        self.bytes += _stored_bytes(status)

    def failed(self, path: bytes, outcome: FileOutcome, why: str, status: os.stat_result | None) -> None:
        self.paths += 1


class _Stored:
    """Brings entries into an image."""

    def __init__(self, image: ImageWriter, pulse: Pulse) -> None:
        self._image = image
        self._pulse = pulse

    def directory(self, path: bytes, fd: int, status: os.stat_result) -> None:
        self._tell(path)
        self._image.add_other(path, status, attributes=read_attributes(fd))

    def other(self, parent: int, name: bytes, path: bytes, status: os.stat_result) -> None:
        self._tell(path)
        add_path(self._image, parent, name, path, status, self._pulse)

    def failed(self, path: bytes, outcome: FileOutcome, why: str, status: os.stat_result | None) -> None:
        unlisted = outcome == "unreadable" and (status is None or stat.S_ISDIR(status.st_mode))
        self._image.add_absent(path, outcome, why, status, unlisted=unlisted)

    def _tell(self, path: bytes) -> None:
        self._pulse.current = path
        self._pulse(self._image.payload_bytes)


class _Walk:
    """One pass over a tree.

    Args:
        path: The top directory; a symbolic link to it is followed.
        excluded: What is left out.
        visitor: Told every entry once.
    """

    def __init__(self, path: bytes, excluded: Ignore, visitor: _Visitor) -> None:
        self._path = path
        self._excluded = excluded
        self._visitor = visitor

    def run(self) -> None:
        """Walks it.

        Raises:
            StoreUnreadable: the top directory cannot be read.
        """
        try:
            fd = _open(self._path, DIRECTORY & ~os.O_NOFOLLOW)
        except OSError as error:
            raise _store_unreadable(self._path, error) from error
        self._levels = Levels(fd)
        try:
            try:
                status = os.fstat(fd)
                self._levels.innermost.names = iter(_names(fd))
                self._visitor.directory(b".", fd, status)
            except OSError as error:
                raise _store_unreadable(self._path, error) from error
            while self._levels:
                level = self._levels.innermost
                name = next(level.names, None)
                if name is not None:
                    self._visit(level, name)
                elif level.missing:
                    self._look_for_missing(level)
                else:
                    self._levels.pop()
        finally:
            self._levels.close()

    def _visit(self, level: Level, name: bytes) -> None:
        path = level.path + b"/" + name if level.path else name
        if level.fd is None:
            self._visitor.failed(path, "unreadable", "its directory was moved while the store was read", None)
            return
        entry: os.stat_result | None = None
        why = ""
        try:
            for _ in range(_LOOKS):
                try:
                    entry = os.stat(name, dir_fd=level.fd, follow_symlinks=False)
                    is_directory = stat.S_ISDIR(entry.st_mode)
                    if self._excluded.matches(path, directory=is_directory):
                        return
                    if is_directory:
                        self._enter(level.fd, name, path)
                    else:
                        self._visitor.other(level.fd, name, path, entry)
                    return
                except OSError as error:
                    if error.errno not in _LOOK_AGAIN:
                        raise
                    why = _reason(error)
                    if error.errno != errno.ESTALE:
                        why = f"replaced again and again while it was read: {why}"
        except NightferryError:
            raise
        except FileNotFoundError:
            level.missing.append((name, entry))
            return
        except Exception as error:  # noqa: BLE001 - one odd entry never stops a store
            why = _reason(error)
        if entry is None and self._excluded.matches(path, directory=False):
            return
        self._visitor.failed(path, "unreadable", why, entry)

    def _enter(self, parent: int, name: bytes, path: bytes) -> None:
        """Goes into a directory.

        Raises:
            OSError: it cannot be listed.
        """
        if len(self._levels) > MAX_DEPTH:
            raise OSError(errno.ENAMETOOLONG, f"more than {MAX_DEPTH} directories deep")
        fd = _open(name, DIRECTORY, parent)
        try:
            status = os.fstat(fd)
            names = _names(fd)
            self._visitor.directory(path, fd, status)
        except BaseException:
            os.close(fd)
            raise
        self._levels.push(Level(path, name, fd, (status.st_dev, status.st_ino), iter(names)))

    def _look_for_missing(self, level: Level) -> None:
        """Judges the names that a directory listed and did not find, by listing it once more."""
        missing, level.missing = level.missing, []
        failure = ""
        listed: set[bytes] = set()
        try:
            if level.fd is not None:
                listed = set(_names(level.fd))  # none when the directory itself was removed
        except OSError as error:
            failure = f"not found, and its directory cannot be listed any more: {_reason(error)}"
        again = []
        for name, entry in missing:
            path = level.path + b"/" + name if level.path else name
            if entry is None and self._excluded.matches(path, directory=False):
                continue
            if failure or (name in listed and level.last):
                why = failure or "its directory lists it, and it is not there"
                self._visitor.failed(path, "unreadable", why, entry)
            elif name in listed:
                again.append(name)
            else:
                self._visitor.failed(path, "vanished", os.strerror(errno.ENOENT), entry)
        level.names = iter(again)
        level.last = True


def add_path(
    image: ImageWriter, parent: int, name: bytes, path: bytes, entry: os.stat_result, pulse: Pulse
) -> None:
    """Adds whatever is not a directory at ``name`` in the directory ``parent``.

    Raises:
        OSError: it cannot be opened; ELOOP when it is not any more what ``entry`` says.
    """
    if not stat.S_ISSOCK(entry.st_mode) and image.add_link(path, entry) is not None:
        return
    if not stat.S_ISREG(entry.st_mode):
        _add_special(image, parent, name, path, entry)
        return
    fd = _open(name, _FILE, parent)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.ELOOP, "no longer a regular file")
        image.add_file(path, fd, tick=pulse)
    finally:
        os.close(fd)


def _add_special(image: ImageWriter, parent: int, name: bytes, path: bytes, entry: os.stat_result) -> None:
    """A symbolic link, FIFO, device or socket: read without ever being opened."""
    attributes: Attributes = NO_ATTRIBUTES
    target = b""
    if stat.S_ISLNK(entry.st_mode):
        try:
            target = os.readlink(name, dir_fd=parent)
        except OSError as error:
            if error.errno == errno.EINVAL:
                raise OSError(errno.ELOOP, "no longer a symbolic link") from error
            raise
    else:
        attributes = read_attributes(b"/proc/self/fd/%d/%s" % (parent, name))
    image.add_other(path, entry, link_target=target, attributes=attributes)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}"


def _store_unreadable(path: bytes, error: OSError) -> StoreUnreadable:
    return StoreUnreadable(f"cannot read the store {safe(path)}: {_reason(error)}", subject=safe(path))


def _names(fd: int) -> list[bytes]:
    """A directory's names, sorted."""
    return sorted(os.fsencode(name) for name in os.listdir(fd))


def _open(name: bytes, flags: int = _FILE, parent: int | None = None) -> int:
    """Opens without touching the access time where the rights allow it."""
    try:
        return os.open(name, flags | os.O_NOATIME, dir_fd=parent)
    except PermissionError:
        return os.open(name, flags, dir_fd=parent)


def _stored_bytes(status: os.stat_result) -> int:
    return min(status.st_size, status.st_blocks * 512)
