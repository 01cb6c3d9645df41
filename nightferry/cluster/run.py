"""Running another program: an argv list, an absolute program, a clean environment, a deadline.

The program gets a session of its own, so that whatever it started ends with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nightferry.errors import ClusterError, ConfigError
from nightferry.progress import Cancel

CLEAN_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
"""All that a program sees of our environment."""

MOST_OUTPUT_BYTES = 16 << 20
"""More than this of stdout or stderr is not what a program of ours says; the rest is cut off."""

_LOOK_S = 0.25
_LAST_WORDS_S = 2.0


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
) -> Finished:
    """Runs a program to its end and returns how it ended, whatever its exit status.

    Args:
        argv: Program and arguments; the program's path is absolute.
        deadline_s: After this many seconds the program and its children are killed.
        env: Added to ``CLEAN_ENVIRONMENT``.
        cancel: When set, the program and its children are killed.

    Raises:
        ConfigError: the program's path is not absolute.
        ClusterError: the program cannot be started, or did not end in time.
        Cancelled: ``cancel`` was set.
    """
    if not os.path.isabs(argv[0]):
        raise ConfigError(f"not an absolute path of a program: {argv[0]}", subject=argv[0])
    try:
        process = subprocess.Popen(  # noqa: S603 - an argv list, no shell
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**CLEAN_ENVIRONMENT, **(env or {})},
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise ClusterError(
            f"cannot run {argv[0]}: {error.strerror}",
            hint="install the program, or correct its path in the site file",
            subject=argv[0],
        ) from error
    try:
        return _communicate(process, argv[0], time.monotonic() + deadline_s, deadline_s, cancel)
    finally:
        _end(process)


def _communicate(
    process: subprocess.Popen[bytes],
    program: str,
    end: float,
    deadline_s: float,
    cancel: Cancel | None,
) -> Finished:
    while True:
        left = end - time.monotonic()
        if left <= 0:
            raise ClusterError(
                f"{program} did not end within {deadline_s:g} s and was killed", subject=program
            )
        try:
            stdout, stderr = process.communicate(timeout=min(left, _LOOK_S))
        except subprocess.TimeoutExpired:
            if cancel is not None:
                cancel.check()
        else:
            return Finished(process.returncode, stdout[:MOST_OUTPUT_BYTES], stderr[:MOST_OUTPUT_BYTES])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills what is left of the program's session, also children that outlived it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        process.wait(_LAST_WORDS_S)
    except subprocess.TimeoutExpired:
        pass  # stuck in the kernel; our deadline counts
    for pipe in (process.stdout, process.stderr):
        if pipe is not None and not pipe.closed:
            pipe.close()
