"""One back-off for all streams to an endpoint: when it asks one of them to slow down, all of them do."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import TypeVar

from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.progress import Cancel

ATTEMPTS = 8
"""Tries of one request. At 30 % of refusals seven in a hundred thousand requests use them up."""
FIRST_S = 0.25
MOST_S = 30.0
SLICE_S = 0.5
"""A wait looks at its cancel this often."""

T = TypeVar("T")


class Backoff:
    """Runs requests, again where that can help, and never while the endpoint is given a rest.

    A refusal doubles the rest, an answer halves it. Refusals of requests that were under way when the rest
    began say nothing new and do not count again: eight streams refused at once are one refusal.

    Args:
        passing: Whether an error may be gone at the next try.
        clock: Where time comes from.
        attempts: Tries of one request.
        first_s: The first rest; later ones are up to twice the one before, to ``MOST_S``.
    """

    def __init__(
        self,
        passing: Callable[[Exception], bool],
        *,
        clock: Clock = SYSTEM_CLOCK,
        attempts: int = ATTEMPTS,
        first_s: float = FIRST_S,
    ) -> None:
        self._passing = passing
        self._clock = clock
        self._attempts = attempts
        self._first_s = first_s
        self._lock = threading.Lock()
        self._level = 0
        self._rests = 0
        self._until = 0.0

    @property
    def clock(self) -> Clock:
        """By which it waits."""
        return self._clock

    @property
    def level(self) -> int:
        """How often the rest has been doubled; 0 when the endpoint answers."""
        return self._level

    def run(self, request: Callable[[], T], cancel: Cancel) -> T:
        """The request's result.

        Raises:
            Cancelled: a stop was asked for between two tries.
            Exception: what the request raised, when it is not passing or was tried often enough.
        """
        for left in range(self._attempts - 1, -1, -1):
            rests = self._rest(cancel)
            try:
                result = request()
            except Exception as error:
                if not self._passing(error):
                    raise
                self._refused(rests)
                if not left:
                    raise
            else:
                with self._lock:
                    self._level = max(0, self._level - 1)
                return result
        raise AssertionError("unreachable")

    def _rest(self, cancel: Cancel) -> int:
        """Waits for the rest to end; returns how many there were so far."""
        while True:
            cancel.check()
            with self._lock:
                left = self._until - self._clock.monotonic()
                if left < 0.001:  # what floating point leaves over
                    return self._rests
            self._clock.sleep(min(left, SLICE_S))

    def _refused(self, rests: int) -> None:
        with self._lock:
            if rests < self._rests:
                return
            self._rests += 1
            longest = min(MOST_S, self._first_s * 2**self._level)
            self._level = min(self._level + 1, 16)
            self._until = self._clock.monotonic() + longest * random.uniform(0.5, 1.0)
