"""Fixed selections: which of a storage group's stores a night backs up.

The first backup, or `selection fix`, fixes the list. A list that the site file changed since then is shown,
and the last fixed one runs, so that no night quietly backs up less than the night before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from nightferry.model.stores import Group

Rule = Literal["list", "all"]


@dataclass(frozen=True, slots=True)
class Diff:
    """What the site file says now against what is fixed. False when they agree."""

    added: tuple[str, ...]
    """In the site file, not fixed: not backed up."""
    removed: tuple[str, ...]
    """Fixed, not in the site file any more."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


def rule(group: Group) -> Rule:
    """``all`` when the group takes whatever stores there are, ``list`` when the site file lists them."""
    return "all" if group.postgres is not None and group.postgres.databases == "all" else "list"


def listed_stores(group: Group) -> tuple[str, ...]:
    """The stores that the site file lists now, in its order."""
    return tuple(store.name for store in group.stores)


def diff(fixed: Sequence[str], now: Sequence[str]) -> Diff:
    """What was added and removed since the selection was fixed, each in its own list's order."""
    return Diff(
        added=tuple(name for name in now if name not in fixed),
        removed=tuple(name for name in fixed if name not in now),
    )
