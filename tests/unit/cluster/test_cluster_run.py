"""Other programs: their environment, their deadline, their children."""

import os
import resource
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from nightferry.cluster.run import MOST_OUTPUT_BYTES, OutputWithoutEnd, run_program
from nightferry.errors import Cancelled, ClusterError, ConfigError
from nightferry.progress import Cancel

SH = "/bin/sh"


def test_exit_status_and_both_outputs_come_back():
    ended = run_program([SH, "-c", "echo given; echo told >&2; exit 7"], deadline_s=10)
    assert (ended.code, ended.stdout, ended.stderr) == (7, b"given\n", b"told\n")
    assert ended.error_line() == "told"


def test_a_program_that_says_nothing_is_known_by_its_exit_status():
    assert run_program([SH, "-c", "exit 3"], deadline_s=10).error_line() == "exit status 3"


def test_only_a_clean_environment_reaches_the_program(monkeypatch):
    monkeypatch.setenv("CIB_file", "/elsewhere")
    seen = run_program(["/usr/bin/env"], deadline_s=10, env={"GIVEN": "1"}).stdout.decode().splitlines()
    assert sorted(line.split("=")[0] for line in seen) == ["GIVEN", "LC_ALL", "NIGHTFERRY_PROGRAM", "PATH"]


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


def test_a_child_that_keeps_the_output_open_does_not_turn_success_into_failure(tmp_path):
    pid = tmp_path / "pid"
    ended = run_program([SH, "-c", f"echo done; sleep 60 & echo $! > {pid}"], deadline_s=20)
    assert (ended.code, ended.stdout) == (0, b"done\n")
    _until(lambda: _gone(int(pid.read_text())))


@pytest.mark.parametrize("how", ["deadline", "end", "cancel"])
def test_children_in_sessions_of_their_own_end_with_the_program(tmp_path, how):
    pids = tmp_path / "pids"
    hidden = f"setsid sh -c 'setsid sleep 61 & echo $! >> {pids}; echo $$ >> {pids}; exec sleep 60' &"
    waits = "" if how == "end" else "sleep 60"
    cancel = Cancel()

    def stop():
        _until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        cancel.set("enough")

    line = f"{hidden} while [ $(wc -l < {pids} 2> /dev/null || echo 0) -lt 2 ]; do :; done; {waits}"
    if how == "end":
        assert run_program([SH, "-c", line], deadline_s=30).code == 0
    elif how == "deadline":
        with pytest.raises(ClusterError, match="did not end within 2 s and was killed"):
            run_program([SH, "-c", line], deadline_s=2)
    else:
        threading.Thread(target=stop).start()
        with pytest.raises(Cancelled):
            run_program([SH, "-c", line], deadline_s=30, cancel=cancel)
    found = [int(pid) for pid in pids.read_text().split()]
    assert len(found) == 2
    _until(lambda: all(map(_gone, found)))


@pytest.mark.parametrize("to", ["", " >&2"])
def test_a_program_that_writes_without_end_is_killed_at_the_bound_with_its_children(tmp_path, to):
    pids = tmp_path / "pids"
    line = f"sleep 600 & echo $! $$ > {pids}; exec yes{to}"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(OutputWithoutEnd, match=r"/bin/sh wrote more than 16.0 MiB and was killed") as caught:
        run_program([SH, "-c", line], deadline_s=3600)
    assert "by hand" in caught.value.hint
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib << 10 < 4 * MOST_OUTPUT_BYTES
    _until(lambda: all(_gone(int(pid)) for pid in pids.read_text().split()))


@pytest.mark.parametrize("beyond", [0, 1])
def test_the_bound_is_exact(beyond):
    argv = ["/usr/bin/head", "-c", str(MOST_OUTPUT_BYTES + beyond), "/dev/zero"]
    if beyond:
        with pytest.raises(OutputWithoutEnd):
            run_program(argv, deadline_s=60)
    else:
        assert len(run_program(argv, deadline_s=60).stdout) == MOST_OUTPUT_BYTES


def test_of_words_that_are_no_answer_the_end_is_kept_however_many_there_are():
    much = f"head -c {MOST_OUTPUT_BYTES + 1} /dev/zero; echo the end"
    ended = run_program([SH, "-c", much], deadline_s=60, keep_end_bytes=1000)
    assert ended.code == 0
    assert ended.stdout.endswith(b"\0the end\n")
    assert 1000 < len(ended.stdout) <= 2000


def test_a_stop_that_was_asked_for_before_starts_nothing(tmp_path):
    cancel = Cancel()
    cancel.set("enough")
    with pytest.raises(Cancelled):
        run_program(["/usr/bin/touch", str(tmp_path / "touched")], deadline_s=30, cancel=cancel)
    assert not (tmp_path / "touched").exists()


def test_a_program_is_registered_until_all_of_it_has_ended(tmp_path):
    seen = []

    @contextmanager
    def registers(pid):
        assert os.getsid(pid) == pid
        yield
        child = int((tmp_path / "pid").read_text())
        _until(lambda: _gone(child))
        seen.append(_gone(pid))

    run_program([SH, "-c", f"sleep 60 & echo $! > {tmp_path}/pid"], deadline_s=20, registers=registers)
    assert seen == [True]
