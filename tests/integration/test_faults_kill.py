"""kill -9 between any two commits of a night; then the night again, or the next one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

COMMITS = {
    "second": (
        r"replace /catalog-cluster.json",
        r"link .*/owner.# TEX-ACTV-1",
        r"link .*result owner TEX-ACTV-1",
        r"open .*\.tar\.partial",
        r"re(name|place) .*\.chunks",
        r"re(name|place) .*\.meta\.json",
        r"rename .*\.tar$",
        r"replace .*indexes/.*\.parquet",
        r"link .*result image whole",
        r"link .*/seal\.#\.json",
        r"link .*result seal",
        r"link .*/owner.# TEX-PASS-2",
        r"link .*result owner TEX-PASS-2",
        r"link .*intent copy writing tape",
        r"link .*being written",
        r"write .*cartridges/.*\.tape",
        r"write .*cartridges/.*/marks",
        r"link .*result copy whole tape",
        r"link .*result copy verified tape",
        r"link .*intent copy writing folder",
        r"rename /objects/.*/data",
        r"rename /objects/.*/meta\.json",
        r"link .*result copy whole folder",
        r"link .*result copy verified folder",
        r"link .*result freed",
        r"unlink /back/.*\.tar$",
        r"unlink /back/.*\.chunks",
        r"link .*result run ended",
    ),
    "first": (r"link .*result selection", r"replace /vtl/library.json", r"link .*being labelled"),
    "abandoned": (
        r"rename .*\.tar$",
        r"link .*result image whole",
        r"result copy whole tape",
        r"result freed",
    ),
}
"""What each sweep must have killed at, lest a changed program makes it pass by killing nothing."""


@pytest.mark.parametrize("sweep", COMMITS)
def test_a_night_killed_at_any_commit_is_finished_right(sweep: str) -> None:
    """What is looked at: ``tests/support/kill_sweep.py``. NIGHTFERRY_SWEEP=all kills at every call."""
    every = ["all"] if os.environ.get("NIGHTFERRY_SWEEP") == "all" else []
    # Memory is as good as a disk against SIGKILL, and hundreds of nights are much faster there.
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        done = subprocess.run(
            [sys.executable, ROOT / "tests/support/kill_sweep.py", folder, sweep, *every],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
    points = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = "\n".join(f"{p['point']} {p['call']}: {p['problems']}" for p in points if p["problems"])
    assert not wrong, f"{wrong}\n{done.stderr}"
    assert done.returncode == 0, done.stderr
    calls = [p["call"] for p in points]
    missed = [commit for commit in COMMITS[sweep] if not any(re.search(commit, call) for call in calls)]
    assert not missed, calls
