"""A store of kind ``sqlite``: databases copied consistently while they are in use.

SQLite copies a database itself; of one that it cannot open the files are copied. A copy is checked whole, also where it
needs the application's own code: SQLite's quick check parses what the application declared, and a function, collation,
tokenizer or module that only the application has ends it with an error that says nothing of the file. Then the pages
are checked without any of it.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import quote

from nightferry.errors import ConfigError, StagingFull, StoreUnreadable
from nightferry.image.attributes import read_attributes
from nightferry.image.writer import ImageWriter
from nightferry.model.text import safe
from nightferry.progress import Cancel, Progress
from nightferry.source.base import Estimate, Pulse, describe_path
from nightferry.transfer.files import NO_SPACE

MAGIC: Final = b"SQLite format 3\0"
SUFFIXES: Final = (b".db", b".db3", b".sqlite", b".sqlite3")

_BUSY_WAIT_S: Final = 60.0
"""How long a database that is locked exclusively is waited for."""
_BUSY_PAUSE_S: Final = 0.05
_TRIES: Final = 3
"""How often files that change while they are copied are copied again."""
_PIECE_BYTES: Final = 1 << 20
_BESIDE: Final = ("-wal", "-journal")
"""What belongs to a database's content; SQLite makes ``-shm`` out of ``-wal`` again."""
_NOT_OPENED: Final = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY})
_NOT_SHARED: Final = frozenset(
    {
        sqlite3.SQLITE_IOERR_LOCK,
        sqlite3.SQLITE_IOERR_RDLOCK,
        sqlite3.SQLITE_IOERR_SHMLOCK,
        sqlite3.SQLITE_IOERR_SHMMAP,
        sqlite3.SQLITE_IOERR_SHMOPEN,
        sqlite3.SQLITE_IOERR_SHMSIZE,
    }
)
"""The file system has no locks, or no shared memory."""
_ABOUT_CODE: Final = ("CHECK constraint failed", "unable to validate")
"""How findings begin that depend on the application's code. A CHECK constraint may call a function that the
application put in the place of SQLite's own; a virtual table's module may lack its tokenizer."""
_TABLE: Final = "CREATE TABLE {name}({columns})"
_INDEX: Final = "CREATE TABLE {name}(c0 PRIMARY KEY) WITHOUT ROWID"
# SQLite file format 1.6: the first byte of a b-tree page. An index and a table WITHOUT ROWID have the same pages.
_FORMS: Final = {2: _INDEX, 5: _TABLE, 10: _INDEX, 13: _TABLE}


class SqliteSource:
    """Copies databases by SQLite's own backup, checks the copy, and stores it under the database's own name.

    How it is copied where SQLite cannot open it, and checked where only the application could: see ``copy_database``
    and ``check_database``. The image carries a note of either.

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
        """See :class:`nightferry.source.base.StoreSource`."""
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


def copy_database(database: bytes, copy: Path, cancel: Cancel) -> str:
    """Copies what is committed in the database; nothing of the copy waits in a log of its own.

    SQLite copies it by its own backup, beside any writers. Where it cannot open the database (a WAL database or an
    interrupted transaction on a read-only mount, a path beyond SQLite's 512 bytes, a file system without locks)
    the files are copied as they lie, with the log or journal beside them, and SQLite brings the copy up to date.
    That counts only when none of them changed meanwhile.

    Args:
        database: Its real path, absolute and without a symbolic link: ``-wal`` and ``-journal`` lie beside it.
        copy: Where to; must not be there yet.
        cancel: Seen at every piece.

    Returns:
        A remark for whoever reads about the image; empty when there is nothing to say.

    Raises:
        sqlite3.Error: SQLite cannot copy it.
        OSError: it cannot be read, or it is locked or changes all the time (`TimeoutError`).
        Cancelled: a stop was asked for.
    """
    try:
        _back_up(database, copy, cancel, mode="rw" if _is_idle_wal(database) else "ro")
        return ""
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_READONLY:
            try:
                _back_up(database, copy, cancel, mode="rw")
                return "a transaction left by a crashed writer was rolled back"
            except sqlite3.OperationalError as again:
                error = again
        if error.sqlite_errorcode & 0xFF not in _NOT_OPENED and error.sqlite_errorcode not in _NOT_SHARED:
            raise error
    return _copy_files(database, copy, cancel)


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


def _back_up(database: bytes, copy: Path, cancel: Cancel, *, mode: str) -> None:
    deadline = time.monotonic() + _BUSY_WAIT_S

    def look(status: int, remaining: int, total: int) -> None:
        # Called after every step; one that met a lock copied nothing and is repeated.
        cancel.check()
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) and time.monotonic() > deadline:
            raise TimeoutError(f"locked for more than {_BUSY_WAIT_S:.0f} s")

    # With an empty authority a path may begin with "//".
    url = f"file://{quote(database)}?mode={mode}"
    with (
        closing(sqlite3.connect(url, uri=True, timeout=0)) as source,
        closing(sqlite3.connect(copy)) as target,
    ):
        # All pages in one step: under a steady writer smaller steps begin again for ever.
        source.backup(target, pages=-1, progress=look, sleep=_BUSY_PAUSE_S)
        _end_log(target)


def _end_log(base: sqlite3.Connection) -> None:
    """Brings the database's own file up to date. Reading it at all rolls an interrupted transaction back."""
    base.execute("PRAGMA schema_version")
    base.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _copy_files(database: bytes, copy: Path, cancel: Cancel) -> str:
    journal = Path(f"{copy}-journal")
    for _ in range(_TRIES):
        before = _state(database)
        _copy_file(database, copy, cancel)
        for suffix in _BESIDE:
            beside = Path(f"{copy}{suffix}")
            beside.unlink(missing_ok=True)
            with suppress(FileNotFoundError):
                _copy_file(database + suffix.encode(), beside, cancel)
        if _state(database) == before:
            break
    else:
        raise TimeoutError(
            "SQLite cannot open it where it lies, and it changed each time its files were copied"
        )
    had_journal = journal.exists()
    with closing(sqlite3.connect(copy)) as base:
        _end_log(base)
    if had_journal and not journal.exists():
        return "an uncommitted transaction was rolled back in the copy"
    return ""


def _state(database: bytes) -> list[tuple[int, ...] | None]:
    """What changes when somebody writes to the database, its log or its journal."""
    found: list[tuple[int, ...] | None] = []
    for suffix in ("", *_BESIDE):
        try:
            status = os.stat(database + suffix.encode())
        except FileNotFoundError:
            found.append(None)
        else:
            found.append((status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return found


def _copy_file(source: bytes, target: Path, cancel: Cancel) -> None:
    with open(source, "rb", buffering=0) as file, target.open("wb", buffering=0) as out:
        while piece := file.read(_PIECE_BYTES):
            cancel.check()
            view = memoryview(piece)
            while view:
                view = view[out.write(view) :]


class DatabaseDamaged(Exception):
    """Something in the database is damaged; the text is SQLite's first finding."""


def check_database(copy: Path) -> str:
    """Checks a copy that nobody else has open, and that no log lies beside; changes nothing in it.

    Returns:
        Empty when it passes SQLite's quick check. Else what that could not do here, or what it says against the
        application's own constraints: then every page of every b-tree and the free list were checked and are sound.

    Raises:
        DatabaseDamaged: it is damaged.
        sqlite3.Error: it cannot be read as a database.
    """
    with closing(sqlite3.connect(copy)) as base:
        try:
            finding = str(base.execute("PRAGMA quick_check(1)").fetchone()[0])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_ERROR:
                raise
            finding = str(error)
        else:
            if finding == "ok":
                return ""
            if not finding.startswith(_ABOUT_CODE):
                raise DatabaseDamaged(finding)
    _check_pages(copy)
    return finding


def _check_pages(copy: Path) -> None:
    """Has SQLite check every b-tree under a schema without any expression, which is never committed.

    In it each b-tree is a table of plain columns; as many as there are, so that each record's header is read to
    its end. Triggers, views and virtual tables have no b-tree, and are left out; what a virtual table keeps are
    tables like others.
    """
    with closing(sqlite3.connect(copy, isolation_level=None)) as base:
        page_bytes = base.execute("PRAGMA page_size").fetchone()[0]
        base.execute("PRAGMA writable_schema = ON")
        base.execute("BEGIN IMMEDIATE")
        trees = base.execute(
            "SELECT rowid, rootpage, (SELECT count(*) FROM pragma_table_xinfo(name)) FROM sqlite_master "
            "WHERE rootpage > 0"
        ).fetchall()
        with copy.open("rb") as file:
            for row, root, count in trees:
                file.seek((root - 1) * page_bytes)
                form = _FORMS.get(int.from_bytes(file.read(1)))
                if form is None:
                    raise DatabaseDamaged(f"page {root} is not the root of a table or an index")
                name = f"t{row}"
                columns = ", ".join(f"c{number}" for number in range(max(count, 1)))
                base.execute(
                    "UPDATE sqlite_master SET type = 'table', name = ?, tbl_name = ?, sql = ? WHERE rowid = ?",
                    (name, name, form.format(name=name, columns=columns), row),
                )
        base.execute("DELETE FROM sqlite_master WHERE rootpage IS NULL OR rootpage = 0")
        base.execute("PRAGMA writable_schema = RESET")
        finding = str(base.execute("PRAGMA quick_check(1)").fetchone()[0])
        base.execute("ROLLBACK")
        if finding != "ok":
            raise DatabaseDamaged(finding)
