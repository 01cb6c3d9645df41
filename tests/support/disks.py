"""Small real disks for tests that fill one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(place: Path, size_bytes: int) -> Iterator[Path]:
    """A file system in memory of that size, mounted on an empty folder; without root the test is skipped, or
    fails where all tests are required."""
    stop = pytest.fail if os.environ.get("NIGHTFERRY_REQUIRE_SERVERS") == "1" else pytest.skip
    if os.geteuid() != 0:
        stop("mounting a small disk needs root")
    place.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        stop(f"no mounts here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
