"""Moving a BACK group's disk: to the active node for stage one, through the gate to a passive one."""

from __future__ import annotations

import logging

from nightferry.cluster.disk import OwnerToken
from nightferry.errors import BusyError, ClusterError, GateClosed, MoveFailed
from nightferry.model.records import OwnerRecord, RunRecord
from nightferry.ops.gate import require_open
from nightferry.ops.opened import OpenSite, operator
from nightferry.progress import Cancel, Progress

log = logging.getLogger(__name__)


def to_active(opened: OpenSite, run: RunRecord, *, progress: Progress, cancel: Cancel) -> str:
    """Brings the disk to the run's active node. Waits, and says for whom, while a reader still holds it.

    Raises:
        BusyError: a reader holds it and ``on_overrun = "skip"``.
        NotOwner: this is not the run's active node.
        MoveFailed: the disk did not arrive.
        Cancelled: while it waited.
    """
    opened.require_here(run.node, f"stage one of {run.run}")
    waits = opened.site.back_group(run.back_group).on_overrun != "skip"
    node = _when_free(opened, run, run.node, waits=waits, progress=progress, cancel=cancel)
    settle(opened, run.back_group, progress=progress)
    return node


def to_passive(
    opened: OpenSite, run: RunRecord, *, to: str | None = None, progress: Progress, cancel: Cancel
) -> str:
    """Hands the disk to a passive node once the gate is open; returns the node.

    Waits, and says for whom, while a restore reads from the disk.

    Args:
        opened: The site.
        run: The sealed run.
        to: This node; else the first usable one of the BACK group's targets.
        progress: Is told of the move.
        cancel: Seen while it waits and before the move.

    Raises:
        GateClosed: not every store is proven staged.
        NotOwner: the disk, which the gate reads, is on another node than this one.
        ClusterError: no passive node is usable.
        MoveFailed: the disk did not arrive; stage two must not read.
    """
    opened.require_here(opened.cluster.where(run.back_group), f"the gate of {run.back_group}")
    require_open(opened, run)
    target = target_of(opened, run.back_group, to)
    return _when_free(opened, run, target, waits=True, progress=progress, cancel=cancel)


def require_handed_over(opened: OpenSite, back_group: str) -> None:
    """Stage two reads only what went through the gate, and on the node that it went to.

    Raises:
        GateClosed: the disk is still with the node that staged last.
        NotOwner: the disk is on another node than this one.
    """
    opened.catalog.refresh()
    opened.require_here(opened.cluster.where(back_group), f"stage two of {back_group}")
    newest = next(iter(opened.catalog.runs(back_group)), None)
    token = opened.disk(back_group).owner()
    if newest is None or (token is not None and token.node != newest.node):
        return
    if token is None or target_of(opened, back_group) != token.node:
        raise GateClosed(
            f"the disk of {back_group} is still with {newest.node}: its gate has not let run {newest.run} by",
            hint=f"`nightferry backup --back-group {back_group} --stage two` passes the gate and moves first",
            subject=newest.run,
        )


def settle(opened: OpenSite, back_group: str, *, progress: Progress) -> None:
    """Takes back what the move here left in the cluster, once nothing depends on it any more.

    When that fails, or the group would leave its node for it, `check` and the next move deal with it.
    """
    try:
        opened.cluster.release(back_group)
    except ClusterError as error:
        progress.say(f"{back_group} stays pinned to its node: {error.message}", subject=back_group)


def target_of(opened: OpenSite, back_group: str, to: str | None = None) -> str:
    """The node a BACK group's disk would be handed to: ``to``, or the first usable one of its targets.

    Raises:
        ClusterError: no passive node is usable.
    """
    view = opened.cluster.view()
    targets = [to] if to else [node.name for node in opened.site.targets(back_group)]
    # After a failover a passive node serves the users: any other one comes before it.
    mail_groups = [g.mail_group for g in opened.site.groups_of(back_group) if g.mail_group]
    serving = {group.owner for name in mail_groups if (group := view.group(name)) is not None}
    targets.sort(key=serving.__contains__)
    owner = opened.cluster.where(back_group)
    if to is None and owner in targets and owner not in serving:
        targets = [owner]  # a rerun finds the disk where the first try brought it
    usable = [t for t in targets if (node := view.node(t)) is not None and node.usable]
    if not usable:
        raise ClusterError(
            f"no passive node can take {back_group}: {', '.join(targets) or 'none is configured'}",
            subject=back_group,
            operation="move",
        )
    return usable[0]


def move_ungated(
    opened: OpenSite, back_group: str, to: str, reason: str, *, progress: Progress, cancel: Cancel
) -> str:
    """Maintenance: not through the gate, but still verified and never while somebody reads. Who and why go
    into the owner token and the catalog. A blank disk in the place of the one we knew is taken into use."""
    log.warning("ungated move of %s to %s by %s: %s", back_group, to, operator(), reason)
    run = f"maintenance by {operator()}: {reason}"
    return _move(opened, back_group, to, run, progress=progress, cancel=cancel, new_disk=True)


def _when_free(
    opened: OpenSite, run: RunRecord, target: str, *, waits: bool, progress: Progress, cancel: Cancel
) -> str:
    """Moves the run's disk when nobody reads from it any more."""
    said = ""
    while True:
        try:
            return _move(opened, run.back_group, target, run.run, progress=progress, cancel=cancel)
        except BusyError as error:
            if not waits:
                raise
            if error.message != said:
                progress.say(f"waiting: {error.message}")
                said = error.message
        cancel.check()
        opened.clock.sleep(1.0)


def _move(
    opened: OpenSite,
    back_group: str,
    target: str,
    run: str,
    *,
    progress: Progress,
    cancel: Cancel,
    new_disk: bool = False,
) -> str:
    """Moves the disk when it is elsewhere, and takes it for ``target`` when this process can see it there.

    Else the first process that works on the target takes it: by the same call, which then moves nothing.
    """
    plan = opened.cluster.plan(back_group, target)
    if plan.problems:
        raise MoveFailed(
            f"{back_group} cannot move to {target}: {'; '.join(plan.problems)}", subject=back_group
        )
    sees = opened.here in (None, plan.source)
    token = _known_token(opened, back_group, target, new_disk=new_disk) if sees else None
    if plan.is_noop and token is not None and token.node == target:
        _remember(opened, back_group, token)
        return target
    cancel.check()
    with opened.leases(back_group).exclusive():
        if not plan.is_noop:
            progress.say(f"moving {back_group} from {plan.source} to {target}")
            opened.cluster.move(plan, run=run, cancel=cancel)
        if opened.cluster.where(back_group) != target:
            raise MoveFailed(f"{back_group} is not on {target} after the move", subject=back_group)
        if opened.here not in (None, target):
            progress.say(f"{back_group} is on {target}, where its next work takes the disk")
            return target
        token = _known_token(opened, back_group, target, new_disk=new_disk)
        known = opened.catalog.owner(back_group)
        epoch, above = token.epoch if token else 0, known.epoch if known else 0
        token = opened.disk(back_group).take(target, run, expected_epoch=epoch, above=above)
    _remember(opened, back_group, token)
    progress.say(f"{back_group} is on {target} (epoch {token.epoch})")
    return target


def _known_token(opened: OpenSite, back_group: str, target: str, *, new_disk: bool) -> OwnerToken | None:
    """The token of the disk that is mounted here; None on a disk that nobody took yet.

    Raises:
        MoveFailed: it is not the disk we know.
    """
    disk = opened.disk(back_group)
    token, known = disk.owner(), opened.catalog.owner(back_group)
    if token is None and known is not None and not new_disk:
        # Most likely the mount point without the disk: staging there would fill another one.
        raise MoveFailed(
            f"the disk of {back_group} was last on {known.node}; what is at {disk.path} has no owner token",
            hint="mount the disk; if it was replaced, take the new one into use with "
            f"`nightferry cluster move {back_group} --to {target} --ungated --reason …`",
            subject=back_group,
        )
    if token is not None and known is not None and known.epoch > token.epoch:
        raise MoveFailed(
            f"the disk of {back_group} says epoch {token.epoch}, the catalog {known.epoch}: "
            "not the disk we know",
            hint="check what is mounted there; nothing was moved",
            subject=back_group,
        )
    return token


def _remember(opened: OpenSite, back_group: str, token: OwnerToken) -> None:
    known = opened.catalog.owner(back_group)
    if known is None or (known.epoch, known.node) != (token.epoch, token.node):
        opened.catalog.append(
            OwnerRecord(
                back_group=back_group,
                epoch=token.epoch,
                node=token.node,
                run=token.run,
                at=opened.clock.now(),
            )
        )
