"""Parquet files from elsewhere, read first in a process apart.

pyarrow decodes in C++: a wrong file can end the process, or take all memory, before any of our checks sees a value.
So a file that others may have written is read once, whole, by a process of ours that may use little memory and little
time, and has nothing to lose. What it passes is the very same file, which nobody else can change, and may be read here.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final, Literal

from nightferry.errors import ConfigError, IntegrityError
from nightferry.progress import Cancel
from nightferry.transfer.spool import Content, Spooled, in_a_file

GUARD_MEMORY_BYTES: Final = 224 << 20
"""What reading a file may take beyond what the process has before."""
CPU_S: Final = 4
BYTES_PER_S: Final = 8 << 20
"""Every so many bytes of the file give it a second more."""
_WALL: Final = 4
"""A process that gets a quarter of a processor is not too slow yet."""
_START_S: Final = 60
_LOOK_MS: Final = 100
_GROWN_BYTES: Final = 64 << 20
"""A process that has grown by so much ends, to give it back."""

Kind = Literal["index", "events"]


def require_proved(content: Content, kind: Kind, name: str, cancel: Cancel | None = None) -> None:
    """Returns when a file that others may have written can be read here.

    Args:
        content: The file. Whoever reads it afterwards reads this one.
        kind: What it is to be.
        name: What it is called in messages.
        cancel: Ends the wait.

    Raises:
        IntegrityError: it is damaged, beyond the format's limits, or the process that read it did not complete.
        ConfigError: no such process can be started.
        Cancelled: a stop was asked for.
    """
    file = in_a_file(content)
    allowed_s = CPU_S + len(file) // BYTES_PER_S
    with _lock:
        reader = _reader(cancel)
        try:
            answer = reader.ask(file, kind, allowed_s, cancel)
        except TimeoutError:
            reader.end()
            answer = {"why": f"reading it takes more than {allowed_s} s", "last": False}
        except BaseException:
            reader.end()
            raise
        if answer is None:
            why = _how_it_ended(reader.end(), allowed_s)
        else:
            why = str(answer["why"])
            if answer["last"]:
                reader.end()
    if why:
        raise IntegrityError(
            f"{name} is refused: {why}",
            hint="use another copy; this one is damaged, or somebody else made it",
            subject=name,
        )


class _Reader:
    """The process, and the socket to it.

    Args:
        cancel: Ends the wait for its start.

    Raises:
        ConfigError: it cannot be started.
        Cancelled: a stop was asked for.
    """

    def __init__(self, cancel: Cancel | None) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                [sys.executable, "-P", "-m", "nightferry.image.guard", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                process_group=0,  # a Ctrl-C at the terminal is ours to answer
            )
        self._socket = ours
        self.made_by = os.getpid()
        try:
            is_ready = self._answer(time.monotonic() + _START_S, cancel) is not None
        except TimeoutError:
            is_ready = False
        except BaseException:
            self.end()
            raise
        if not is_ready:
            raise ConfigError(
                f"the process that reads what others may have written does not start (exit {self.end()})",
                hint=f"run `{sys.executable} -P -m nightferry.image.guard 0` and see what it prints",
            )

    @property
    def is_there(self) -> bool:
        return self.made_by == os.getpid() and self._process.poll() is None

    def ask(
        self, file: Spooled, kind: Kind, allowed_s: int, cancel: Cancel | None
    ) -> dict[str, str | bool] | None:
        """Its answer; None when it ended without one.

        Raises:
            TimeoutError: it has not answered in time.
        """
        request = json.dumps({"kind": kind, "size": len(file), "cpu_s": allowed_s}).encode()
        fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            socket.send_fds(self._socket, [request], [fd])
        except BrokenPipeError:
            return None
        finally:
            os.close(fd)
        return self._answer(time.monotonic() + allowed_s * _WALL, cancel)

    def _answer(self, until: float, cancel: Cancel | None) -> dict[str, str | bool] | None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        is_heard = False
        while not is_heard:
            if cancel is not None:
                cancel.check()
            if time.monotonic() > until:
                raise TimeoutError
            is_heard = bool(poll.poll(_LOOK_MS))
        try:
            answer = self._socket.recv(1 << 16)
            return dict(json.loads(answer)) if answer else None
        except (ConnectionResetError, ValueError):
            return None

    def end(self) -> int:
        """Ends it, if it has not ended; returns how."""
        self._socket.close()
        try:
            return self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


_lock = threading.Lock()
_readers: list[_Reader] = []
"""At most one: the one of this process."""


def _reader(cancel: Cancel | None) -> _Reader:
    if not _readers or not _readers[0].is_there:
        _readers[:] = [_Reader(cancel)]
    return _readers[0]


@atexit.register
def _end() -> None:
    if _readers and _readers[0].made_by == os.getpid():
        _readers[0].end()


def _environment() -> dict[str, str]:
    """Nothing of ours but where to find Python's modules. Arrow's own allocators reserve more than they need."""
    package = str(Path(__file__).parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(paths), "ARROW_DEFAULT_MEMORY_POOL": "system"}


def _how_it_ended(code: int, allowed_s: int) -> str:
    if code == -signal.SIGXCPU:
        return f"reading it takes more than {allowed_s} s of a processor"
    if code < 0:
        return f"reading it ended the process that tried by signal {signal.Signals(-code).name}"
    return f"reading it ended the process that tried by exit {code}"


def _serve(requests: socket.socket) -> None:
    """The process apart: reads one file after the other, until nobody asks any more or one was refused."""
    from nightferry.image.proof import PROOFS

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    before = data_bytes()
    resource.setrlimit(resource.RLIMIT_DATA, (before + GUARD_MEMORY_BYTES, before + GUARD_MEMORY_BYTES))
    requests.sendall(json.dumps({"why": "", "last": False}).encode())
    while True:
        request, fds, _, _ = socket.recv_fds(requests, 1 << 16, 1)
        if not request:
            return
        job = json.loads(request)
        used = resource.getrusage(resource.RUSAGE_SELF)
        until_s = int(used.ru_utime + used.ru_stime) + int(job["cpu_s"]) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (until_s, resource.RLIM_INFINITY))
        why = ""
        try:
            PROOFS[job["kind"]](Spooled(fds[0], int(job["size"])))
        except IntegrityError as error:
            why = str(error).strip()[:1000]
        except MemoryError:
            why = f"reading it takes more than {GUARD_MEMORY_BYTES >> 20} MiB"
        last = bool(why) or data_bytes() > before + _GROWN_BYTES
        requests.sendall(json.dumps({"why": why, "last": last}).encode())
        if last:
            return


def data_bytes() -> int:
    """What counts against ``RLIMIT_DATA``."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmData:")[2].split()[0]) << 10


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as _asked:
        _serve(_asked)
