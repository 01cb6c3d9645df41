"""Whether a copy of a database is whole, also where it needs the application's own code.

SQLite's quick check parses what the application declared. A function, collation, tokenizer or module that only the
application has ends it with an error, and says nothing of the file. Then the pages are checked without any of it.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

_ABOUT_CODE: Final = ("CHECK constraint failed", "unable to validate")
"""How findings begin that depend on the application's code. A CHECK constraint may call a function that the
application put in the place of SQLite's own; a virtual table's module may lack its tokenizer."""

_TABLE: Final = "CREATE TABLE {name}({columns})"
_INDEX: Final = "CREATE TABLE {name}(c0 PRIMARY KEY) WITHOUT ROWID"
# SQLite file format 1.6: the first byte of a b-tree page. An index and a table WITHOUT ROWID have the same pages.
_FORMS: Final = {2: _INDEX, 5: _TABLE, 10: _INDEX, 13: _TABLE}


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
