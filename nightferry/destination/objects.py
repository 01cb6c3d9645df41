"""The places a fsspec destination keeps objects: a local folder, durably, or any other fsspec file
system."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from nightferry.destination.durable import FreshFile
from nightferry.destination.failure import os_errors
from nightferry.errors import DestinationError, MediumDamaged, NightferryError, Unavailable
from nightferry.transfer.durable import sync_folder

Pieces = Iterable[bytes | memoryview]

_UNREADABLE = frozenset({errno.EIO, errno.EILSEQ, errno.ENODATA})
"""What a disk answers for blocks that it cannot read."""


class Objects(Protocol):
    """Objects by relative path. Verbs raise ``DestinationError``: ``Unavailable``, ``MediumFull``,
    ``MediumDamaged``."""

    def require_root(self) -> None:
        """Raises:
        Unavailable: the root is not there.
        """

    def size(self, path: str) -> int | None:
        """Bytes of an object; None when there is none."""

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes from ``offset``, all when ``length`` is None; fewer when the object ends before.

        Raises:
            MediumDamaged: there is no such object.
        """

    def write(self, path: str, pieces: Pieces) -> None:
        """Creates or replaces an object, whole or not at all."""

    def publish(self, folder: str, epoch: int, files: Mapping[str, Pieces], last: tuple[str, bytes]) -> None:
        """Writes all files of a folder in their order; ``last`` appears after all others are there for
        good."""

    def remove(self, path: str) -> None:
        """Removes an object, or a folder and all in it; nothing there is fine."""

    def names(self, folder: str) -> list[str]:
        """Names in a folder, sorted; none when it is not there. Names with a leading dot are ours and left
        out."""

    def changed(self, path: str) -> float:
        """When it was last written, seconds."""


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

    def size(self, path: str) -> int | None:
        with os_errors(self._name):
            try:
                return (self._root / path).stat().st_size
            except FileNotFoundError:
                return None

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        with os_errors(self._name):
            try:
                with (self._root / path).open("rb", buffering=0) as file:
                    wanted = os.fstat(file.fileno()).st_size - offset if length is None else length
                    return _read_all(file.fileno(), offset, wanted)
            except FileNotFoundError as error:
                raise MediumDamaged(f"{self._name}: {path} is not there", subject=self._name) from error
            except OSError as error:
                if error.errno not in _UNREADABLE:
                    raise
                # What was opened and cannot be read is no destination that is away: another try finds the same.
                raise MediumDamaged(
                    f"{self._name}: {path} cannot be read: {error.strerror}", subject=self._name
                ) from error

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

    def remove(self, path: str) -> None:
        target = self._root / path
        with os_errors(self._name):
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)
            if target.parent.is_dir():
                sync_folder(target.parent)

    def names(self, folder: str) -> list[str]:
        with os_errors(self._name):
            try:
                return sorted(n for n in os.listdir(self._root / folder) if not n.startswith("."))
            except FileNotFoundError:
                return []

    def changed(self, path: str) -> float:
        with os_errors(self._name):
            return (self._root / path).stat().st_mtime

    def _make(self, folder: Path) -> None:
        """Folders below the root, durably; never the root itself."""
        for parent in [*reversed(folder.relative_to(self._root).parents), folder.relative_to(self._root)]:
            path = self._root / parent
            if parent != Path() and not path.is_dir():
                path.mkdir(mode=0o700, exist_ok=True)
                sync_folder(path.parent)


def _read_all(fd: int, offset: int, length: int) -> bytes:
    """Up to ``length`` bytes, fewer only at the end of the file: one read may stop at 2 GiB."""
    pieces = []
    while length:
        piece = os.pread(fd, length, offset)
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class SpecObjects:
    """Any fsspec file system. An object is there when its upload ended; the last one makes a folder
    whole."""

    def __init__(self, name: str, fs: Any, root: str) -> None:
        self._name = name
        self._fs = fs
        self._root = root.rstrip("/")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Drivers raise what they like; what is no ``OSError`` is told as it is."""
        try:
            with os_errors(self._name):
                yield
        except NightferryError:
            raise
        except Exception as error:
            raise DestinationError(
                f"{self._name}: {type(error).__name__}: {error}", subject=self._name
            ) from error

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"

    def require_root(self) -> None:
        with self._errors():
            there = self._fs.isdir(self._root)
        if not there:
            raise Unavailable(f"{self._root} is not there", subject=self._name)

    def size(self, path: str) -> int | None:
        with self._errors():
            try:
                return int(self._fs.size(self._path(path)))
            except FileNotFoundError:
                return None

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        with self._errors():
            try:
                end = None if length is None else offset + length
                return bytes(self._fs.cat_file(self._path(path), start=offset, end=end))
            except FileNotFoundError as error:
                raise MediumDamaged(f"{self._name}: {path} is not there", subject=self._name) from error

    def write(self, path: str, pieces: Pieces) -> None:
        with self._errors():
            self._fs.makedirs(self._path(path).rpartition("/")[0], exist_ok=True)
            opened = self._fs.open(self._path(path), "wb")
        with opened as file:
            for piece in pieces:
                with self._errors():
                    file.write(piece)

    def publish(self, folder: str, epoch: int, files: Mapping[str, Pieces], last: tuple[str, bytes]) -> None:
        for name, pieces in {**files, last[0]: [last[1]]}.items():
            self.write(f"{folder}/{name}", pieces)

    def remove(self, path: str) -> None:
        with self._errors():
            try:
                self._fs.rm(self._path(path), recursive=True)
            except FileNotFoundError:
                return
            self._fs.invalidate_cache()

    def names(self, folder: str) -> list[str]:
        with self._errors():
            try:
                found = self._fs.ls(self._path(folder), detail=False, refresh=True)
            except FileNotFoundError:
                return []
        names = (path.rstrip("/").rpartition("/")[2] for path in found)
        return sorted(name for name in names if name and not name.startswith("."))

    def changed(self, path: str) -> float:
        with self._errors():
            try:
                return float(self._fs.modified(self._path(path)).timestamp())
            except NotImplementedError:
                return 0.0
