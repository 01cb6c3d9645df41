"""Runs a program that kills something at one commit after the other, and judges what it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[2]


def first_of_each(calls: Sequence[str], patterns: Sequence[str]) -> set[int]:
    """The points, from 1, at which a call first matches each of the patterns."""
    found = (
        next((point for point, call in enumerate(calls, start=1) if re.search(pattern, call)), 0)
        for pattern in patterns
    )
    return {point for point in found if point}


def require_right_after_every_kill(
    program: str, *words: str, commits: Sequence[str], points: Literal["all", "kinds", "commits"] = "kinds"
) -> None:
    """``python tests/support/PROGRAM FOLDER WORDS`` finds nothing wrong, and has killed at each of ``commits``, lest a
    changed program makes it pass by killing nothing.

    Args:
        program: What kills and judges.
        words: Its own arguments.
        commits: What it must have killed at.
        points: What it kills at: every call, one of each kind of commit, or the first of each of ``commits``.
    """
    every = {"all": ["all"], "kinds": [], "commits": ["only", *commits]}[points]
    # Memory is as good as a disk against SIGKILL, and hundreds of nights are much faster there.
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        done = subprocess.run(
            [sys.executable, ROOT / "tests/support" / program, folder, *words, *every],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
    points = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = "\n".join(f"{p['point']} {p['call']}: {p['problems']}" for p in points if p["problems"])
    assert not wrong, f"{wrong}\n{done.stderr}"
    assert done.returncode == 0, done.stderr
    calls = [p["call"] for p in points]
    missed = [commit for commit in commits if not any(re.search(commit, call) for call in calls)]
    assert not missed, calls
