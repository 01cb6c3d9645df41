"""What keeps a drive streaming: a source read ahead into a bounded ring, with a high and a low water mark.

A tape drive that runs out of data stops, turns back and starts again: seconds, and wear. So it begins only when the
ring is filled to the high mark. When it runs empty all the same, it waits for the high mark again: one long stop
instead of many short ones. A full ring is not refilled before it has fallen to the low mark: the source is read in
long pieces too.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from nightferry.destination.tape.drives.base import RECORD_BYTES
from nightferry.progress import Cancel
from nightferry.transfer.ring import Buffers

BUFFER_BYTES = 32 << 20
"""A drive's ring unless the site file says else."""
HIGH, LOW = 0.75, 0.5
"""Shares of the ring."""
DRIVE_BUFFER_S = 0.5
"""A wait that a drive's own buffer bridges: an LTO drive has 512 MiB and more, at 400 MB/s a second."""
_LOOK_S = 0.5


@dataclass(slots=True)
class Waits:
    """How often, and how long, the drive had nothing to write before the end of the image."""

    waits: int = 0
    waited_s: float = 0.0
    repositions: int = 0

    def add(self, seconds: float) -> None:
        self.waits += 1
        self.waited_s += seconds
        self.repositions += seconds > DRIVE_BUFFER_S


@contextmanager
def fed(
    chunks: Iterator[memoryview], records: int, buffer_bytes: int, waits: Waits, cancel: Cancel
) -> Iterator[Iterator[memoryview]]:
    """``chunks`` through a ring; where they are no more than one record, there is nothing to read ahead."""
    if records > 1:
        with Feed(chunks, buffer_bytes, waits, cancel) as feed:
            yield iter(feed)
        return
    try:
        yield chunks
    finally:
        _close(chunks)


def _close(chunks: Iterator[memoryview]) -> None:
    close = getattr(chunks, "close", None)
    if close is not None:
        close()


class Feed:
    """Chunks of at most 1 MiB, read ahead by a thread. Use as a context manager; iterate once, in one thread.

    Memory: ``buffer_bytes`` at most, and the chunk that the source holds. A chunk handed out is valid until the
    next is asked for. An error of the source is raised where its chunk would have come.

    Args:
        chunks: The source; it is iterated and closed in the other thread.
        buffer_bytes: Size of the ring, at least 2 MiB.
        waits: What is added to.
        cancel: Ends a wait for the source.
        monotonic: Time.
    """

    def __init__(
        self,
        chunks: Iterator[memoryview],
        buffer_bytes: int,
        waits: Waits,
        cancel: Cancel,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        count = max(2, buffer_bytes // RECORD_BYTES)
        self._chunks = chunks
        self._buffers = Buffers(count, RECORD_BYTES)
        self._filled: deque[tuple[memoryview, int]] = deque()
        self._high, self._low = max(1, round(count * HIGH)), max(1, round(count * LOW))
        self._waits = waits
        self._cancel = cancel
        self._monotonic = monotonic
        self._turn = threading.Condition()
        self._ended = self._stopped = False
        self._thread = ThreadPoolExecutor(1, "tape-feed")

    def __enter__(self) -> Feed:
        self._filling = self._thread.submit(self._fill)
        return self

    def __exit__(self, *exc: object) -> None:
        with self._turn:
            self._stopped = True
            self._turn.notify_all()
        self._thread.shutdown(wait=True)
        self._filled.clear()
        self._buffers.close()

    def __iter__(self) -> Iterator[memoryview]:
        self._await_high(0.0)
        while True:
            with self._turn:
                item = self._filled.popleft() if self._filled else None
                ended = self._ended
            if item is None:
                if ended:
                    self._filling.result()  # raises what the source raised
                    return
                self._await_high(self._monotonic())
                continue
            buffer, size = item
            yield buffer[:size]
            with self._turn:
                self._buffers.free.append(buffer)
                if len(self._filled) <= self._low:
                    self._turn.notify_all()

    def _await_high(self, since: float) -> None:
        """Returns when the ring is filled to the high mark or the source has ended."""
        with self._turn:
            while not self._ended and len(self._filled) < self._high:
                self._turn.wait(_LOOK_S)
                self._cancel.check()
        if since:
            self._waits.add(self._monotonic() - since)

    def _fill(self) -> None:
        try:
            for chunk in self._chunks:
                buffer = self._take()
                if buffer is None:
                    break
                size = len(chunk)
                buffer[:size] = chunk
                with self._turn:
                    self._filled.append((buffer, size))
                    if len(self._filled) >= self._high:
                        self._turn.notify_all()
        finally:
            _close(self._chunks)
            with self._turn:
                self._ended = True
                self._turn.notify_all()

    def _take(self) -> memoryview | None:
        """A free buffer; once there was none, one only comes when the low mark is reached. None: stopped."""
        with self._turn:
            if not self._buffers.free:
                while not self._stopped and (len(self._filled) > self._low or not self._buffers.free):
                    self._turn.wait(_LOOK_S)
            return None if self._stopped else self._buffers.free.pop()
