"""Small real disks: ext4 in files over loop devices, and file systems in memory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def make_ext4(image: Path, size_bytes: int) -> Path:
    """A file with an empty ext4 on it."""
    with image.open("wb") as file:
        file.truncate(size_bytes)
    subprocess.run(["mkfs.ext4", "-q", "-b", "4096", "-m", "0", "-O", "^has_journal", image], check=True)
    return image


def mount(image: Path, place: Path) -> None:
    """Mounts it; a test ends here, visibly, where that is not allowed."""
    _mount(place, "-o", "loop", image)


def _mount(place: Path, *how: str | Path) -> None:
    stop = pytest.fail if os.environ.get("NIGHTFERRY_REQUIRE_SERVERS") == "1" else pytest.skip
    if os.geteuid() != 0:
        stop("mounting a disk needs root")
    place.mkdir(exist_ok=True)
    mounted = subprocess.run(["mount", *how, place], capture_output=True, text=True)
    if mounted.returncode:
        stop(f"no mounts here: {mounted.stderr.strip()}")


@contextmanager
def ext4(folder: Path, size_bytes: int, name: str = "disk") -> Iterator[Path]:
    """A mounted ext4 of its own; everything mounted over it ends with it."""
    place = folder / name
    mount(make_ext4(folder / f"{name}.img", size_bytes), place)
    try:
        yield place
    finally:
        while os.path.ismount(place):
            subprocess.run(["umount", "-l", place], check=True)


@contextmanager
def small_disk(place: Path, size_bytes: int, inodes: int = 100_000) -> Iterator[Path]:
    """A file system in memory of that size and so many names, mounted on an empty folder; without root the test is
    skipped, or fails where all tests are required."""
    _mount(place, "-t", "tmpfs", "-o", f"size={size_bytes},nr_inodes={inodes}", "tmpfs")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@contextmanager
def bound_read_only(place: Path) -> Iterator[None]:
    """The folder, mounted read-only over itself."""
    _mount(place, "--bind", place)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", place], check=True)
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True)
