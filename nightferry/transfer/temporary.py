"""Folders in the system's temporary directory, and clearing those whose processes were killed.

A process is known by its number, the moment it began and the machine's start: numbers are used again, and the
directory may outlive the machine's. What another pid namespace made is left alone while the machine runs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from nightferry.transfer.durable import create_file

log = logging.getLogger(__name__)

PROCESS_FILE = ".nightferry-processes"
"""In a folder that something else made for our process: who works in it, one process a line."""

_PROCESS = re.compile(
    r"(?P<pid>[0-9]{1,10})-(?P<began>[0-9]{1,20})-(?P<space>[0-9]{1,20})-(?P<boot>[0-9a-f]{8})"
)
_OURS = re.compile(rf"nightferry-[a-z]+-(?P<process>{_PROCESS.pattern})-[^/]+")
_LARGEST_MARK = 4096


@contextlib.contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """A new folder for the block; ``purpose`` is one word in lower case. Only its owner may look into it."""
    with tempfile.TemporaryDirectory(prefix=f"nightferry-{purpose}-{process_key()}-") as folder:
        yield Path(folder)


def mark_folder(folder: Path, processes: Sequence[int]) -> None:
    """Notes in a folder that others made for this process who works in it: it may go when all of them are dead."""
    keys = [key for pid in (os.getpid(), *processes) if (key := process_key(pid))]
    with contextlib.suppress(FileExistsError):
        create_file(folder / PROCESS_FILE, "".join(f"{key}\n" for key in keys).encode())


def clear_dead_folders() -> None:
    """Removes our folders, and marked ones, whose processes are all dead. What cannot be removed is logged."""
    for path in Path(tempfile.gettempdir()).iterdir():
        try:
            status = path.lstat()
            private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
            if private and status.st_uid == os.geteuid() and _is_dead(path):
                shutil.rmtree(path)
                log.info("removed %s, left by a killed process", path)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("cannot remove %s, left by a killed process: %s", path, error.strerror)


def _is_dead(folder: Path) -> bool:
    """Whether the folder is ours and nobody works in it any more."""
    if ours := _OURS.fullmatch(folder.name):
        return not may_live(ours["process"])
    try:
        fd = os.open(folder / PROCESS_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    with open(fd, "rb") as mark:
        keys = mark.read(_LARGEST_MARK).decode("ascii", "replace").splitlines()
    return bool(keys) and not any(may_live(key) for key in keys)


def process_key(pid: int | None = None) -> str:
    """What tells a process from every other one of this machine; empty when there is none with that number."""
    pid = os.getpid() if pid is None else pid
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    return f"{pid}-{int(fields[19])}-{_namespace()}-{_boot()}"


def may_live(key: str) -> bool:
    """False when the process of a ``process_key`` has surely ended."""
    found = _PROCESS.fullmatch(key)
    if found is None:
        return True  # not by us: nothing is known of it
    if found["boot"] != _boot():
        return False
    return found["space"] != _namespace() or process_key(int(found["pid"])) == key


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]


@cache
def _namespace() -> str:
    return str(os.stat("/proc/self/ns/pid").st_ino)
