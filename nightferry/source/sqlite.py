"""A store of kind ``sqlite``: databases copied consistently while they are in use."""

from __future__ import annotations

import os
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import quote

from nightferry.errors import ConfigError, StagingFull, StoreUnreadable
from nightferry.image.attributes import read_attributes
from nightferry.image.writer import ImageWriter
from nightferry.model.text import safe
from nightferry.progress import Cancel, Progress
from nightferry.source.base import Estimate, Pulse, describe_path

MAGIC: Final = b"SQLite format 3\0"
SUFFIXES: Final = (b".db", b".db3", b".sqlite", b".sqlite3")
_BUSY_WAIT_S: Final = 60.0
"""How long a database that is locked exclusively is waited for."""
_BUSY_PAUSE_S: Final = 0.05


class DatabaseDamaged(Exception):
    """SQLite's quick check found something; the text is its first finding."""


class SqliteSource:
    """Copies databases by SQLite's own backup, checks the copy, and stores it under the database's own name.

    For a path that is a file, that file is the store. For a directory the store is every regular file
    directly in it that begins with SQLite's magic or whose name ends in one of ``SUFFIXES``; nothing below it
    and no other file. What has such a name and is no database becomes ``unreadable``. ``-wal``, ``-shm`` and
    ``-journal`` are never taken: the copy holds what was committed when it was made.

    Mode, owner, times and attributes are those of the database. While a database is copied, writers that use
    a rollback journal wait; those of a WAL database do not. Nothing is written to the database. Only when a
    crashed writer left a transaction half written is that rolled back, as the next program to open the
    database would do; the image carries a note of it.

    Args:
        path: The database or the directory.
        scratch_directory: Where the copy is made before it becomes a member: as much room as the largest
            database takes.
    """

    kind: ClassVar[str] = "sqlite"

    def __init__(self, path: bytes | str | Path, scratch_directory: Path) -> None:
        self._path = os.fsencode(path)
        self._scratch_directory = scratch_directory

    @property
    def description(self) -> dict[str, Any]:
        """The path."""
        return dict(describe_path(self._path))

    def estimate(self) -> Estimate:
        """Sizes of the databases and of what waits in their write-ahead logs."""
        total = count = 0
        for database in self._databases():
            count += 1
            for name in (database, database + b"-wal"):
                try:
                    total += os.stat(name).st_size
                except FileNotFoundError:
                    continue
        return Estimate(total, count)

    def write(self, image: ImageWriter, *, progress: Progress, cancel: Cancel, subject: str) -> None:
        """See :class:`nightferry.source.base.Source`."""
        pulse = Pulse(progress, cancel, subject)
        for database in self._databases():
            pulse.current = os.path.basename(database)
            pulse(image.payload_bytes)
            self._add(image, database, cancel, pulse)

    def close(self) -> None:
        """Nothing is held between calls."""

    def _databases(self) -> list[bytes]:
        """Paths of the databases, sorted by name.

        Raises:
            ConfigError: the path does not exist, or there is none in it.
            StoreUnreadable: it cannot be looked into.
        """
        shown = safe(self._path)
        try:
            if not stat.S_ISDIR(os.stat(self._path).st_mode):
                return [self._path]
            found = [os.path.join(self._path, name) for name in _candidates(self._path)]
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ConfigError(
                f"the store's path {shown} does not exist",
                hint="correct the store's path in the site file, or mount it on this node",
                subject=shown,
            ) from error
        except OSError as error:
            raise StoreUnreadable(
                f"cannot read the store {shown}: {error.strerror}", subject=shown
            ) from error
        if not found:
            raise ConfigError(
                f"there is no SQLite database in {shown}",
                hint='name a database file, or use kind = "files" for other content',
                subject=shown,
            )
        return found

    def _add(self, image: ImageWriter, database: bytes, cancel: Cancel, pulse: Pulse) -> None:
        name = os.path.basename(database.rstrip(b"/"))
        status = None
        try:
            status = os.stat(database)
            attributes = read_attributes(os.path.realpath(database))
        except FileNotFoundError as error:
            image.add_absent(name, "vanished", error.strerror or "gone", status)
            return
        except OSError as error:
            image.add_absent(name, "unreadable", error.strerror or str(error), status)
            return
        with self._scratch() as scratch:
            copy = Path(scratch) / "copy"
            try:
                if _copy_or_recover(database, copy, cancel):
                    image.note(f"{safe(name)}: a transaction that a crashed writer left was rolled back")
            except (sqlite3.Error, DatabaseDamaged, OSError) as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
                    raise StagingFull(
                        f"no room in {self._scratch_directory} for a copy of {safe(database)}",
                        subject=safe(database),
                    ) from error
                image.add_absent(name, "unreadable", f"SQLite cannot copy it: {error}", status)
                return
            fd = os.open(copy, os.O_RDONLY | os.O_CLOEXEC)
            try:
                image.add_file(name, fd, described_by=status, attributes=attributes, tick=pulse)
            finally:
                os.close(fd)

    def _scratch(self) -> tempfile.TemporaryDirectory[str]:
        try:
            return tempfile.TemporaryDirectory(prefix=".nightferry-", dir=self._scratch_directory)
        except OSError as error:
            raise ConfigError(
                f"cannot make a folder in {self._scratch_directory}: {error.strerror}",
                hint="databases are copied to staging first: it must be there and writable",
            ) from error


def _candidates(directory: bytes) -> Iterator[bytes]:
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        try:
            if not stat.S_ISREG(os.lstat(path).st_mode):
                continue
            if name.endswith(SUFFIXES):
                yield name
                continue
            with open(path, "rb") as file:
                if file.read(len(MAGIC)) == MAGIC:
                    yield name
        except FileNotFoundError:
            continue


def _copy_or_recover(database: bytes, copy: Path, cancel: Cancel) -> bool:
    """As ``_copy``; returns whether a transaction had to be rolled back in the database itself."""
    try:
        _copy(database, copy, cancel, mode="rw" if _is_idle_wal(database) else "ro")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY:
            raise
        _copy(database, copy, cancel, mode="rw")
        return True
    return False


def _is_idle_wal(database: bytes) -> bool:
    """Whether it is a WAL database that nobody has open.

    A read-only connection would leave an empty ``-wal`` and ``-shm`` behind there; one that may write removes
    them when it closes, and writes nothing else.
    """
    if os.path.lexists(database + b"-wal"):
        return False
    with open(database, "rb") as file:
        header = file.read(20)
    return header[18:20] == b"\2\2"  # SQLite file format 1.3.2: write and read version, 2 is WAL


def _copy(database: bytes, copy: Path, cancel: Cancel, *, mode: str) -> None:
    """Makes a consistent copy and checks it.

    Raises:
        sqlite3.Error: SQLite cannot copy it.
        DatabaseDamaged: the copy does not pass SQLite's quick check.
        TimeoutError: it is locked all the time.
        Cancelled: a stop was asked for.
    """
    deadline = time.monotonic() + _BUSY_WAIT_S

    def look(status: int, remaining: int, total: int) -> None:
        # Called after every step; one that met a lock copied nothing and is repeated.
        cancel.check()
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) and time.monotonic() > deadline:
            raise TimeoutError(f"locked for more than {_BUSY_WAIT_S:.0f} s")

    url = f"file:{quote(os.path.abspath(database))}?mode={mode}"
    with (
        closing(sqlite3.connect(url, uri=True, timeout=0)) as source,
        closing(sqlite3.connect(copy)) as target,
    ):
        # All pages in one step: under a steady writer smaller steps begin anew for ever.
        source.backup(target, pages=-1, progress=look, sleep=_BUSY_PAUSE_S)
        result = target.execute("PRAGMA quick_check(1)").fetchone()[0]
        if result != "ok":
            raise DatabaseDamaged(result)
        # The copy becomes one file: nothing of it may wait in a log of its own.
        target.execute("PRAGMA wal_checkpoint(TRUNCATE)")
