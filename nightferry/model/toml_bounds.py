"""Bounds on a site file's text, checked in one pass before anything parses it.

A parser of TOML recurses into nested values, and takes time by the square of a dotted key's length: a text of a
megabyte could end it by its recursion limit or keep it busy for hours. No site file comes near these bounds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
"""Arrays and inline tables within each other; parts of a dotted key."""
MAX_WORD = 1000
"""Characters of a number, or of a key without quotes."""
MAX_VALUES = 30_000
"""Keys, tables and members of arrays; of a dotted key each part. A store takes six or more: this suffices for some
thousand stores, and a text within it is read or refused in about a second."""

# Every alternative takes something wherever it begins, to the end of the line or text if need be: one pass is linear.
_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?(?:"{3,5}|\Z)|\'\'\'.*?(?:\'{3,5}|\Z)'
    r'|"(?:[^"\\\n]|\\[^\n])*+["\\]?|\'[^\'\n]*+\'?'
    r"|\#[^\n]*+|[][{}=,]|\n\s*+|[^][{}=,\n\"'\#]++",
    re.DOTALL,
)


def out_of_bounds(text: str) -> str:
    """What in a TOML text is beyond the bounds, with its line; empty when nothing is. The text need not be TOML."""
    # Each character takes a byte or more.
    if len(text) > MAX_BYTES:
        return f"it is larger than {MAX_BYTES >> 20} MiB"
    return next(_beyond(text), "")


def _beyond(text: str) -> Iterator[str]:
    line, depth, dots, values = 1, 0, 0, 0
    for match in _TOKEN.finditer(text):
        token = match[0]
        first = token[0]
        if first in "[{":
            depth += 1
            values += 1
            dots = 0
        elif first in "]}":
            depth = max(depth - 1, 0)
            dots = 0
        elif first in "=,\n":
            values += first in "=,"
            dots = 0
        elif first not in "\"'#":
            dots += (parts := token.count("."))
            values += parts
            if len(token.strip()) > MAX_WORD:
                yield f"line {line}: a number, or a key without quotes, of more than {MAX_WORD:,} characters"
        if depth > MAX_DEPTH or dots >= MAX_DEPTH:
            yield f"line {line}: it is nested more than {MAX_DEPTH} deep"
        if values > MAX_VALUES:
            yield f"line {line}: there are more than {MAX_VALUES:,} keys and values"
        line += token.count("\n")
