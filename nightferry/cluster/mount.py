"""Which file system a path lies on, so that it can be told when another one takes its place."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from nightferry.errors import ClusterError

_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system. While a file on it is open, no other mount is equal to it."""

    number: int
    """The kernel's number of this mount, which it gives to no other one that is there."""
    device: int
    """``st_dev`` of everything on it."""
    fsid: int
    """What the file system says of itself; ext4 and xfs make it from their UUID."""
    point: str
    source: str
    """What is mounted: ``/dev/sdb1``."""
    kind: str
    """The file system's type."""

    def __str__(self) -> str:
        return f"{self.source} ({self.kind}) at {self.point}"


def mount_of(path: Path) -> Mount:
    """The mount that ``path`` lies on now.

    Raises:
        ClusterError: the path is not there, or the kernel does not tell.
    """
    try:
        device = os.stat(path).st_dev
        fsid = os.statvfs(path).f_fsid
        table = _MOUNTS.read_text(errors="surrogateescape")
    except OSError as error:
        raise ClusterError(
            f"cannot find out what is mounted at {path}: {error.strerror}", subject=str(path)
        ) from error
    real = path.resolve()
    above = {str(real), *(str(parent) for parent in real.parents)}
    found: Mount | None = None
    for mounted in _parse(table):
        # A later line of the same point lies over the earlier one.
        if mounted.point in above and (found is None or len(mounted.point) >= len(found.point)):
            found = mounted
    if found is None:
        raise ClusterError(f"cannot find out what is mounted at {path}", subject=str(path))
    return replace(found, device=device, fsid=fsid)


def mounts_below(path: Path) -> list[Mount]:
    """What is mounted inside ``path``, in the order in which it was mounted; ``fsid`` is 0, it is not looked at.

    Raises:
        ClusterError: the kernel does not tell.
    """
    try:
        table = _MOUNTS.read_text(errors="surrogateescape")
    except OSError as error:
        raise ClusterError(f"cannot find out what is mounted: {error.strerror}", subject=str(path)) from error
    inside = str(path.resolve()).rstrip("/") + "/"
    return [
        mounted for mounted in _parse(table) if mounted.point.startswith(inside) and mounted.point != inside
    ]


def _parse(table: str) -> Iterator[Mount]:
    """Source: Linux, Documentation/filesystems/proc.rst, 3.5."""
    for line in table.splitlines():
        fields, _, rest = line.partition(" - ")
        words, details = fields.split(" "), rest.split(" ")
        major, _, minor = words[2].partition(":")
        device = os.makedev(int(major), int(minor))
        yield Mount(int(words[0]), device, 0, _plain(words[4]), _plain(details[1]), details[0])


def _plain(word: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), word)
