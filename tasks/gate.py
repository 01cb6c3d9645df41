"""The gate and the moves as tasks."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from blocks.site import Site
from nightferry.night import gate, move
from tasks.bridge import CANCEL, PrefectProgress, opened


@task(name="seal", task_run_name="seal {run}", cache_policy=NO_CACHE, persist_result=False)
def write_seal_task(site: Site, run: str) -> str:
    """Writes the manifest of stage one; returns its digest."""
    here = opened(site)
    return gate.write_seal(here, here.catalog.run(run)).digest


@task(name="gate", task_run_name="gate {back_group}", cache_policy=NO_CACHE, persist_result=False)
def require_open_task(site: Site, run: str, back_group: str) -> None:
    """Fails while the gate is shut. Never retried: time does not open a gate."""
    here = opened(site)
    gate.require_open(here, here.catalog.run(run))


@task(
    name="move to the active node",
    task_run_name="{back_group} to the active node",
    cache_policy=NO_CACHE,
    persist_result=False,
)
def to_active_task(site: Site, run: str, back_group: str) -> str:
    """The disk back to the active node; returns the node."""
    here = opened(site)
    return move.to_active(here, here.catalog.run(run), progress=PrefectProgress(), cancel=CANCEL)


@task(
    name="move to a passive node",
    task_run_name="{back_group} to a passive node",
    cache_policy=NO_CACHE,
    persist_result=False,
)
def to_passive_task(site: Site, run: str, back_group: str, to: str | None = None) -> str:
    """The disk through the gate to a passive node; returns the node."""
    here = opened(site)
    return move.to_passive(here, here.catalog.run(run), to=to, progress=PrefectProgress(), cancel=CANCEL)
