"""Stage one: every store of the run to staging, on the active node, up to the gate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture, wait
from prefect.states import Completed, Failed

from blocks.site import Site
from flows.show import final_state
from nightferry.errors import ConfigError
from nightferry.model.records import RunRecord
from nightferry.night.gate import approve, evaluate
from nightferry.night.hooks import hooked
from nightferry.night.report import night_result
from nightferry.night.run import HeldLocks, due_stores, run_lock, set_state
from nightferry.night.stage import require_owner
from nightferry.plan.balance import batches
from nightferry.plan.window import start_delays
from nightferry.site.nodes import has_disk
from nightferry.site.opened import OpenSite
from nightferry.staging.images import lost_images
from nightferry.staging.ownership import watching_disk
from tasks.bridge import CANCEL, PrefectProgress, at_work, opened
from tasks.gate import to_active_task, write_seal_task
from tasks.runner import at_once
from tasks.stage import stage_batch, stage_store_task

PARTIAL_STATE = "Partial"


@flow(name="stage-one", flow_run_name="stage one of {run}", persist_result=False)
def stage_one(
    site: Site,
    run: str,
    back_group: str,
    stage: Literal["one", "both"] = "both",
    accept_partial: Sequence[str] = (),
    reason: str = "",
    stagger: bool = True,
    lock: str | None = None,
) -> State[Any]:
    """Brings the disk here, stages every store that is due, and seals.

    Whether stage one is complete is not decided here: the seal lists what our records and the disk say.

    Args:
        site: The site.
        run: The run.
        back_group: Its BACK group.
        stage: ``one`` ends the night with the seal, and with its report.
        accept_partial: Stores that may be partial or missing, recorded as an approval with the reason.
        reason: Why that is accepted.
        stagger: Wait for each storage group's own start time.
        lock: The lock of the night that this is a part of; filled in by it.
    """
    with at_work():
        here = opened(site)
        here.catalog.refresh()
        record = here.catalog.run(run)
        if back_group not in here.part(HeldLocks) and lock is None:
            raise ConfigError(
                f"stage one of {run} runs only inside its night",
                hint="start two-stage-backup with stage = one",
            )
        with run_lock(here, back_group, progress=PrefectProgress(), cancel=CANCEL, under=lock):
            failed: Sequence[str] = ()
            lost = has_disk(here, back_group) and lost_images(here, record)
            if evaluate(here, record).state != "open" or lost:
                to_active_task(site, run, back_group)
                record = set_state(here, record, state="staging")
                failed = _stage_all(here, site, record, stagger)
                write_seal_task(site, run)
                approve_beforehand(here, record, accept_partial, reason)
            if stage == "one":
                result = night_result(here, record, staged_only=True)
                if result.gate.state == "open":
                    set_state(here, record, state="sealed")
                return final_state(here, result)
            if failed:
                return Failed(name=PARTIAL_STATE, message=f"not staged: {', '.join(failed)}")
            return Completed(message="every store is staged")


def _stage_all(here: OpenSite, site: Site, record: RunRecord, stagger: bool) -> list[str]:
    """A task per store, small stores batched; a store that fails does not stop the others. Returns those."""
    progress = PrefectProgress()
    with hooked(
        here,
        "stage-one",
        record.back_group,
        run=record.run,
        node=record.node,
        progress=progress,
        cancel=CANCEL,
    ) as around:
        with (
            watching_disk(here, record.back_group, CANCEL, require_owner(here, record)) as owned,
            at_once(here.file.staging.streams),
        ):
            wait(_submit(here, site, record, stagger))
            owned.check()
        failures = here.catalog.failures(record.run)
        around.result = "partial" if failures else "whole"
    return [f"{failure.group}/{failure.store}" for failure in failures]


def _submit(here: OpenSite, site: Site, record: RunRecord, stagger: bool) -> list[PrefectFuture[Any]]:
    futures: list[PrefectFuture[Any]] = []
    delays = _delays(here, record) if stagger else {}
    for group in sorted(record.groups, key=lambda g: delays.get(g, 0.0)):
        delay_s = delays.get(group, 0.0)
        stores = [store for g, store in due_stores(record) if g == group]
        sizes = {store: _last_size(here, group, store) for store in stores}
        for batch in batches(sizes):
            if len(batch) == 1:
                futures.append(stage_store_task.submit(site, record.run, group, batch[0], delay_s))
            else:
                futures.append(stage_batch.submit(site, record.run, group, list(batch), len(batch), delay_s))
    return futures


def _delays(here: OpenSite, run: RunRecord) -> dict[str, float]:
    starts = {g.name: g.start for g in here.file.groups_of(run.back_group)}
    return start_delays(starts, here.clock.now(), here.file.tz, run.window)


def _last_size(here: OpenSite, group: str, store: str) -> int | None:
    known = here.catalog.images(group, store)
    return known[0].size_bytes if known else None


def approve_beforehand(here: OpenSite, run: RunRecord, stores: Sequence[str], reason: str) -> None:
    """Records the approval given beforehand, for those of the stores that the seal really lacks.

    A suspect one is not among them: nobody could know beforehand what it looks like, and once approved that is what
    the store is compared with from then on.
    """
    view = evaluate(here, run)
    lacking = [m.name for m in view.missing if m.name in stores and m.state != "suspect"]
    if lacking:
        approve(here, run, lacking, reason)
