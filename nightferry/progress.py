"""How the core says how far it is, and how it is told to stop.

An op takes a ``Progress`` and a ``Cancel``. The sinks (a bar on a terminal, JSON lines, a Prefect artifact)
live where they are shown; the core only calls ``advance`` and ``say``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from nightferry.errors import Cancelled


class Progress(Protocol):
    """A sink for progress. Every method may be called from several threads and must be cheap."""

    def begin(self, subject: str, phase: str, total_bytes: int | None = None) -> None:
        """Work on ``subject`` (a store, an image) in ``phase`` (``stage``, ``restore`` ...) begins."""

    def advance(self, subject: str, done_bytes: int, current: str = "") -> None:
        """``done_bytes`` so far, absolute; ``current`` is the file at hand, already made safe to show."""

    def end(self, subject: str, result: str) -> None:
        """``result`` is a word: ``whole``, ``partial``, ``failed``, ``cancelled``."""

    def say(self, text: str, subject: str = "") -> None:
        """A milestone an operator wants to read."""


class Quiet:
    """The sink that shows nothing."""

    def begin(self, subject: str, phase: str, total_bytes: int | None = None) -> None: ...
    def advance(self, subject: str, done_bytes: int, current: str = "") -> None: ...
    def end(self, subject: str, result: str) -> None: ...
    def say(self, text: str, subject: str = "") -> None: ...


QUIET = Quiet()


class Cancel:
    """A request to stop, seen by every thread of an op at its next chunk."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._reason = ""
        self._lock = threading.Lock()
        self._narrower: list[Cancel] = []

    def set(self, reason: str) -> None:
        with self._lock:
            self._reason = reason
            self._event.set()
            narrower = list(self._narrower)
        for each in narrower:
            each.set(reason)

    @contextmanager
    def narrower(self) -> Iterator[Cancel]:
        """A request that can be made to a part of the work alone; one to the whole reaches it as well."""
        part = Cancel()
        with self._lock:
            self._narrower.append(part)
            if self._event.is_set():
                part.set(self._reason)
        try:
            yield part
        finally:
            with self._lock:
                self._narrower.remove(part)

    def is_set(self) -> bool:
        return self._event.is_set()

    def check(self) -> None:
        """Raises:
        Cancelled: when a stop was asked for.
        """
        if self._event.is_set():
            raise Cancelled(f"stopped: {self._reason}")

    def wait(self, seconds: float) -> None:
        """Waits, or returns early by raising.

        Raises:
            Cancelled: when a stop is asked for meanwhile.
        """
        self._event.wait(seconds)
        self.check()
