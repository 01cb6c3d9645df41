"""The night: stage one, gate, move, stage two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from blocks.site import Site
from flows.move_group import GATE_HELD, move_group
from flows.show import final_state
from flows.stage_one import PARTIAL_STATE, stage_one
from flows.stage_two import COPY_MISSING, stage_two
from nightferry.errors import Cancelled as Stopped
from nightferry.errors import ConfigError, GroupStopping, NodeAway
from nightferry.model.records import RunRecord
from nightferry.night.gate import evaluate, require_newest
from nightferry.night.move import drop_move_constraint, wait_for_service
from nightferry.night.report import night_result
from nightferry.night.run import begin_run, end_run, lock_key, must_drain, run_lock, set_state
from nightferry.site.nodes import has_disk
from nightferry.site.opened import OpenSite
from nightferry.site.stamps import accept_clock, require_plausible_clock
from nightferry.staging.images import lost_images
from nightferry.staging.owed import owed
from tasks.bridge import CANCEL, PrefectProgress, at_work, opened
from tasks.part import as_own, require_success
from tasks.place import require_published, run_on

MOST_FAILOVERS = 5
"""How often stage one follows the service to another node within a night."""

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
    clock_is_right: str = "",
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
        clock_is_right: Why this node's clock is to be believed although runs are stamped later than now.
    """
    with at_work():
        here = opened(site)
        progress = PrefectProgress()
        if here.local_node is not None and stage != "one":
            # Stage two will be another node's, and must not be refused only then.
            require_published(here, site)
        # A node whose clock is behind the schedule's would find itself in the night before.
        moment = max(here.clock.now(), flow_run.get_scheduled_start_time())
        try:
            with run_lock(here, back_group, moment=moment, progress=progress, cancel=CANCEL) as lock:
                if run is not None:
                    here.catalog.refresh()
                    require_newest(here, here.catalog.run(run))
                if stage == "two":
                    here.catalog.refresh()
                    if clock_is_right:
                        accept_clock(here, clock_is_right)
                    require_plausible_clock(here, "no night continues")
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
                        clock_is_right=clock_is_right,
                    )
                    progress.say(started.how)
                    if started.finished:
                        return Completed(message=started.how)
                    begun = started.run
                lock.name_run(begun.run)
                accepted = accept_partial or ()
                return night(
                    site,
                    here,
                    begun,
                    stage,
                    lock=lock_key(here, back_group),
                    accept_partial=accepted,
                    reason=reason,
                    stagger=stagger,
                )
        except Stopped as stopped:
            return Cancelled(message=f"{stopped}; a rerun continues where it stopped")


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
    lock: str,
    accept_partial: Sequence[str],
    reason: str,
    stagger: bool,
) -> State[Any]:
    """The parts of one run, in order, each on the node whose work it is."""
    back_group = run.back_group
    if stage == "one" or (stage == "both" and _owes_stage_one(here, run)):
        staged = stage_one_where_the_service_is(
            site,
            here,
            run,
            stage=stage,
            accept_partial=list(accept_partial),
            reason=reason,
            stagger=stagger,
            lock=lock,
        )
        if stage == "one":
            return as_own(staged)
        if staged.name != PARTIAL_STATE:
            require_success(staged)
    moved = run_on(
        here.cluster.where(back_group),
        move_group,
        site,
        key=f"{run.run}/move",
        back_group=back_group,
        run=run.run,
        lock=lock,
    )
    if moved.name == GATE_HELD:
        return as_own(moved)
    require_success(moved)
    streamed = run_on(
        here.cluster.where(back_group),
        stage_two,
        site,
        key=f"{run.run}/two",
        back_group=back_group,
        run=run.run,
        lock=lock,
    )
    CANCEL.check()
    if streamed.name != COPY_MISSING:
        require_success(streamed)
    drop_move_constraint(here, back_group, progress=PrefectProgress())
    result = night_result(here, here.catalog.run(run.run))
    if must_drain(here, back_group):
        set_state(here, result.run, state="drained", result="partial")
    elif not result.missing_copies:
        end_run(here, result.run, result.run_result)
    return final_state(here, night_result(here, run))


def _owes_stage_one(here: OpenSite, run: RunRecord) -> bool:
    """Whether there is something to stage. Of a disk that was handed over only its node can say what it lost."""
    if evaluate(here, run).state != "open":
        return True
    if has_disk(here, run.back_group):
        return bool(lost_images(here, run))
    return here.cluster.where(run.back_group) == run.node


def stage_one_where_the_service_is(
    site: Site, here: OpenSite, run: RunRecord, **parameters: Any
) -> State[Any]:
    """Stage one on the node that serves the stores. When the service goes to another node meanwhile, what is staged
    is kept, and the rest starts over there.

    Raises:
        ClusterError: nobody serves them for certain, and that stays so.
    """
    for _ in range(MOST_FAILOVERS):
        node = wait_for_service(here, run.back_group, progress=PrefectProgress(), cancel=CANCEL)
        run = set_state(here, here.catalog.run(run.run), node=node)
        try:
            staged = run_on(
                node,
                stage_one,
                site,
                key=f"{run.run}/one",
                run=run.run,
                back_group=run.back_group,
                **parameters,
            )
        except NodeAway as away:
            staged = Failed(message=str(away), data=away)
        CANCEL.check()
        if staged.is_completed() or not _went_elsewhere(here, run, staged):
            return staged
        PrefectProgress().say(
            f"the service of {run.back_group} left {node} during stage one: {staged.message}",
            subject=run.back_group,
        )
    return staged


def _went_elsewhere(here: OpenSite, run: RunRecord, staged: State[Any]) -> bool:
    """Whether stage one lost stores because the service left its node. Waits until that is started again."""
    here.catalog.refresh()
    stopped = any(f.exit_code == GroupStopping.exit_code for f in here.catalog.failures(run.run))
    named = staged.name in (PARTIAL_STATE, GATE_HELD)
    if named and not stopped:
        return False
    error = None if named else staged.result(raise_on_failure=False)
    node = wait_for_service(here, run.back_group, progress=PrefectProgress(), cancel=CANCEL)
    return node != run.node or stopped or isinstance(error, GroupStopping)
