"""Refused commands, one after the other, each with an interpreter that is taken down at its end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

from tests.support.command_site import SOURCES, CommandSite

# The children are forked from a process that has imported all there is: only their work and their end take time.
# Each ends through the interpreter's own exit, which would abort under a thread that is still in native code.
_PROGRAM = """
import collections, json, os, sys
import pyarrow.compute, numpy
import nightferry.cli.restore, nightferry.cli.records, nightferry.restore.restore, nightferry.cli.commands
from nightferry.cli.app import main

ended = collections.Counter()
for number in range(int(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1), os.dup2(null, 2)
        sys.exit(main(sys.argv[2:]))
    ended[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])] += 1
print(json.dumps(ended))
"""


def refusals(site: CommandSite, count: int) -> Counter[int]:
    """How many of ``count`` restores of something that is not there ended with which exit code, or by which signal."""
    refused = ("restore", "files", "SG1/priv1", "nothing-like-this", "--to", str(site.root / "restored"))
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(count), "--site", str(site.file), *refused],
        env={"PYTHONPATH": str(SOURCES), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return Counter({int(code): times for code, times in json.loads(done.stdout).items()})
