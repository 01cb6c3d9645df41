"""Running another program: an argv list, an absolute program, a clean environment, a deadline, a bound on its output.

Every program that nightferry starts and waits for is run here: the cluster's tools, the commands of a command
cluster, hooks. A program ends with all that it started: what is in its session, and what left that for another one
but still bears our mark in its environment.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from nightferry.errors import ClusterError, ConfigError
from nightferry.progress import Cancel

CLEAN_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
"""All that a program sees of our environment, but for the mark."""

MARK = "NIGHTFERRY_PROGRAM"
"""The variable by which a program's children are found again, whatever session they went to."""

MOST_OUTPUT_BYTES = 16 << 20
"""What is kept of stdout, and of stderr; more is not what a program of ours says, and is read and dropped."""

_LOOK_S = 0.25
_LAST_WORDS_S = 2.0
_DYING_S = 0.01
_READ_BYTES = 64 << 10
_PROC = Path("/proc")

Registers = Callable[[int], AbstractContextManager[None]]
"""Given the program's pid, which is its session's as well; the context lasts until all of it has ended."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended. ``code``: its exit status, negative when a signal ended it."""

    code: int
    stdout: bytes
    stderr: bytes

    def said(self) -> str:
        """What it said of its failure: the first non-empty line of stderr, else of stdout."""
        lines = (self.stderr or self.stdout).decode(errors="replace").splitlines()
        return next((line.strip() for line in lines if line.strip()), f"exit status {self.code}")


def run_program(
    argv: Sequence[str],
    *,
    deadline_s: float,
    env: Mapping[str, str] | None = None,
    cancel: Cancel | None = None,
    registers: Registers | None = None,
) -> Finished:
    """Runs a program to its end and returns how it ended, whatever its exit status.

    The program's own end counts: a child that keeps its output open is neither waited for nor a failure. It is killed
    as every other child is.

    Args:
        argv: Program and arguments; the program's path is absolute.
        deadline_s: After this many seconds the program and its children are killed.
        env: Added to ``CLEAN_ENVIRONMENT``.
        cancel: When set, the program and its children are killed.
        registers: Says to whom it matters that the program runs.

    Raises:
        ConfigError: the program's path is not absolute.
        ClusterError: the program cannot be started, or did not end in time.
        Cancelled: ``cancel`` was set.
    """
    if not os.path.isabs(argv[0]):
        raise ConfigError(f"not an absolute path of a program: {argv[0]}", subject=argv[0])
    if cancel is not None:
        cancel.check()
    mark = f"{os.getpid()}.{secrets.token_hex(8)}"
    try:
        process = subprocess.Popen(  # noqa: S603 - an argv list, no shell
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**CLEAN_ENVIRONMENT, **(env or {}), MARK: mark},
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise ClusterError(
            f"cannot run {argv[0]}: {error.strerror}",
            hint="install the program, or correct its path in the site file",
            subject=argv[0],
        ) from error
    registered = ExitStack()
    try:
        if registers is not None:
            registered.enter_context(registers(process.pid))
        return _wait(process, argv[0], deadline_s, cancel)
    finally:
        _end(process, mark)
        registered.close()


def _wait(
    process: subprocess.Popen[bytes], program: str, deadline_s: float, cancel: Cancel | None
) -> Finished:
    """Reads both outputs until the program has ended.

    Raises:
        ClusterError: it did not end in time.
        Cancelled: ``cancel`` was set.
    """
    ends = time.monotonic() + deadline_s
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        ended = os.pidfd_open(process.pid)
        stack.callback(os.close, ended)
        selector.register(ended, selectors.EVENT_READ)
        kept: dict[int, bytearray] = {}
        for pipe in filter(None, (process.stdout, process.stderr)):
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ)
            kept[pipe.fileno()] = bytearray()
        while True:
            left = ends - time.monotonic()
            if left <= 0:
                raise ClusterError(
                    f"{program} did not end within {deadline_s:g} s and was killed", subject=program
                )
            if cancel is not None:
                cancel.check()
            ready = [key.fd for key, _ in selector.select(min(left, _LOOK_S))]
            for fd in (fd for fd in ready if fd != ended):
                if _read(fd, kept[fd]) == 0:
                    selector.unregister(fd)
            if ended in ready:
                break
        code = process.wait()
        for fd, data in kept.items():
            # What it wrote is in the pipe, and a pipe holds this much at most; what others write is not waited for.
            left_bytes = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
            while left_bytes > 0 and (read := _read(fd, data)):
                left_bytes -= read
    stdout, stderr = (bytes(data) for data in kept.values())
    return Finished(code, stdout, stderr)


def _read(fd: int, kept: bytearray) -> int | None:
    """Reads what is there and keeps it up to the bound; returns how much was read: 0 at the end, None for nothing
    yet."""
    try:
        data = os.read(fd, _READ_BYTES)
    except BlockingIOError:
        return None
    kept += data[: MOST_OUTPUT_BYTES - len(kept)]
    return len(data)


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """Kills the program and all that it started, also children that outlived it or left its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    # A child may start another one while it is looked for: looked for until there is none.
    ends = time.monotonic() + _LAST_WORDS_S
    while time.monotonic() < ends and (found := list(_marked(mark))):
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_DYING_S)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_LAST_WORDS_S)  # else stuck in the kernel; our deadline counts
    for pipe in (process.stdout, process.stderr):
        if pipe is not None and not pipe.closed:
            pipe.close()


def _marked(mark: str) -> Iterator[int]:
    """The processes that were started with the mark in their environment and live."""
    wanted = f"{MARK}={mark}".encode()
    for entry in os.listdir(_PROC):
        if not entry.isdigit():
            continue
        try:
            # Empty of one that has ended and is not collected yet.
            environment = (_PROC / entry / "environ").read_bytes()
        except OSError:
            continue  # it ended, or belongs to another user: then it is none of ours
        if wanted in environment.split(b"\0"):
            yield int(entry)
