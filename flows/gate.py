"""An operator's word at a held gate."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from prefect import flow
from prefect.client.schemas.objects import State

from blocks.site import Site
from flows.two_stage import two_stage_backup
from nightferry.night import gate
from tasks.bridge import at_work, opened
from tasks.part import as_own, part
from tasks.place import run_on, runs_here


@flow(name="approve-gate", flow_run_name="approve {run}", persist_result=False)
def approve_gate(site: Site, run: str, stores: list[str], reason: str) -> State[Any]:
    """Accepts the named stores as they are, by record, then runs the night on: partial, missing or suspect.

    Args:
        site: The site.
        run: The held run.
        stores: GROUP/STORE, each one that the seal lacks and that is accepted.
        reason: Why; kept with the record.
    """
    with at_work():
        here = opened(site)
        here.catalog.refresh()
        record = here.catalog.run(run)
        owner = here.cluster.where(record.back_group)
        if runs_here(here, owner):
            gate.approve(here, record, stores, reason)
            ended = part(two_stage_backup, site, record.back_group, run=run, stage="two")
        else:
            # The approval is written onto the disk, too.
            ended = run_on(
                owner,
                approve_gate,
                site,
                key=f"by hand/{uuid4()}",
                run=run,
                stores=stores,
                reason=reason,
            )
    return as_own(ended)
