"""Patterns as in a ``.gitignore``, translated to regular expressions over bytes.

git is the judge: gitignore(5) says what a pattern means, and where it is silent its ``wildmatch.c`` does. A name
is bytes; a line feed, a tab or half a character in it is one like any other. ``*``, ``?`` and classes never match
a slash.

The patterns of a restore (``Matcher``) are read the same way, and a path written out always means itself, whatever
characters it holds. A leading ``!`` takes back what earlier patterns chose; of all patterns that fit a path the last
one counts. ``/`` and ``.`` mean the whole store.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from nightferry.errors import ConfigError

_SPECIAL: Final = b"*?[\\"
_NEVER: Final = rb"(?!)"

_CLASSES: Final = {
    b"alnum": rb"[0-9A-Za-z]",
    b"alpha": rb"[A-Za-z]",
    b"blank": rb"[ \t]",
    b"cntrl": rb"[\x00-\x1f\x7f]",
    b"digit": rb"[0-9]",
    b"graph": rb"[!-~]",
    b"lower": rb"[a-z]",
    b"print": rb"[ -~]",
    b"punct": rb"[!-/:-@\[-`{-~]",
    b"space": rb"[\t-\r ]",
    b"upper": rb"[A-Z]",
    b"xdigit": rb"[0-9A-Fa-f]",
}
"""POSIX classes of the C locale."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One pattern.

    ``negated``: it began with ``!`` and takes back what earlier patterns chose. ``only_directory``: it ended with
    a slash.
    """

    negated: bool
    only_directory: bool
    _itself: re.Pattern[bytes]
    _below: re.Pattern[bytes]

    def fits(self, path: bytes, *, directory: bool) -> bool:
        """Whether it means this very path, relative and without a slash at either end."""
        return (directory or not self.only_directory) and self._itself.fullmatch(path) is not None

    def fits_below(self, path: bytes) -> bool:
        """Whether it means a directory above this path."""
        return self._below.fullmatch(path) is not None


def pattern(line: str) -> Pattern | None:
    """One line of a ``.gitignore``; None for an empty line and a comment.

    Raises:
        ValueError: nothing follows a ``!`` or a slash, or the pattern ends in a lone backslash.
    """
    parts = _parts(line)
    if parts is None:
        return None
    negated, only_directory, anywhere, body = parts
    expression = _expression(body)
    if anywhere:
        expression = b"(?:.*/)?" + expression
    return Pattern(
        negated,
        only_directory,
        re.compile(expression, re.DOTALL),
        re.compile(b"(?:" + expression + b")/.*", re.DOTALL),
    )


def require_pattern(line: str) -> None:
    """Looks at a line without translating it, which takes a hundred times as long.

    Raises:
        ValueError: as ``pattern``.
    """
    _parts(line)


def _parts(line: str) -> tuple[bool, bool, bool, bytes] | None:
    """Whether a line is negated, means directories only, and fits at any depth; and what is left of it."""
    text = _trimmed(line.encode("utf-8", "surrogateescape"))
    if not text or text.startswith(b"#"):
        return None
    negated = text.startswith(b"!")
    body = text[negated:]
    only_directory = body.endswith(b"/")
    body = body[: len(body) - only_directory]
    anywhere = b"/" not in body
    body = body.removeprefix(b"/")
    if not body or _ends_in_a_lone_backslash(body):
        raise ValueError(f"not a pattern as in .gitignore: {line!r}")
    return negated, only_directory, anywhere, body


class Ignore:
    """The lines of a ``.gitignore``, asked about one path after another by whoever walks a tree.

    As in git, what is below a directory that they choose is not asked about any more.

    Args:
        lines: The last one that fits a path counts.

    Raises:
        ValueError: a line is not a pattern.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        found = [pattern(line) for line in lines]
        self._patterns = [one for one in reversed(found) if one is not None]

    def matches(self, path: bytes, *, directory: bool) -> bool:
        """Whether the path is to be ignored."""
        for one in self._patterns:
            if one.fits(path, directory=directory):
                return not one.negated
        return False


def _trimmed(line: bytes) -> bytes:
    """Without the spaces at its end, unless a backslash keeps them, and without a carriage return there."""
    line = line.removesuffix(b"\r")
    kept = line.rstrip(b" ")
    if _ends_in_a_lone_backslash(kept) and kept != line:
        kept += b" "
    return kept


def _ends_in_a_lone_backslash(text: bytes) -> bool:
    return (len(text) - len(text.rstrip(b"\\"))) % 2 == 1


def _expression(body: bytes) -> bytes:
    """wildmatch.c with WM_PATHNAME as a regular expression."""
    # git compares what stands before the first special character apart, so "**" right behind it counts as leading.
    plain = next((at for at, char in enumerate(body) if char in _SPECIAL), len(body))
    out = [re.escape(body[:plain])]
    at = plain
    while at < len(body):
        char = body[at : at + 1]
        if char == b"*":
            end = at + 1
            while body[end : end + 1] == b"*":
                end += 1
            whole = end - at > 1 and (at == plain or body[at - 1 : at] == b"/")
            if whole and end == len(body):
                out.append(b".*")
            elif whole and body[end : end + 1] == b"/":
                out.append(b"(?:.*/)?")
                end += 1
            elif whole and body[end : end + 2] == b"\\/":
                out.append(b".*")
            else:
                out.append(b"[^/]*")
            at = end
        elif char == b"?":
            out.append(b"[^/]")
            at += 1
        elif char == b"[":
            members, at = _class(body, at + 1)
            out.append(members)
        else:
            at += char == b"\\"
            out.append(re.escape(body[at : at + 1]))
            at += 1
    return b"".join(out)


def _class(body: bytes, at: int) -> tuple[bytes, int]:
    """The set that begins at ``at``, behind its bracket: (expression, where the pattern goes on)."""
    negated = body[at : at + 1] in (b"!", b"^") and at < len(body)
    at += negated
    members: set[int] = set()
    previous = 0
    first = True
    while first or body[at : at + 1] != b"]":
        first = False
        char = body[at : at + 1]
        if char == b"[" and body[at + 1 : at + 2] == b":":
            end = body.find(b"]", at + 2)
            if end < 0:
                return _NEVER, len(body)
            if body[end - 1 : end] == b":" and end - 1 > at + 1:
                known = _CLASSES.get(body[at + 2 : end - 1])
                if known is None:
                    return _NEVER, len(body)
                members.update(byte for byte in range(256) if re.match(known, bytes([byte]), re.DOTALL))
                previous, at = 0, end + 1
                continue
            members.add(ord("["))
            previous, at = ord("["), at + 1
            continue
        following = body[at + 1 : at + 2]
        if char == b"-" and previous and following and following != b"]":
            at += 1 + (following == b"\\")
            if at >= len(body):
                return _NEVER, len(body)
            members.update(range(previous, body[at] + 1))
            previous, at = 0, at + 1
            continue
        at += char == b"\\"
        if at >= len(body):
            return _NEVER, len(body)
        members.add(body[at])
        previous, at = body[at], at + 1
    matched = (set(range(256)) - members if negated else members) - {ord("/")}
    if not matched:
        return _NEVER, at + 1
    return b"[" + b"".join(b"\\x%02x" % byte for byte in sorted(matched)) + b"]", at + 1


class Matcher:
    """A list of patterns, ready to be asked about many paths.

    Args:
        patterns: As the user wrote them; an empty list means everything.

    Raises:
        ConfigError: a pattern is empty.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._rules = [_rule(line) for line in patterns]

    def matches(self, path: bytes, *, directory: bool = False) -> bool:
        """Whether the patterns choose a path of the index.

        Args:
            path: Relative to the store, without a leading or trailing slash.
            directory: The path is a directory; a pattern that ends with a slash means only those.
        """
        if not self._rules:
            return True
        for chosen, fits in reversed(self._rules):
            if fits(path, directory):
                return chosen
        return False


def _rule(line: str) -> tuple[bool, Callable[[bytes, bool], bool]]:
    chosen = not line.startswith("!")
    body = line if chosen else line[1:]
    if body in ("/", ".", "./"):
        return chosen, lambda path, directory: True
    plain = body.removeprefix("./").strip("/")
    if not plain:
        raise ConfigError(f"an empty pattern: {line!r}", hint="name a path or a pattern such as '*.txt'")
    literal = plain.encode("utf-8", "surrogateescape")
    below = literal + b"/"
    only_directory = body.endswith("/")

    def is_or_is_below(path: bytes, directory: bool) -> bool:
        return path.startswith(below) or (path == literal and (directory or not only_directory))

    try:
        # A line that begins with "#" would be a comment.
        found = pattern(
            f"\\{body}" if body.startswith("#") else body.removeprefix(".") if body.startswith("./") else body
        )
    except ValueError:
        found = None
    if found is None:
        return chosen, is_or_is_below  # no pattern that gitignore knows, but a name may look like that

    def fits(path: bytes, directory: bool) -> bool:
        # A name may hold the very characters that make a pattern; a path written out always means itself.
        return (
            is_or_is_below(path, directory) or found.fits(path, directory=directory) or found.fits_below(path)
        )

    return chosen, fits
