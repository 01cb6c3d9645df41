"""A consistent copy of a database: by SQLite itself, or of its files where SQLite cannot open it."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from nightferry.progress import Cancel

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
