"""io_uring under what a shell does to a process."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nightferry.transfer import engines

pytestmark = pytest.mark.skipif(bool(engines.why_not()), reason=f"io_uring: {engines.why_not()}")

READ_A_PIPE = """
import os, sys
from nightferry.transfer.ring import Transfer
from nightferry.transfer.engines import UringEngine

found = bytearray(4096)
transfer = Transfer(0, memoryview(found), 0, writing=False, direct=False)
engine = UringEngine(2)
engine.start(transfer)
engine.wait(transfer)
engine.close()
sys.exit(0 if found == b"x" * 4096 and transfer.error is None else 1)
"""
IO_URING_ENTER = "426"


def until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not come about"
        time.sleep(0.01)


def test_a_stopped_and_continued_process_goes_on_reading():
    child = subprocess.Popen([sys.executable, "-c", READ_A_PIPE], stdin=subprocess.PIPE)
    proc = Path("/proc") / str(child.pid)
    until(lambda: (proc / "syscall").read_text().split()[0] == IO_URING_ENTER)
    child.send_signal(signal.SIGSTOP)
    until(lambda: (proc / "stat").read_text().rsplit(")", 1)[1].split()[0] == "T")
    child.send_signal(signal.SIGCONT)
    child.communicate(b"x" * 4096, timeout=20)
    assert child.returncode == 0
