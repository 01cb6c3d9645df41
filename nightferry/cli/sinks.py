"""Where progress is shown: a bar on a terminal, lines in a log, JSON lines for a program."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import IO, TYPE_CHECKING, Protocol

from nightferry.model.text import safe
from nightferry.progress import Progress
from nightferry.units import format_duration, format_size

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

JSON_EVERY_S = 1.0
"""Seconds between two lines about the same subject."""
CURRENT_SHOWN = 48


class Sink(Progress, Protocol):
    """Progress that holds something while it shows: a terminal's last lines."""

    def close(self) -> None:
        """Gives it back. May be called twice; later progress opens it again."""


@dataclass(slots=True)
class _Work:
    phase: str
    total_bytes: int | None
    begun: float
    done_bytes: int = 0
    told: float = float("-inf")

    def rate(self, now: float) -> float:
        """Bytes a second since the beginning; 0 when there is no time to divide by."""
        return self.done_bytes / (now - self.begun) if now > self.begun else 0.0

    def left_s(self, now: float) -> float | None:
        """Seconds that the rest takes at this rate; None when nobody can say."""
        rate = self.rate(now)
        if self.total_bytes is None or rate <= 0:
            return None
        return max(0, self.total_bytes - self.done_bytes) / rate


class _Works:
    """What is being worked on, by subject."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.lock = threading.Lock()
        self._works: dict[str, _Work] = {}

    def begin(self, subject: str, phase: str, total_bytes: int | None) -> None:
        self._works[subject] = _Work(phase, total_bytes, self.clock())

    def advance(self, subject: str, done_bytes: int) -> _Work:
        work = self._works.setdefault(subject, _Work("", None, self.clock()))
        work.done_bytes = done_bytes
        return work

    def end(self, subject: str) -> _Work:
        return self._works.pop(subject, _Work("", None, self.clock()))


class JsonLinesProgress:
    """One JSON object a line. ``progress`` says what it is: begin, advance, end or say.

    Args:
        stream: Where the lines go.
        clock: Seconds, for the rate.
    """

    def __init__(self, stream: IO[str], clock: Callable[[], float] = monotonic) -> None:
        self._stream = stream
        self._works = _Works(clock)

    def begin(self, subject: str, phase: str, total_bytes: int | None = None) -> None:
        with self._works.lock:
            self._works.begin(subject, phase, total_bytes)
            self._line("begin", subject=subject, phase=phase, total_bytes=total_bytes)

    def advance(self, subject: str, done_bytes: int, current: str = "") -> None:
        with self._works.lock:
            work, now = self._works.advance(subject, done_bytes), self._works.clock()
            if now - work.told < JSON_EVERY_S:
                return
            work.told = now
            left_s = work.left_s(now)
            self._line(
                "advance",
                subject=subject,
                phase=work.phase,
                done_bytes=done_bytes,
                total_bytes=work.total_bytes,
                rate_bytes_per_s=round(work.rate(now)),
                left_s=None if left_s is None else round(left_s, 1),
                current=current,
            )

    def end(self, subject: str, result: str) -> None:
        with self._works.lock:
            work = self._works.end(subject)
            self._line("end", subject=subject, phase=work.phase, result=result, done_bytes=work.done_bytes)

    def say(self, text: str, subject: str = "") -> None:
        with self._works.lock:
            self._line("say", subject=subject, text=text)

    def close(self) -> None:
        """Nothing is held."""

    def _line(self, what: str, **fields: object) -> None:
        self._stream.write(json.dumps({"progress": what, **fields}, ensure_ascii=True) + "\n")
        self._stream.flush()


class LinesProgress:
    """Plain lines where stderr is not a terminal: what begins, what ended and how, what was said.

    Args:
        stream: Where the lines go.
        clock: Seconds, for the rate.
    """

    def __init__(self, stream: IO[str], clock: Callable[[], float] = monotonic) -> None:
        self._stream = stream
        self._works = _Works(clock)

    def begin(self, subject: str, phase: str, total_bytes: int | None = None) -> None:
        with self._works.lock:
            self._works.begin(subject, phase, total_bytes)
            size = "" if total_bytes is None else f", {format_size(total_bytes)}"
            self._line(f"{safe(phase)} {safe(subject)}{size}")

    def advance(self, subject: str, done_bytes: int, current: str = "") -> None:
        with self._works.lock:
            self._works.advance(subject, done_bytes)

    def end(self, subject: str, result: str) -> None:
        with self._works.lock:
            work, now = self._works.end(subject), self._works.clock()
            spent = format_duration(now - work.begun)
            self._line(
                f"{safe(phase)} {safe(subject)}: {safe(result)}, {format_size(work.done_bytes)} in {spent}"
                if (phase := work.phase)
                else f"{safe(subject)}: {safe(result)}"
            )

    def say(self, text: str, subject: str = "") -> None:
        with self._works.lock:
            self._line(f"{safe(subject)}: {safe(text)}" if subject else safe(text))

    def close(self) -> None:
        """Nothing is held."""

    def _line(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


class TerminalProgress:
    """A bar a subject: phase, share, rate, time left, current file.

    Args:
        stream: The terminal.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._bars: RichProgress | None = None
        self._tasks: dict[str, TaskID] = {}

    def begin(self, subject: str, phase: str, total_bytes: int | None = None) -> None:
        with self._lock:
            bars = self._opened()
            if subject in self._tasks:
                bars.remove_task(self._tasks.pop(subject))
            self._tasks[subject] = bars.add_task(
                safe(subject), total=total_bytes, phase=safe(phase), current=""
            )

    def advance(self, subject: str, done_bytes: int, current: str = "") -> None:
        with self._lock:
            task = self._tasks.get(subject)
            if task is not None:
                shown = safe(current)
                if len(shown) > CURRENT_SHOWN:
                    shown = "…" + shown[1 - CURRENT_SHOWN :]
                self._opened().update(task, completed=done_bytes, current=shown)

    def end(self, subject: str, result: str) -> None:
        with self._lock:
            task = self._tasks.pop(subject, None)
            bars = self._opened()
            if task is None:
                bars.console.print(f"{safe(subject)}: {safe(result)}", markup=False, highlight=False)
                return
            # What has ended becomes a line above the bars, so that a night of many stores fits the screen.
            state = bars.tasks[bars.task_ids.index(task)]
            spent, done = state.elapsed or 0.0, format_size(state.completed)
            line = (
                f"{state.fields['phase']} {safe(subject)}: {safe(result)}, {done} in {format_duration(spent)}"
            )
            bars.remove_task(task)
            bars.console.print(line, markup=False, highlight=False)

    def say(self, text: str, subject: str = "") -> None:
        line = f"{safe(subject)}: {safe(text)}" if subject else safe(text)
        with self._lock:
            if self._bars is None:
                self._stream.write(line + "\n")
                self._stream.flush()
            else:
                self._bars.console.print(line, markup=False, highlight=False)

    def close(self) -> None:
        with self._lock:
            if self._bars is not None:
                self._bars.stop()
                self._bars = None
                self._tasks.clear()

    def _opened(self) -> RichProgress:
        if self._bars is None:
            self._bars = _bars(self._stream)
            self._bars.start()
        return self._bars


def _bars(stream: IO[str]) -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task
    from rich.text import Text

    class Words(ProgressColumn):
        """One of a task's texts, as text: never markup."""

        def __init__(self, words: Callable[[Task], str], style: str = "") -> None:
            super().__init__()
            self._words, self._style = words, style

        def render(self, task: Task) -> Text:
            return Text(self._words(task), style=self._style, overflow="ellipsis", no_wrap=True)

    def size(task: Task) -> str:
        done = format_size(task.completed)
        return done if task.total is None else f"{done} of {format_size(task.total)}"

    def left(task: Task) -> str:
        return "" if task.time_remaining is None else f"{format_duration(task.time_remaining)} left"

    return Progress(
        Words(lambda task: str(task.fields["phase"]), "cyan"),
        Words(lambda task: task.description, "bold"),
        BarColumn(bar_width=24),
        Words(size),
        Words(lambda task: f"{format_size(task.speed)}/s" if task.speed else "", "green"),
        Words(left),
        Words(lambda task: str(task.fields["current"]), "dim"),
        console=Console(file=stream, force_terminal=True, markup=False, highlight=False),
        refresh_per_second=4,
        transient=True,
    )
