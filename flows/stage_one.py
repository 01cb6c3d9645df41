"""Stage one: every store of the run to staging, on the active node."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture, wait
from prefect.states import Completed, Failed

from blocks.site import Site
from flows.part import part
from nightferry.errors import ConfigError
from nightferry.model.records import RunRecord
from nightferry.ops.hooks import hooked
from nightferry.ops.opened import OpenSite
from nightferry.ops.ownership import watched
from nightferry.ops.run import due_stores
from nightferry.ops.stage import require_owner
from nightferry.plan.batches import batches
from nightferry.plan.window import start_delays
from tasks.bridge import CANCEL, PrefectProgress, at_work, opened
from tasks.runner import threads
from tasks.stage import stage_batch, stage_store

PARTIAL = "Partial"


def stage_one(site: Site, run: str, *, stagger: bool = True) -> State[Any]:
    """Runs the flow with as many threads as the site allows streams."""
    streams = opened(site).site.staging.streams
    return part(stage_one_flow.with_options(task_runner=threads(streams)), site, run, stagger)


@flow(name="stage-one", flow_run_name="stage one of {run}", persist_result=False)
def stage_one_flow(site: Site, run: str, stagger: bool = True) -> State[Any]:
    """A task per store, small stores batched; a store that fails does not stop the others.

    Whether stage one is complete is not decided here: the seal lists what our records and the disk say.
    """
    with at_work():
        here = opened(site)
        here.catalog.refresh()
        record = here.catalog.run(run)
        if record.back_group not in here.held:
            raise ConfigError(
                f"stage one of {run} runs only inside its night",
                hint="start two-stage-backup with stage = one",
            )
        with hooked(
            here,
            "stage-one",
            record.back_group,
            run=run,
            node=record.node,
            progress=PrefectProgress(),
            cancel=CANCEL,
        ) as around:
            with watched(here, record.back_group, CANCEL, require_owner(here, record)):
                futures = _submit(here, site, record, stagger)
                wait(futures)
            CANCEL.check()
            failures = here.catalog.failures(run)
            around.result = "partial" if failures else "whole"
        if failures:
            named = ", ".join(f"{failure.group}/{failure.store}" for failure in failures)
            return Failed(name=PARTIAL, message=f"not staged: {named}")
        return Completed(message="every store is staged")


def _delays(here: OpenSite, run: RunRecord) -> dict[str, float]:
    starts = {g.name: g.start for g in here.site.groups_of(run.back_group)}
    return start_delays(starts, here.clock.now(), here.site.tz)


def _last_size(here: OpenSite, group: str, store: str) -> int | None:
    known = here.catalog.images(group, store)
    return known[0].size_bytes if known else None


def _submit(here: OpenSite, site: Site, record: RunRecord, stagger: bool) -> list[PrefectFuture[Any]]:
    futures: list[PrefectFuture[Any]] = []
    delays = _delays(here, record) if stagger else {}
    for group in sorted(record.groups, key=lambda g: delays.get(g, 0.0)):
        delay_s = delays.get(group, 0.0)
        stores = [store for g, store in due_stores(record) if g == group]
        sizes = {store: _last_size(here, group, store) for store in stores}
        for batch in batches(sizes):
            if len(batch) == 1:
                futures.append(stage_store.submit(site, record.run, group, batch[0], delay_s))
            else:
                futures.append(stage_batch.submit(site, record.run, group, list(batch), len(batch), delay_s))
    return futures
