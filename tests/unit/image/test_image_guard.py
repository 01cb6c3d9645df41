"""Files from elsewhere, read first in a process apart: what is sound passes, what would cost too much is refused."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys

import pytest

from nightferry.errors import Cancelled, ConfigError, IntegrityError
from nightferry.image import guard
from nightferry.image.guard import require_proved
from nightferry.image.index import Index, IndexRow
from nightferry.image.index_builder import IndexBuilder
from nightferry.progress import Cancel
from nightferry.transfer.spool import HELD_BYTES, Spooled, spooled
from tests.support.hostile_indexes import HOSTILE


def an_index(rows: int = 20_000) -> bytes:
    builder = IndexBuilder()
    for number in range(rows):
        builder.add(IndexRow(b"d/%06d" % number, "file", offset=number))
    return builder.finish()


def process() -> subprocess.Popen[bytes]:
    return guard._readers[0]._process


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_index_is_refused_by_name(hostile: str) -> None:
    with pytest.raises(IntegrityError, match="the index of x is refused"):
        require_proved(HOSTILE[hostile](), "index", "the index of x")


def test_many_sound_files_take_one_process() -> None:
    data = an_index()
    require_proved(data, "index", "a")
    first = process().pid
    for _ in range(20):
        require_proved(data, "index", "a")
    assert process().pid == first


def test_a_file_on_the_disk_passes_as_one_in_memory_does() -> None:
    data = an_index()
    fd = os.memfd_create("x")
    os.write(fd, data)
    file = Spooled(fd, len(data))
    require_proved(file, "index", "a")
    assert [row.path for row in Index(file)] == [row.path for row in Index(data)]


def test_the_process_is_killed_and_the_next_file_gets_another() -> None:
    require_proved(an_index(10), "index", "a")
    process().kill()
    process().wait()
    require_proved(an_index(10), "index", "a")


def test_what_ends_the_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    require_proved(an_index(10), "index", "a")
    asked = process()
    sent = guard.socket.send_fds
    os.kill(asked.pid, signal.SIGSTOP)

    def kill_when_asked(*args: object) -> int:
        os.kill(asked.pid, signal.SIGABRT)
        os.kill(asked.pid, signal.SIGCONT)
        return sent(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(guard.socket, "send_fds", kill_when_asked)
    with pytest.raises(IntegrityError, match="by signal SIGABRT"):
        require_proved(an_index(10), "index", "a")


def test_a_file_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_WALL", 0)
    data = an_index(10)
    guard._reader(None)
    os.kill(process().pid, signal.SIGSTOP)
    with pytest.raises(IntegrityError, match="takes more than 4 s"):
        require_proved(data, "index", "a")


def test_a_stop_ends_the_wait_and_the_process() -> None:
    guard._reader(None)
    asked = process()
    os.kill(asked.pid, signal.SIGSTOP)
    cancel = Cancel()
    cancel.set("a test")
    with pytest.raises(Cancelled):
        require_proved(an_index(10), "index", "a", cancel)
    assert asked.poll() is not None


def test_a_process_that_cannot_start_is_no_fault_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_readers", [])
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ConfigError, match="does not start"):
        require_proved(an_index(10), "index", "a")


def test_the_process_has_none_of_our_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "hunter2")
    monkeypatch.setattr(guard, "_readers", [])
    guard._reader(None)
    with open(f"/proc/{process().pid}/environ", "rb") as environ:
        assert b"hunter2" not in environ.read()
    guard._readers[0].end()


def test_an_index_of_long_values_is_written_in_groups_that_pass() -> None:
    """Two thousand maps of 4,096 segments are 131 MB: more than a row group may be."""
    builder = IndexBuilder()
    bytes_of = random.Random(7)
    for number in range(2_000):
        starts = [bytes_of.randrange(1 << 40) for _ in range(4096)]
        segments = tuple((start, 4096) for start in starts)
        builder.add(IndexRow(b"%05d" % number, "file", sparse=segments, offset=number))
    data = builder.finish()
    require_proved(data, "index", "a")
    assert Index(data).row_groups > 1


def test_a_spooled_file_is_in_memory_up_to_a_size_and_then_nowhere_by_name() -> None:
    piece = bytes(range(256)) * 4096
    assert spooled([piece]) == piece
    pieces = [piece] * (HELD_BYTES // len(piece) + 2)
    file = spooled(pieces)
    assert isinstance(file, Spooled)
    assert os.fstat(file.fileno()).st_nlink == 0
    assert len(file) == len(piece) * len(pieces)
    assert file.read(HELD_BYTES - 5, 10) == (piece * 2)[len(piece) - 5 : len(piece) + 5]


def test_a_stop_ends_the_wait_for_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_readers", [])
    cancel = Cancel()
    cancel.set("a test")
    with pytest.raises(Cancelled):
        require_proved(an_index(10), "index", "a", cancel)
    assert guard._readers == []


def test_a_process_with_very_many_files_open_can_ask() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        guard._readers.clear()
        require_proved(an_index(10), "index", "a")
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
