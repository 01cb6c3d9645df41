"""kill -9 between any two commits of an expiry, and while a cartridge is written over; then both again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMITS = (
    r"intent expiry",
    r"result copy expiring tape",
    r"result copy expired tape",
    r"result copy expiring folder",
    r"unlink /objects/images/.*/meta.json",
    r"rmdir /objects/images/",
    r"result copy expired folder",
    r"result expiry",
    r"result cartridge expired tape$",
    r"result cartridge expired tape being labelled",
    r"replace /vtl/cartridges/.*/marks",
    r"unlink /vtl/cartridges/.*tape",
    r"write /vtl/cartridges/.*tape",
    r"write /vtl/cartridges/.*/marks",
)
"""What the sweep must have killed at."""


def test_an_expiry_killed_at_any_commit_offers_nothing_half_and_is_finished_by_the_next() -> None:
    """What is looked at: ``tests/support/expire_sweep.py``. NIGHTFERRY_SWEEP=all kills at every call."""
    every = ["all"] if os.environ.get("NIGHTFERRY_SWEEP") == "all" else []
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        done = subprocess.run(
            [sys.executable, ROOT / "tests/support/expire_sweep.py", folder, *every],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
    points = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = "\n".join(f"{p['point']} {p['call']}: {p['problems']}" for p in points if p["problems"])
    assert not wrong, f"{wrong}\n{done.stderr}"
    assert done.returncode == 0, done.stderr
    calls = [p["call"] for p in points]
    assert [commit for commit in COMMITS if not any(re.search(commit, call) for call in calls)] == []
