"""A night in a process of its own, led from outside through its standard input.

``python night_process.py SITE_FILE NIGHTS`` runs the night of the window NIGHTS after the first one. At the begin
of every phase of every subject it writes ``PHASE SUBJECT`` and waits for a line; ``on`` lets it run without
stopping any more. At its end it writes ``ended STATE``, or ``failed EXIT_CODE MESSAGE``. ``NF_TEST_LEASE_S`` in its
environment shortens leases.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

from nightferry.claims import heartbeat
from nightferry.errors import NightferryError
from nightferry.model.load import load_site
from nightferry.site.opened import OpenSite
from tests.support.night import night
from tests.support.small_site import BACK_GROUP, HandClock

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0


class Led:
    """The progress sink that stops at every begin."""

    def __init__(self) -> None:
        self.stops = True

    def begin(self, subject: str, phase: str, total_bytes: int | None = None) -> None:
        if self.stops:
            say(f"{phase} {subject}")
            self.stops = sys.stdin.readline().strip() != "on"

    def advance(self, subject: str, done_bytes: int, current: str = "") -> None: ...
    def end(self, subject: str, result: str) -> None: ...
    def say(self, text: str, subject: str = "") -> None: ...


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class NightProcess:
    """The process, as its leader sees it. Use as a context manager: it is killed at the end."""

    def __init__(self, site_file: Path, nights: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, site_file, str(nights)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def line(self) -> str:
        """The next line it writes.

        Raises:
            TimeoutError: none came in a minute.
        """
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        if not ready:
            raise TimeoutError("the night's process says nothing")
        return self.process.stdout.readline().strip()

    def until(self, wanted: str) -> str:
        """Lets it go on up to the line that begins with ``wanted``, and returns that."""
        while not (line := self.line()).startswith(wanted):
            if not line:
                raise EOFError(f"the night ended before {wanted!r}")
            self.go()
        return line

    def go(self, how: str = "") -> None:
        """Lets it go on to its next stop, or (``on``) to its end."""
        assert self.process.stdin is not None
        self.process.stdin.write(how + "\n")
        self.process.stdin.flush()

    def __enter__(self) -> NightProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def main(site_file: str, nights: str) -> None:
    heartbeat.LEASE_S = float(os.environ.get("NF_TEST_LEASE_S", heartbeat.LEASE_S))
    clock = HandClock()
    clock.advance(timedelta(days=int(nights)))
    with OpenSite(load_site(Path(site_file)), clock=clock) as opened:
        try:
            record = night(opened, BACK_GROUP, progress=Led())
        except NightferryError as error:
            say(f"failed {error.exit_code} {error}")
        else:
            say(f"ended {record.state}")


if __name__ == "__main__":
    main(*sys.argv[1:])
