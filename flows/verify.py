"""Reading copies back on a schedule."""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from pydantic import Field

from blocks.site import Site
from nightferry.copies import verify
from nightferry.site.destinations import close_destination
from nightferry.units import counted
from tasks.bridge import CANCEL, PrefectProgress, at_work, opened


@flow(name="verify-copies", flow_run_name="verify copies", persist_result=False)
def verify_copies(
    site: Site,
    destination: str | None = None,
    sample_percent: Annotated[float, Field(gt=0, le=100)] = 100.0,
    recall: bool = False,
) -> State[Any]:
    """Reads copies back and compares them with their chunk tables; only a full reading makes one verified.

    Args:
        site: The site.
        destination: Only this one; empty: all.
        sample_percent: Share of each copy to read.
        recall: Ask for copies in archived storage classes, and wait for them; it costs money and hours. Else they are
            left out.
    """
    with at_work():
        here = opened(site)
        try:
            bad = read_back(site, destination, sample_percent, recall)
        finally:
            for settings in here.file.destinations:
                close_destination(here, settings.name)
        if bad:
            return Failed(name="Partial", message=f"{counted(bad, 'copy', 'copies')} cannot be trusted")
        return Completed(message="every copy read back is right")


@task(name="read back", cache_policy=NO_CACHE, persist_result=False)
def read_back(site: Site, destination: str | None, sample_percent: float, recall: bool) -> int:
    """Returns how many copies were not right; the table artifact names them."""
    here = opened(site)
    rows = [
        checked.as_json()
        for checked in verify.verify_copies(
            here,
            destination,
            sample=sample_percent / 100,
            recalling=recall,
            progress=PrefectProgress(),
            cancel=CANCEL,
        )
    ]
    create_table_artifact(rows, key="verify", description=f"{counted(len(rows), 'copy', 'copies')} read back")
    return sum(1 for row in rows if row["error"])
