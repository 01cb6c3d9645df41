"""The gated move of a BACK group's disk."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from blocks.site import Site
from nightferry.errors import ConfigError
from nightferry.ops.run import run_lock
from tasks.bridge import CANCEL, PrefectProgress, at_work, opened
from tasks.gate import to_passive


@flow(name="move-group", flow_run_name="move {back_group}", persist_result=False)
def move_group(site: Site, back_group: str, to: str | None = None, run: str | None = None) -> State[Any]:
    """Hands the disk to a passive node, once the gate of the BACK group's newest run is open.

    Args:
        site: The site.
        back_group: The BACK group.
        to: This node; empty: the first usable target.
        run: The run whose gate must be open; empty: the newest.

    Raises:
        GateClosed: it is not.
    """
    with at_work():
        here = opened(site)
        name = run or next((r.run for r in here.catalog.runs(back_group)), None)
        if name is None:
            raise ConfigError(f"{back_group} has no run yet: nothing is proven staged", subject=back_group)
        with run_lock(here, back_group, progress=PrefectProgress(), cancel=CANCEL):
            node = to_passive(site, name, back_group, to)
        return Completed(message=f"{back_group} is on {node}")
