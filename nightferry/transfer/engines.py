"""Which engine moves the bytes of a ring: io_uring, by the optional package uring-api, where a trial read works."""

from __future__ import annotations

import errno
import importlib
import os
from functools import cache
from typing import Any

from nightferry.errors import ConfigError
from nightferry.transfer.ring import Engine, EngineName, ThreadEngine, Transfer

_AGAIN = frozenset({errno.EINTR, errno.EAGAIN})
_TRIAL_BYTES = 64


@cache
def why_not() -> str:
    """Why io_uring cannot be used here; empty when it can. Tried once a process.

    Besides the package's own answer a real read is compared with pread: a sandbox may allow the set-up and
    refuse the rest.
    """
    try:
        uring_api = importlib.import_module("uring_api")
    except ImportError as error:
        return f"uring-api cannot be imported ({error})"
    try:
        if not uring_api.is_available():
            return "the kernel or the sandbox refuses it"
        fd = os.open("/proc/self/exe", os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = bytearray(_TRIAL_BYTES)
            trial = Transfer(fd, memoryview(found), 0, writing=False, direct=False)
            engine = UringEngine(1)
            try:
                engine.start(trial)
                engine.wait(trial)
            finally:
                engine.close()
            if trial.error is not None:
                return f"a trial read failed ({trial.error})"
            return "" if found == os.pread(fd, _TRIAL_BYTES, 0) else "a trial read returned wrong bytes"
        finally:
            os.close(fd)
    except (OSError, RuntimeError, AttributeError, TypeError) as error:
        # A release candidate: an interface that changed is a reason not to use it, never one to fail.
        return f"uring-api does not work ({error})"


class UringEngine:
    """One submission queue with room for every buffer. Used by the thread that made it."""

    name = "io_uring"

    def __init__(self, depth: int) -> None:
        uring_api = importlib.import_module("uring_api")
        self._ring: Any = uring_api.Ring(entries=max(2, depth))
        self._under_way = 0

    def start(self, transfer: Transfer) -> None:
        self._prepare(transfer)
        self._ring.submit()
        self._under_way += 1

    def poll(self) -> None:
        if self._under_way:
            self._reap(0)

    def wait(self, transfer: Transfer) -> None:
        while not transfer.ended:
            self._reap(None)

    def close(self) -> None:
        if self._ring.closed:
            return
        while self._under_way:
            self._reap(None)
        self._ring.close()

    def _prepare(self, transfer: Transfer) -> None:
        prepare = self._ring.prepare_write if transfer.writing else self._ring.prepare_read
        prepare(transfer.fd, transfer.rest, transfer.at, transfer)

    def _reap(self, timeout: float | None) -> None:
        try:
            completions = self._ring.wait(timeout)
        except InterruptedError:
            # A process that was stopped and continued (Ctrl-Z, a debugger); every caller asks again.
            return
        for completion in completions or ():
            transfer: Transfer = completion.take_user_data()
            result: int = completion.res
            if result >= 0:
                transfer.moved(result)
            elif -result not in _AGAIN:
                transfer.failed(OSError(-result, os.strerror(-result)))
            if transfer.ended:
                self._under_way -= 1
            else:
                self._prepare(transfer)
                self._ring.submit()


def open_engine(name: EngineName, depth: int, *, readers: int, writers: int) -> Engine:
    """An engine for ``depth`` transfers at once; ``auto`` is io_uring where it works, else threads.

    Raises:
        ConfigError: io_uring was asked for by name and does not work here.
    """
    if name == "threads":
        return ThreadEngine(readers, writers)
    from nightferry.transfer.engines import UringEngine, why_not

    reason = why_not()
    if not reason:
        return UringEngine(depth)
    if name == "io_uring":
        raise ConfigError(
            f"io_uring does not work here: {reason}",
            hint="install uring-api, or set the engine to auto or threads",
        )
    return ThreadEngine(readers, writers)
