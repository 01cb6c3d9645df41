"""Who opens files on a disk without a lease: asked of the kernel, by fanotify, at the moment of each opening.

Run as a program: ``python opened_files.py RUN_FOLDER GROUP=DISK…``. It answers each opening only after it has looked
for a lease, so nothing is missed, and prints ``PID COMMAND PATH`` of each that had none.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Source: fanotify(7), linux/fanotify.h.
FAN_CLOEXEC, FAN_CLASS_CONTENT = 0x01, 0x04
FAN_MARK_ADD, FAN_MARK_FILESYSTEM = 0x01, 0x100
FAN_OPEN_PERM, FAN_ONDIR = 0x10000, 0x40000000
FAN_ALLOW = 0x01
AT_FDCWD = -100
EVENT = struct.Struct("=IBBHQii")


class OpenedFiles:
    """What was opened without a lease since the last question."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        self._folder = folder

    @contextmanager
    def watched(self) -> Iterator[list[str]]:
        """Watches this process and its children while the block runs; the list is complete after it."""
        found: list[str] = []
        self._ask()
        yield found
        found += self._ask()

    def _ask(self) -> list[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("so far?\n")
        self._process.stdin.flush()
        lines = []
        while (line := self._process.stdout.readline().rstrip("\n")) != "that is all":
            assert line or self._process.poll() is None, "the watcher has ended"
            lines.append(line)
        return lines


@contextmanager
def watching(run_folder: Path, disks: dict[str, Path]) -> Iterator[OpenedFiles]:
    """Watches disks by the group whose leases count for them.

    Raises:
        OSError: the kernel does not allow it here.
    """
    os.close(_listen([]))  # whether it can be done
    named = [f"{group}={disk}" for group, disk in disks.items()]
    process = subprocess.Popen(
        [sys.executable, __file__, str(run_folder), *named],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield OpenedFiles(process, run_folder)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def _listen(disks: list[Path]) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.fanotify_init(
        FAN_CLOEXEC | FAN_CLASS_CONTENT, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_LARGEFILE", 0)
    )
    if fd < 0:
        raise OSError(ctypes.get_errno(), "fanotify_init")
    for disk in disks:
        mask = ctypes.c_uint64(FAN_OPEN_PERM | FAN_ONDIR)
        if libc.fanotify_mark(fd, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, mask, AT_FDCWD, os.fsencode(disk)) < 0:
            raise OSError(ctypes.get_errno(), "fanotify_mark")
    return int(fd)


def _has_lease(folder: Path, pid: int) -> bool:
    """A lease of the process itself, or of the session that it belongs to."""
    with suppress(ProcessLookupError):
        names = os.listdir(folder)
        session = os.getsid(pid)
        return any(
            name.endswith(".lease")
            and (name.startswith(f"{pid}.") or (name.startswith(f"{session}.") and ".session." in name))
            for name in names
        )
    return False


def main(run_folder: str, *named: str) -> None:
    disks = {os.stat(disk).st_dev: group for group, _, disk in (each.partition("=") for each in named)}
    fd = _listen([Path(each.partition("=")[2]) for each in named])
    import selectors

    selector = selectors.DefaultSelector()
    selector.register(fd, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    watched = os.getppid()
    found: list[str] = []
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                if not sys.stdin.readline():
                    return
                sys.stdout.write("".join(f"{line}\n" for line in found) + "that is all\n")
                sys.stdout.flush()
                found.clear()
                continue
            data = os.read(fd, 65536)
            while data:
                length, _, _, _, _, file, pid = EVENT.unpack_from(data)
                data = data[length:]
                with suppress(OSError):
                    group = disks[os.fstat(file).st_dev]
                    if _is_below(pid, watched) and not _has_lease(Path(run_folder) / group, pid):
                        command = Path(f"/proc/{pid}/comm").read_text().strip()
                        found.append(f"{pid} {command} {os.readlink(f'/proc/self/fd/{file}')}")
                os.write(fd, struct.pack("=iI", file, FAN_ALLOW))
                os.close(file)


def _is_below(pid: int, above: int) -> bool:
    """Whether a process is the watched one, or was started by it."""
    while pid > 1:
        if pid == above:
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False


if __name__ == "__main__":
    main(*sys.argv[1:])
