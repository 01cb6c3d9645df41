"""The night: stage one, gate, move, stage two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from blocks.site import Site
from flows.move_group import move_group
from flows.part import part, require_success
from flows.show import show_report
from flows.stage_one import PARTIAL, stage_one
from flows.stage_two import COPY_MISSING, stage_two
from nightferry.errors import Cancelled as Stopped
from nightferry.errors import ConfigError, GateClosed
from nightferry.model.records import RunRecord
from nightferry.ops.gate import approve, look
from nightferry.ops.move import settle
from nightferry.ops.opened import OpenSite
from nightferry.ops.report import NightResult, night_result
from nightferry.ops.run import begin_run, end_run, run_lock, set_state
from nightferry.ops.stage import lost_images
from nightferry.ops.stream import owed
from tasks.bridge import CANCEL, PrefectProgress, at_work, opened
from tasks.gate import require_open, to_active, write_seal

Stage = Literal["one", "two", "both"]


@flow(name="two-stage-backup", flow_run_name="night of {back_group}", persist_result=False, retries=0)
def two_stage_backup(
    site: Site,
    back_group: str,
    groups: list[str] | None = None,
    level: int | None = None,
    run: str | None = None,
    stores: list[str] | None = None,
    stage: Stage = "both",
    new: bool = False,
    accept_partial: list[str] | None = None,
    reason: str = "",
    stagger: bool = True,
) -> State[Any]:
    """Carries one BACK group's window from the active node to every destination.

    Running it again continues where the last try stopped: every step first looks in our own records and at
    the bytes.

    Args:
        site: The site.
        back_group: The BACK group whose window this is.
        groups: Only these storage groups; empty means all that are due.
        level: Only 0 in this release.
        run: Continue exactly this run.
        stores: Only these stores, as GROUP/STORE.
        stage: One of the stages alone, or both.
        new: Start another run although this window's is finished.
        accept_partial: Stores that may be partial or missing, recorded as an approval with the reason.
        reason: Why that is accepted.
        stagger: Wait for each storage group's own start time.
    """
    with at_work():
        here = opened(site)
        progress = PrefectProgress()
        # A node whose clock is behind the schedule's would find itself in the night before.
        moment = max(here.clock.now(), flow_run.get_scheduled_start_time())
        try:
            with run_lock(here, back_group, moment=moment, progress=progress, cancel=CANCEL) as lock:
                if stage == "two":
                    sealed = continue_sealed(here, back_group, run)
                    begun = set_state(here, sealed, flow_run=str(flow_run.get_id() or ""))
                else:
                    started = begin_run(
                        here,
                        back_group,
                        groups=groups,
                        stores=stores,
                        level=level,
                        run=run,
                        new=new,
                        moment=moment,
                        flow_run=str(flow_run.get_id() or ""),
                    )
                    progress.say(started.how)
                    if started.finished:
                        return Completed(message=started.how)
                    begun = started.run
                lock.name_run(begun.run)
                accepted = accept_partial or ()
                return night(
                    site, here, begun, stage, accept_partial=accepted, reason=reason, stagger=stagger
                )
        except Stopped as stopped:
            return Cancelled(message=f"{stopped}; rerunning goes on where it stopped")


def continue_sealed(here: OpenSite, back_group: str, run: str | None) -> RunRecord:
    """The newest sealed run that owes copies; the newest sealed one when nothing is owed.

    Raises:
        ConfigError: no run is sealed, or none is called ``run``.
    """
    if run is not None:
        return here.catalog.run(run)
    here.catalog.refresh()
    sealed = [r for r in here.catalog.runs(back_group) if here.catalog.seal(r.run) is not None]
    if not sealed:
        raise ConfigError(
            f"no sealed run of {back_group}: there is nothing for stage two",
            hint="run `nightferry backup --stage one` first",
        )
    owing = {o.image.run for o in owed(here, back_group)}
    return next((r for r in sealed if r.run in owing), sealed[0])


def night(
    site: Site,
    here: OpenSite,
    run: RunRecord,
    stage: Stage,
    *,
    accept_partial: Sequence[str],
    reason: str,
    stagger: bool,
) -> State[Any]:
    """The steps of one run, in order; each is a task or a subflow, so that the graph reads like the night."""
    if stage != "two" and (look(here, run).state != "open" or lost_images(here, run)):
        # The service may have gone to another node since the run began.
        run = set_state(here, run, node=here.active_node(run.back_group))
        to_active(site, run.run, run.back_group)
        run = set_state(here, run, state="staging")
        staged = stage_one(site, run.run, stagger=stagger)
        if staged.name != PARTIAL:
            require_success(staged)
        CANCEL.check()
        write_seal(site, run.run)
        accept(here, run, accept_partial, reason)
    if stage == "one":
        result = night_result(here, run, staged_only=True)
        if result.gate.state == "open":
            run = set_state(here, run, state="sealed")
        return final_state(here, result)
    try:
        require_open(site, run.run, run.back_group)
    except GateClosed:
        return final_state(here, night_result(here, run))
    require_success(part(move_group, site, run.back_group, run=run.run))
    run = set_state(here, run, state="streaming")
    streamed = part(stage_two, site, run.back_group, run=run.run)
    settle(here, run.back_group, progress=PrefectProgress())
    CANCEL.check()
    if streamed.name != COPY_MISSING:
        require_success(streamed)
    result = night_result(here, run)
    if here.drain_requested(run.back_group):
        set_state(here, run, state="drained", result="partial")
    elif not result.missing_copies:
        end_run(here, run, result.run_result)
    return final_state(here, night_result(here, run))


def accept(here: OpenSite, run: RunRecord, stores: Sequence[str], reason: str) -> None:
    """Records the approval given beforehand, for those of the stores that the seal really lacks."""
    view = look(here, run)
    lacking = [m.name for m in view.missing if m.name in stores]
    if lacking:
        approve(here, run, lacking, reason)


def final_state(here: OpenSite, result: NightResult) -> State[Any]:
    """Shows the report and names the flow's last state after the night's outcome."""
    show_report(here, result)
    if result.is_whole:
        return Completed(message=result.sentence())
    return Failed(name=result.outcome, message=result.sentence())
