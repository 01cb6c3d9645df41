"""One command as a process of its own, and what the kernel says that it cost."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.command_site import SOURCES, Ran

# Between the tests and the command stands a small process: the highest memory of a child begins with its parent's.
_PROGRAM = """
import json, os, sys, time
out, err = (os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600) for path in sys.argv[1:3])
pid = os.posix_spawn(sys.executable, [sys.executable, *sys.argv[3:]], os.environ,
    file_actions=[(os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, err, 2)])
begun = time.monotonic()
_, status, used = os.wait4(pid, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), used.ru_maxrss << 10, used.ru_utime + used.ru_stime]))
"""
COMMAND = "import sys; from nightferry.cli.app import main; sys.exit(main())"


@dataclass(frozen=True)
class Cost:
    """What a command took at most, with the processes that it waited for.

    ``memory_bytes``: resident, of the largest of them. ``cpu_s``: of all of them.
    """

    ran: Ran
    memory_bytes: int
    cpu_s: float


def measured(site: Path, *arguments: str | Path) -> Cost:
    """Runs ``nightferry`` and waits for it."""
    out, err = site.parent / "measured.out", site.parent / "measured.err"
    words = ["--site", str(site), *map(str, arguments)]
    done = subprocess.run(
        [sys.executable, "-S", "-c", _PROGRAM, str(out), str(err), "-c", COMMAND, *words],
        env={
            "PYTHONPATH": str(SOURCES),
            "PATH": "/usr/bin:/bin",
            "NIGHTFERRY_STATE": str(site.parent / "state"),
        },
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    code, memory, cpu = json.loads(done.stdout)
    return Cost(Ran(code, out.read_text(), err.read_text()), memory, cpu)
