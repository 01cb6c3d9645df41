"""The seam of the source room: what every kind of store can do."""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from nightferry.image.writer import ImageWriter
from nightferry.model.text import safe
from nightferry.progress import Cancel, Progress


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a store holds before it is read: bytes of content as they will be stored, and paths."""

    bytes: int
    files: int


def describe_path(path: bytes) -> dict[str, str]:
    """A path for an image's header: as text, and exactly when it is not UTF-8."""
    try:
        return {"path": path.decode()}
    except UnicodeDecodeError:
        return {"path": safe(path, 4096), "path_b64": base64.b64encode(path).decode()}


class StoreSource(Protocol):
    """A store that can be read once, in one pass."""

    kind: ClassVar[str]

    @property
    def description(self) -> dict[str, Any]:
        """What was asked for, for the image's header: plain JSON without secrets."""

    def estimate(self) -> Estimate:
        """How much is to come, without reading any content.

        Raises:
            ConfigError: the store does not exist.
            StoreUnreadable: it cannot be read at all, perhaps only for now.
        """

    def write(self, image: ImageWriter, *, progress: Progress, cancel: Cancel, subject: str) -> None:
        """Brings every path of the store into the image, each with its outcome.

        Progress is told as payload bytes of the image. The caller begins and ends the subject, and finishes
        the image.

        Raises:
            ConfigError: the store does not exist.
            StoreUnreadable: it cannot be read at all, perhaps only for now.
            Cancelled: a stop was asked for.
        """

    def close(self) -> None:
        """Gives everything back. May be called twice."""


class Pulse:
    """Between two pieces of work: looks at the request to stop, and now and then tells the progress."""

    _INTERVAL_S = 0.2

    def __init__(self, progress: Progress, cancel: Cancel, subject: str) -> None:
        self._progress = progress
        self._cancel = cancel
        self._subject = subject
        self._next = 0.0
        self.current: bytes = b""
        """The path at hand."""

    def __call__(self, done_bytes: int) -> None:
        """Raises:
        Cancelled: a stop was asked for.
        """
        self._cancel.check()
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._INTERVAL_S
            self._progress.advance(self._subject, done_bytes, safe(self.current))
