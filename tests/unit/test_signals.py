"""Signals that the main thread would not see while it waits."""

import signal
import subprocess
import sys
import threading

import pytest

from nightferry.signals import prompt_signals

# The system may give a signal to any thread: then nothing interrupts the main thread's wait.
PROGRAM = """
import signal, sys, threading
from contextlib import nullcontext
from nightferry.signals import prompt_signals

def another_gets_it():
    waits.wait()
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    sys.stdin.read()
    never.set()

seen = []
signal.signal(signal.SIGTERM, lambda number, frame: (seen.append(number), print("handled", flush=True)))
waits, never = threading.Event(), threading.Event()
threading.Thread(target=another_gets_it).start()
with {block}:
    waits.set()
    never.wait()
print(len(seen))
"""


@pytest.mark.parametrize(("block", "first"), [("prompt_signals()", "handled\n"), ("nullcontext()", "")])
def test_a_signal_is_handled_while_the_main_thread_waits_for_a_lock(block: str, first: str) -> None:
    command = [sys.executable, "-c", PROGRAM.format(block=block)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if first:
            assert process.stdout.readline() == first  # for ever, if it were not
        said, _ = process.communicate("\n", timeout=60)
    assert process.returncode == 0
    assert said == ("1\n" if first else "handled\n1\n")


def test_everything_is_as_before_after_the_block() -> None:
    before = signal.getsignal(signal.SIGURG), signal.set_wakeup_fd(-1), threading.active_count()
    with prompt_signals(), prompt_signals():
        assert threading.active_count() == before[2] + 1
    assert (signal.getsignal(signal.SIGURG), signal.set_wakeup_fd(-1), threading.active_count()) == before
