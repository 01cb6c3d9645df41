"""One back-off: all streams rest together, and no longer than it helps."""

from __future__ import annotations

import itertools
import threading

import pytest

from nightferry.destination.s3.backoff import Backoff
from nightferry.errors import Cancelled
from nightferry.progress import Cancel
from tests.support.small_site import HandClock


class Refused(Exception):
    pass


def failing(times: int, calls: list[float], clock: HandClock) -> str:
    calls.append(clock.monotonic())
    if len(calls) <= times:
        raise Refused
    return "done"


def backoff(clock: HandClock, attempts: int = 8) -> Backoff:
    return Backoff(lambda error: isinstance(error, Refused), clock=clock, attempts=attempts)


def test_rests_grow_and_shrink_again() -> None:
    clock, calls = HandClock(), list[float]()
    rests = backoff(clock)
    assert rests.run(lambda: failing(5, calls, clock), Cancel()) == "done"
    gaps = [b - a for a, b in itertools.pairwise(calls)]
    for number, gap in enumerate(gaps):
        assert 0.1 * 2**number <= gap <= 0.26 * 2**number
    assert rests.level == 4
    for _ in range(4):
        rests.run(lambda: None, Cancel())
    assert rests.level == 0


def test_it_ends_with_the_last_refusal() -> None:
    clock, calls = HandClock(), list[float]()
    with pytest.raises(Refused):
        backoff(clock, 3).run(lambda: failing(9, calls, clock), Cancel())
    assert len(calls) == 3


def test_what_no_try_helps_is_not_tried_again() -> None:
    calls = []

    def broken() -> None:
        calls.append(1)
        raise ValueError

    with pytest.raises(ValueError):
        backoff(HandClock()).run(broken, Cancel())
    assert len(calls) == 1


def test_another_stream_rests_too() -> None:
    clock, calls = HandClock(), list[float]()
    rests = backoff(clock, 1)
    with pytest.raises(Refused):
        rests.run(lambda: failing(1, calls, clock), Cancel())
    rests.run(lambda: calls.append(clock.monotonic()), Cancel())
    assert calls[1] - calls[0] >= 0.12


def test_streams_refused_together_are_one_refusal() -> None:
    clock = HandClock()
    rests = backoff(clock, 1)

    def refused_while_another_is() -> None:
        with pytest.raises(Refused):
            rests.run(lambda: failing(1, [], clock), Cancel())
        raise Refused

    with pytest.raises(Refused):
        rests.run(refused_while_another_is, Cancel())
    assert rests.level == 1


def test_a_stop_ends_the_rest() -> None:
    clock, cancel = HandClock(), Cancel()

    def refused() -> None:
        cancel.set("by hand")
        raise Refused

    with pytest.raises(Cancelled):
        backoff(clock).run(refused, cancel)


def test_eight_streams_refused_at_once_rest_together_for_one_refusal() -> None:
    clock = HandClock()
    rests = backoff(clock)
    together = threading.Barrier(8)
    refused = set[int]()
    again = list[float]()

    def request() -> None:
        if threading.get_ident() not in refused:
            together.wait(30)
            refused.add(threading.get_ident())
            raise Refused
        again.append(clock.monotonic())

    began = clock.monotonic()
    threads = [threading.Thread(target=rests.run, args=(request, Cancel())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(again) == 8
    assert min(again) - began >= 0.12
    assert rests.level == 0  # one refusal, then answers
