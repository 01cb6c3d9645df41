"""How long the reader agent's stop takes when nobody lets go: by leases, half of them processes' own and half of
programs' sessions; on an idle machine and on a busy one.

Needs root, ``unshare`` and the cluster's resource agents: ``python -m bench.reader_stop``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from nightferry.cluster.reader_agent import AGENT_PATH, _lease

GROUP = "TEX-BACK-1"


def stop_s(holders: int) -> float:
    """Seconds of one stop while ``holders`` processes with a lease each do not answer."""
    with tempfile.TemporaryDirectory() as run, ExitStack() as stack:
        folder = Path(run) / "nightferry"
        (folder / GROUP).mkdir(parents=True)
        (folder / GROUP / "here").touch()
        for number in range(holders):
            process = subprocess.Popen(["sleep", "120"], start_new_session=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
            # Every other one leads a session, as a program that we run does.
            stack.enter_context(_lease(folder / GROUP, process.pid, ".session" if number % 2 else ""))
        began = time.monotonic()
        subprocess.run(
            ["unshare", "--mount", "sh", "-c", f"mount --bind {run} /run && exec {AGENT_PATH} stop"],
            env={"PATH": os.environ["PATH"], "OCF_ROOT": "/usr/lib/ocf", "OCF_RESKEY_group": GROUP},
            check=True,
            capture_output=True,
        )
        return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy", type=int, default=0, help="processes that do nothing but compute beside it")
    busy = parser.parse_args().busy
    with ExitStack() as stack:
        for _ in range(busy):
            process = subprocess.Popen(["sh", "-c", "while :; do :; done"])
            stack.callback(process.wait)
            stack.callback(process.kill)
        for holders in (1, 8, 16, 64):
            print(f"{holders:3} leases: {stop_s(holders):.1f} s")


if __name__ == "__main__":
    main()
