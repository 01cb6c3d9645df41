"""The ring: a bounded set of page-aligned buffers, and the engines that fill and empty them.

A buffer has at most one ``Transfer`` under way. An engine only moves bytes between a descriptor and a buffer;
what order things happen in, and what a result means, is for the user of the ring to say (``direct``,
``reading``).
"""

from __future__ import annotations

import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, Protocol

from nightferry.errors import ConfigError
from nightferry.transfer.base import CHUNK_BYTES
from nightferry.transfer.files import ALIGNMENT
from nightferry.units import format_size

EngineName = Literal["auto", "threads", "io_uring"]


@dataclass(frozen=True, slots=True)
class RingSettings:
    """How a writer moves bytes. Memory used per writer is ``buffers * buffer_bytes`` and never more.

    Attributes:
        buffer_bytes: Size of one transfer; a multiple of 1 MiB. Below 2 MiB a plain ``dd`` is faster.
        buffers: Buffers in the ring, at least 2; 16 for one copy at a time, 8 for four.
        readers: Threads that read (engine ``threads``).
        writers: Threads that write (engine ``threads``).
        unbuffered: Whether to pass the page cache by where the file system allows it.
        engine: ``auto`` takes io_uring where it works, else threads.
    """

    buffer_bytes: int = 2 << 20
    buffers: int = 16
    readers: int = 4
    writers: int = 3
    unbuffered: bool = True
    engine: EngineName = "auto"

    def __post_init__(self) -> None:
        if self.buffer_bytes <= 0 or self.buffer_bytes % CHUNK_BYTES:
            raise ConfigError(
                f"buffer_bytes must be a multiple of {format_size(CHUNK_BYTES)}: {self.buffer_bytes}"
            )
        if self.buffers < 2:
            raise ConfigError(f"buffers must be at least 2: {self.buffers}")
        if self.readers < 1 or self.writers < 1:
            raise ConfigError(f"readers and writers must be at least 1: {self.readers}, {self.writers}")
        if self.engine not in ("auto", "threads", "io_uring"):
            raise ConfigError(f"unknown engine {self.engine!r}; use auto, threads or io_uring")

    @property
    def memory_bytes(self) -> int:
        """The bound on a writer's buffers."""
        return self.buffer_bytes * self.buffers


class Transfer:
    """One read into, or write from, one buffer: what was asked, how far it is, how it ended.

    After it ended, ``done`` is the bytes moved: all of them, or fewer when a read met the end of the file, or
    when ``error`` says why not.
    """

    __slots__ = ("direct", "done", "ended", "error", "fd", "future", "offset", "view", "writing")

    def __init__(self, fd: int, view: memoryview, offset: int, *, writing: bool, direct: bool) -> None:
        self.fd = fd
        self.view = view
        self.offset = offset
        self.writing = writing
        self.direct = direct
        self.done = 0
        self.ended = False
        self.error: OSError | None = None
        self.future: Future[None] | None = None

    @property
    def at(self) -> int:
        """File offset of the next byte to move."""
        return self.offset + self.done

    @property
    def rest(self) -> memoryview:
        """What is still to be moved."""
        return self.view[self.done :] if self.done else self.view

    def moved(self, count: int) -> None:
        """The system moved ``count`` more bytes; fewer than asked is not yet the end."""
        self.done += count
        # An unbuffered read comes back with a broken sector at the end of the file only, and could not go on
        # there.
        at_end = count == 0 or (self.direct and not self.writing and count % ALIGNMENT != 0)
        self.ended = at_end or self.done == self.view.nbytes

    def failed(self, error: OSError) -> None:
        """The system refused."""
        self.error = error
        self.ended = True


class Engine(Protocol):
    """Moves transfers. Used by one thread."""

    @property
    def name(self) -> str: ...

    def start(self, transfer: Transfer) -> None:
        """Begins a transfer; its buffer must not be touched until it ended."""

    def poll(self) -> None:
        """Notes which transfers ended, without waiting."""

    def wait(self, transfer: Transfer) -> None:
        """Returns when this transfer ended, well or not."""

    def close(self) -> None:
        """Waits for everything that was started; leaves no thread behind. May be called twice."""


class ThreadEngine:
    """Readers and writers as threads; the system calls run outside the interpreter's lock."""

    name = "threads"

    def __init__(self, readers: int, writers: int) -> None:
        self._readers = ThreadPoolExecutor(readers, "nightferry-read")
        self._writers = ThreadPoolExecutor(writers, "nightferry-write")

    def start(self, transfer: Transfer) -> None:
        pool = self._writers if transfer.writing else self._readers
        transfer.future = pool.submit(_run, transfer)

    def poll(self) -> None:
        """Nothing to do: the threads note it themselves."""

    def wait(self, transfer: Transfer) -> None:
        if transfer.future is not None:
            transfer.future.result()

    def close(self) -> None:
        self._readers.shutdown(wait=True)
        self._writers.shutdown(wait=True)


class InlineEngine:
    """Works where it is waited for: what is over in one piece gains nothing from a thread."""

    name = "inline"

    def start(self, transfer: Transfer) -> None:
        """Nothing yet."""

    def poll(self) -> None:
        """Nothing ends but where it is waited for."""

    def wait(self, transfer: Transfer) -> None:
        _run(transfer)

    def close(self) -> None:
        """Nothing was left behind."""


def _run(transfer: Transfer) -> None:
    try:
        while not transfer.ended:
            if transfer.writing:
                transfer.moved(os.pwrite(transfer.fd, transfer.rest, transfer.at))
            else:
                transfer.moved(os.preadv(transfer.fd, [transfer.rest], transfer.at))
    except OSError as error:
        transfer.failed(error)


class Buffers:
    """``count`` buffers of ``size`` bytes each in one anonymous mapping, so every one begins on a page."""

    def __init__(self, count: int, size: int) -> None:
        # Private, because only private memory gets huge pages: with them pinning a buffer for the disk costs
        # a third of the system time.
        self._memory = mmap.mmap(-1, count * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # A child forked meanwhile must not share pages that the disk is writing into.
        self._memory.madvise(mmap.MADV_DONTFORK)
        try:
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel built without them
            pass
        whole = memoryview(self._memory)
        self.free = [whole[number * size : (number + 1) * size] for number in range(count)]

    def close(self) -> None:
        """Gives the memory back; nothing may be under way. May be called twice."""
        self.free.clear()
        try:
            self._memory.close()
        except BufferError:  # the traceback of an error holds a slice: the memory goes when that goes
            pass
