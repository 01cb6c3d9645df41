"""Texts for other eyes: a site file without secrets, references to them and comments; a message without secrets."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from urllib.parse import quote

_SECRET = re.compile(
    r"""(?ix) \b ([\w-]*(?:password|secret|token|key|dsn|user)[\w-]*) (\s*=\s*)
    ("(?:[^"\\]|\\.)*" | '[^']*')"""
)
_CREDENTIALS_IN_URL = re.compile(r"://[^/\s\"']*@")
_ESCAPE = re.compile("%[0-9A-F]{2}")
_URL_SAFE = str.maketrans("+/", "-_")
_LONG = 8
"""Characters that hardly stand anywhere by chance."""
_REFERENCE = re.compile(r"\b(env|file|block):[^\s\"',}]+")


def redacted(text: str) -> str:
    """The text with every value of a secret key, every secret reference and every comment line replaced.

    Works on lines, so that it also serves a file that does not parse.
    """
    return "".join(f"{_line(line)}\n" for line in text.splitlines())


def scrubbed(text: str, secrets: Iterable[str]) -> str:
    """A message, perhaps a library's, with every secret in it replaced, in whatever form it is written (``forms_of``);
    the longest first."""
    for form in _longest_first(secrets):
        text = text.replace(form, "‹redacted›")
    return _CREDENTIALS_IN_URL.sub("://…@", text)


def without(content: bytes, secrets: Iterable[str]) -> bytes:
    """The content with every secret in it replaced, in whatever form it is written (``forms_of``)."""
    for form in _longest_first(secrets):
        content = content.replace(form.encode(), "‹redacted›".encode())
    return content


def forms_of(secret: str) -> set[str]:
    """How a text may hold a secret: as it is, in JSON, percent-encoded, in hexadecimal digits, in base64. Of a secret
    of several lines, a private key's, each long line is one as well.

    Base64 of a longer text, as a login's ``user:password``, has three ways to write what is in it; the characters that
    hold bits of its neighbours too are not counted in.
    """
    forms = set()
    for each in {secret, *(line for line in secret.splitlines() if len(line) >= _LONG)}:
        plain, quoted = each.encode(), quote(each, safe="")
        forms |= {json.dumps(each, ensure_ascii=ascii)[1:-1] for ascii in (True, False)}
        forms |= {each, quoted, _ESCAPE.sub(lambda code: code[0].lower(), quoted)}
        forms |= {plain.hex(), plain.hex().upper(), base64.b64encode(plain).decode()}
        for before in range(3):
            bits = base64.b64encode(bytes(before) + plain).decode()
            own = bits[-(-before * 8 // 6) : (before + len(plain)) * 8 // 6]
            if len(own) >= _LONG:
                forms |= {own, own.translate(_URL_SAFE)}
    return forms - {""}


def _longest_first(secrets: Iterable[str]) -> list[str]:
    return sorted(
        {form for secret in secrets for form in forms_of(secret)}, key=lambda form: (-len(form), form)
    )


def _line(line: str) -> str:
    if line.lstrip().startswith("#"):
        return "# …"
    line = _SECRET.sub(r'\1\2"‹redacted›"', line)
    line = _CREDENTIALS_IN_URL.sub("://…@", line)
    return _REFERENCE.sub(r"\1:‹redacted›", line)
