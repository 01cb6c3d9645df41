"""The reader agent's stop, run as the cluster runs it, against processes that hold leases and do not let go."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from nightferry.cluster.reader_agent import AGENT_PATH, _lease, program_on
from tests.conftest import needs

pytestmark = [
    needs("unshare"),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a /run of its own"),
    pytest.mark.skipif(
        not Path("/usr/lib/ocf/lib/heartbeat/ocf-shellfuncs").exists(),
        reason="no resource agents on this machine",
    ),
]

GROUP = "TEX-BACK-1"
LEAVES_A_CHILD = """
import os, time
if os.fork():
    os._exit(0)
os.setpgid(0, 0)
print(os.getpid(), flush=True)
time.sleep(120)
"""
IDLER = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(120)"


@pytest.fixture
def folder(tmp_path):
    """What the agent finds at /run/nightferry."""
    (tmp_path / "nightferry" / GROUP).mkdir(parents=True)
    (tmp_path / "nightferry" / GROUP / "here").touch()
    return tmp_path / "nightferry"


@contextmanager
def idler(argv=(sys.executable, "-c", IDLER), **options):
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True, **options)
    try:
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def agent(folder, action="stop"):
    """Runs the agent where ``folder``'s parent is /run; returns its exit status and how long it took in seconds."""
    line = f"mount --bind {folder.parent} /run && exec {AGENT_PATH} {action}"
    environment = {"PATH": os.environ["PATH"], "OCF_ROOT": "/usr/lib/ocf", "OCF_RESKEY_group": GROUP}
    environment |= {"OCF_RESOURCE_INSTANCE": "reader", "HA_LOGFACILITY": "none"}
    began = time.monotonic()
    ended = subprocess.run(
        ["unshare", "--mount", "sh", "-c", line], env=environment, capture_output=True, text=True, timeout=60
    )
    return ended, time.monotonic() - began


def leases(folder):
    return sorted(path.name for path in (folder / GROUP).glob("*.lease"))


@pytest.mark.parametrize("count", [64])
def test_a_stop_ends_whoever_does_not_let_go_well_before_the_cluster_would_fence_the_node(folder, count):
    with ExitStack() as stack:
        processes = [stack.enter_context(idler(["sh", "-c", "echo; exec sleep 120"])) for _ in range(count)]
        for process in processes:
            stack.enter_context(_lease(folder / GROUP, process.pid))
        ended, seconds = agent(folder)
        assert ended.returncode == 0, ended.stderr
        assert [process.wait(timeout=5) for process in processes] == [-signal.SIGKILL] * count
        assert leases(folder) == []
        assert not (folder / GROUP / "here").exists()
        # `check` demands a timeout of 20 s; five are promised, on a machine that has time for it.
        assert seconds < 15


def test_a_stop_with_nothing_at_work_does_not_wait(folder):
    ended, seconds = agent(folder)
    assert ended.returncode == 0, ended.stderr
    assert seconds < 4


def test_several_leases_of_one_process_count_once_and_only_that_is_ended(folder):
    with ExitStack() as stack:
        bystander, holder = (stack.enter_context(idler()) for _ in range(2))
        for _ in range(40):
            stack.enter_context(_lease(folder / GROUP, holder.pid))
        ended, _ = agent(folder)
        said = ended.stderr + ended.stdout
        assert said.count(str(holder.pid)) == 1, said
        assert holder.wait(timeout=5) == -signal.SIGKILL
        assert bystander.poll() is None


def test_a_lease_of_a_process_that_is_gone_is_removed_and_a_number_used_again_is_nobodys(folder):
    with idler() as other:
        (folder / GROUP / "999999.1.aa.lease").write_text("999999.1\n")
        (folder / GROUP / f"{other.pid}.1.bb.lease").write_text(f"{other.pid}.1\n")
        ended, seconds = agent(folder)
        assert (ended.returncode, leases(folder), other.poll()) == (0, [], None)
        assert seconds < 4


def test_a_lease_under_another_name_speaks_for_nobody(folder):
    with idler() as holder, idler() as other, _lease(folder / GROUP, holder.pid):
        began = Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[19]
        (lease,) = (folder / GROUP).glob("*.lease")
        lease.rename(folder / GROUP / f"{other.pid}.{began}.cc.lease")
        agent(folder)
        assert other.poll() is None


def test_a_program_ends_with_all_of_its_session_also_when_who_ran_it_is_gone(folder):
    """The program itself has ended, and so has nightferry: what they started still has a file open."""
    process = subprocess.Popen(
        [sys.executable, "-c", LEAVES_A_CHILD], stdout=subprocess.PIPE, start_new_session=True, text=True
    )
    kept = ExitStack()
    kept.enter_context(program_on([GROUP], process.pid, folder=folder))
    child = int(process.stdout.readline())
    process.wait()
    assert os.getsid(child) == process.pid
    assert leases(folder)[0].endswith(".session.lease")
    ended, _ = agent(folder)
    assert ended.returncode == 0, ended.stderr
    assert not Path(f"/proc/{child}").exists() or Path(f"/proc/{child}/stat").read_text().split()[2] == "Z"
    assert leases(folder) == []
    process.stdout.close()
