"""`nightferry runs`, `images`, `copies`, `files`: the catalog."""

from __future__ import annotations

from nightferry.cli.session import current
from nightferry.errors import ConfigError
from nightferry.site.nodes import require_store
from nightferry.staging.images import is_staged, staged_path

MOST_IN_A_TABLE = 2_000
"""Longer lists are plain lines: a table's columns are as wide as its widest row, so all of it would be drawn first."""


def runs(*, back_group: str | None = None) -> None:
    """Lists the runs, the newest first.

    Parameters
    ----------
    back_group
        Only this BACK group's.
    """
    from nightferry.cli.output import table
    from nightferry.site.opened import OpenSite

    session = current()
    with OpenSite(session.load_site()) as site:
        if back_group is not None:
            site.file.back_group(back_group)
        site.catalog.refresh()
        found = site.catalog.runs(back_group)
        zone = site.file.tz
    rows = [
        [
            r.run,
            r.state,
            r.result or None,
            ", ".join(r.groups),
            r.node,
            f"{r.started.astimezone(zone):%Y-%m-%d %H:%M}",
            f"{r.ended.astimezone(zone):%Y-%m-%d %H:%M}" if r.ended else None,
        ]
        for r in found
    ]
    columns = ["run", "state", "result", "storage groups", "staged on", "started", "ended"]
    session.out.result(
        {"runs": [r.model_dump(mode="json") for r in found]},
        table(columns, rows) if rows else "no run yet; `nightferry backup` starts one",
    )


def images(
    *,
    group: str | None = None,
    store: str | None = None,
    expired: bool = False,
) -> None:
    """Lists the images, the newest first; not those that have expired.

    Parameters
    ----------
    group
        Only this storage group's.
    store
        Only this store's, as GROUP/STORE.
    expired
        Those that have expired instead: what the catalog remembers of them.
    """
    from nightferry.cli.output import Column, table
    from nightferry.night.report import image_json
    from nightferry.site.opened import OpenSite
    from nightferry.staging.owed import is_lost
    from nightferry.units import format_size

    session = current()
    with OpenSite(session.load_site()) as site:
        only_store = None
        site.catalog.refresh()
        if store is not None:
            of_group, only_store = require_store(site, store)
            if group not in (None, of_group):
                raise ConfigError(
                    f"store {store} does not belong to {group}", hint="leave --group out", subject="--group"
                )
            group = of_group
        elif group is not None and not site.catalog.images(group):
            site.file.group(group)
        found = [
            i for i in site.catalog.images(group, only_store) if site.catalog.expired(i.image) == expired
        ]
        documents = [
            image_json(
                i,
                site.catalog.copies(i.image),
                is_lost=is_lost(site, i),
                accepted=i.state != "whole" and site.catalog.accepted(i),
            )
            for i in found
        ]
        zone = site.file.tz
    rows = [
        [
            i.image,
            d["state"] + (", approved" if d["accepted"] else "") + (", degraded" if i.degraded else ""),
            format_size(i.size_bytes),
            i.files,
            f"{i.started.astimezone(zone):%Y-%m-%d %H:%M}",
            ", ".join(f"{c['destination']} {c['state']}" for c in d["copies"]) or None,
        ]
        for i, d in zip(found, documents, strict=True)
    ]
    columns: list[Column | str] = [
        "image",
        "state",
        Column("size", right=True),
        Column("files", right=True),
        "started",
        "copies",
    ]
    session.out.result(
        {"images": documents},
        table(columns, rows)
        if rows
        else "no image has expired"
        if expired
        else "no image yet; `nightferry backup` makes them",
    )


def copies(image: str, /) -> None:
    """Lists an image's copies and where each lies.

    Parameters
    ----------
    image
        The image's name.
    """
    from nightferry.cli.output import Column, table
    from nightferry.copies.stream import describe_location
    from nightferry.site.opened import OpenSite
    from nightferry.units import format_size

    session = current()
    with OpenSite(session.load_site()) as site:
        site.catalog.refresh()
        record = site.catalog.image(image)
        found = site.catalog.copies(image)
        path = staged_path(site, record) if is_staged(site, record) else None
        zone = site.file.tz
    documents = [
        {
            "destination": c.destination,
            "state": c.state,
            "location": c.location,
            "size_bytes": c.size_bytes,
            "digest": c.digest,
            "epoch": c.epoch,
            "verified": c.verified,
            "note": c.note or None,
        }
        for c in found
    ]
    rows: list[list[object]] = []
    if path is not None:
        rows.append(["staging", record.state, str(path), format_size(record.size_bytes), None, None])
    rows += [
        [
            c.destination,
            c.state,
            describe_location(c),
            format_size(c.size_bytes),
            f"{c.verified.astimezone(zone):%Y-%m-%d %H:%M}" if c.verified else None,
            c.note or None,
        ]
        for c in found
    ]
    columns: list[Column | str] = ["at", "state", "where", Column("size", right=True), "verified", "note"]
    document = {"image": image, "staged": None if path is None else str(path), "copies": documents}
    session.out.result(document, table(columns, rows))


def files(
    image: tuple[str, ...] = (),
    /,
    *,
    store: str | None = None,
    as_of: str | None = None,
    outcome: bool = False,
) -> None:
    """Lists the files in an image.

    Parameters
    ----------
    image
        The image's name, unless --store says which; then patterns, as in .gitignore: a directory means all below it.
    store
        The newest whole image of this store, GROUP/STORE.
    as_of
        With --store: the newest one whose start is not later; without an offset, site time.
    outcome
        Only those that did not come out whole.
    """
    from nightferry.cli.output import Column, table
    from nightferry.cli.restore import chosen_image
    from nightferry.model.text import path_fields, safe
    from nightferry.restore.restore import matching_rows
    from nightferry.site.opened import OpenSite

    session = current()
    if store is None and as_of is not None:
        raise ConfigError(
            "--as-of says which image of a store", hint="add --store GROUP/STORE", subject="--as-of"
        )
    if store is None and not image:
        raise ConfigError(
            "`nightferry files` needs an image, or --store", hint="see `nightferry files --help`"
        )
    with OpenSite(session.load_site()) as site:
        site.catalog.refresh()
        if store is None:
            record, patterns = site.catalog.image(image[0]), image[1:]
        else:
            record, patterns = chosen_image(session, site, store, as_of, None)[0], image
            session.out.say(f"image {record.image}")
        found = list(matching_rows(site, record, patterns))
    if outcome:
        found = [row for row in found if row.outcome != "whole"]
    documents = (
        {
            **path_fields(row.path),
            "type": row.type,
            "size_bytes": row.size,
            "mtime_ns": row.mtime_ns,
            "digest": row.digest or None,
            "outcome": row.outcome,
        }
        for row in found
    )
    if session.out.as_json:
        session.out.result({"image": record.image, "files": list(documents)})
    elif len(found) > MOST_IN_A_TABLE:
        session.out.result(
            {}, *(f"{row.type:9} {row.size:15} {row.outcome:10} {safe(row.path)}" for row in found)
        )
    elif found:
        rows = [[row.type, row.size, row.outcome, row.path] for row in found]
        session.out.result({}, table(["type", Column("bytes", right=True), "outcome", "path"], rows))
    else:
        session.out.result({}, "every file of them came out whole" if outcome else "nothing to list")
