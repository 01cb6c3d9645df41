"""Texts for other eyes: a site file without secrets, references to them and comments; a message without secrets."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from urllib.parse import quote

_SECRET = re.compile(
    r"""(?ix) \b ([\w-]*(?:password|secret|token|key|dsn|user)[\w-]*) (\s*=\s*)
    ("(?:[^"\\]|\\.)*" | '[^']*')"""
)
_CREDENTIALS_IN_URL = re.compile(r"://[^/\s\"']*@")
_REFERENCE = re.compile(r"\b(env|file|block):[^\s\"',}]+")


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


def without(content: bytes, secrets: Iterable[str]) -> bytes:
    """The content with every secret in it replaced, as it is and as base64 and percent encoding write it."""
    forms = set()
    for secret in secrets:
        plain = secret.encode()
        forms |= {plain, quote(secret, safe="").encode(), base64.b64encode(plain), plain.hex().encode()}
    for form in sorted(forms, key=len, reverse=True):
        content = content.replace(form, "‹redacted›".encode())
    return content


def _line(line: str) -> str:
    if line.lstrip().startswith("#"):
        return "# …"
    line = _SECRET.sub(r'\1\2"‹redacted›"', line)
    line = _CREDENTIALS_IN_URL.sub("://…@", line)
    return _REFERENCE.sub(r"\1:‹redacted›", line)
