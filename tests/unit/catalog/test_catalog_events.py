import fcntl
import json
import os
import subprocess
import sys
import textwrap
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from nightferry.catalog.events import MOST_LOOSE, EventLog
from nightferry.catalog.folder import FolderStorage
from nightferry.errors import BusyError, CatalogError

AT = datetime(2026, 3, 8, 2, 0, 0, 123456, tzinfo=UTC)


class StoppedClock:
    """Time stands still and waiting takes none."""

    def __init__(self, at: datetime = AT) -> None:
        self.at = at

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None: ...


def log(folder: Path, **rest: Any) -> EventLog:
    return EventLog(folder, writer="node:1", clock=StoppedClock(), **rest)


def add(log: EventLog, count: int, start: int = 0) -> None:
    for i in range(start, start + count):
        log.append("run", f"r{i}", "result", {"n": i})


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_an_event_is_one_file_named_by_its_sequence(tmp_path: Path) -> None:
    event = log(tmp_path).append("run", "r1", "intent", {"text": "Zürich\n", "n": 1})
    assert event.sequence == 1
    (path,) = (tmp_path / "events").iterdir()
    assert path.name == "000000000001.json"
    assert json.loads(path.read_text()) == {
        "sequence": 1,
        "at": "2026-03-08T02:00:00.123456+00:00",
        "writer": "node:1",
        "phase": "intent",
        "kind": "run",
        "subject": "r1",
        "body": {"text": "Zürich\n", "n": 1},
    }


def test_only_the_owner_may_look(tmp_path: Path) -> None:
    here = log(tmp_path)
    add(here, 2)
    here.compact()
    add(here, 1)
    for path in tmp_path.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_two_logs_on_one_folder_see_each_other_and_never_overwrite(tmp_path: Path) -> None:
    one, two = log(tmp_path), log(tmp_path)
    add(one, 1)
    add(two, 1, start=1)
    add(one, 1, start=2)
    assert one.refresh() == 0
    assert two.refresh() == 1
    assert [row.subject for row in two.rows()] == ["r0", "r1", "r2"]


def test_every_event_is_observed_once_in_order(tmp_path: Path) -> None:
    seen: list[int] = []
    one = log(tmp_path, observe=lambda row: seen.append(row.sequence))
    other = log(tmp_path)
    add(other, 3)
    other.compact()
    add(other, 2, start=3)
    add(one, 1, start=5)
    one.refresh()
    assert seen == [1, 2, 3, 4, 5, 6]


def test_a_newer_event_of_the_subject_refuses_the_expectation(tmp_path: Path) -> None:
    one, two = log(tmp_path), log(tmp_path)
    first = one.append("owner", "B1", "result", {"epoch": 1}, expect=0)
    two.append("owner", "B2", "result", {"epoch": 1}, expect=0)
    with pytest.raises(BusyError, match="owner B1 was changed by somebody else"):
        two.append("owner", "B1", "result", {"epoch": 1}, expect=0)
    two.append("owner", "B1", "intent", {"epoch": 2}, expect=first.sequence)
    with pytest.raises(BusyError):
        one.append("owner", "B1", "result", {"epoch": 2}, expect=first.sequence)
    assert one.head("owner", "B1") == 3
    with pytest.raises(CatalogError, match="before the expected 9"):
        one.append("owner", "B1", "result", {}, expect=9)


def test_compaction_moves_all_events_into_one_segment(tmp_path: Path) -> None:
    here = log(tmp_path)
    add(here, 3)
    before = here.rows()
    assert here.compact()
    assert names(tmp_path / "events") == []
    assert names(tmp_path / "segments") == ["000000000001-000000000003.parquet"]
    assert log(tmp_path).rows() == before
    add(here, 2, start=3)
    assert here.compact()
    assert here.compact()
    assert names(tmp_path / "segments") == ["000000000001-000000000005.parquet"]
    add(here, 1, start=5)
    here.compact()
    assert names(tmp_path / "segments") == [
        "000000000001-000000000005.parquet",
        "000000000006-000000000006.parquet",
    ]
    assert [row.sequence for row in log(tmp_path).rows()] == [1, 2, 3, 4, 5, 6]


def test_segments_and_loose_events_stay_few_however_many_events_there_are(tmp_path: Path) -> None:
    here = log(tmp_path)
    (tmp_path / "segments").mkdir()
    for i in range(40):
        add(here, 20, start=20 * i)
        assert len(names(tmp_path / "events")) <= MOST_LOOSE
        assert len(names(tmp_path / "segments")) <= 5
    assert [row.sequence for row in log(tmp_path).rows()] == list(range(1, 801))


def test_a_reader_whose_segment_went_into_a_larger_one_reads_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = log(tmp_path)
    add(here, 3)
    here.compact()
    real = FolderStorage.read
    met: list[str] = []

    def read_late(storage: FolderStorage, path: str) -> bytes | None:
        if path.startswith("segments/") and not met:
            met.append(path)
            add(here, 3, start=3)
            here.compact()
        return real(storage, path)

    monkeypatch.setattr(FolderStorage, "read", read_late)
    assert [row.sequence for row in log(tmp_path).rows()] == [1, 2, 3, 4, 5, 6]
    assert met == ["segments/000000000001-000000000003.parquet"]
    assert names(tmp_path / "segments") == ["000000000001-000000000006.parquet"]


def test_another_parquet_reader_reads_the_segments(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="needs DuckDB: python -m pip install duckdb")
    here = log(tmp_path)
    here.append("run", "Köln", "intent", {"a": 'quote " and \\ and ☂'})
    here.append("image", "i", "result", {"size": 2**60})
    here.compact()
    with duckdb.connect() as reader:
        reader.execute("SET TimeZone = 'UTC'")
        found = reader.execute(
            'SELECT sequence, epoch_us("at"), writer, phase, kind, subject, body FROM read_parquet(?)'
            " ORDER BY sequence",
            [str(tmp_path / "segments" / "*.parquet")],
        ).fetchall()
        types = reader.execute(
            "SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM read_parquet(?))",
            [str(tmp_path / "segments" / "*.parquet")],
        ).fetchall()
    at = 1772935200123456  # date -u -d '2026-03-08 02:00:00.123456' +%s%6N
    assert found == [
        (1, at, "node:1", "intent", "run", "Köln", '{"a":"quote \\" and \\\\ and ☂"}'),
        (2, at, "node:1", "result", "image", "i", '{"size":1152921504606846976}'),
    ]
    assert dict(types) == {
        "sequence": "BIGINT",
        "at": "TIMESTAMP WITH TIME ZONE",
        **dict.fromkeys(["writer", "phase", "kind", "subject", "body"], "VARCHAR"),
    }


def test_event_files_that_a_segment_covers_are_duplicates(tmp_path: Path) -> None:
    here = log(tmp_path)
    add(here, 3)
    left = (tmp_path / "events" / "000000000002.json").read_bytes()
    here.compact()
    (tmp_path / "events" / "000000000002.json").write_bytes(left)
    fresh = log(tmp_path)
    assert [row.sequence for row in fresh.rows()] == [1, 2, 3]
    add(fresh, 1, start=3)
    fresh.compact()
    assert names(tmp_path / "events") == []


def test_a_writer_that_slept_through_a_compaction_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Between the sleeper's look and its link, others write the number it wants and compact it away.
    sleeper, other = log(tmp_path), log(tmp_path)
    add(other, 1)
    real = FolderStorage.create
    woken: list[int] = []

    def create_late(storage: FolderStorage, path: str, data: bytes) -> bool:
        if not woken:
            woken.append(1)
            monkeypatch.setattr(FolderStorage, "create", real)
            add(other, 2, start=1)
            other.compact()
            done = real(storage, path, data)
            assert done, "the number must look free for this test to mean anything"
            assert [row.subject for row in log(tmp_path).rows()] == ["r0", "r1", "r2"]
            return done
        return real(storage, path, data)

    monkeypatch.setattr(FolderStorage, "create", create_late)
    event = sleeper.append("run", "late", "result", {})
    assert event.sequence == 4
    assert [row.subject for row in log(tmp_path).rows()] == ["r0", "r1", "r2", "late"]
    assert names(tmp_path / "events") == ["000000000004.json"]


def test_an_event_that_is_compacted_before_its_writer_looked_is_not_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = log(tmp_path), log(tmp_path)
    real = FolderStorage.create

    def create_then_compact(storage: FolderStorage, path: str, data: bytes) -> bool:
        monkeypatch.setattr(FolderStorage, "create", real)
        done = real(storage, path, data)
        other.compact()
        return done

    monkeypatch.setattr(FolderStorage, "create", create_then_compact)
    assert one.append("run", "r", "result", {}).sequence == 1
    assert len(log(tmp_path).rows()) == 1


def test_a_garbled_event_is_named_and_never_skipped(tmp_path: Path) -> None:
    here = log(tmp_path)
    add(here, 3)
    path = tmp_path / "events" / "000000000002.json"
    whole = path.read_bytes()
    for bad in (b"", whole[:-10], whole.replace(b'"sequence": 2', b'"sequence": 7'), b"\xff" + whole):
        path.write_bytes(bad)
        fresh = log(tmp_path)
        with pytest.raises(CatalogError, match=r"events/000000000002\.json"):
            fresh.refresh()
        with pytest.raises(CatalogError, match=r"events/000000000002\.json"):
            fresh.append("run", "x", "result", {})
    with pytest.raises(CatalogError, match=r"events/000000000002\.json"):
        log(tmp_path).compact()
    path.write_bytes(whole)
    assert len(log(tmp_path).rows()) == 3


def test_a_missing_event_is_named(tmp_path: Path) -> None:
    add(log(tmp_path), 3)
    (tmp_path / "events" / "000000000002.json").unlink()
    with pytest.raises(CatalogError, match="event 2 is missing"):
        log(tmp_path).refresh()


def test_a_garbled_or_misnamed_segment_is_named(tmp_path: Path) -> None:
    here = log(tmp_path)
    add(here, 3)
    here.compact()
    path = tmp_path / "segments" / "000000000001-000000000003.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(CatalogError, match=path.name):
        log(tmp_path).refresh()
    path.unlink()
    (path.parent / "000000000001-000000000004.parquet").write_bytes(whole)
    with pytest.raises(CatalogError, match="does not hold the events its name says"):
        log(tmp_path).refresh()


def test_a_folder_that_lost_events_is_not_written_to(tmp_path: Path) -> None:
    here = log(tmp_path)
    add(here, 2)
    (tmp_path / "events" / "000000000002.json").unlink()
    with pytest.raises(CatalogError, match="ended at event 2 before and now ends at 1"):
        here.append("run", "x", "result", {})


def test_drafts_are_ignored_and_removed_once_their_writers_are_dead(tmp_path: Path) -> None:
    here = log(tmp_path)
    add(here, 1)
    dead, living = (
        tmp_path / "events" / ".tmp-9-0123456789abcdef",
        tmp_path / "events" / ".tmp-9-fedcba9876543210",
    )
    dead.write_bytes(b"{")
    assert len(log(tmp_path).rows()) == 1
    with living.open("wb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        here.storage.tidy("events")
        assert names(tmp_path / "events") == [living.name, "000000000001.json"]
    here.storage.tidy("events")
    assert names(tmp_path / "events") == ["000000000001.json"]


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="No such file or directory") as caught:
        EventLog(tmp_path / "absent")
    assert "mounted" in caught.value.hint


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = log(tmp_path)
    add(here, 1)

    def full(fd: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(CatalogError, match="No space left on device"):
        here.append("run", "x", "result", {})
    assert names(tmp_path / "events") == ["000000000001.json"]


def test_what_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    here = log(tmp_path)
    bodies: list[dict[str, Any]] = [{"x": float("nan")}, {"x": b"bytes"}, {"x": "\udc80"}]
    for body in bodies:
        with pytest.raises(CatalogError, match="cannot record run"):
            here.append("run", "r", "result", body)
    with pytest.raises(CatalogError):
        here.append("run", "\udc80", "result", {})
    assert here.last == 0


def test_a_lost_answer_of_a_network_file_system_is_not_taken_for_defeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def link_and_lose_the_answer(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(os, "link", link_and_lose_the_answer)
    assert log(tmp_path).append("run", "r", "result", {}).sequence == 1
    assert len(log(tmp_path).rows()) == 1


def test_a_file_system_without_hard_links_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(CatalogError, match="without hard links"):
        log(tmp_path).append("run", "r", "result", {})


def test_a_number_that_stays_taken_and_unseen_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = log(tmp_path)
    monkeypatch.setattr(FolderStorage, "create", lambda *_: False)
    with pytest.raises(CatalogError, match="does not show it"):
        here.append("run", "r", "result", {})


def test_threads_share_one_log(tmp_path: Path) -> None:
    here = log(tmp_path)
    threads = [threading.Thread(target=add, args=(here, 20, 100 * i)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = log(tmp_path).rows()
    assert [row.sequence for row in rows] == list(range(1, 81))
    assert len({row.subject for row in rows}) == 80


def test_two_compactors_at_once_leave_every_event_once(tmp_path: Path) -> None:
    here = log(tmp_path)
    add(here, 40)
    before = here.rows()
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda: answers.append(log(tmp_path).compact())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert any(answers)
    assert log(tmp_path).rows() == before
    assert names(tmp_path / "events") == []


# --- several processes

PRELUDE = """
import os, signal, sys
from pathlib import Path
from nightferry.catalog.events import MOST_LOOSE, EventLog
from nightferry.catalog.folder import FolderStorage
from nightferry.errors import BusyError
folder = Path(sys.argv[1])
"""


def start(program: str, *args: object) -> subprocess.Popen[str]:
    source = PRELUDE + textwrap.dedent(program)
    command = [sys.executable, "-c", source, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


ROOT = Path(__file__).parents[3]


def end(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


def test_two_processes_write_400_events_while_others_compact_and_read(tmp_path: Path) -> None:
    writer = """
        log = EventLog(folder)
        for i in range(200):
            print(log.append("run", f"{sys.argv[2]}-{i}", "result", {"i": i}).sequence)
    """
    compactor = """
        log = EventLog(folder)
        while not (folder / "stop").exists():
            if len(os.listdir(folder / "events")) >= 25:
                log.compact()
    """
    (tmp_path / "events").mkdir(mode=0o700)
    writers = [start(writer, tmp_path, name) for name in "ab"]
    beside = start(compactor, tmp_path)
    follower = log(tmp_path)
    while any(process.poll() is None for process in writers):
        follower.refresh()
        fresh = log(tmp_path)  # a whole look each time: segments and events at every stage of a compaction
        assert len(fresh.rows()) >= follower.last
    told = {name: [int(n) for n in end(process).split()] for name, process in zip("ab", writers, strict=True)}
    (tmp_path / "stop").touch()
    end(beside)
    follower.refresh()
    rows = log(tmp_path).rows()
    assert [row.sequence for row in rows] == list(range(1, 401))
    for name in "ab":
        mine = [row for row in rows if row.subject.startswith(name)]
        assert [row.subject for row in mine] == [f"{name}-{i}" for i in range(200)]
        assert [row.sequence for row in mine] == told[name]
    assert follower.last == 400


def test_of_eight_processes_that_expect_the_same_one_wins(tmp_path: Path) -> None:
    racers = """
        def race(name):
            log = EventLog(folder)
            for round in range(6):
                try:
                    log.append("owner", "B1", "result", {"who": name}, expect=round)
                    os.write(1, f"{round} {name}\\n".encode())
                except BusyError:
                    pass
            os._exit(0)

        children = [os.fork() or race(name) for name in range(8)]
        for child in children:
            assert os.waitpid(child, 0)[1] == 0
    """
    won = dict(line.split() for line in end(start(racers, tmp_path)).splitlines())
    rows = log(tmp_path).rows()
    assert [row.sequence for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [(str(i), str(json.loads(row.body)["who"])) for i, row in enumerate(rows)] == sorted(won.items())


# Every call that touches the disk counts; at the given one the process dies, before or after it. Each death
# is a fork: one interpreter start for all of them.
DEATHS = """
    import shutil
    origin, when = folder, sys.argv[2]
    victim = 0
    while True:
        victim += 1
        place = origin.with_name(f"{origin.name}-{when}-{victim}")
        shutil.copytree(origin, place)
        child = os.fork()
        if child == 0:
            calls = 0

            def watched(real):
                def call(*args, **rest):
                    global calls
                    calls += 1
                    if calls == victim and when == "before":
                        os.kill(os.getpid(), signal.SIGKILL)
                    number = calls
                    try:
                        return real(*args, **rest)
                    finally:
                        if number == victim and when == "after":
                            os.kill(os.getpid(), signal.SIGKILL)
                return call

            for name in ("open", "write", "fsync", "close", "link", "unlink", "mkdir"):
                setattr(os, name, watched(getattr(os, name)))
            DEED(place)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(place, "done" if status == 0 else "killed", flush=True)
        if not os.WIFSIGNALED(status):
            assert status == 0
            break
"""


def deaths(folder: Path, deed: str, when: str) -> list[tuple[Path, bool]]:
    """Folders in which ``deed`` died at its 1st, 2nd ... call, and the last, in which it lived."""
    out = end(start(textwrap.dedent(deed) + textwrap.dedent(DEATHS), folder, when))
    lines = [line.rsplit(" ", 1) for line in out.splitlines()]
    assert len(lines) > 5
    return [(Path(place), state == "done") for place, state in lines]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_writer_killed_at_any_step_leaves_a_whole_event_or_none(tmp_path: Path, when: str) -> None:
    origin = tmp_path / "catalog"
    origin.mkdir()
    add(log(origin), 2)
    deed = """
        def DEED(place):
            EventLog(place).append("run", "new", "result", {"text": "x" * 5000})
    """
    counts = set()
    for place, lived in deaths(origin, deed, when):
        rows = log(place).rows()
        counts.add(len(rows))
        assert [row.subject for row in rows] == ["r0", "r1", "new"][: len(rows)]
        assert len(rows) == 3 if lived else len(rows) in (2, 3)
        again = log(place)
        assert again.append("run", "next", "result", {}).sequence == len(rows) + 1
        again.compact()
        assert len(log(place).rows()) == len(rows) + 1
    assert counts == {2, 3}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_compactor_killed_at_any_step_leaves_every_event_once(tmp_path: Path, when: str) -> None:
    origin = tmp_path / "catalog"
    origin.mkdir()
    here = log(origin)
    add(here, 3)
    here.compact()
    add(here, 4, start=3)
    before = here.rows()
    deed = """
        import nightferry.catalog.schema

        def DEED(place):
            assert EventLog(place).compact()
    """
    for place, _ in deaths(origin, deed, when):
        assert log(place).rows() == before
        again = log(place)
        assert again.append("run", "next", "result", {}).sequence == 8
        assert again.compact()
        assert [row.sequence for row in log(place).rows()] == list(range(1, 9))
        assert [n for n in names(place / "events") if not n.startswith(".tmp-")] == []
