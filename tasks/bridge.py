"""The bridge between the core and Prefect: progress, log, cancel and the opened site."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.logging.handlers import APILogHandler

from blocks.site import Site
from nightferry.model.load import LoadedSite
from nightferry.ops.opened import OpenSite
from nightferry.progress import Cancel, Progress

log = logging.getLogger(__name__)

MIN_UPDATE_S = 2.0
"""At most one progress update in this time reaches Prefect."""

CANCEL = Cancel()
"""The process's one stop request: set by SIGTERM (Prefect cancels a run with it) and SIGINT."""

_open_sites: dict[str, OpenSite] = {}
_lock = threading.Lock()
_terminal: Progress | None = None


def opened(site: Site) -> OpenSite:
    """The site opened once in this process, shared by all tasks."""
    with _lock:
        digest = site.digest
        if digest not in _open_sites:
            loaded: LoadedSite = site.open()
            _open_sites[digest] = OpenSite(loaded)
        return _open_sites[digest]


def show_on(terminal: Progress | None) -> None:
    """The command line's own sink, beside Prefect's artifacts."""
    global _terminal
    _terminal = terminal


@contextmanager
def at_work() -> Iterator[None]:
    """Around a flow's body: the core's log reaches Prefect, and a stop request reaches the core.

    Signals are only taken over in the main thread; what was installed before is called as well.
    """
    _send_core_logs_to_prefect()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        CANCEL.set(f"signal {signal.Signals(number).name}")
        previous = before[number]
        if callable(previous):
            previous(number, frame)

    for number in (signal.SIGTERM, signal.SIGINT):
        before[int(number)] = signal.signal(number, stop)
    try:
        yield
    finally:
        for installed, previous in before.items():
            signal.signal(installed, previous)


def _send_core_logs_to_prefect() -> None:
    core = logging.getLogger("nightferry")
    # The command line has its own words for a terminal; a worker's log shows the core's.
    core.propagate = _terminal is None
    if not any(isinstance(handler, APILogHandler) for handler in core.handlers):
        core.addHandler(APILogHandler())
    if core.level == logging.NOTSET:
        core.setLevel(logging.INFO)


class PrefectProgress:
    """A progress artifact per subject, at most one update in ``MIN_UPDATE_S``.

    An artifact that cannot be written (the server is away) is said once in the log and never stops the work.
    """

    def __init__(self) -> None:
        self._artifacts: dict[str, UUID] = {}
        self._totals: dict[str, int | None] = {}
        self._sent: dict[str, float] = {}
        self._away = False

    def begin(self, subject: str, phase: str, total_bytes: int | None = None) -> None:
        if _terminal is not None:
            _terminal.begin(subject, phase, total_bytes)
        self._totals[subject] = total_bytes
        self._sent[subject] = time.monotonic()
        if self._away:
            return
        try:
            created = create_progress_artifact(progress=0.0, key=None, description=f"{phase} {subject}")
        except Exception as error:  # noqa: BLE001 - showing progress must not stop the work
            self._server_is_away(error)
        else:
            if isinstance(created, UUID):
                self._artifacts[subject] = created

    def advance(self, subject: str, done_bytes: int, current: str = "") -> None:
        if _terminal is not None:
            _terminal.advance(subject, done_bytes, current)
        total = self._totals.get(subject)
        now = time.monotonic()
        if not total or now - self._sent.get(subject, now) < MIN_UPDATE_S:
            return
        self._sent[subject] = now
        self._update(subject, min(100.0, 100.0 * done_bytes / total))

    def end(self, subject: str, result: str) -> None:
        if _terminal is not None:
            _terminal.end(subject, result)
        if result != "failed":
            self._update(subject, 100.0)

    def say(self, text: str, subject: str = "") -> None:
        if _terminal is not None:
            _terminal.say(text, subject)
        logging.getLogger("nightferry.night").info("%s", text)

    def _update(self, subject: str, percent: float) -> None:
        artifact = self._artifacts.get(subject)
        if artifact is None or self._away:
            return
        try:
            update_progress_artifact(artifact_id=artifact, progress=percent)
        except Exception as error:  # noqa: BLE001 - showing progress must not stop the work
            self._server_is_away(error)

    def _server_is_away(self, error: Exception) -> None:
        self._away = True
        log.warning("progress is no longer shown in Prefect: %s", error)
