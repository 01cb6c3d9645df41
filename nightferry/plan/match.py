"""Which paths of an index a pattern means.

Patterns are read as in a gitignore file: without a slash they match at any depth, with one they begin at the
store's top, and a directory means all below it. A path written out always means itself, whatever characters
it holds. A leading ``!`` takes back what earlier patterns chose; of all patterns that fit a path the last one
counts. ``/`` and ``.`` mean the whole store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nightferry.errors import ConfigError
from nightferry.model.patterns import pattern as read_pattern


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
        for chosen, fits in reversed(self._rules):
            if fits(path, directory):
                return chosen
        return False


def _rule(pattern: str) -> tuple[bool, Callable[[bytes, bool], bool]]:
    chosen = not pattern.startswith("!")
    body = pattern if chosen else pattern[1:]
    if body in ("/", ".", "./"):
        return chosen, lambda path, directory: True
    plain = body.removeprefix("./").strip("/")
    if not plain:
        raise ConfigError(f"an empty pattern: {pattern!r}", hint="name a path or a pattern such as '*.txt'")
    literal = plain.encode("utf-8", "surrogateescape")
    below = literal + b"/"
    only_directory = body.endswith("/")

    def is_or_is_below(path: bytes, directory: bool) -> bool:
        return path.startswith(below) or (path == literal and (directory or not only_directory))

    try:
        # A line that begins with "#" would be a comment.
        found = read_pattern(
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
