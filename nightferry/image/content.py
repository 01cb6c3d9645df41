"""What a file holds: where its data lies, its bytes, whether it stayed as it was and is still the same."""

from __future__ import annotations

import os
import stat

from nightferry.image.tar import MAX_SEGMENTS, Segments
from nightferry.transfer.files import data_extents
from nightferry.transfer.regular import read_at


def sparse_segments(fd: int, status: os.stat_result) -> Segments | None:
    """Where a file's data lies; None when it has no holes worth telling."""
    if status.st_blocks * 512 >= status.st_size:
        return None
    extents = data_extents(fd, status.st_size)
    if extents == [(0, status.st_size)]:
        return None
    if len(extents) > MAX_SEGMENTS:
        start = extents[MAX_SEGMENTS - 1][0]
        extents[MAX_SEGMENTS - 1 :] = [(start, status.st_size - start)]
    return tuple(extents)


def read_whole(fd: int, announced: int, most: int) -> bytes:
    """A file's content up to ``most`` bytes, whatever size it announces; one call when that is right."""
    data = os.pread(fd, announced + 1, 0)
    return data if len(data) == announced else data + read_at(fd, len(data), most - len(data))


def unchanged(before: os.stat_result, after: os.stat_result) -> bool:
    """Whether size, mtime and ctime say that nothing was written meanwhile."""
    return (before.st_size, before.st_mtime_ns, before.st_ctime_ns) == (
        after.st_size,
        after.st_mtime_ns,
        after.st_ctime_ns,
    )


def version(status: os.stat_result) -> tuple[int, int, int, int]:
    """What tells an inode from another one that was given the same number later: type, size, mtime and ctime."""
    return stat.S_IFMT(status.st_mode), status.st_size, status.st_mtime_ns, status.st_ctime_ns
