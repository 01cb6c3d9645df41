"""Objects at any fsspec URL, whatever its driver can do and cannot."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from nightferry.destination.drivers import Connections, Driver, Opened
from nightferry.destination.failure import as_destination_error
from nightferry.destination.objects import Pieces, ReadAt
from nightferry.errors import DestinationError, MediumDamaged, MediumFull, NightferryError, Unavailable
from nightferry.units import MIB

log = logging.getLogger(__name__)

WRITE_BYTES = 4 * MIB
"""Bytes handed to a driver at once: enough for many requests under way on a long line."""
ROOT_MARK = ".nightferry"
"""Makes a root where folders are only the beginnings of names."""


class SpecObjects:
    """See ``Objects``. An object is written under a draft's name and renamed when all of it is there and of the
    right length; a driver that cannot rename writes it under its own name, and a failed write removes it.

    Args:
        driver: How the place is reached.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._name = driver.name
        self._connections = Connections(driver)
        self._folders = threading.Lock()

    @property
    def driver(self) -> Driver:
        return self._driver

    def require_root(self) -> None:
        with self._errors() as opened:
            there = opened.fs.isdir(self._driver.root or "/")
        if not there:
            raise Unavailable(
                f"{self._name}: the folder {self._driver.root} is not there", subject=self._name
            )

    def make_root(self) -> None:
        root = self._driver.root
        above = root.rpartition("/")[0]
        with self._errors() as opened:
            if not root or opened.fs.isdir(root) or not opened.fs.isdir(above or "/"):
                return
            opened.make_folder(root)
            opened.fs.invalidate_cache()
            there = opened.fs.isdir(root)
        if not there:
            self.write(ROOT_MARK, [b"copies by nightferry\n"])

    def exists(self, path: str) -> bool:
        with self._errors() as opened:
            opened.fs.invalidate_cache()
            try:
                # Drivers' own ``exists`` is False whatever went wrong.
                opened.fs.info(self._path(path))
            except FileNotFoundError as error:
                _require_absence(error)
                return False
            return True

    def size(self, path: str) -> int | None:
        with self._errors() as opened:
            opened.fs.invalidate_cache()
            try:
                return int(opened.fs.size(self._path(path)))
            except FileNotFoundError as error:
                _require_absence(error)
                return None

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        with self._file(path) as file, self._errors():
            file.seek(offset)
            return _read_all(file, length)

    @contextmanager
    def opened(self, path: str) -> Iterator[ReadAt]:
        turn = threading.Lock()
        with self._file(path) as file:

            def read(offset: int, length: int) -> bytes:
                with turn, self._errors():
                    file.seek(offset)
                    return _read_all(file, length)

            yield read

    @contextmanager
    def _file(self, path: str) -> Iterator[Any]:
        with self._errors() as opened:
            try:
                # A driver's ``cat_file`` may give more than was asked for; its files read what is asked.
                file = opened.fs.open(self._path(path), "rb", cache_type="none")
            except FileNotFoundError as error:
                _require_absence(error)
                raise MediumDamaged(f"{self._name}: {path} is not there", subject=self._name) from error
        try:
            yield file
        finally:
            with self._errors():
                file.close()

    def write(self, path: str, pieces: Pieces) -> None:
        draft = self._draft(path)
        self._fill(draft, pieces)
        if draft != path:
            self.remove(path)
            self._rename(draft, path)

    def publish(self, folder: str, epoch: int, files: Mapping[str, Pieces], last: tuple[str, bytes]) -> None:
        everything: dict[str, Pieces] = {**files, last[0]: [last[1]]}
        drafts = {name: self._draft(f"{folder}/{name}") for name in everything}
        for name, pieces in everything.items():
            self._fill(drafts[name], pieces)
        for name, draft in drafts.items():
            if draft != f"{folder}/{name}":
                self._rename(draft, f"{folder}/{name}")

    def create(self, path: str, data: bytes) -> bool:
        """See ``Objects.create``. Where the place lets objects be written over two at once may both be told that
        it is theirs: whoever must know reads it again."""
        if self.size(path) is not None:
            return False
        draft = self._draft(path)
        self._fill(draft, [data])
        if draft != path:
            try:
                self._rename(draft, path)
            except DestinationError:
                if self.size(path) is None:
                    raise
                self.remove(draft)
                return False
        return True

    def remove(self, path: str) -> None:
        with self._errors() as opened:
            opened.fs.invalidate_cache()
            try:
                # Not every driver says of a removal that there was nothing to remove.
                opened.fs.info(self._path(path))
                opened.fs.rm_file(self._path(path))
            except FileNotFoundError as error:
                _require_absence(error)
                return
            finally:
                opened.fs.invalidate_cache()

    def remove_empty(self, folder: str) -> None:
        if not self.is_folder(folder) or self.names(folder, hidden=True):
            return
        with self._errors() as opened:
            try:
                opened.fs.rmdir(self._path(folder))
            finally:
                opened.fs.invalidate_cache()

    def is_folder(self, path: str) -> bool:
        with self._errors() as opened:
            opened.fs.invalidate_cache()
            return bool(opened.fs.isdir(self._path(path)))

    def names(self, folder: str, *, hidden: bool = False) -> list[str]:
        with self._errors() as opened:
            opened.fs.invalidate_cache()
            try:
                found = opened.fs.ls(self._path(folder), detail=False)
            except FileNotFoundError as error:
                _require_absence(error)
                return []
        names = (str(path).rstrip("/").rpartition("/")[2] for path in found)
        return sorted(name for name in names if name and (hidden or not name.startswith(".")))

    def changed(self, path: str) -> float:
        with self._errors() as opened:
            try:
                return float(opened.fs.modified(self._path(path)).timestamp())
            except (NotImplementedError, FileNotFoundError):
                return 0.0  # a link that leads nowhere has no time of its own

    def close(self) -> None:
        self._connections.close()

    # -- what only ``check`` asks -------------------------------------------------------------

    def renames(self) -> bool:
        """Whether objects are renamed without their bytes being copied."""
        with self._errors() as opened:
            return opened.renames

    def syncs(self, path: str) -> bool:
        """Whether the place can be asked to have an object's bytes on its disk; writes the object."""
        with self._errors() as opened:
            file = opened.open_new(self._path(path))
            try:
                return opened.sync(file)
            finally:
                file.close()

    def keeps(self, old: str, new: str) -> bool:
        """Whether renaming ``old`` to ``new``, which is there, is refused."""
        with self._errors() as opened:
            if not opened.renames:
                return False
            try:
                opened.rename(self._path(old), self._path(new))
            except Exception as error:
                if isinstance(self._meaning(error, opened), Unavailable):
                    raise
                return True
            return False

    def free_bytes(self) -> int | None:
        """Bytes that may still be written; None where that is not said."""
        with self._errors() as opened:
            return opened.free_bytes(self._driver.root or "/")

    # -- how ------------------------------------------------------------------------------------

    def _path(self, path: str) -> str:
        return f"{self._driver.root}/{path}"

    def _draft(self, path: str) -> str:
        with self._errors() as opened:
            if not opened.renames:
                return path
        folder, _, name = path.rpartition("/")
        return f"{folder}/.draft-{name}" if folder else f".draft-{name}"

    def _fill(self, path: str, pieces: Pieces) -> None:
        """Writes an object of exactly these bytes, or none. What the source of ``pieces`` raises is not the
        destination's error."""
        self._make_folder(self._path(path).rpartition("/")[0])
        with self._errors() as opened:
            file = opened.open_new(self._path(path))
        done = 0
        try:
            for block in _in_blocks(pieces):
                with self._errors():
                    file.write(block)
                done += len(block)
            with self._errors():
                opened.sync(file)
                file.close()
            size = self.size(path)
            if size != done:
                raise Unavailable(
                    f"{self._name}: {path} has {size or 0} bytes there, {done} were sent", subject=self._name
                )
        except BaseException:
            self._give_up(file, path)
            raise

    def _make_folder(self, folder: str) -> None:
        """A folder and those above it. Drivers look first and make then: another lane may be in between."""
        with self._folders, self._errors() as opened:
            opened.fs.invalidate_cache()
            try:
                opened.make_folder(folder)
            except Exception:
                opened.fs.invalidate_cache()
                if not opened.fs.isdir(folder):
                    raise

    def _give_up(self, file: Any, path: str) -> None:
        """Removes what was written of an object. A place that does not answer keeps it for the next put to
        remove; under its own name too it is not a whole copy, as ``meta.json`` is written last."""
        works: tuple[Callable[[], None], ...] = (partial(_throw_away, file), partial(self.remove, path))
        for work in works:
            try:
                with self._errors():
                    work()
            except DestinationError as error:
                log.info("left behind at %s: %s: %s", self._name, path, error)

    def _rename(self, old: str, new: str) -> None:
        with self._errors() as opened:
            opened.rename(self._path(old), self._path(new))

    @contextmanager
    def _errors(self) -> Iterator[Opened]:
        """The connection, and ``DestinationError`` for whatever a library raises; one that is lost is made
        again next time."""
        opened = None
        try:
            opened = self._connections.get()
            yield opened
        except NightferryError as error:
            if isinstance(error, Unavailable):
                self._connections.drop(opened)
            raise
        except Exception as error:  # noqa: BLE001  # a library raises what it likes; all of it is told below
            meant = self._meaning(error, opened)
            if isinstance(meant, Unavailable):
                self._connections.drop(opened)
            # The library's own words may hold what ours were scrubbed of.
            raise meant from None

    def _meaning(self, error: Exception, opened: Opened | None) -> DestinationError:
        meant = self._driver.meaning(error, opened)
        if meant is not None:
            return meant
        if isinstance(error, OSError):
            found = as_destination_error(error, self._name)
            return type(found)(self._driver.scrub(found.message), subject=self._name)
        said = self._driver.shown(error)
        kind = MediumFull if os.strerror(errno.ENOSPC) in said else DestinationError
        return kind(f"{self._name}: {type(error).__name__}: {said}", subject=self._name)


def _require_absence(error: FileNotFoundError) -> None:
    """Drivers turn whatever went wrong while they looked into "not there": what lies behind that must agree.

    Raises:
        Exception: what went wrong instead.
    """
    cause = error.__cause__
    if isinstance(cause, FileNotFoundError):
        return _require_absence(cause)
    status = getattr(cause, "status", None)
    answered = isinstance(status, int) and status not in (404, 410)
    if cause is not None and (answered or isinstance(cause, OSError)):
        raise cause


def _throw_away(file: Any) -> None:
    """Ends a file that was not written to its end. One that uploads as it is closed must not."""
    from fsspec.spec import AbstractBufferedFile

    if isinstance(file, AbstractBufferedFile):
        file.closed = True
        file.discard()
    else:
        file.close()


def _in_blocks(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    held = bytearray()
    for piece in pieces:
        held += piece
        if len(held) >= WRITE_BYTES:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


def _read_all(file: Any, length: int | None) -> bytes:
    """Up to ``length`` bytes, fewer only at the end of the object."""
    if length is None:
        return bytes(file.read())
    pieces = []
    while length:
        piece = bytes(file.read(length))
        if not piece:
            break
        pieces.append(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
