"""The ring before a drive: bounded, filled to the high mark first, refilled in long pieces."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from nightferry.destination.tape.library.feed import Feed, Waits, fed
from nightferry.errors import Cancelled, IntegrityError
from nightferry.progress import Cancel

MIB = 1 << 20
BUFFERS = 8


class Source:
    """Chunks of which a test sees how many were asked for; each waits for leave while ``gate`` is shut."""

    def __init__(self, count: int, fails_at: int = -1) -> None:
        self.count, self.fails_at = count, fails_at
        self.asked = 0
        self.closed = False
        self.gate = threading.Semaphore(1 << 20)

    def chunks(self) -> Iterator[memoryview]:
        try:
            for number in range(self.count):
                self.gate.acquire()
                if number == self.fails_at:
                    raise IntegrityError("chunk is damaged")
                self.asked += 1
                yield memoryview(bytes([number % 251]) * (MIB if number < self.count - 1 else 77))
        finally:
            self.closed = True


def feed(source: Source, waits: Waits | None = None, cancel: Cancel | None = None, **options: float) -> Feed:
    return Feed(source.chunks(), BUFFERS * MIB, waits or Waits(), cancel or Cancel(), **options)  # type: ignore[arg-type] # a clock


def wait_for(condition: object) -> None:
    """Polls, with a deadline of seconds."""
    event = threading.Event()
    for _ in range(1000):
        if condition():  # type: ignore[operator] # a lambda
            return
        event.wait(0.005)
    raise AssertionError("it did not come so far")


def test_every_chunk_comes_in_order_with_its_length() -> None:
    source = Source(30)
    with feed(source) as ring:
        found = [(chunk[0], len(chunk)) for chunk in ring]
    assert found == [(n, MIB) for n in range(29)] + [(29, 77)]
    assert source.closed


def test_no_more_is_read_ahead_than_the_ring_holds() -> None:
    source = Source(100)
    most = 0
    with feed(source) as ring:
        for number, _ in enumerate(ring):
            wait_for(lambda: source.asked > number)  # noqa: B023
            most = max(most, source.asked - number)
    # The ring, and the one chunk that waits for a buffer.
    assert most <= BUFFERS + 1


def test_nothing_is_handed_out_before_the_high_mark_is_reached() -> None:
    source = Source(100)
    source.gate = threading.Semaphore(5)
    with feed(source) as ring:
        got: list[int] = []
        taking = threading.Thread(target=lambda: got.append(len(next(iter(ring)))))
        taking.start()
        wait_for(lambda: source.asked == 5)
        assert not got
        source.gate.release(1000)
        taking.join()
    assert got == [MIB]


def test_a_source_that_ends_below_the_high_mark_is_handed_out_at_once() -> None:
    waits = Waits()
    with feed(Source(2), waits) as ring:
        assert [len(chunk) for chunk in ring] == [MIB, 77]
    assert waits == Waits()


def test_a_full_ring_is_refilled_only_from_the_low_mark_on() -> None:
    source = Source(100)
    with feed(source) as ring:
        chunks = iter(ring)
        wait_for(lambda: source.asked == BUFFERS + 1)
        for _ in range(3):
            next(chunks)
        assert source.asked == BUFFERS + 1
        for _ in range(3):
            next(chunks)
        wait_for(lambda: source.asked > BUFFERS + 1)


def test_a_ring_that_ran_empty_counts_one_wait_and_fills_to_the_high_mark_again() -> None:
    source, waits = Source(40), Waits()
    source.gate = threading.Semaphore(BUFFERS)
    now = [100.0]
    with feed(source, waits, monotonic=lambda: now[0]) as ring:  # type: ignore[arg-type] # a clock
        chunks = iter(ring)
        wait_for(lambda: source.asked == BUFFERS)
        for _ in range(BUFFERS):
            next(chunks)
        got: list[int] = []
        taking = threading.Thread(target=lambda: got.append(len(next(chunks))))
        taking.start()
        source.gate.release(2)
        wait_for(lambda: source.asked == BUFFERS + 2)
        assert not got
        now[0] += 2.5
        source.gate.release(1000)
        taking.join()
        assert sum(1 for _ in chunks) == 40 - BUFFERS - 1
    # Later short ones, since the source is no faster than its reader here, are none that a drive would feel.
    assert waits.waits >= 1
    assert waits.repositions == 1
    assert waits.waited_s == pytest.approx(2.5)


def test_an_error_of_the_source_comes_after_the_chunks_before_it() -> None:
    with feed(Source(9, fails_at=4)) as ring:
        chunks = iter(ring)
        assert [next(chunks)[0] for _ in range(4)] == [0, 1, 2, 3]
        with pytest.raises(IntegrityError, match="damaged"):
            next(chunks)


def test_who_stops_early_leaves_no_thread_behind() -> None:
    source = Source(100)
    before = threading.active_count()
    with feed(source) as ring:
        next(iter(ring))
    assert source.closed
    assert threading.active_count() == before


def test_a_wait_for_the_source_can_be_stopped() -> None:
    source, cancel = Source(100), Cancel()
    source.gate = threading.Semaphore(0)
    cancel.set("enough")
    with feed(source, cancel=cancel) as ring:
        with pytest.raises(Cancelled):
            next(iter(ring))
        source.gate.release(1000)


def test_one_record_alone_needs_no_ring_and_its_source_is_closed() -> None:
    before = threading.active_count()
    closed = []

    def source() -> Iterator[memoryview]:
        try:
            yield memoryview(b"alone")
        finally:
            closed.append(True)

    with fed(source(), 1, 32 * MIB, Waits(), Cancel()) as chunks:
        assert bytes(next(chunks)) == b"alone"
        assert threading.active_count() == before
    assert closed == [True]
