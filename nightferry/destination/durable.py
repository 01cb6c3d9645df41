"""Writing files so that they are there after a power cut."""

from __future__ import annotations

import os
from pathlib import Path

from nightferry.transfer.durable import write_all

WRITEBACK_BYTES = 16 << 20
"""How much is written before the kernel is told to begin writing it out: the final fsync stays short."""


def begin_writeback(fd: int, position: int) -> int:
    """Starts the write-out of what lies before ``position``, 0 for all; returns the position to ask again
    at.

    POSIX_FADV_DONTNEED on dirty pages starts their write-out and drops the clean ones, so a long copy
    neither fills the page cache nor leaves everything to the fsync at its end.
    """
    os.posix_fadvise(fd, 0, position, os.POSIX_FADV_DONTNEED)
    return position + WRITEBACK_BYTES


class FreshFile:
    """A new file written in order, mode 0600, in the place of what was there before: that is never opened, as it
    may be a FIFO, or another name of a file elsewhere. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._done, self._mark = 0, WRITEBACK_BYTES

    def write(self, data: bytes | memoryview) -> None:
        write_all(self._fd, data)
        self._done += len(data)
        if self._done >= self._mark:
            self._mark = begin_writeback(self._fd, self._done)

    def sync(self) -> None:
        """On return the bytes are on the disk, and who reads them reads the disk; the file's name is there only
        after ``sync_folder``."""
        os.fsync(self._fd)
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def __enter__(self) -> FreshFile:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._fd)
