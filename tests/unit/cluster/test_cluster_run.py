"""Other programs: their environment, their deadline, their children."""

import os
import threading
import time
from pathlib import Path

import pytest

from nightferry.cluster.run import run_program
from nightferry.errors import Cancelled, ClusterError, ConfigError
from nightferry.progress import Cancel

SH = "/bin/sh"


def test_exit_status_and_both_outputs_come_back():
    ended = run_program([SH, "-c", "echo given; echo told >&2; exit 7"], deadline_s=10)
    assert (ended.code, ended.stdout, ended.stderr) == (7, b"given\n", b"told\n")
    assert ended.said() == "told"


def test_a_program_that_says_nothing_is_known_by_its_exit_status():
    assert run_program([SH, "-c", "exit 3"], deadline_s=10).said() == "exit status 3"


def test_only_a_clean_environment_reaches_the_program(monkeypatch):
    monkeypatch.setenv("CIB_file", "/elsewhere")
    seen = run_program(["/usr/bin/env"], deadline_s=10, env={"GIVEN": "1"}).stdout.decode().splitlines()
    assert sorted(line.split("=")[0] for line in seen) == ["GIVEN", "LC_ALL", "PATH"]


def test_a_relative_program_is_refused():
    with pytest.raises(ConfigError, match="absolute"):
        run_program(["sh", "-c", "true"], deadline_s=10)


def test_a_program_that_is_not_there_is_named():
    with pytest.raises(ClusterError, match="/usr/bin/no-such-program"):
        run_program(["/usr/bin/no-such-program"], deadline_s=10)


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def _until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        os.sched_yield()


def test_past_its_deadline_a_program_ends_with_its_children(tmp_path):
    pids = tmp_path / "pids"
    with pytest.raises(ClusterError, match="did not end"):
        run_program([SH, "-c", f"sleep 60 & echo $! $$ > {pids}; wait"], deadline_s=0.5)
    _until(lambda: all(_gone(int(pid)) for pid in pids.read_text().split()))


def test_a_child_left_behind_ends_with_its_program(tmp_path):
    pid = tmp_path / "pid"
    run_program([SH, "-c", f"sleep 60 > /dev/null 2>&1 & echo $! > {pid}"], deadline_s=10)
    _until(lambda: _gone(int(pid.read_text())))


def test_a_wish_to_stop_ends_the_program():
    cancel = Cancel()
    threading.Timer(0.1, cancel.set, ["enough"]).start()
    with pytest.raises(Cancelled, match="enough"):
        run_program(["/bin/sleep", "60"], deadline_s=30, cancel=cancel)


def test_much_output_passes(tmp_path):
    data = tmp_path / "data"
    data.write_bytes(os.urandom(3 << 20))
    assert run_program(["/bin/cat", str(data)], deadline_s=30).stdout == data.read_bytes()


def test_a_program_that_asks_gets_no_answer():
    assert run_program(["/bin/cat"], deadline_s=30).stdout == b""
