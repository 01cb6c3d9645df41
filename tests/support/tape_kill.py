"""A night on a library behind iSCSI that is killed at one of its writes: ``python -m tests.support.tape_kill``.

Arguments: the site's folder, the night's number, at which WRITE or WRITE FILEMARKS. The command is done; the process
dies by SIGKILL before it hears so.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from nightferry.scsi.iscsi import IscsiTransport
from nightferry.scsi.transport import Answer
from tests.support.night import night
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

WRITES = (0x0A, 0x10)
"""WRITE(6), WRITE FILEMARKS(6)."""


def open_night(number: int) -> HandClock:
    """The clock in the evening of that night."""
    clock = HandClock()
    clock.advance(timedelta(days=number))
    return clock


def main(home: str, number: str, kill_at: str) -> None:
    execute, seen = IscsiTransport.execute, 0

    def watched(transport: IscsiTransport, cdb: bytes, **rest: Any) -> Answer:
        nonlocal seen
        answer = execute(transport, cdb, **rest)
        seen += cdb[0] in WRITES
        if seen == int(kill_at):
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    IscsiTransport.execute = watched  # type: ignore[method-assign] # what a power cut would do
    site = SmallSite(Path(home), stores={"SG1": ("a",)}, copies=("tape",))
    with site.open(open_night(int(number))) as opened:
        night(opened, BACK_GROUP)


if __name__ == "__main__":
    main(*sys.argv[1:])
