"""What `nightferry selection` shows: documents and words, from the fixed list and the site file alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nightferry.model.selection import current, diff, rule
from nightferry.model.stores import Group


def show_document(group: Group, fixed: Sequence[str] | None) -> dict[str, Any]:
    """What runs tonight (``fixed``, else what the site file lists), and whether the site file differs."""
    now = current(group)
    changed = diff(fixed, now) if fixed is not None else None
    return {
        "group": group.name,
        "rule": rule(group),
        "is_fixed": fixed is not None,
        "stores": list(now if fixed is None else fixed),
        "added": list(changed.added) if changed else [],
        "removed": list(changed.removed) if changed else [],
    }


def show_lines(document: dict[str, Any]) -> str:
    """The same in words."""
    name = document["group"]
    state = "fixed" if document["is_fixed"] else "not fixed yet: the first backup fixes it"
    lines = [f"{name}: {len(document['stores'])} stores, {state}"]
    lines += [f"    {store}" for store in document["stores"]]
    lines += diff_lines(document)
    return "\n".join(lines)


def diff_lines(document: dict[str, Any]) -> list[str]:
    """What the site file says otherwise; empty when it agrees."""
    added, removed = document["added"], document["removed"]
    if not added and not removed:
        return []
    return [
        "the site file differs; the fixed list runs until `nightferry selection fix "
        + document["group"]
        + "`",
        *(f"  + {store}   in the site file, not backed up" for store in added),
        *(f"  - {store}   fixed, gone from the site file" for store in removed),
    ]
