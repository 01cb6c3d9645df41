"""Signals are handled at once, wherever the main thread waits.

Python runs handlers in the main thread, between two of its steps. A signal that arrives when the thread is about to
wait for a lock, or that the system gave to another thread, is only seen when the wait ends: a night that waits for its
stores would stop when they are done. So a thread of our own hears of every signal and wakes the main thread.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_WAKE = signal.SIGURG
"""Ignored unless somebody handles it, and used by nothing here."""
_AFTER_S = (0.05, 0.5)
"""When the main thread is woken: it waits by then, if it did not see the signal."""


@contextmanager
def prompt_signals() -> Iterator[None]:
    """While the block runs, the handlers of signals run within a second. Inside itself, and in other threads than the
    main one, it does nothing."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(_WAKE) is _awake:
        yield
        return
    reader, writer = os.pipe2(os.O_CLOEXEC)
    ended = threading.Event()
    os.set_blocking(writer, False)
    waker = threading.Thread(
        target=_wake, args=(reader, threading.main_thread().ident, ended), name="signals", daemon=True
    )
    handler = signal.signal(_WAKE, _awake)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    waker.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        ended.set()
        os.close(writer)
        waker.join()
        os.close(reader)
        signal.signal(_WAKE, handler)


def _awake(number: int, frame: FrameType | None) -> None:
    """What wakes the main thread does nothing else."""


def _wake(reader: int, main: int, ended: threading.Event) -> None:
    while numbers := os.read(reader, 64):
        if set(numbers) == {_WAKE}:
            continue
        for pause_s in _AFTER_S:
            if ended.wait(pause_s):
                return
            signal.pthread_kill(main, _WAKE)
