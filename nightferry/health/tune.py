"""Measures a disk the way staging uses it, and proposes settings for the site file.

One scratch file without a name (or with one that is removed at once), direct reads and writes of several
buffer sizes, then several streams at once. Nothing is left behind, however this ends.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.cluster.reader_agent import groups_here, registered_work
from nightferry.errors import ConfigError, SourceError, StagingFull
from nightferry.progress import QUIET, Cancel, Progress
from nightferry.units import MIB, format_size

BUFFER_SIZES = (MIB, 2 * MIB, 4 * MIB)
STREAMS = (1, 2, 4, 8)
DEFAULT_BYTES = 256 * MIB
RING_BYTES = 64 * MIB
"""The most that all buffers of one stream may take."""
GOOD_ENOUGH = 0.95
"""The smallest setting within 5 % of the best one is proposed: larger ones only cost memory."""


@dataclass(frozen=True, slots=True)
class BufferTrial:
    """One stream with buffers of one size."""

    buffer_bytes: int
    write_bytes_per_s: float
    read_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class StreamTrial:
    """Several streams at once, writing; the rate is theirs together."""

    streams: int
    write_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """Settings for ``[staging]``."""

    unbuffered: bool
    buffer_bytes: int
    buffers: int
    streams: int


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was measured at ``path``, and what follows."""

    path: Path
    trial_bytes: int
    direct: bool
    """Whether the file system takes direct reads and writes."""
    buffers: tuple[BufferTrial, ...]
    streams: tuple[StreamTrial, ...]
    proposal: Proposal


def tune(
    path: Path,
    *,
    trial_bytes: int = DEFAULT_BYTES,
    progress: Progress = QUIET,
    cancel: Cancel | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Tuning:
    """Measures the disk that holds the folder ``path``.

    Args:
        path: A folder on the disk.
        trial_bytes: Bytes each trial writes; cut to whole buffers. The scratch file is this large.
        progress: Told about each trial.
        cancel: Looked at before each buffer.
        clock: Times the trials.

    Raises:
        ConfigError: ``path`` is not a folder, or cannot be written to.
        StagingFull: less than four times ``trial_bytes`` is free.
        SourceError: the disk fails while it is measured.
        GroupStopping: the cluster takes a group away from this node; nothing is left behind.
        Cancelled: stopped; nothing is left behind.
    """
    # Which group's disk it is nobody asks: whatever the cluster takes away from this node ends it.
    with registered_work(groups_here(), cancel or Cancel()) as stop:
        return _tune(path, trial_bytes, progress, stop, clock)


def _tune(path: Path, trial_bytes: int, progress: Progress, cancel: Cancel, clock: Clock) -> Tuning:
    trial_bytes = max(trial_bytes // BUFFER_SIZES[-1], 1) * BUFFER_SIZES[-1]
    _require_room(path, trial_bytes)
    try:
        with _scratch(path, trial_bytes) as (fd, direct):
            meter = _Meter(fd, trial_bytes, cancel, clock)
            progress.say(
                f"measuring {path} with {format_size(trial_bytes)}, "
                + ("unbuffered" if direct else "buffered: the file system refuses direct access")
            )
            buffers = []
            for size in BUFFER_SIZES:
                subject = f"buffers of {format_size(size)}"
                progress.begin(subject, "tune", 2 * trial_bytes)
                written = meter.write(size)
                progress.advance(subject, trial_bytes)
                buffers.append(BufferTrial(size, written, meter.read(size)))
                progress.advance(subject, 2 * trial_bytes)
                progress.end(subject, "whole")
            best_size = _smallest_good([(t.buffer_bytes, _both(t)) for t in buffers])
            streams = []
            for count in STREAMS:
                subject = f"{count} stream{'s' if count > 1 else ''}"
                progress.begin(subject, "tune", trial_bytes)
                streams.append(StreamTrial(count, meter.write(best_size, count)))
                progress.advance(subject, trial_bytes)
                progress.end(subject, "whole")
    except OSError as error:
        raise SourceError(f"cannot measure {path}: {error.strerror}", subject=str(path)) from error
    proposal = Proposal(
        unbuffered=direct,
        buffer_bytes=best_size,
        buffers=max(2, min(16, RING_BYTES // best_size)),
        streams=_smallest_good([(t.streams, t.write_bytes_per_s) for t in streams]),
    )
    return Tuning(path, trial_bytes, direct, tuple(buffers), tuple(streams), proposal)


class _Meter:
    """Times whole passes over the scratch file."""

    def __init__(self, fd: int, total_bytes: int, cancel: Cancel, clock: Clock) -> None:
        self._fd = fd
        self._total = total_bytes
        self._cancel = cancel
        self._clock = clock

    def write(self, size: int, streams: int = 1) -> float:
        """Bytes a second of writing the file with buffers of ``size``, each stream its part, then fsync."""
        return self._pass(size, streams, partial(os.pwrite, self._fd))

    def read(self, size: int) -> float:
        """Bytes a second of reading the file; direct, or what the page cache gives where that is refused."""

        def read_into(buffer: mmap.mmap, offset: int) -> int:
            return os.preadv(self._fd, [buffer], offset)

        return self._pass(size, 1, read_into)

    def _pass(self, size: int, streams: int, move: Callable[[mmap.mmap, int], int]) -> float:
        blocks = self._total // size
        began = self._clock.monotonic()
        with ThreadPoolExecutor(streams) as pool:
            parts = [range(first, blocks, streams) for first in range(streams)]
            for future in [pool.submit(self._part, size, part, move) for part in parts]:
                future.result()
        os.fsync(self._fd)
        return blocks * size / max(self._clock.monotonic() - began, 1e-9)

    def _part(self, size: int, blocks: Sequence[int], move: Callable[[mmap.mmap, int], int]) -> None:
        # An anonymous mapping begins on a page, which is what direct access asks for.
        with mmap.mmap(-1, size) as buffer:
            for block in blocks:
                self._cancel.check()
                if move(buffer, block * size) != size:
                    raise OSError(errno.EIO, "a transfer was short")


@contextmanager
def _scratch(folder: Path, size: int) -> Iterator[tuple[int, bool]]:
    """A nameless file of ``size`` allocated bytes, and whether it takes direct access."""
    direct = True
    try:
        fd = _nameless(folder, os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        direct, fd = False, _nameless(folder, 0)
    try:
        os.posix_fallocate(fd, 0, size)
        yield fd, direct
    finally:
        os.close(fd)


def _nameless(folder: Path, flags: int) -> int:
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
            raise
    path = folder / f".nightferry-tune-{secrets.token_hex(8)}"
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    path.unlink()
    return fd


def _require_room(path: Path, trial_bytes: int) -> None:
    if not path.is_dir():
        raise ConfigError(
            f"there is no folder {path}", hint="name a folder on the disk to measure", subject=str(path)
        )
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(
            f"cannot write to {path}", hint="run as the user that stages, or as root", subject=str(path)
        )
    room = os.statvfs(path)
    free = room.f_bavail * room.f_frsize
    if free < 4 * trial_bytes:
        raise StagingFull(
            f"only {format_size(free)} free on {path}, {format_size(4 * trial_bytes)} wanted",
            hint="measure with a smaller --size",
            subject=str(path),
        )


def _both(trial: BufferTrial) -> float:
    """One rate for writing and reading the same bytes."""
    return 2 / (1 / trial.write_bytes_per_s + 1 / trial.read_bytes_per_s)


def _smallest_good(trials: Sequence[tuple[int, float]]) -> int:
    best = max(rate for _, rate in trials)
    return min(setting for setting, rate in trials if rate >= GOOD_ENOUGH * best)
