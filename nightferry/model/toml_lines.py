"""On which line of a TOML text each key stands, which tomllib does not tell.

Only for texts that tomllib accepts: the scan need not find errors, only places.
"""

from __future__ import annotations

import re
import tomllib

Path = tuple[str | int, ...]

_KEY = r"""(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[A-Za-z0-9_-]+)"""
_DOTTED = re.compile(rf"{_KEY}(?:[ \t]*\.[ \t]*{_KEY})*")
_ONE_KEY = re.compile(_KEY)
_BLANK = re.compile(r"(?:[ \t\r\n]|\#[^\n]*)*")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}' r"|'''.*?'{3,5}" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'", re.DOTALL
)


class TomlLines:
    """Lines by key path; an array of tables counts from 0, as tomllib's lists do."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._spans: dict[Path, tuple[int, int]] = {}
        self._arrays: dict[Path, int] = {}
        self._scan()

    def line(self, path: Path) -> int | None:
        """The line, from 1, of the key, or of the nearest thing around it; None for the whole file."""
        for length in range(len(path), 0, -1):
            span = self._spans.get(path[:length])
            if span is not None:
                return self._within(span, path[length:])
        return None

    def _within(self, span: tuple[int, int], rest: Path) -> int:
        """A key of an inline table is looked for in its text."""
        start, end = span
        for part in reversed(rest):
            if isinstance(part, str):
                found = re.search(rf"(?<![\w-]){re.escape(part)}[\"']?\s*=", self._text[start:end])
                if found is not None:
                    return self._line_at(start + found.start())
        return self._line_at(start)

    def _line_at(self, position: int) -> int:
        return self._text.count("\n", 0, position) + 1

    def _scan(self) -> None:
        text, at = self._text, 0
        table: Path = ()
        while True:
            at = _skip(text, at)
            if at >= len(text):
                return
            start = at
            if text[at] == "[":
                is_array = text.startswith("[[", at)
                keys, at = _keys(text, at + (2 if is_array else 1))
                at = text.index("]", at) + (2 if is_array else 1)
                table = self._table(keys, is_array, (start, at))
                self._spans.setdefault(table, (start, at))
            else:
                keys, at = _keys(text, at)
                at = _value(text, _skip(text, text.index("=", at) + 1))
                for length in range(1, len(keys) + 1):
                    self._spans.setdefault((*table, *keys[:length]), (start, at))

    def _table(self, keys: Path, is_array: bool, span: tuple[int, int]) -> Path:
        """The path of the table that a header begins; what it names on the way begins there, too."""
        path: Path = ()
        for position, key in enumerate(keys):
            path = (*path, key)
            self._spans.setdefault(path, span)
            if is_array and position == len(keys) - 1:
                self._arrays[path] = self._arrays.get(path, -1) + 1
            if path in self._arrays:
                path = (*path, self._arrays[path])
        return path


def _skip(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return at if match is None else match.end()


def _keys(text: str, at: int) -> tuple[Path, int]:
    at = _skip(text, at)
    match = _DOTTED.match(text, at)
    if match is None:
        raise ValueError(f"no key at character {at}: tomllib would not have accepted this text")
    return tuple(_unquote(key) for key in _ONE_KEY.findall(match[0])), match.end()


def _unquote(key: str) -> str:
    return next(iter(tomllib.loads(f"{key} = 0"))) if key[0] in "\"'" else key


def _value(text: str, at: int) -> int:
    """The end of the value that begins at ``at``."""
    depth = 0
    while at < len(text):
        string = _STRING.match(text, at)
        if string is not None:
            at = string.end()
            if depth == 0:
                return at
            continue
        char = text[at]
        if char == "#":
            at = _skip(text, at)
            continue
        if char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        elif char == "\n" and depth == 0:
            return at
        at += 1
        if char in "]}" and depth == 0:
            return at
    return at
