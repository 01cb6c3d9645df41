"""The gated move of a BACK group's disk."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from blocks.site import Site
from flows.show import final_state
from nightferry.errors import ConfigError, GateClosed
from nightferry.night.report import night_result
from nightferry.night.run import run_lock, set_state
from tasks.bridge import CANCEL, PrefectProgress, at_work, opened
from tasks.gate import require_open_task, to_passive_task
from tasks.place import run_on, runs_here

GATE_HELD = "GateHeld"


@flow(name="move-group", flow_run_name="move {back_group}", persist_result=False)
def move_group(
    site: Site, back_group: str, to: str | None = None, run: str | None = None, lock: str | None = None
) -> State[Any]:
    """Hands the disk to a passive node, once the gate of the BACK group's newest run is open; else ends ``GateHeld``.

    Args:
        site: The site.
        back_group: The BACK group.
        to: This node; empty: the one that the layout gives it.
        run: The run whose gate must be open; empty: the newest.
        lock: The lock of the night that this is a part of; filled in by it.
    """
    with at_work():
        here = opened(site)
        owner = here.cluster.where(back_group)
        if not runs_here(here, owner):
            return run_on(
                owner, move_group, site, key=f"by hand/{uuid4()}", back_group=back_group, to=to, run=run
            )
        name = run or next((r.run for r in here.catalog.runs(back_group)), None)
        if name is None:
            raise ConfigError(f"{back_group} has no run yet: nothing is proven staged", subject=back_group)
        with run_lock(here, back_group, progress=PrefectProgress(), cancel=CANCEL, under=lock):
            try:
                require_open_task(site, name, back_group)
            except GateClosed:
                return final_state(here, night_result(here, here.catalog.run(name)))
            node = to_passive_task(site, name, back_group, to)
            set_state(here, here.catalog.run(name), state="streaming")
        return Completed(message=f"{back_group} is on {node}")
