"""A store of kind ``sqlite``: databases copied consistently while they are in use."""

from __future__ import annotations

import os
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

from nightferry.errors import ConfigError, StagingFull, StoreUnreadable
from nightferry.image.attributes import read_attributes
from nightferry.image.writer import ImageWriter
from nightferry.model.text import safe
from nightferry.progress import Cancel, Progress
from nightferry.source.base import Estimate, Pulse, describe_path
from nightferry.source.sqlite_check import DatabaseDamaged, check_database
from nightferry.source.sqlite_copy import copy_database
from nightferry.transfer.files import NO_SPACE

MAGIC: Final = b"SQLite format 3\0"
SUFFIXES: Final = (b".db", b".db3", b".sqlite", b".sqlite3")


class SqliteSource:
    """Copies databases by SQLite's own backup, checks the copy, and stores it under the database's own name.

    How it is copied where SQLite cannot open it, and checked where only the application could: see
    ``source.sqlite_copy`` and ``source.sqlite_check``. The image carries a note of either.

    For a path that is a file, that file is the store. For a directory the store is every regular file
    directly in it that begins with SQLite's magic or whose name ends in one of ``SUFFIXES``; nothing below it
    and no other file. What has such a name and is not a database becomes ``unreadable``. ``-wal``, ``-shm`` and
    ``-journal`` are never taken: the copy holds what was committed when it was made.

    Mode, owner, times and attributes are those of the database; not its inode flags, because opening and closing it
    would take away the locks that this process may hold on it. While a database is copied, writers that use a rollback
    journal wait; those of a WAL database do not. Nothing is written to the database. Only when a crashed writer left a
    transaction half written is that rolled back, as the next program to open the database would do; the image carries
    a note of it.

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
            for name in (database, os.path.realpath(database) + b"-wal"):
                try:
                    total += os.stat(name).st_size
                except OSError:
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
        # SQLite, too, looks for the log beside the file that a symbolic link leads to.
        real = os.path.realpath(database)
        status = None
        try:
            status = os.stat(real)
            attributes = read_attributes(real)
        except FileNotFoundError as error:
            image.add_absent(name, "vanished", error.strerror or "gone", status)
            return
        except OSError as error:
            image.add_absent(name, "unreadable", error.strerror or str(error), status)
            return
        with self._scratch() as scratch:
            copy = Path(scratch) / "copy"
            try:
                self._copy(image, name, real, copy, cancel)
            except FileNotFoundError as error:
                image.add_absent(name, "vanished", error.strerror or "gone", status)
                return
            except DatabaseDamaged as error:
                image.add_absent(name, "unreadable", f"SQLite finds it damaged: {error}", status)
                return
            except (sqlite3.Error, OSError) as error:
                if _is_full(error):
                    raise StagingFull(
                        f"no space in {self._scratch_directory} for a copy of {safe(database)}",
                        subject=safe(database),
                    ) from error
                image.add_absent(name, "unreadable", f"SQLite cannot copy it: {error}", status)
                return
            fd = os.open(copy, os.O_RDONLY | os.O_CLOEXEC)
            try:
                image.add_file(name, fd, described_by=status, attributes=attributes, tick=pulse)
            finally:
                os.close(fd)

    def _copy(self, image: ImageWriter, name: bytes, real: bytes, copy: Path, cancel: Cancel) -> None:
        """Makes the copy that goes into the image, and notes there what is not as usual."""
        remark = copy_database(real, copy, cancel)
        if remark:
            image.note(f"{safe(name)}: {remark}")
        lacking = check_database(copy)
        if lacking:
            image.note(
                f"{safe(name)}: every page is sound; SQLite's own check needs the application ({safe(lacking)})"
            )

    def _scratch(self) -> tempfile.TemporaryDirectory[str]:
        try:
            return tempfile.TemporaryDirectory(prefix=".nightferry-", dir=self._scratch_directory)
        except OSError as error:
            raise ConfigError(
                f"cannot make a folder in {self._scratch_directory}: {error.strerror}",
                hint="databases are copied to staging first: it must exist and be writable",
            ) from error


def _is_full(error: Exception) -> bool:
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in NO_SPACE


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
