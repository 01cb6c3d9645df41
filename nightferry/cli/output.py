"""What the command line shows: results on stdout, progress and errors on stderr, all of it as JSON on demand.

Everything foreign passes `nightferry.model.text` here. rich and the sinks are imported when they are needed.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shutil
import sys
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum
from pathlib import PurePath
from typing import IO, TYPE_CHECKING, Any

from nightferry.errors import NightferryError
from nightferry.model.text import safe, safe_lines

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from nightferry.cli.sinks import Sink

PIPE_WIDTH = 1000
"""Columns of a table that no terminal shows: wide enough that nothing is wrapped."""


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A column of a result table. ``right`` aligns figures; ``style`` is rich's."""

    name: str
    right: bool = False
    style: str = ""


class Output:
    """Where a command's words go.

    Args:
        as_json: Results become JSON documents on stdout, progress JSON lines on stderr.
        stdout: For results.
        stderr: For progress and errors.
    """

    def __init__(self, as_json: bool, stdout: IO[str] | None = None, stderr: IO[str] | None = None) -> None:
        self.as_json = as_json
        self._stdout = stdout or sys.stdout
        self._stderr = stderr or sys.stderr
        self._sink: Sink | None = None

    @property
    def progress(self) -> Sink:
        """The progress sink: a bar on a terminal, lines elsewhere, JSON lines under --json."""
        if self._sink is None:
            from nightferry.cli.sinks import JsonLinesProgress, LinesProgress, TerminalProgress

            if self.as_json:
                self._sink = JsonLinesProgress(self._stderr)
            elif self._stderr.isatty():
                self._sink = TerminalProgress(self._stderr)
            else:
                self._sink = LinesProgress(self._stderr)
        return self._sink

    def result(self, document: Mapping[str, Any], *shown: RenderableType) -> None:
        """Ends a command's work: ``document`` under --json, else ``shown``, one below the other.

        A plain string among ``shown`` is text, not markup; it is made safe line by line.
        """
        self.close()
        if self.as_json:
            self._write(dump_json(document) + "\n")
        elif shown:
            self._write(self._draw(shown))

    def say(self, text: str) -> None:
        """A milestone, on stderr."""
        self.progress.say(text)

    def say_now(self, text: str) -> None:
        """The same from a signal handler: past every buffer and lock that the interrupted code may hold."""
        line = dump_json({"progress": "say", "subject": "", "text": text}) if self.as_json else safe(text)
        try:
            os.write(self._stderr.fileno(), line.encode() + b"\n")
        except OSError:
            return  # nobody reads stderr, and the exit code still tells

    def error(self, error: NightferryError, exit_code: int | None = None) -> None:
        """An error: message and hint on stderr, and the error document on stdout under --json."""
        self.close()
        if self.as_json:
            document = error.as_json()
            if exit_code is not None:
                document = {"error": {**_entries(document["error"]), "exit_code": exit_code}}
            self._write(dump_json(document) + "\n")
            return
        self._stderr.write(f"nightferry: {safe_lines(error.message)}\n")
        if error.hint:
            self._stderr.write(f"  hint: {safe_lines(error.hint)}\n")
        self._stderr.flush()

    def close(self) -> None:
        """Takes the progress display off the terminal. May be called twice."""
        if self._sink is not None:
            self._sink.close()

    def _write(self, text: str) -> None:
        self._stdout.write(text)
        self._stdout.flush()

    def _draw(self, shown: Sequence[RenderableType]) -> str:
        if all(isinstance(item, str) for item in shown):
            text = "".join(f"{safe_lines(str(item))}\n" for item in shown)
            if not self._stdout.isatty() or _fits(text):
                return text
        from rich.console import Console
        from rich.text import Text

        on_terminal = self._stdout.isatty()
        buffer = _Page(getattr(self._stdout, "encoding", None))
        console = Console(
            file=buffer,
            force_terminal=on_terminal,
            width=None if on_terminal else PIPE_WIDTH,
            markup=False,
            highlight=False,
            emoji=False,
            soft_wrap=not on_terminal,
        )
        for item in shown:
            console.print(Text(safe_lines(item)) if isinstance(item, str) else item)
        return buffer.getvalue()


class _Page(io.StringIO):
    """What rich draws on, for a stream of this encoding: without line-drawing characters where it lacks them."""

    def __init__(self, encoding: str | None) -> None:
        super().__init__()
        self._encoding = encoding or "utf-8"

    @property
    def encoding(self) -> str:  # type: ignore[override] # a class attribute there
        return self._encoding


def _fits(text: str) -> bool:
    """Whether the terminal shows every line as it is, so that nothing need be wrapped between words."""
    return max(map(len, text.split("\n"))) <= shutil.get_terminal_size().columns


def table(columns: Sequence[Column | str], rows: Sequence[Sequence[object]], title: str = "") -> Table:
    """A result table. Every cell is shown as safe text; None is shown as ``-``, a rich Text as it is."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(
        title=Text(safe(title)) if title else None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for column in columns:
        spec = Column(column) if isinstance(column, str) else column
        drawn.add_column(
            Text(spec.name), justify="right" if spec.right else "left", style=spec.style, overflow="fold"
        )
    for row in rows:
        drawn.add_row(*(cell if isinstance(cell, Text) else Text(_cell(cell)) for cell in row))
    return drawn


def dump_json(document: object) -> str:
    """A document as one line of pure ASCII; times are ISO 8601 in UTC, durations seconds, records objects."""
    return json.dumps(document, default=_plain, ensure_ascii=True, allow_nan=False)


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).isoformat().replace("+00:00", "Z")
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, PurePath):
        return safe(str(value), longest=1 << 16)
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return sorted(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)}
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    raise TypeError(f"a {type(value).__name__} cannot be put into a JSON document")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bytes):
        return safe(value)
    return safe(str(value))


def _entries(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, Mapping) else {}
