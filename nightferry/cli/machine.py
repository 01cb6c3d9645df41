"""What `init` finds on this machine: disks, data worth a backup, databases."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

LIKELY_STORES = (Path("/srv"), Path("/home"), Path("/var/lib"), Path("/etc"))
SEARCHED_FOR_SQLITE = (Path("/srv"), Path("/var/lib"), Path("/home"))
SEARCHED_ENTRIES = 5000
SEARCHED_DEPTH = 4
_DISK_TYPES = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "nfs", "nfs4", "cifs", "overlay"}
)
_SQLITE_MAGIC = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class Volume:
    """A mounted file system that may hold backups."""

    path: Path
    kind: str
    device: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """What was found. ``mounts`` are the writable disks, the emptiest first."""

    hostname: str
    timezone: str
    mounts: tuple[Volume, ...]
    sqlite_files: tuple[Path, ...]
    has_postgres: bool


def inspect_machine(mountinfo: Path = Path("/proc/self/mountinfo")) -> Machine:
    """Looks at this machine; changes nothing. What cannot be read is left out."""
    return Machine(
        hostname=socket.gethostname(),
        timezone=timezone(),
        mounts=mounts(mountinfo),
        sqlite_files=tuple(find_sqlite(SEARCHED_FOR_SQLITE)),
        has_postgres=any(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
        or Path("/run/postgresql").is_dir(),
    )


def timezone(etc: Path = Path("/etc")) -> str:
    """The machine's time zone by name; UTC when it does not say one."""
    try:
        target = os.readlink(etc / "localtime")
    except OSError:
        target = ""
    _, _, name = target.partition("/zoneinfo/")
    if not name:
        try:
            name = (etc / "timezone").read_text().strip()
        except OSError:
            name = ""
    return name if re.fullmatch(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*", name) else "UTC"


def mounts(mountinfo: Path) -> tuple[Volume, ...]:
    """Writable disk file systems, one mount of each, the one with most room first."""
    found: dict[int, Volume] = {}
    try:
        lines = mountinfo.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ()
    for line in lines:
        fields, _, tail = line.partition(" - ")
        words, kind = fields.split(), tail.split(" ", 1)[0]
        if len(words) < 6 or kind not in _DISK_TYPES or "ro" in words[5].split(","):
            continue
        path = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), words[4]))
        try:
            device, room = path.stat().st_dev, os.statvfs(path)
        except OSError:
            continue
        if path.is_dir() and os.access(path, os.W_OK | os.X_OK):
            mount = Volume(path, kind, device, room.f_bavail * room.f_frsize)
            known = found.get(device)
            if known is None or len(path.parts) < len(known.path.parts):
                found[device] = mount
    return tuple(sorted(found.values(), key=lambda mount: -mount.free_bytes))


def find_sqlite(roots: Iterable[Path], entries: int = SEARCHED_ENTRIES) -> Iterator[Path]:
    """SQLite databases below ``roots``, by their first bytes; looks at no more than ``entries`` names."""
    left = entries
    waiting = [(root, 0) for root in roots]
    while waiting:
        folder, depth = waiting.pop(0)
        try:
            names = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in names:
            left -= 1
            if left < 0:
                return
            if entry.is_dir(follow_symlinks=False):
                if depth < SEARCHED_DEPTH and not entry.name.startswith("."):
                    waiting.append((Path(entry.path), depth + 1))
            elif entry.name.endswith((".db", ".sqlite", ".sqlite3")) and _is_sqlite(entry):
                yield Path(entry.path)


def likely_stores(avoid: Iterable[Path], candidates: Iterable[Path] = LIKELY_STORES) -> tuple[Path, ...]:
    """The first folder that holds something, is readable, and has nothing to do with ``avoid``."""
    avoided = tuple(avoid)
    for path in candidates:
        if any(path == other or path in other.parents or other in path.parents for other in avoided):
            continue
        try:
            if any(path.iterdir()):
                return (path,)
        except OSError:
            continue
    return ()


def _is_sqlite(entry: os.DirEntry[str]) -> bool:
    # Only a regular file is opened: a FIFO without a writer would wait for ever.
    try:
        if not entry.is_file(follow_symlinks=False):
            return False
        with open(entry.path, "rb") as file:
            return file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
    except OSError:
        return False
