"""Databases are copied while they are written to, and SQLite itself is the judge."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from nightferry.errors import Cancelled, ConfigError, StagingFull, StoreUnreadable
from nightferry.image.index import IndexRow
from nightferry.image.writer import ImageSummary
from nightferry.progress import QUIET, Cancel
from nightferry.source import sqlite
from nightferry.source.sqlite import SqliteSource
from tests.imaging import content, open_image, output, write_image, write_source
from tests.support.image_check import check_image

WRITER = """
import sqlite3, sys
base = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
number = 0
print("ready", flush=True)
while True:
    # Both tables always hold the same rows: any other sight of them is torn.
    base.execute("begin immediate")
    base.execute("insert into a values (?, zeroblob(3000))", (number,))
    base.execute("insert into b values (?, zeroblob(3000))", (number,))
    base.execute("commit")
    number += 1
"""
CRASHED = """
import os, sqlite3, sys
base = sqlite3.connect(sys.argv[1])
base.execute("pragma cache_size = 5")
base.execute("update a set data = zeroblob(3001)")
os._exit(0)
"""


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    path = tmp_path / "scratch"
    path.mkdir()
    return path


def create(path: Path, *, journal: str = "wal", rows: int = 300) -> Path:
    with closing(sqlite3.connect(path)) as base, base:
        base.execute(f"pragma journal_mode = {journal}")
        base.execute("create table a (number integer, data blob)")
        base.execute("create table b (number integer, data blob)")
        for table in ("a", "b"):
            base.executemany(f"insert into {table} values (?, zeroblob(3000))", [(-n,) for n in range(rows)])  # noqa: S608 - two constants
    return path


def image_of(source: SqliteSource, tmp_path: Path) -> tuple[Path, ImageSummary]:
    path = tmp_path / "i.tar"
    return path, write_source(path, source)


def row(path: Path, name: bytes) -> IndexRow:
    found = open_image(path).index.lookup(name)
    assert found is not None
    return found


def restored(path: Path, name: bytes, to: Path) -> sqlite3.Connection:
    to.write_bytes(content(open_image(path), name))
    return sqlite3.connect(to)


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_database_under_a_steady_writer_is_copied_consistently(
    tmp_path: Path, scratch: Path, journal: str
) -> None:
    base = create(tmp_path / "mail.db", journal=journal)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, base], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        path, summary = image_of(SqliteSource(base, scratch), tmp_path)
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.communicate()
    check_image(open_image(path, summary))
    assert (summary.files, summary.outcomes.whole) == (1, 1)
    with closing(restored(path, b"mail.db", tmp_path / "back.db")) as back:
        assert back.execute("pragma integrity_check").fetchall() == [("ok",)]
        a = back.execute("select number from a order by number").fetchall()
        assert a == back.execute("select number from b order by number").fetchall()
        assert len(a) >= 300
    assert os.listdir(scratch) == []


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_an_idle_database_and_its_folder_stay_as_they_were(
    tmp_path: Path, scratch: Path, journal: str
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    base = create(store / "mail.db", journal=journal)
    before = base.read_bytes(), base.stat().st_mtime_ns, os.listdir(store)
    image_of(SqliteSource(base, scratch), tmp_path)
    assert (base.read_bytes(), base.stat().st_mtime_ns, os.listdir(store)) == before


def test_the_member_has_the_databases_own_mode_owner_time_and_attributes(
    tmp_path: Path, scratch: Path
) -> None:
    base = create(tmp_path / "mail.db")
    base.chmod(0o640)
    os.setxattr(base, "user.colour", b"blue")
    os.utime(base, ns=(5, 1_234_567_890_123_456_789))
    path, _ = image_of(SqliteSource(base, scratch), tmp_path)
    found = row(path, b"mail.db")
    assert (found.mode, found.mtime_ns, found.uid) == (0o640, 1_234_567_890_123_456_789, os.getuid())
    assert open_image(path).attributes(found).xattrs == ((b"user.colour", b"blue"),)


def test_a_directory_gives_its_databases_and_nothing_else(tmp_path: Path, scratch: Path) -> None:
    store = tmp_path / "store"
    (store / "below").mkdir(parents=True)
    create(store / "one.db", rows=3)
    create(store / "Cookies", rows=3)
    create(store / "below/two.db", rows=3)
    (store / "empty.sqlite").touch()
    (store / "junk.sqlite3").write_bytes(b"not a database at all" * 100)
    (store / "notes.txt").write_text("x")
    (store / "alias.db").symlink_to("one.db")
    os.mkfifo(store / "pipe.db")
    held = sqlite3.connect(store / "one.db")
    held.execute("insert into a values (1, 'in the log')")
    held.commit()
    assert (store / "one.db-wal").exists()
    path, summary = image_of(SqliteSource(store, scratch), tmp_path)
    held.close()
    outcomes = {found.path: found.outcome for found in open_image(path).index}
    assert outcomes == {
        b"Cookies": "whole",
        b"empty.sqlite": "whole",
        b"junk.sqlite3": "unreadable",
        b"one.db": "whole",
    }
    assert "not a database" in row(path, b"junk.sqlite3").note
    assert summary.outcomes.unreadable == 1
    with closing(restored(path, b"one.db", tmp_path / "back.db")) as back:
        assert back.execute("select data from a where number = 1").fetchall() == [("in the log",)]


def test_a_crashed_wal_database_is_copied_and_its_files_stay(tmp_path: Path, scratch: Path) -> None:
    base = create(tmp_path / "mail.db", rows=3)
    script = """
import os, sqlite3, sys
base = sqlite3.connect(sys.argv[1])
base.execute("delete from a")
base.commit()
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", script, base], check=True)
    before = base.read_bytes(), Path(f"{base}-wal").read_bytes()
    path, _ = image_of(SqliteSource(base, scratch), tmp_path)
    assert (base.read_bytes(), Path(f"{base}-wal").read_bytes()) == before
    with closing(restored(path, b"mail.db", tmp_path / "back.db")) as back:
        assert back.execute("select count(*) from a").fetchall() == [(0,)]


def test_a_half_written_transaction_of_a_crashed_writer_is_rolled_back_and_noted(
    tmp_path: Path, scratch: Path
) -> None:
    base = create(tmp_path / "mail.db", journal="delete")
    subprocess.run([sys.executable, "-c", CRASHED, base], check=True)
    assert Path(f"{base}-journal").stat().st_size > 0
    path, summary = image_of(SqliteSource(base, scratch), tmp_path)
    assert "rolled back" in summary.notes[0]
    with closing(restored(path, b"mail.db", tmp_path / "back.db")) as back:
        assert back.execute("select max(length(data)) from a").fetchall() == [(3000,)]


def test_a_damaged_database_is_unreadable_and_says_why(tmp_path: Path, scratch: Path) -> None:
    base = create(tmp_path / "mail.db", journal="delete")
    data = bytearray(base.read_bytes())
    for page in range(3, 40):
        data[page * 4096 : page * 4096 + 64] = os.urandom(64)
    base.write_bytes(data)
    path, summary = image_of(SqliteSource(base, scratch), tmp_path)
    assert summary.outcomes.unreadable == 1
    assert row(path, b"mail.db").note.startswith("SQLite finds it damaged")
    assert os.listdir(scratch) == []


def test_a_database_locked_for_long_is_unreadable(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = create(tmp_path / "mail.db", journal="delete")
    monkeypatch.setattr(sqlite, "_BUSY_WAIT_S", 0.05)
    monkeypatch.setattr(sqlite, "_BUSY_PAUSE_S", 0.01)
    with closing(sqlite3.connect(base, isolation_level=None)) as held:
        held.execute("begin exclusive")
        path, _ = image_of(SqliteSource(base, scratch), tmp_path)
    assert "locked" in row(path, b"mail.db").note


def test_a_stop_is_heard_while_a_database_is_locked(tmp_path: Path, scratch: Path) -> None:
    base = create(tmp_path / "mail.db", journal="delete")
    cancel = Cancel()

    class StopsOnScratch(type(scratch)):  # type: ignore[misc]  # the platform's own Path
        def __fspath__(self) -> str:
            cancel.set("test")
            return super().__fspath__()

    source = SqliteSource(base, StopsOnScratch(scratch))
    with closing(sqlite3.connect(base, isolation_level=None)) as held:
        held.execute("begin exclusive")
        with pytest.raises(Cancelled):
            write_image(
                tmp_path / "i.tar",
                lambda image: source.write(image, progress=QUIET, cancel=cancel, subject="SG1/db"),
            )
    assert os.listdir(scratch) == []


def test_a_database_name_of_any_bytes(tmp_path: Path, scratch: Path) -> None:
    name = b"caf\xe9 ?#%41.db"
    base = os.fsencode(tmp_path) + b"/" + name
    create(Path(os.fsdecode(base)), rows=3)
    path, _ = image_of(SqliteSource(base, scratch), tmp_path)
    with closing(restored(path, name, tmp_path / "back.db")) as back:
        assert back.execute("select count(*) from a").fetchall() == [(3,)]


def test_gnu_tar_alone_gives_a_database_back(tmp_path: Path, scratch: Path) -> None:
    base = create(tmp_path / "mail.db", rows=5)
    path, _ = image_of(SqliteSource(base, scratch), tmp_path)
    (tmp_path / "x").mkdir()
    output("tar", "-C", tmp_path / "x", "-xf", path)
    with closing(sqlite3.connect(tmp_path / "x/mail.db")) as back:
        assert back.execute("select count(*) from b").fetchall() == [(5,)]


def test_a_missing_store_is_a_configuration_error_that_names_it(tmp_path: Path, scratch: Path) -> None:
    source = SqliteSource(tmp_path / "nowhere.db", scratch)
    for call in (source.estimate, lambda: write_source(tmp_path / "i.tar", source)):
        with pytest.raises(ConfigError, match=r"nowhere\.db does not exist"):
            call()


def test_a_directory_without_a_database_is_a_configuration_error(tmp_path: Path, scratch: Path) -> None:
    with pytest.raises(ConfigError, match="no SQLite database"):
        SqliteSource(scratch, scratch).estimate()


def test_a_directory_that_cannot_be_listed_may_be_tried_again(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: bytes) -> list[bytes]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(sqlite.os, "listdir", refuse)
    with pytest.raises(StoreUnreadable, match="Input/output error"):
        SqliteSource(tmp_path, scratch).estimate()


def test_the_estimate_counts_the_log(tmp_path: Path, scratch: Path) -> None:
    base = create(tmp_path / "mail.db", rows=3)
    with closing(sqlite3.connect(base)) as held:
        held.execute("insert into a values (1, zeroblob(100000))")
        held.commit()
        expected = base.stat().st_size + Path(f"{base}-wal").stat().st_size
        estimate = SqliteSource(base, scratch).estimate()
    assert (estimate.bytes, estimate.files) == (expected, 1)


def test_a_full_scratch_disk_is_staging_full_and_no_fault_of_the_store(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = create(tmp_path / "mail.db")
    original = sqlite3.connect

    def connect(name, *arguments, **options):  # type: ignore[no-untyped-def]
        made = original(name, *arguments, **options)
        if isinstance(name, Path):
            made.execute("pragma max_page_count = 10")
        return made

    monkeypatch.setattr(sqlite.sqlite3, "connect", connect)
    with pytest.raises(StagingFull, match="no space"):
        image_of(SqliteSource(base, scratch), tmp_path)
    assert os.listdir(scratch) == []


def test_a_missing_scratch_folder_is_a_configuration_error(tmp_path: Path) -> None:
    base = create(tmp_path / "mail.db")
    with pytest.raises(ConfigError, match="cannot make a folder"):
        image_of(SqliteSource(base, tmp_path / "nowhere"), tmp_path)
