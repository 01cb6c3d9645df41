"""The retention, applied on a schedule or from the run form."""

from __future__ import annotations

from typing import Any

from prefect import flow, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from blocks.site import Site
from nightferry.retention import expire as ops
from nightferry.site.destinations import close_destination
from nightferry.units import counted, format_size
from tasks.bridge import CANCEL, PrefectProgress, at_work, opened


@flow(name="expire", flow_run_name="expire", persist_result=False)
def expire(
    site: Site,
    destination: str | None = None,
    dry_run: bool = False,
    reason: str = "",
) -> State[Any]:
    """Removes the copies that the retention does not keep, and what interrupted work left at destinations.

    Args:
        site: The site.
        destination: Only the copies there; empty: everywhere.
        dry_run: Only say what would go, and why.
        reason: Why it is right that more than retention.at_most goes at once; empty: then nothing does.
    """
    with at_work():
        here = opened(site)
        try:
            done = apply_retention(site, destination, dry_run, reason)
        finally:
            for settings in here.file.destinations:
                close_destination(here, settings.name)
        verb = "would expire" if dry_run else "expired"
        summary = f"{counted(len(done.gone), 'copy', 'copies')} {verb}, {format_size(done.freed_bytes)} freed"
        if done.undelivered:
            summary += f"; no copy of the catalog delivered to {', '.join(done.undelivered)}"
        if done.refused is not None:
            return Failed(name="Refused", message=f"{summary}; needs a reason: {done.refused.message}")
        if done.exit_code:
            failed = sum(row.fate == "failed" for row in done.copies)
            away = "; ".join(f"{name}: {error.message}" for name, error in done.errors.items())
            return Failed(
                name="Partial",
                message=f"{summary}; {counted(failed, 'copy', 'copies')} could not be removed; {away}".rstrip(
                    "; "
                ),
            )
        return Completed(message=summary)


@task(name="apply retention", cache_policy=NO_CACHE, persist_result=False)
def apply_retention(site: Site, destination: str | None, dry_run: bool, reason: str) -> ops.Expiry:
    """What went, or would go; the table artifact says of every copy whether it stays, and why."""
    here = opened(site)
    done = ops.expire(
        here, destination, dry_run=dry_run, reason=reason, progress=PrefectProgress(), cancel=CANCEL
    )
    rows = [
        {**row, "started": f"{row['started'].astimezone(here.file.tz):%Y-%m-%d %H:%M}"}
        for row in done.as_json()["copies"]
    ]
    create_table_artifact(
        rows, key="expire", description=f"{counted(len(rows), 'copy', 'copies')} and their retention"
    )
    return done
