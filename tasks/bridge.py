"""The bridge between the core and Prefect: progress, log, cancel and the opened site."""

from __future__ import annotations

import contextvars
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from uuid import UUID

import httpx
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.client.orchestration import get_client
from prefect.exceptions import FailedRun, ObjectNotFound, PrefectHTTPStatusError
from prefect.logging.handlers import APILogHandler
from prefect.runtime import flow_run
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from blocks.secret import read_secret_block
from blocks.site import Site
from nightferry.errors import NightferryError, in_tree
from nightferry.model.load import LoadedSite
from nightferry.model.secrets import use_blocks
from nightferry.progress import Cancel, Progress
from nightferry.signals import prompt_signals
from nightferry.site.opened import OpenSite
from nightferry.units import format_size
from tasks.folders import adopt_worker_folders

log = logging.getLogger(__name__)

MIN_UPDATE_S = 2.0
"""At most one progress update in this time reaches Prefect."""

CANCEL = Cancel()
"""The process's one stop request: set by SIGTERM (Prefect cancels a run with it) and SIGINT."""

CANCEL_POLL_S = 3.0
"""How often a night by hand asks whether it was cancelled in the UI."""

SignalHandler = Callable[[int, FrameType | None], object]

_POST = ThreadPoolExecutor(max_workers=1, thread_name_prefix="progress")

_open_sites: dict[str, OpenSite] = {}
_lock = threading.Lock()
_terminal: Progress | None = None
_on_signal: SignalHandler | None = None


def opened(site: Site) -> OpenSite:
    """The site opened once in this process, shared by all tasks.

    Raises:
        ConfigError: a worker started this process, and its node does not allow the site file; or that is not as it
            must be.
    """
    with _lock:
        digest = site.digest
        if digest not in _open_sites:
            use_blocks(read_secret_block)
            loaded: LoadedSite = site.open()
            _open_sites[digest] = OpenSite(loaded, progress=PrefectProgress(), cancel=CANCEL)
        return _open_sites[digest]


def serve(terminal: Progress, on_signal: SignalHandler) -> None:
    """Names the command line's own sink, beside Prefect's artifacts, and what it does at a signal."""
    global _terminal, _on_signal
    _terminal = terminal
    _on_signal = on_signal


@contextmanager
def at_work() -> Iterator[None]:
    """Around a flow's body: the core's log reaches Prefect, and a stop request reaches the core.

    Prefect would raise at a signal wherever the main thread is, while other threads still write. Here the
    first one only asks: every thread stops at its next chunk. The second is Prefect's, or the command
    line's, to handle.

    Raises:
        NightferryError: what the body raised, as one that is known by its name wherever the flow was asked for.
    """
    adopt_worker_folders()
    try:
        with _stoppable(), _cancelled_from_prefect():
            yield
    except NightferryError as error:
        named = in_tree(error)
        if named is error:
            raise
        raise named from error


@contextmanager
def _stoppable() -> Iterator[None]:
    _send_core_logs_to_prefect()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        again = CANCEL.is_set()
        # This thread may hold the very lock that setting takes: another thread can wait for it.
        reason = f"{signal.Signals(number).name} received"
        threading.Thread(target=CANCEL.set, args=(reason,), daemon=True).start()
        previous = before[number]
        if _on_signal is not None:
            _on_signal(number, frame)
        elif again and callable(previous):
            previous(number, frame)

    for number in (signal.SIGTERM, signal.SIGINT):
        before[int(number)] = signal.signal(number, stop)
    try:
        with prompt_signals():
            yield
    finally:
        for installed, previous in before.items():
            signal.signal(installed, previous)


@contextmanager
def _cancelled_from_prefect() -> Iterator[None]:
    """A cancel in the UI reaches a night that the command line runs: no worker is there to send it a signal."""
    run = flow_run.get_id()
    if _terminal is None or run is None or flow_run.get_parent_flow_run_id() is not None:
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        with get_client(sync_client=True) as client:
            while not ended.wait(CANCEL_POLL_S):
                try:
                    state = client.read_flow_run(UUID(run)).state
                except (httpx.HTTPError, PrefectHTTPStatusError, ObjectNotFound) as error:
                    log.debug("the Prefect server does not say whether the night was cancelled: %s", error)
                    continue
                if state is not None and (state.is_cancelling() or state.is_cancelled()):
                    CANCEL.set("cancelled in Prefect")
                    return

    watcher = threading.Thread(target=watch, name="cancelled from Prefect", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _send_core_logs_to_prefect() -> None:
    core = logging.getLogger("nightferry")
    # The command line has its own words for a terminal; a worker's log shows the core's.
    core.propagate = _terminal is None
    if not any(isinstance(handler, APILogHandler) for handler in core.handlers):
        core.addHandler(APILogHandler())
    if core.level == logging.NOTSET:
        core.setLevel(logging.INFO)
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        if _OWN_ERRORS not in logger.filters:
            logger.addFilter(_OWN_ERRORS)


class _OwnErrors(logging.Filter):
    """An error of our own says what happened and what to do: its traceback would only hide that."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, NightferryError | FailedRun):
            more = error.hint if isinstance(error, NightferryError) else str(error)
            record.msg = f"{record.getMessage()}; {more}"
            record.args = ()
            record.exc_info = None
        return True


_OWN_ERRORS = _OwnErrors()


@dataclass(slots=True)
class _Shown:
    """One subject's progress as Prefect has it; no artifact while it is too young for one."""

    description: str
    total_bytes: int | None
    sent: float
    artifact: UUID | None = None
    is_due: bool = False


class PrefectProgress:
    """A progress artifact for what takes longer than ``MIN_UPDATE_S``; at most one update in that time.

    An artifact that cannot be written (the server is away) is said once in the log and never stops the work.
    """

    def __init__(self) -> None:
        self._shown: dict[str, _Shown] = {}
        self._away = False

    def begin(self, subject: str, phase: str, total_bytes: int | None = None) -> None:
        if _terminal is not None:
            _terminal.begin(subject, phase, total_bytes)
        size = "" if total_bytes is None else f", {format_size(total_bytes)}"
        self._shown[subject] = _Shown(f"{phase} {subject}{size}", total_bytes, time.monotonic())

    def advance(self, subject: str, done_bytes: int, current: str = "") -> None:
        if _terminal is not None:
            _terminal.advance(subject, done_bytes, current)
        shown = self._shown.get(subject)
        if shown is None or not shown.total_bytes or time.monotonic() - shown.sent < MIN_UPDATE_S:
            return
        shown.is_due = True
        # A growing store may pass what was expected; it is whole only when it ends.
        self._show(shown, min(99.0, round(100.0 * done_bytes / shown.total_bytes, 1)))

    def end(self, subject: str, result: str) -> None:
        if _terminal is not None:
            _terminal.end(subject, result)
        shown = self._shown.pop(subject, None)
        if shown is not None and shown.is_due and result not in ("failed", "cancelled"):
            self._show(shown, 100.0)

    def say(self, text: str, subject: str = "") -> None:
        if _terminal is not None:
            _terminal.say(text, subject)
        logging.getLogger("nightferry.night").info("%s", text)

    def _show(self, shown: _Shown, percent: float) -> None:
        shown.sent = time.monotonic()
        # The artifact belongs to the run whose context this is; the bytes do not wait for the server.
        context = contextvars.copy_context()
        _POST.submit(context.run, self._send, shown, percent)

    def _send(self, shown: _Shown, percent: float) -> None:
        if self._away:
            return
        try:
            # What is not shown now is shown in two seconds: nothing is asked twice.
            with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
                if shown.artifact is None:
                    created = create_progress_artifact(percent, description=shown.description)
                    shown.artifact = created if isinstance(created, UUID) else None
                else:
                    update_progress_artifact(artifact_id=shown.artifact, progress=percent)
        except PrefectHTTPStatusError:
            return  # the server is busy
        except Exception as error:  # noqa: BLE001 - showing progress must not stop the work
            self._server_is_away(error)

    def _server_is_away(self, error: Exception) -> None:
        self._away = True
        log.warning("progress is no longer shown in Prefect: %s", error)
