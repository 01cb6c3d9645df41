"""Databases that only their application can use in full, and places where SQLite cannot open them."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from nightferry.image.writer import ImageSummary
from nightferry.night.report import night_result, report_markdown
from nightferry.progress import Cancel
from nightferry.source import sqlite
from nightferry.source.sqlite import SqliteSource
from tests.imaging import content, open_image, require_program, write_source
from tests.support import night
from tests.support.disks import ext4
from tests.support.small_site import SmallSite

ROWS = (
    "with recursive n(i) as (select 1 union all select i + 1 from n where i < 800) "
    "insert into t select 'row ' || i || hex(randomblob(20)) from n"
)
OWN_CODE = {
    "a collation": ("create table t(a collate own)", ROWS, "create index i on t(a)"),
    "a collation as the key": ("create table t(a collate own primary key) without rowid", ROWS),
    "an index on a function": ("create table t(a)", ROWS, "create index i on t(own(a))"),
    "an index where a function says so": (
        "create table t(a)",
        ROWS,
        "create index i on t(a) where own(a) > 1",
    ),
    "a constraint that calls a function": ("create table t(a check(own(a) = 1))", ROWS),
    "a constraint on a built-in function's successor": ("create table t(a check(lower(a) = 'own'))", ROWS),
    "a column made by a function": (
        "create table t(a, b as (own(a)) not null)",
        ROWS.replace("into t ", "into t(a) "),
    ),
    "a module of its own": (
        "create table t(a)",
        ROWS,
        "create virtual table v using rtree(id, low, high)",
        "insert into v values (1, 2, 3)",
        "pragma writable_schema = on",
        "update sqlite_master set sql = 'CREATE VIRTUAL TABLE v USING own(x)' where name = 'v'",
    ),
    "a tokenizer of its own": (
        "create table t(a)",
        ROWS,
        "create virtual table f using fts5(a)",
        "insert into f select a from t",
        "create virtual table g using fts4(a)",
        "insert into g select a from t",
        "pragma writable_schema = on",
        "update sqlite_master set sql = 'CREATE VIRTUAL TABLE f USING fts5(a, tokenize = own)' where name = 'f'",
        "update sqlite_master set sql = 'CREATE VIRTUAL TABLE g USING fts4(a, tokenize = own)' where name = 'g'",
    ),
}
NEEDS_IT = [case for case in OWN_CODE if "collation" in case or "constraint" in case or "column" in case]


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    path = tmp_path / "scratch"
    path.mkdir()
    return path


@contextmanager
def as_the_application(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as base:
        base.create_collation("own", lambda a, b: (a < b) - (a > b))
        base.create_function("own", 1, lambda value: 1, deterministic=True)
        base.create_function("lower", 1, lambda value: "own", deterministic=True)
        yield base


def database(path: Path, case: str) -> Path:
    with as_the_application(path) as base:
        for statement in OWN_CODE[case]:
            base.execute(statement)
    return path


def backed_up(source: SqliteSource, tmp_path: Path, name: str) -> tuple[ImageSummary, Path]:
    """The summary, and the database out of the image."""
    image = tmp_path / "i.tar"
    summary = write_source(image, source)
    back = tmp_path / "back.db"
    if summary.outcomes.whole:
        back.write_bytes(content(open_image(image), os.fsencode(name)))
    return summary, back


def rows(path: Path) -> list[tuple[object, ...]]:
    with as_the_application(path) as base:
        return (
            base.execute("select rowid, a from t").fetchall()
            if has_rowid(base)
            else base.execute("select a from t").fetchall()
        )


def has_rowid(base: sqlite3.Connection) -> bool:
    return "without rowid" not in base.execute("select sql from sqlite_master where name = 't'").fetchone()[0]


@pytest.mark.parametrize("journal", ["delete", "wal"])
@pytest.mark.parametrize("case", OWN_CODE)
def test_a_database_that_needs_its_application_is_whole(
    tmp_path: Path, scratch: Path, case: str, journal: str
) -> None:
    base = database(tmp_path / "app.db", case)
    with closing(sqlite3.connect(base)) as opened:
        opened.execute(f"pragma journal_mode = {journal}")
    summary, back = backed_up(SqliteSource(base, scratch), tmp_path, "app.db")
    assert summary.outcomes.whole == summary.files == 1
    if summary.notes or case in NEEDS_IT:  # a newer SQLite asks for tokenizers, too
        assert summary.notes[0].startswith(
            "app.db: every page is sound; SQLite's own check needs the application"
        )
    assert rows(back) == rows(base)
    with as_the_application(back) as opened:
        assert opened.execute("pragma integrity_check(t)").fetchall() == [("ok",)]
    assert os.listdir(scratch) == []


def test_the_sqlite3_program_could_not_check_it_either(tmp_path: Path) -> None:
    require_program("sqlite3")
    base = database(tmp_path / "app.db", "a collation")
    said = subprocess.run(["sqlite3", base, "pragma quick_check"], capture_output=True, text=True)
    assert "no such collation sequence" in said.stdout + said.stderr


@pytest.mark.parametrize("auto_vacuum", ["none", "full"])
@pytest.mark.parametrize("case", NEEDS_IT)
def test_checking_without_the_application_changes_nothing(
    tmp_path: Path, case: str, auto_vacuum: str
) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db")) as opened:
        opened.execute(f"pragma auto_vacuum = {auto_vacuum}")
        opened.execute("vacuum")
    base = database(tmp_path / "app.db", case)
    before = base.read_bytes()
    assert sqlite.check_database(base) != ""
    assert base.read_bytes() == before
    assert os.listdir(tmp_path) == ["app.db"]


def damages(data: bytes, page_bytes: int) -> Iterator[tuple[str, bytes]]:
    """Kinds of damage to one page each; the first page holds the schema."""
    count = len(data) // page_bytes
    for page in range(1, count, max(1, count // 12)):
        at = page * page_bytes
        yield f"page {page} is zeros", data[:at] + bytes(page_bytes) + data[at + page_bytes :]
        yield f"page {page} has another type", data[:at] + bytes([data[at] ^ 7]) + data[at + 1 :]
        yield f"page {page} counts other cells", data[: at + 4] + bytes([data[at + 4] ^ 1]) + data[at + 5 :]
        yield f"page {page} is another one", data[:at] + data[at - page_bytes : at] + data[at + page_bytes :]


@pytest.mark.parametrize(
    "case", ["a collation", "a collation as the key", "a constraint that calls a function"]
)
def test_damage_is_found_also_where_the_application_is_needed(tmp_path: Path, case: str) -> None:
    base = database(tmp_path / "app.db", case)
    with as_the_application(base) as opened:
        opened.execute("create table big(a check(own(a) = 1))")
        opened.execute("insert into big values (zeroblob(50000))")
        opened.execute("create table gone as select a from t")
        opened.execute("drop table gone")
        page_bytes = opened.execute("pragma page_size").fetchone()[0]
    found = 0
    for what, data in damages(base.read_bytes(), page_bytes):
        damaged = tmp_path / "damaged.db"
        damaged.write_bytes(data)
        try:
            with as_the_application(damaged) as opened:
                right = opened.execute("pragma quick_check(1)").fetchone()[0] == "ok"
        except sqlite3.DatabaseError:
            right = False
        try:
            sqlite.check_database(damaged)
            ours = True
        except (sqlite.DatabaseDamaged, sqlite3.DatabaseError):
            ours = False
        assert ours == right, what
        found += not ours
    assert found > 20


def test_a_constraint_that_the_content_breaks_is_noted_and_no_damage(tmp_path: Path, scratch: Path) -> None:
    base = tmp_path / "app.db"
    with closing(sqlite3.connect(base)) as opened, opened:
        opened.execute("create table t(a check(a > 0))")
        opened.execute("pragma ignore_check_constraints = on")
        opened.execute("insert into t values (-1)")
    summary, _ = backed_up(SqliteSource(base, scratch), tmp_path, "app.db")
    assert summary.outcomes.whole == 1
    assert "CHECK constraint failed in t" in summary.notes[0]


CRASH = """
import os, sqlite3, sys
base = sqlite3.connect(sys.argv[1], isolation_level=None)
base.execute("pragma cache_size = 5")
if sys.argv[2] == "wal":
    base.execute("pragma wal_autocheckpoint = 0")
    base.execute("insert into t values ('committed')")
base.execute("begin")
base.execute("update t set a = 'half done ' || a || hex(randomblob(200))")
os._exit(0)
"""


@pytest.fixture
def snapshot(tmp_path: Path) -> Iterator[Path]:
    """A disk with databases that were in use when it was taken, mounted so that nobody can write to it."""
    with ext4(tmp_path, 64 << 20) as disk:
        modes = {"idle": "wal", "busy": "wal", "shared": "wal", "rolled": "delete", "plain": "delete"}
        for name, journal in modes.items():
            base = disk / f"{name}.db"
            with closing(sqlite3.connect(base, isolation_level=None)) as opened:
                opened.execute(f"pragma journal_mode = {journal}")
                opened.execute("create table t(a)")
                opened.execute(ROWS)
        subprocess.run([sys.executable, "-c", CRASH, disk / "busy.db", "wal"], check=True)
        subprocess.run([sys.executable, "-c", CRASH, disk / "shared.db", "wal"], check=True)
        subprocess.run([sys.executable, "-c", CRASH, disk / "rolled.db", "delete"], check=True)
        (disk / "shared.db-shm").write_bytes(os.urandom((disk / "shared.db-shm").stat().st_size))
        (disk / "busy.db-shm").unlink()
        assert (disk / "busy.db-wal").stat().st_size > 0
        assert (disk / "rolled.db-journal").stat().st_size > 0
        assert not (disk / "idle.db-wal").exists()
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        yield disk


def test_a_snapshot_on_a_read_only_mount_is_taken_as_a_crash_would_leave_it(
    tmp_path: Path, scratch: Path, snapshot: Path
) -> None:
    image = tmp_path / "i.tar"
    summary = write_source(image, SqliteSource(snapshot, scratch))
    assert (summary.files, summary.outcomes.whole) == (5, 5)
    assert [note.partition(":")[0] for note in summary.notes] == ["rolled.db"]
    assert os.listdir(scratch) == []
    for name in ("idle", "busy", "shared", "rolled", "plain"):
        # What the next program to open it would see: the files beside it belong to it.
        (tmp_path / name).mkdir()
        for file in snapshot.glob(f"{name}.db*"):
            if file.suffix != ".db-shm":
                shutil.copy(file, tmp_path / name)
        back = tmp_path / f"{name}.back"
        back.write_bytes(content(open_image(image), f"{name}.db".encode()))
        judged = [
            subprocess.run(
                ["sqlite3", path, "pragma integrity_check; select count(*), sum(length(a)) from t"],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for path in (back, tmp_path / name / f"{name}.db")
        ]
        assert judged[0].startswith("ok\n")
        assert judged[0] == judged[1]


@pytest.mark.parametrize("name", ["idle", "busy", "shared", "rolled", "plain"])
def test_one_database_of_a_snapshot_is_taken_by_its_path(
    tmp_path: Path, scratch: Path, snapshot: Path, name: str
) -> None:
    summary, _ = backed_up(SqliteSource(snapshot / f"{name}.db", scratch), tmp_path, f"{name}.db")
    assert summary.outcomes.whole == 1


def test_files_that_change_while_they_are_copied_are_never_a_copy(
    tmp_path: Path, scratch: Path, snapshot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = iter(range(100))
    monkeypatch.setattr(sqlite, "_state", lambda database: next(states))
    image = tmp_path / "i.tar"
    summary = write_source(image, SqliteSource(snapshot / "busy.db", scratch))
    assert summary.outcomes.unreadable == 1
    row = open_image(image).index.lookup(b"busy.db")
    assert row is not None
    assert "changed each time" in row.note
    assert os.listdir(scratch) == []


def test_files_that_changed_once_are_copied_again(
    tmp_path: Path, snapshot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = iter([1, 2, 3, 3])
    monkeypatch.setattr(sqlite, "_state", lambda database: next(states))
    sqlite.copy_database(os.fsencode(snapshot / "busy.db"), tmp_path / "copy", Cancel())
    with closing(sqlite3.connect(tmp_path / "copy")) as base:
        assert base.execute("select count(*) from t where a = 'committed'").fetchall() == [(1,)]


@pytest.mark.parametrize(
    "name",
    [
        "mail-wal",
        "mail-journal",
        "mail.db-wal.db",
        "a?mode=memory",
        "a#b",
        "a%41.db",
        "a b&c=d.db",
        "x;y'z\".db",
    ],
)
@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_a_database_of_any_name_is_copied(tmp_path: Path, scratch: Path, name: str, journal: str) -> None:
    store = tmp_path / "store"
    store.mkdir()
    base = database(store / name, "an index on a function")
    with closing(sqlite3.connect(base)) as opened:
        opened.execute(f"pragma journal_mode = {journal}")
    before = os.listdir(store)
    summary, back = backed_up(SqliteSource(base, scratch), tmp_path, name)
    assert (summary.outcomes.whole, os.listdir(store)) == (1, before)
    assert rows(back) == rows(base)


@pytest.mark.parametrize("slashes", ["//", "///"])
def test_a_path_that_begins_with_several_slashes(tmp_path: Path, scratch: Path, slashes: str) -> None:
    base = database(tmp_path / "app.db", "an index on a function")
    path = slashes + str(base).lstrip("/")
    summary, back = backed_up(SqliteSource(path, scratch), tmp_path, "app.db")
    assert summary.outcomes.whole == 1
    assert rows(back) == rows(base)


def test_a_path_beyond_what_sqlite_takes(tmp_path: Path, scratch: Path) -> None:
    folder = tmp_path.joinpath(*["d" * 200] * 3)
    folder.mkdir(parents=True)
    made = database(tmp_path / "app.db", "an index on a function")
    base = made.rename(folder / "app.db")
    with pytest.raises(sqlite3.OperationalError):
        sqlite3.connect(base).execute("select 1 from t")
    summary, back = backed_up(SqliteSource(base, scratch), tmp_path, "app.db")
    assert summary.outcomes.whole == 1
    assert rows(back)[0][1].startswith("row 1")  # type: ignore[attr-defined]


@pytest.mark.parametrize("holder", ["nobody", "a writer", "a crashed writer"])
def test_the_log_of_a_linked_database_lies_beside_the_file_itself(
    tmp_path: Path, scratch: Path, holder: str
) -> None:
    """The real path has bytes outside UTF-8 as well."""
    real = Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xe9al"))
    real.mkdir()
    base = real / "app.db"
    link = tmp_path / "linked.db"
    link.symlink_to(base)
    log_bytes = 0
    with closing(sqlite3.connect(base, isolation_level=None)) as writer:
        writer.execute("pragma journal_mode = wal")
        writer.execute("create table t(a)")
        writer.execute(ROWS)
        if holder == "a writer":
            writer.execute("insert into t values ('committed')")
            log_bytes = Path(f"{base}-wal").stat().st_size
            summary, back = backed_up(SqliteSource(link, scratch), tmp_path, "linked.db")
    if holder != "a writer":
        if holder == "a crashed writer":
            subprocess.run([sys.executable, "-c", CRASH, base, "wal"], check=True)
            log_bytes = Path(f"{base}-wal").stat().st_size
        before = sorted(os.listdir(real))
        assert SqliteSource(link, scratch).estimate().bytes == base.stat().st_size + log_bytes
        summary, back = backed_up(SqliteSource(link, scratch), tmp_path, "linked.db")
        assert sorted(os.listdir(real)) == before
    assert summary.outcomes.whole == 1
    with closing(sqlite3.connect(back)) as copy:
        found = copy.execute("select count(*) from t where a = 'committed'").fetchone()[0]
    assert found == (holder != "nobody")


def test_what_is_noted_of_a_database_reaches_the_operator(tmp_path: Path) -> None:
    site = SmallSite(tmp_path, copies=("folder",)).build()
    for folder in ("a", "b"):
        shutil.rmtree(site.store(f"SG1/{folder}"))
        site.store(f"SG1/{folder}").mkdir()
        database(site.store(f"SG1/{folder}") / "app.db", "a collation")
    site.file.write_text(site.file.read_text().replace('kind = "files"', 'kind = "sqlite"'))
    with site.open() as opened:
        record = night.night(opened, "TEX-BACK-1")
        result = night_result(opened, record)
        assert record.result == "whole"
        for image in result.as_json()["images"]:
            assert "every page is sound" in image["notes"][0]
        assert report_markdown(result).count("every page is sound") == 2
    log = (tmp_path / "catalog" / "logs" / f"{record.run}.log").read_text()
    assert log.count("  app.db: every page is sound") == 2
