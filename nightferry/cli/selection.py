"""`nightferry selection`: the fixed list of stores, and what the site file says otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cyclopts import App

from nightferry.cli.session import current
from nightferry.model.selection import diff, listed_stores, rule
from nightferry.model.stores import Group
from nightferry.units import counted

app = App(name="selection", help="The fixed list of a storage group's stores.")


def show_document(
    group: Group, fixed: Sequence[str] | None, paths: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What runs tonight (``fixed``, else what the site file lists), and whether the site file differs.

    Args:
        group: The storage group.
        fixed: Its fixed stores; None before the first backup.
        paths: Store → what is said of its path, where that is not the path of its newest image.
    """
    now = listed_stores(group)
    changed = diff(fixed, now) if fixed is not None else None
    return {
        "group": group.name,
        "rule": rule(group),
        "is_fixed": fixed is not None,
        "stores": list(now if fixed is None else fixed),
        "added": list(changed.added) if changed else [],
        "removed": list(changed.removed) if changed else [],
        "paths": [{"store": store, "text": text} for store, text in (paths or {}).items()],
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
    paths = [f"  ~ {entry['store']}   {entry['text']}" for entry in document["paths"]]
    added, removed = document["added"], document["removed"]
    if not added and not removed:
        return paths
    return [
        "the site file differs; the fixed list runs until `nightferry selection fix "
        + document["group"]
        + "`",
        *(f"  + {store}   in the site file, not backed up" for store in added),
        *(f"  - {store}   fixed, gone from the site file" for store in removed),
        *paths,
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
    current().out.result(document, show_lines(document))


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
    current().out.result(document, "\n".join(lines))
    return 3 if document["added"] or document["removed"] or document["paths"] else 0


@app.command
def fix(group: str, /) -> None:
    """Fixes the selection to the stores that the site file lists now.

    Parameters
    ----------
    group
        The storage group.
    """
    from nightferry.night.run import fix_selection
    from nightferry.site.opened import OpenSite

    session = current()
    with OpenSite(session.load_site()) as site:
        site.file.group(group)
        record = fix_selection(site, group)
    document = {"group": group, "stores": list(record.stores), "is_fixed": True}
    session.out.result(document, f"{group}: fixed {', '.join(record.stores)}")


@app.command
def adopt(old: str, new: str, /) -> None:
    """Lets a renamed store, or each store of a renamed storage group, go on with the images of its old name.

    Parameters
    ----------
    old
        The name before: GROUP/STORE or GROUP. The site file does not name it any more.
    new
        The name now.
    """
    from nightferry.site.opened import OpenSite
    from nightferry.staging.owed import adopt as adopt_store

    session = current()
    with OpenSite(session.load_site()) as site:
        records = adopt_store(site, old, new)
    session.out.result(
        {"adopted": [record.model_dump(mode="json") for record in records]},
        "\n".join(f"{record.new} goes on with the images of {record.old}" for record in records),
    )


def _document(group: str) -> dict[str, Any]:
    from nightferry.copies.origin import new_line
    from nightferry.model.stores import StoreRef
    from nightferry.site.opened import OpenSite

    with OpenSite(current().load_site()) as site:
        site.catalog.refresh()
        fixed = site.catalog.selection(group)
        found = site.file.group(group)
        new_lines = {store.name: new_line(site, StoreRef(found, store)) for store in found.stores}
        paths = {store: text for store, text in new_lines.items() if text}
        return show_document(found, fixed.stores if fixed else None, paths)
