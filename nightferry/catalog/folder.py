"""A catalog in a folder that all nodes share: names are claimed with hard links, everything is fsynced."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from nightferry.catalog.storage import folder_of
from nightferry.errors import CatalogError
from nightferry.transfer.below import folder_below
from nightferry.transfer.durable import (
    FILE_MODE,
    FOLDER_MODE,
    create_file,
    remove_dead_drafts,
    replace_file,
    sync_folder,
)
from nightferry.transfer.files import room_hint
from nightferry.transfer.regular import open_regular, read_regular
from nightferry.transfer.spool import HELD_BYTES, Content, Spooled, pieces_of, whole

_MOST_BYTES = 16 << 30
"""No file of a catalog is longer."""

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@contextlib.contextmanager
def catalog_errors(doing: str, path: Path) -> Iterator[None]:
    """Turns the system's refusals into the catalog's own error, naming what was done to which file.

    Raises:
        CatalogError: the body raised an OSError.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise CatalogError(
            f"cannot {doing} {path}: {reason}",
            hint=room_hint(error, path),
            subject=str(path),
        ) from error


def make_folder(folder: Path) -> None:
    """Makes a folder below an existing one, for its owner only, durable; one that is there stays as it is."""
    try:
        os.mkdir(folder, FOLDER_MODE)
    except FileExistsError:
        return
    sync_folder(folder.parent)


class FolderStorage:
    """See ``Storage``. The folder must have hard links; folders below it are made for their owner only.

    The folder itself may be a symbolic link. Those below it, and the files in them, may not: what is kept there is
    never read from elsewhere, nor written to it.

    It must show a finished link on one node to the next listing on another (a network file system's attribute
    cache of a few seconds only delays readers; writers are stopped by the link).
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def require(self) -> None:
        with catalog_errors("open the catalog in", self.path):
            os.listdir(self.path)

    def names(self, folder: str) -> list[str]:
        with catalog_errors("read the catalog in", self.path / folder):
            try:
                with self._at(folder) as place:
                    return os.listdir(place)
            except FileNotFoundError:
                return []

    def read(self, path: str) -> bytes | None:
        with catalog_errors("read", self.path / path):
            folder, name = folder_of(path)
            try:
                with self._at(folder) as place:
                    return read_regular(place / name, _MOST_BYTES)
            except FileNotFoundError:
                return None

    def read_all(self, folder: str, names: Sequence[str]) -> Mapping[str, bytes]:
        found = {name: self.read(f"{folder}/{name}") for name in names}
        return {name: data for name, data in found.items() if data is not None}

    def create(self, path: str, data: bytes) -> bool:
        """See ``Storage.create``.

        Raises:
            CatalogError: the folder's file system has no hard links; it cannot be written. When only the last
                step failed (making the name durable) the file may be there all the same, whole.
        """
        target = self.path / path
        folder, name = folder_of(path)
        with catalog_errors("write", target), self._made(folder) as place:
            try:
                create_file(place / name, data)
            except FileExistsError:
                return False
            except OSError as error:
                # Of a file that cannot be written EPERM says something else; only a link's has a second name.
                if error.errno not in _NO_LINKS or (error.errno == errno.EPERM and error.filename2 is None):
                    raise
                raise CatalogError(
                    f"{target.parent} is on a file system without hard links",
                    hint="put the catalog on a file system with hard links, such as ext4, xfs or NFS",
                    subject=str(target.parent),
                ) from error
        return True

    def open(self, path: str) -> Content | None:
        folder, name = folder_of(path)
        with catalog_errors("read", self.path / path):
            try:
                with self._at(folder) as place:
                    fd = open_regular(place / name)
            except FileNotFoundError:
                return None
            file = Spooled(fd, os.fstat(fd).st_size)
            return whole(file) if len(file) <= HELD_BYTES else file

    def replace(self, path: str, data: Content) -> None:
        target = self.path / path
        folder, name = folder_of(path)
        with catalog_errors("write", target), self._made(folder) as place:
            replace_file(place / name, pieces_of(data))

    def remove(self, folder: str, names: Sequence[str]) -> None:
        if not names:
            return
        with catalog_errors("remove what is done with in", self.path / folder):
            try:
                with self._at(folder) as place:
                    for name in names:
                        (place / name).unlink(missing_ok=True)
                    sync_folder(place)
            except FileNotFoundError:
                return

    def tidy(self, folder: str) -> None:
        with catalog_errors("tidy", self.path / folder):
            try:
                with self._at(folder) as place:
                    remove_dead_drafts(place)
            except FileNotFoundError:
                return

    @contextlib.contextmanager
    def alone(self, work: str) -> Iterator[bool]:
        path = self.path / f"{work}.lock"
        with catalog_errors("lock", path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                first = True
            except BlockingIOError:
                first = False
            except BaseException:
                os.close(fd)
                raise
        try:
            yield first
        finally:
            os.close(fd)

    def add_log(self, run: str, image: str, text: str) -> None:
        """``logs/<run>.log``: one write to a file opened for appending, so that stores that end together do
        not mix lines."""
        path = self.path / "logs" / f"{run}.log"
        with catalog_errors("write", path), self._made("logs") as place:
            fd = open_regular(place / path.name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode=FILE_MODE)
            with open(fd, "wb", buffering=0) as log:
                log.write(text.encode())

    def drop_logs(self, runs: Collection[str]) -> None:
        self.remove("logs", sorted({f"{run}.log" for run in runs}.intersection(self.names("logs"))))

    def _at(self, folder: str) -> AbstractContextManager[Path]:
        """A folder of the catalog, the empty name its own, under a path that leads to its descriptor."""
        return folder_below(self.path, [folder] if folder else ())

    def _made(self, folder: str) -> AbstractContextManager[Path]:
        """The same, made where it is missing."""
        return folder_below(self.path, [folder] if folder else (), mode=FOLDER_MODE)
