"""Who keeps a file system busy: a disk that somebody has open cannot be unmounted, and a failed stop of a cluster's
resource costs the node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")


def users_of(path: Path) -> list[str]:
    """The processes with something open on the file system that ``path`` lies on, as ``name (pid 17)``.

    Sees the processes that this user may look into: all of them for root.
    """
    device = os.stat(path).st_dev
    return [_describe(pid) for pid in _pids() if _has_open(pid, device)]


def _pids() -> Iterator[int]:
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


def _has_open(pid: int, device: int) -> bool:
    folder = _PROC / str(pid)
    return any(_lies_on(link, device) for link in _links(folder)) or _maps(folder, device)


def _links(folder: Path) -> Iterator[Path]:
    yield from (folder / name for name in ("cwd", "root", "exe"))
    try:
        yield from (folder / "fd").iterdir()
    except OSError:
        return  # it ended, or is not ours to look into


def _lies_on(link: Path, device: int) -> bool:
    try:
        return link.stat().st_dev == device
    except OSError:
        return False


def _maps(folder: Path, device: int) -> bool:
    name = f"{os.major(device):02x}:{os.minor(device):02x}"
    try:
        return any(line.split(maxsplit=5)[3] == name for line in (folder / "maps").read_text().splitlines())
    except OSError:
        return False


def _describe(pid: int) -> str:
    try:
        return f"{(_PROC / str(pid) / 'comm').read_text().strip()} (pid {pid})"
    except OSError:
        return f"pid {pid}"
