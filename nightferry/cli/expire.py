"""`nightferry expire`: the retention applied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from nightferry.cli.session import current
from nightferry.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from nightferry.retention.expire import Expiry

LISTED_FOREIGN = 20
"""What is left alone is shown up to so many lines."""
FATES = {"locked": "yellow", "failed": "red", "expires": "bold", "expired": "bold"}


def expire(
    *,
    dry_run: bool = False,
    copy: Annotated[str | None, Parameter(name=("--copy", "--from"))] = None,
    yes: bool = False,
    reason: str = "",
) -> int:
    """Removes the copies that the retention does not keep, and what interrupted work left at destinations.

    The newest proved image of a store is always kept, and so is what is held or still owed. When more than
    retention.at_most of a destination's copies would go, nothing does, unless --yes and --reason say so.

    Parameters
    ----------
    dry_run
        Say what would go and why, and remove nothing.
    copy
        Only the copies at this destination.
    yes
        Remove even more than retention.at_most allows at once.
    reason
        Why that is right; it is kept in the catalog.
    """
    from nightferry.retention import expire as ops
    from nightferry.site.opened import OpenSite

    session = current()
    if yes != bool(reason.strip()):
        raise ConfigError(
            "--yes and --reason go together",
            hint="say with --reason why so much may be removed at once",
            subject="--yes" if yes else "--reason",
        )
    with OpenSite(session.load_site(), cancel=session.cancel) as site:
        done = ops.expire(
            site,
            copy,
            dry_run=dry_run,
            reason=reason,
            progress=session.out.progress,
            cancel=session.cancel,
        )
    session.out.result(done.as_json(), *shown(done))
    return done.exit_code


def shown(done: Expiry) -> list[RenderableType]:
    """What the command line shows: a table of each kind of thing that there is, and one line for all."""
    from rich.text import Text

    from nightferry.cli.output import Column, table
    from nightferry.staging.owed import FORGET_HINT
    from nightferry.units import counted, format_size

    parts: list[RenderableType] = []
    if done.copies:
        rows: list[list[object]] = [
            [
                row.image.image,
                row.copy.destination,
                Text(row.fate, style=FATES.get(row.fate, "")),
                f"{row.why}; {row.note}" if row.note else row.why,
                format_size(row.freed_bytes) if row.freed_bytes else None,
            ]
            for row in done.copies
        ]
        parts.append(table(["image", "at", "", "why", Column("frees", right=True)], rows))
    if done.staged:
        rows = [[r.image.image, r.back_group, r.why, format_size(r.image.size_bytes)] for r in done.staged]
        parts.append(table(["staged image", "on", "why", Column("frees", right=True)], rows))
    if done.cartridges:
        rows = [[c.barcode, c.destination, format_size(c.used_bytes)] for c in done.cartridges]
        parts.append(table(["scratch cartridge", "of", Column("frees", right=True)], rows))
    if done.orphans:
        rows = [
            [
                row.orphan.path,
                row.destination,
                row.orphan.what,
                f"{row.orphan.since:%Y-%m-%d}",
                row.error or None,
                format_size(row.orphan.size_bytes),
            ]
            for row in done.orphans
        ]
        columns: list[Column | str] = ["orphan", "at", "what", "untouched since", "error"]
        parts.append(table([*columns, Column("frees", right=True)], rows))
    if done.foreign:
        rows = [[row.orphan.path, row.destination, row.why] for row in done.foreign[:LISTED_FOREIGN]]
        parts.append(table(["left alone", "at", "why"], rows))
        if len(done.foreign) > LISTED_FOREIGN:
            parts.append(f"and {len(done.foreign) - LISTED_FOREIGN} more; --json lists them all")
    if done.undeliverable:
        parts += [
            "copies that are owed and that no night will deliver:",
            *(f"  {line}" for line in done.undeliverable),
        ]
        parts.append(f"  hint: {FORGET_HINT}")
    parts += [f"{name}: {error.message}\n  hint: {error.hint}" for name, error in done.errors.items()]
    parts += [
        f"no copy of the catalog was delivered to {name}, so a rebuild from there lists what was removed: "
        f"{error.message}\n"
        "  hint: nothing to do: the next night delivers one once the destination is back"
        for name, error in done.undelivered.items()
    ]
    gone, all_of_them = len(done.gone), counted(len(done.copies), "copy", "copies")
    verb = "would expire" if done.dry_run else "expired"
    parts.append(f"{gone} of {all_of_them} {verb}; {format_size(done.freed_bytes)} freed")
    if done.refused is not None:
        parts.append(f"needs your confirmation: {done.refused.message}\n  hint: {done.refused.hint}")
    return parts
