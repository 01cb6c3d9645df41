"""Texts for other eyes: a site file without secrets, references to them and comments; a message without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable

from nightferry.model.text import safe

_SECRET = re.compile(
    r"""(?ix) \b ([\w-]*(?:password|secret|token|key|dsn|user)[\w-]*) (\s*=\s*)
    ("(?:[^"\\]|\\.)*" | '[^']*')"""
)
_CREDENTIALS_IN_URL = re.compile(r"://[^/\s\"']*@")
_REFERENCE = re.compile(r"\b(env|file|block):[^\s\"',}]+")

_TOLD = re.compile(
    r"""(?ix) ([\w-]*(?:password|passwd|passphrase|secret|token|api[_-]?key|credential)s?[\w-]* ["']? \s* [=:]) \s*
    (?: "[^"]*" | '[^']*' | \S+ )"""
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/=._~-]{8,}")


def without_secrets(text: str) -> str:
    """One line of what a foreign program said, safe to show, with what looks like a secret taken out."""
    text = _CREDENTIALS_IN_URL.sub("://…@", text)
    text = _BEARER.sub(r"\1 ‹redacted›", text)
    return safe(_TOLD.sub(r"\1 ‹redacted›", text))


def redacted(text: str) -> str:
    """The text with every value of a secret key, every secret reference and every comment line replaced.

    Works on lines, so that it also serves a file that does not parse.
    """
    return "".join(f"{_line(line)}\n" for line in text.splitlines())


def scrubbed(text: str, secrets: Iterable[str]) -> str:
    """A message, perhaps a library's, with every secret in it replaced; the longest first."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "‹redacted›")
    return _CREDENTIALS_IN_URL.sub("://…@", text)


def _line(line: str) -> str:
    if line.lstrip().startswith("#"):
        return "# …"
    line = _SECRET.sub(r'\1\2"‹redacted›"', line)
    line = _CREDENTIALS_IN_URL.sub("://…@", line)
    return _REFERENCE.sub(r"\1:‹redacted›", line)
