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
from typing import IO

from nightferry.errors import ClusterError, ConfigError
from nightferry.progress import Cancel
from nightferry.units import format_size

CLEAN_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
"""All that a program sees of our environment, but for the mark."""

PROGRAM_MARK = "NIGHTFERRY_PROGRAM"
"""The variable by which a program's children are found again, whatever session they went to."""

MOST_OUTPUT_BYTES = 16 << 20
"""No program answers with more on stdout, nor on stderr: one that writes more is killed at once."""

_LOOK_S = 0.25
_LAST_WORDS_S = 2.0
_DYING_S = 0.01
_READ_BYTES = 64 << 10
_PROC = Path("/proc")

_BY_HAND = "run it by hand on this node; correct it, or what the site file says of it"

Registers = Callable[[int], AbstractContextManager[None]]
"""Given the program's pid, which is its session's as well; the context lasts until all of it has ended."""


class OutputWithoutEnd(ClusterError):
    """A program wrote more than any answer has, and was killed."""

    default_hint = "run it by hand to see what it prints; name one that prints its answer and ends"


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended. ``code``: its exit status, negative when a signal ended it."""

    code: int
    stdout: bytes
    stderr: bytes

    def error_line(self) -> str:
        """Why it failed: the first non-empty line of stderr, else of stdout."""
        lines = (self.stderr or self.stdout).decode(errors="replace").splitlines()
        return next((line.strip() for line in lines if line.strip()), f"exit status {self.code}")


def run_program(
    argv: Sequence[str],
    *,
    deadline_s: float,
    env: Mapping[str, str] | None = None,
    cancel: Cancel | None = None,
    registers: Registers | None = None,
    keep_end_bytes: int | None = None,
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
        keep_end_bytes: What the program writes is not an answer: it may write forever, and of each output at least this
            much of the end is kept, at most twice as much.

    Raises:
        ConfigError: the program's path is not absolute.
        OutputWithoutEnd: it wrote more than ``MOST_OUTPUT_BYTES``.
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
            env={**CLEAN_ENVIRONMENT, **(env or {}), PROGRAM_MARK: mark},
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
        outputs = [
            _Output(pipe, argv[0], keep_end_bytes) for pipe in (process.stdout, process.stderr) if pipe
        ]
        return _wait(process, outputs, argv[0], deadline_s, cancel)
    finally:
        _end(process, mark)
        registered.close()


class _Output:
    """What a program writes to a pipe, bounded while it is read."""

    def __init__(self, pipe: IO[bytes], program: str, keep_end_bytes: int | None) -> None:
        self.fd = pipe.fileno()
        self.kept = bytearray()
        self._program = program
        self._keep_end_bytes = keep_end_bytes
        os.set_blocking(self.fd, False)

    def read(self) -> int | None:
        """Reads what is there; returns how much that was: 0 at the end, None for nothing yet.

        Raises:
            OutputWithoutEnd: it is more than an answer has.
        """
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return None
        self.kept += data
        if self._keep_end_bytes is not None:
            del self.kept[: max(0, len(self.kept) - 2 * self._keep_end_bytes)]
        elif len(self.kept) > MOST_OUTPUT_BYTES:
            raise OutputWithoutEnd(
                f"{self._program} wrote more than {format_size(MOST_OUTPUT_BYTES)} and was killed",
                subject=self._program,
            )
        return len(data)


def _wait(
    process: subprocess.Popen[bytes],
    outputs: Sequence[_Output],
    program: str,
    deadline_s: float,
    cancel: Cancel | None,
) -> Finished:
    """Reads both outputs until the program has ended.

    Raises:
        OutputWithoutEnd: it wrote too much.
        ClusterError: it did not end in time.
        Cancelled: ``cancel`` was set.
    """
    ends = time.monotonic() + deadline_s
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        ended = os.pidfd_open(process.pid)
        stack.callback(os.close, ended)
        selector.register(ended, selectors.EVENT_READ)
        for output in outputs:
            selector.register(output.fd, selectors.EVENT_READ, output)
        while True:
            left = ends - time.monotonic()
            if left <= 0:
                raise ClusterError(
                    f"{program} did not end within {deadline_s:g} s and was killed",
                    hint=_BY_HAND,
                    subject=program,
                )
            if cancel is not None:
                cancel.check()
            ready = [key for key, _ in selector.select(min(left, _LOOK_S))]
            for key in ready:
                if key.fd != ended and key.data.read() == 0:
                    selector.unregister(key.fd)
            if any(key.fd == ended for key in ready):
                break
        code = process.wait()
        for output in outputs:
            # What it wrote is in the pipe, and a pipe holds this much at most; what others write is not waited for.
            left_bytes = fcntl.fcntl(output.fd, fcntl.F_GETPIPE_SZ)
            while left_bytes > 0 and (read := output.read()):
                left_bytes -= read
    stdout, stderr = (bytes(output.kept) for output in outputs)
    return Finished(code, stdout, stderr)


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
    wanted = f"{PROGRAM_MARK}={mark}".encode()
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
