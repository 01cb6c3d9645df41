"""`nightferry selection`: the fixed list of stores, and what the site file says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cyclopts import App

from nightferry.cli.session import current as session_of
from nightferry.model.selection import current, diff, rule
from nightferry.model.stores import Group
from nightferry.units import counted

app = App(name="selection", help="The fixed list of a storage group's stores.")


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
    lines = [f"{name}: {counted(len(document['stores']), 'store')}, {state}"]
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


@app.command
def show(group: str, /) -> None:
    """Shows which stores tonight's run takes.

    Parameters
    ----------
    group
        The storage group.
    """
    document = _document(group)
    session_of().out.result(document, show_lines(document))


@app.command(name="diff")
def diff_(group: str, /) -> int:
    """Shows what the site file lists otherwise than the fixed selection. Exit code 3 when it does.

    Parameters
    ----------
    group
        The storage group.
    """
    document = _document(group)
    lines = diff_lines(document) or [f"{group}: the site file and the fixed selection agree"]
    session_of().out.result(document, "\n".join(lines))
    return 3 if document["added"] or document["removed"] else 0


@app.command
def fix(group: str, /) -> None:
    """Fixes the selection to the stores that the site file lists now.

    Parameters
    ----------
    group
        The storage group.
    """
    from nightferry.ops.opened import OpenSite
    from nightferry.ops.run import fix_selection

    session = session_of()
    with OpenSite(session.load_site()) as here:
        here.site.group(group)
        record = fix_selection(here, group)
    document = {"group": group, "stores": list(record.stores), "is_fixed": True}
    session.out.result(document, f"{group}: fixed {', '.join(record.stores)}")


def _document(group: str) -> dict[str, Any]:
    from nightferry.ops.opened import OpenSite

    with OpenSite(session_of().load_site()) as here:
        here.catalog.refresh()
        fixed = here.catalog.selection(group)
        return show_document(here.site.group(group), fixed.stores if fixed else None)
