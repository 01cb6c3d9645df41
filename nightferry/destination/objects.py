"""Objects by relative path, and the folder on a mounted disk that keeps them durably."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from nightferry.destination.durable import FreshFile
from nightferry.destination.failure import os_errors
from nightferry.errors import MediumDamaged, Unavailable
from nightferry.transfer.durable import FILE_MODE, create_file, remove_dead_drafts, sync_folder, write_all
from nightferry.transfer.regular import NO_FILE, open_regular, read_at

Pieces = Iterable[bytes | memoryview]
ReadAt = Callable[[int, int], bytes]
"""Offset and length → the bytes there; fewer at the object's end."""

_UNREADABLE = frozenset({errno.EIO, errno.EILSEQ, errno.ENODATA})
"""What a disk answers for blocks that it cannot read."""
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class Objects(Protocol):
    """Objects by relative path. Verbs raise ``DestinationError``: ``Unavailable``, ``MediumFull``,
    ``MediumDamaged``."""

    def require_root(self) -> None:
        """Raises:
        Unavailable: the root is not there.
        """

    def make_root(self) -> None:
        """Makes the root where the folder above it is there; one that is there is fine."""

    def exists(self, path: str) -> bool:
        """Whether there is such an object or folder."""

    def size(self, path: str) -> int | None:
        """Bytes of an object; None when there is none."""

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes from ``offset``, all when ``length`` is None; fewer when the object ends before.

        Raises:
            MediumDamaged: there is no such object.
        """

    def opened(self, path: str) -> AbstractContextManager[ReadAt]:
        """An object to read from here and there."""

    def write(self, path: str, pieces: Pieces) -> None:
        """Creates or replaces an object, whole or not at all."""

    def publish(self, folder: str, epoch: int, files: Mapping[str, Pieces], last: tuple[str, bytes]) -> None:
        """Writes all files of a folder in their order; ``last`` appears after all others are there for
        good."""

    def create(self, path: str, data: bytes) -> bool:
        """Makes an object whose name nobody has; False: somebody has it, and it was not touched."""

    def remove(self, path: str) -> None:
        """Removes an object; nothing there is fine. A folder is not one."""

    def remove_empty(self, folder: str) -> None:
        """Removes a folder in which nothing is; one that is not there, or holds something, is fine."""

    def is_folder(self, path: str) -> bool:
        """Whether it is a folder."""

    def names(self, folder: str, *, hidden: bool = False) -> list[str]:
        """Names in a folder, sorted; none when it is not there. Those with a leading dot, among them ours of what
        is not whole yet, are left out unless they are asked for."""

    def changed(self, path: str) -> float:
        """When it was last written, seconds."""

    def close(self) -> None:
        """Gives connections back; the next verb makes new ones. May be called twice."""


class FolderObjects:
    """A folder on a mounted disk. Folders 0700, files 0600, fsynced before they appear under their
    names."""

    def __init__(self, name: str, root: str) -> None:
        self._name = name
        self._root = Path(root)

    def require_root(self) -> None:
        with os_errors(self._name):
            there = self._root.is_dir()
        if not there:
            raise Unavailable(f"the folder {self._root} is not there", subject=self._name)

    def make_root(self) -> None:
        with os_errors(self._name):
            if not self._root.exists() and self._root.parent.is_dir():
                self._root.mkdir(mode=0o700)
            remove_dead_drafts(self._root)

    def exists(self, path: str) -> bool:
        with os_errors(self._name):
            return (self._root / path).exists()

    def size(self, path: str) -> int | None:
        with os_errors(self._name):
            try:
                return (self._root / path).stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        with os_errors(self._name):
            try:
                fd = open_regular(self._root / path)
                try:
                    wanted = os.fstat(fd).st_size - offset if length is None else length
                    return read_at(fd, offset, wanted)
                finally:
                    os.close(fd)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise MediumDamaged(f"{self._name}: {path} is not there", subject=self._name) from error
            except OSError as error:
                if error.errno not in _UNREADABLE | {NO_FILE}:
                    raise
                # What was opened and cannot be read is no destination that is away: another try finds the same.
                raise MediumDamaged(
                    f"{self._name}: {path} cannot be read: {error.strerror}", subject=self._name
                ) from error

    @contextmanager
    def opened(self, path: str) -> Iterator[ReadAt]:
        yield partial(self.read, path)

    def write(self, path: str, pieces: Pieces) -> None:
        target = self._root / path
        fresh = target.with_name(f".{target.name}.new")
        with os_errors(self._name):
            self._make(target.parent)
        self._fill(fresh, pieces)
        with os_errors(self._name):
            fresh.replace(target)
            sync_folder(target.parent)

    def publish(self, folder: str, epoch: int, files: Mapping[str, Pieces], last: tuple[str, bytes]) -> None:
        target = self._root / folder
        partial = target / f".partial-{epoch}"
        with os_errors(self._name):
            self._make(partial)
        for name, pieces in {**files, last[0]: [last[1]]}.items():
            self._fill(partial / name, pieces)
        with os_errors(self._name):
            for name in files:
                (partial / name).rename(target / name)
            sync_folder(target)
            (partial / last[0]).rename(target / last[0])
            partial.rmdir()
            sync_folder(target)

    def _fill(self, path: Path, pieces: Pieces) -> None:
        """Writes and fsyncs a file. What the source of ``pieces`` raises is not the destination's error."""
        with os_errors(self._name):
            opened = FreshFile(path)
        with opened as file:
            for piece in pieces:
                with os_errors(self._name):
                    file.write(piece)
            with os_errors(self._name):
                file.sync()

    def create(self, path: str, data: bytes) -> bool:
        target = self._root / path
        with os_errors(self._name):
            try:
                create_file(target, data)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                return self._create_exclusively(target, data)
        return True

    def _create_exclusively(self, target: Path, data: bytes) -> bool:
        """Where there are no hard links a crash may leave less than all of it under its name."""
        try:
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        except FileExistsError:
            return False
        with open(fd, "wb", buffering=0) as file:
            write_all(file.fileno(), data)
            os.fsync(file.fileno())
        sync_folder(target.parent)
        return True

    def remove(self, path: str) -> None:
        target = self._root / path
        with os_errors(self._name):
            try:
                target.unlink()
            except FileNotFoundError:
                return
            sync_folder(target.parent)

    def remove_empty(self, folder: str) -> None:
        target = self._root / folder
        with os_errors(self._name):
            try:
                target.rmdir()
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR):
                    raise
                return
            sync_folder(target.parent)

    def is_folder(self, path: str) -> bool:
        with os_errors(self._name):
            target = self._root / path
            return target.is_dir() and not target.is_symlink()

    def names(self, folder: str, *, hidden: bool = False) -> list[str]:
        with os_errors(self._name):
            try:
                return sorted(n for n in os.listdir(self._root / folder) if hidden or not n.startswith("."))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def changed(self, path: str) -> float:
        with os_errors(self._name):
            return (self._root / path).lstat().st_mtime  # a link may lead nowhere

    def close(self) -> None:
        """Nothing is held between calls."""

    def _make(self, folder: Path) -> None:
        """Folders below the root, durably; never the root itself."""
        for parent in [*reversed(folder.relative_to(self._root).parents), folder.relative_to(self._root)]:
            path = self._root / parent
            if parent != Path() and not path.is_dir():
                path.mkdir(mode=0o700, exist_ok=True)
                sync_folder(path.parent)
