"""Which paths of an index a pattern means.

Patterns are read as in a gitignore file: without a slash they match at any depth, with one they begin at the
store's top, and a directory means all below it. A path written out always means itself, whatever characters
it holds. A leading ``!`` takes back what earlier patterns chose; of all patterns that fit a path the last one
counts. ``/`` and ``.`` mean the whole store.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from pathspec import GitIgnoreSpec

from nightferry.errors import ConfigError

# "." of the library's expressions stops at a line feed, which a file name may contain; this character, which
# no name holds because UTF-8 decoding never yields it, stands in for it.
_LINE_FEED = "\ud800"


class Matcher:
    """A list of patterns, ready to be asked about many paths.

    Args:
        patterns: As the user wrote them; an empty list means everything.

    Raises:
        ConfigError: a pattern is empty.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._rules = [_rule(pattern) for pattern in patterns]

    def matches(self, path: bytes, *, directory: bool = False) -> bool:
        """Whether the patterns choose a path of the index.

        Args:
            path: Relative to the store, without a leading or trailing slash.
            directory: The path is a directory; a pattern that ends with a slash means only those.
        """
        if not self._rules:
            return True
        text = _text(path)
        for chosen, fits in reversed(self._rules):
            if fits(text, directory):
                return chosen
        return False


def _rule(pattern: str) -> tuple[bool, Callable[[str, bool], bool]]:
    chosen = not pattern.startswith("!")
    body = pattern if chosen else pattern[1:]
    if body in ("/", ".", "./"):
        return chosen, lambda text, directory: True
    plain = body.removeprefix("./").strip("/")
    if not plain:
        raise ConfigError(f"an empty pattern: {pattern!r}", hint="name a path or a pattern such as '*.txt'")
    literal = _text(plain.encode("utf-8", "surrogateescape"))
    below = f"{literal}/"
    only_directory = body.endswith("/")

    def is_or_is_below(text: str, directory: bool) -> bool:
        return text.startswith(below) or (text == literal and (directory or not only_directory))

    try:
        # A line that begins with "#" would be a comment.
        line = (
            f"\\{body}" if body.startswith("#") else body.removeprefix(".") if body.startswith("./") else body
        )
        spec = GitIgnoreSpec.from_lines([_text(line.encode("utf-8", "surrogateescape"))])
    except (ValueError, re.error):
        return chosen, is_or_is_below  # no pattern that gitignore knows, but a name may look like that

    def fits(text: str, directory: bool) -> bool:
        # A name may hold the very characters that make a pattern; a path written out always means itself.
        return is_or_is_below(text, directory) or spec.match_file(f"{text}/" if directory else text)

    return chosen, fits


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape").replace("\n", _LINE_FEED)
