"""Objects by relative path, and the folder on a mounted disk that keeps them durably."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from nightferry.destination.durable import FreshFile
from nightferry.destination.failure import os_errors
from nightferry.errors import DestinationError, MediumDamaged, Unavailable
from nightferry.transfer.below import LINK, folder_below, open_folder
from nightferry.transfer.durable import (
    FILE_MODE,
    FOLDER_MODE,
    create_file,
    remove_dead_drafts,
    sync_folder,
    write_all,
)
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
    names.

    The root may be a symbolic link. Below it every folder is reached by descriptor: a link in the place of one is
    refused, as it would lead out of the destination.
    """

    def __init__(self, name: str, root: str) -> None:
        self._name = name
        self._root = Path(root)

    def require_root(self) -> None:
        with self._errors():
            there = self._root.is_dir()
        if not there:
            raise Unavailable(f"the folder {self._root} is not there", subject=self._name)

    def make_root(self) -> None:
        with self._errors():
            if not self._root.exists() and self._root.parent.is_dir():
                self._root.mkdir(mode=FOLDER_MODE)
            remove_dead_drafts(self._root)

    def exists(self, path: str) -> bool:
        return self._status(path) is not None

    def size(self, path: str) -> int | None:
        status = self._status(path)
        return None if status is None else status.st_size

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        with self._errors():
            try:
                with self._at(path) as place:
                    fd = open_regular(place)
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
                # What was opened and cannot be read is not a destination that is away: another try finds the same.
                raise MediumDamaged(
                    f"{self._name}: {path} cannot be read: {error.strerror}", subject=self._name
                ) from error

    @contextmanager
    def opened(self, path: str) -> Iterator[ReadAt]:
        yield partial(self.read, path)

    def write(self, path: str, pieces: Pieces) -> None:
        with self._made(path.rpartition("/")[0]) as folder:
            target = folder / path.rpartition("/")[2]
            fresh = target.with_name(f".{target.name}.new")
            self._fill(fresh, pieces)
            with self._errors():
                fresh.replace(target)
                sync_folder(folder)

    def publish(self, folder: str, epoch: int, files: Mapping[str, Pieces], last: tuple[str, bytes]) -> None:
        drafts = f"{folder}/.partial-{epoch}"
        with self._made(drafts) as partial, self._made(folder) as target:
            for name, pieces in {**files, last[0]: [last[1]]}.items():
                self._fill(partial / name, pieces)
            with self._errors():
                for name in files:
                    (partial / name).rename(target / name)
                sync_folder(target)
                (partial / last[0]).rename(target / last[0])
                (target / f".partial-{epoch}").rmdir()
                sync_folder(target)

    def _fill(self, path: Path, pieces: Pieces) -> None:
        """Writes and fsyncs a file. What the source of ``pieces`` raises is not the destination's error."""
        with self._errors():
            opened = FreshFile(path)
        with opened as file:
            for piece in pieces:
                with self._errors():
                    file.write(piece)
            with self._errors():
                file.sync()

    def create(self, path: str, data: bytes) -> bool:
        with self._errors(), self._at(path) as target:
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
        with self._errors():
            try:
                with self._at(path) as target:
                    target.unlink()
                    sync_folder(target.parent)
            except FileNotFoundError:
                return

    def remove_empty(self, folder: str) -> None:
        with self._errors():
            try:
                with self._at(folder) as target:
                    target.rmdir()
                    sync_folder(target.parent)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR):
                    raise

    def is_folder(self, path: str) -> bool:
        status = self._status(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def names(self, folder: str, *, hidden: bool = False) -> list[str]:
        with self._errors():
            try:
                with folder_below(self._root, folder.split("/")) as place:
                    return sorted(n for n in os.listdir(place) if hidden or not n.startswith("."))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def changed(self, path: str) -> float:
        with self._errors(), self._at(path) as place:
            return place.lstat().st_mtime  # a link may lead nowhere

    def close(self) -> None:
        """Nothing is held between calls."""

    def _status(self, path: str) -> os.stat_result | None:
        """Of what bears the name itself, a link too; None when nothing does."""
        with self._errors():
            try:
                with self._at(path) as place:
                    return place.lstat()
            except (FileNotFoundError, NotADirectoryError):
                return None

    @contextmanager
    def _at(self, path: str) -> Iterator[Path]:
        """An object's path by the descriptor of its folder."""
        *folders, name = path.split("/")
        with folder_below(self._root, folders) as folder:
            yield folder / name

    @contextmanager
    def _made(self, folder: str) -> Iterator[Path]:
        """A folder below the root, made durably where it is missing; never the root itself. Errors of what is done
        inside are left to the caller."""
        with self._errors():
            fd = open_folder(self._root, filter(None, folder.split("/")), mode=FOLDER_MODE)
        try:
            yield Path(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """See ``os_errors``; a link in the place of a folder is refused with what to do about it."""
        try:
            with os_errors(self._name):
                yield
        except DestinationError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno == LINK:
                raise DestinationError(
                    error.message,
                    subject=self._name,
                    hint="put the folder itself in its place, or mount its disk there: below a destination's own "
                    "folder no symbolic link is followed",
                ) from error
            raise
