"""The one way for foreign text (file names, peers' messages) to a terminal, a log or an artifact."""

from __future__ import annotations

import string
import unicodedata
from base64 import b64encode

LONGEST = 1024
"""Characters shown of one piece of foreign text, unless told otherwise."""

_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_MARKDOWN = str.maketrans({char: f"\\{char}" for char in string.punctuation if char not in ",;%'"})


def safe(text: str | bytes, longest: int = LONGEST) -> str:
    """One line of text that does nothing but be shown.

    Control characters, bidirectional and other invisible format characters, and bytes that are not UTF-8
    become ``\\xNN``, ``\\uNNNN`` and the like; what is longer than ``longest`` characters is cut and ends in
    ``…``. Applying it twice changes nothing. Markup of rich or Markdown is not touched: a terminal gets the
    result as plain `rich.text.Text`, an artifact through `safe_markdown`.
    """
    decoded = text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else text
    # One character more than is shown is enough to know that something was cut.
    shown = decoded[: longest + 1]
    if not (shown.isascii() and shown.isprintable()):
        shown = "".join(map(_shown, shown))
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def path_fields(path: bytes) -> dict[str, str]:
    """A path from a disk for a document: ``path``, and ``path_b64``, its bytes, where they are not UTF-8."""
    try:
        return {"path": path.decode()}
    except UnicodeDecodeError:
        return {"path": safe(path, longest=1 << 16), "path_b64": b64encode(path).decode()}


def safe_lines(text: str) -> str:
    """Like `safe` for our own messages of several lines: line breaks stay."""
    return "\n".join(safe(line) for line in text[: 64 * LONGEST].split("\n"))


def safe_markdown(text: str | bytes) -> str:
    """One line that Markdown, GitHub tables and HTML show literally: every mark is escaped."""
    return safe(text).translate(_MARKDOWN)


def _shown(char: str) -> str:
    if char.isascii() and char.isprintable():
        return char
    if unicodedata.category(char) not in _UNSAFE:
        return char
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if char in _NAMED:
        return _NAMED[char]
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
