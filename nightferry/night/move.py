"""Moving a BACK group's disk: to the active node for stage one, through the gate to a passive one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nightferry.cluster.busy import users_of
from nightferry.cluster.disk import OwnerToken
from nightferry.errors import BusyError, ClusterError, ConfigError, GateClosed, MoveFailed
from nightferry.model.claim_records import OwnerRecord
from nightferry.model.records import RunRecord
from nightferry.night.gate import require_open
from nightferry.night.hooks import hooked
from nightferry.progress import Cancel, Progress
from nightferry.site.nodes import active_node, has_disk, placement, require_here
from nightferry.site.opened import OpenSite, operator
from nightferry.staging.orphans import clear_orphans
from nightferry.staging.ownership import knows, require_own_disk

log = logging.getLogger(__name__)

IDLE_WITHIN_S = 5.0
"""Whoever looks at a disk in passing has left it by then."""


def to_active(site: OpenSite, run: RunRecord, *, progress: Progress, cancel: Cancel) -> str:
    """Brings the disk to the run's active node. Waits, and says for whom, while a reader still holds it.

    Raises:
        BusyError: a reader holds it and ``on_overrun = "skip"``.
        NotOwner: this is not the run's active node.
        MoveFailed: the disk did not arrive.
        Cancelled: while it waited.
    """
    require_here(site, run.node, f"stage one of {run.run}")
    waits = site.file.back_group(run.back_group).on_overrun != "skip"
    node = _when_free(site, run, run.node, waits=waits, progress=progress, cancel=cancel)
    drop_move_constraint(site, run.back_group, progress=progress)
    if site.local_node is not None:
        # Whoever began the run may not have seen the disk.
        clear_orphans(site, run.back_group, cancel=cancel)
    return node


def to_passive(
    site: OpenSite, run: RunRecord, *, to: str | None = None, progress: Progress, cancel: Cancel
) -> str:
    """Hands the disk to a passive node once the gate is open; returns the node.

    Waits, and says for whom, while a restore reads from the disk.

    Args:
        site: The site.
        run: The sealed run.
        to: This node; else the first usable one of the BACK group's targets.
        progress: Is told of the move.
        cancel: Seen while it waits and before the move.

    Raises:
        ConfigError: ``to`` is not a target.
        GateClosed: not every store is proven staged.
        NotOwner: the disk, which the gate reads, is on another node than this one.
        ClusterError: no passive node is usable.
        MoveFailed: the disk did not arrive; stage two must not read.
    """
    if to is not None:
        require_target(site, run.back_group, to)
    require_open(site, run)
    target = target_of(site, run.back_group, to)
    return _when_free(site, run, target, waits=True, progress=progress, cancel=cancel)


SERVICE_S = 900.0
"""How long a service may take until it is started somewhere for certain."""


def wait_for_service(site: OpenSite, back_group: str, *, progress: Progress, cancel: Cancel) -> str:
    """The node that serves a BACK group's stores; a failover of them or of the disk on its way is waited for.

    Raises:
        ClusterError: it is not certain after ``SERVICE_S``.
        Cancelled: while it waited.
    """
    ends = site.clock.monotonic() + SERVICE_S
    announced = False
    while True:
        try:
            site.cluster.where(back_group)
            return active_node(site, back_group)
        except ClusterError as error:
            if site.clock.monotonic() >= ends:
                raise
            if not announced:
                announced = True
                progress.say(f"waiting for the service of {back_group}: {error.message}", subject=back_group)
        cancel.check()
        site.clock.sleep(1.0)


def require_handed_over(site: OpenSite, back_group: str) -> None:
    """Stage two reads only what went through the gate, and on the node that it went to.

    Raises:
        GateClosed: the disk is still with the node that staged last.
        NotOwner: the disk is on another node than this one.
    """
    site.catalog.refresh()
    require_here(site, site.cluster.where(back_group), f"stage two of {back_group}")
    newest = next(iter(site.catalog.runs(back_group)), None)
    token = site.disk(back_group).owner()
    if newest is None or (token is not None and token.node != newest.node):
        return
    if token is None or target_of(site, back_group) != token.node:
        raise GateClosed(
            f"the disk of {back_group} is still with {newest.node}: run {newest.run} has not passed its gate",
            hint=f"`nightferry backup --back-group {back_group} --stage two` passes the gate and moves the disk first",
            subject=newest.run,
        )


def take_over(site: OpenSite, back_group: str, *, progress: Progress, cancel: Cancel) -> None:
    """Takes a disk that another node moved here through the gate: the first thing that work here does.

    A disk that is taken already, or that is not here, is left alone.

    Raises:
        GateClosed: it came here, and not through the gate.
        MoveFailed: it is not the disk we know.
    """
    if site.local_node is None or not has_disk(site, back_group):
        return
    site.catalog.refresh()
    newest = next(iter(site.catalog.runs(back_group)), None)
    token = site.disk(back_group).owner()
    if (
        newest is None
        or newest.node == site.local_node
        or (token is not None and token.node == site.local_node)
    ):
        return
    require_open(site, newest)
    _when_free(site, newest, site.local_node, waits=True, progress=progress, cancel=cancel)


def drop_move_constraint(site: OpenSite, back_group: str, *, progress: Progress) -> None:
    """Takes back what the move here left in the cluster, once nothing depends on it any more.

    When that fails, or the group would leave its node for it, `check` and the next move deal with it.
    """
    try:
        site.cluster.release(back_group)
    except ClusterError as error:
        progress.say(f"{back_group} stays pinned to its node: {error.message}", subject=back_group)


def target_of(site: OpenSite, back_group: str, to: str | None = None) -> str:
    """The node a BACK group's disk would be handed to: ``to``, or the one that `plan.placement` gives it.

    Raises:
        ClusterError: no passive node is usable.
    """
    view = site.cluster.view()
    if to is not None:
        targets = [to] if (node := view.node(to)) is not None and node.usable else []
    else:
        # Raises when nobody, or nobody for certain, owns the group.
        site.cluster.where(back_group)
        chosen = placement(site, view)[back_group]
        targets = [chosen] if chosen is not None else []
    if not targets:
        candidates = [to] if to else [node.name for node in site.file.targets(back_group)]
        raise ClusterError(
            f"no passive node can take {back_group}: {', '.join(candidates) or 'none is configured'}",
            subject=back_group,
        )
    return targets[0]


def require_target(site: OpenSite, back_group: str, node: str) -> None:
    """The gate lets a disk by to a passive node only, or to one that the BACK group's ``targets`` name.

    Raises:
        ConfigError: it is another one.
    """
    names = {spec.name for spec in (*site.file.passive_nodes, *site.file.targets(back_group))}
    if site.file.node(node).name not in names:
        raise ConfigError(
            f"{node} is not a target of {back_group}: the gate hands the disk to a passive node",
            hint=f"its targets: {', '.join(sorted(names))}; for maintenance see --ungated",
            subject=node,
        )


def move_ungated(
    site: OpenSite, back_group: str, to: str, reason: str, *, progress: Progress, cancel: Cancel
) -> str:
    """Maintenance: not through the gate, but still verified and never while somebody reads. Who and why go
    into the catalog before anything moves, and into the owner token where the disk is taken here. A blank disk in
    the place of the one we knew is taken into use."""
    log.warning("ungated move of %s to %s by %s: %s", back_group, to, operator(), reason)
    run = f"maintenance by {operator()}: {reason}"
    known = site.catalog.owner(back_group)
    if known is not None and site.local_node not in (None, to):
        # The node that the disk goes to takes it later, for other work.
        site.catalog.append(known.model_copy(update={"run": run, "at": site.clock.now()}))
    with _hooked(site, back_group, to, run, progress=progress, cancel=cancel):
        node = _move(site, back_group, to, run, progress=progress, cancel=cancel, new_disk=True)
    drop_move_constraint(site, back_group, progress=progress)
    return node


def _when_free(
    site: OpenSite, run: RunRecord, target: str, *, waits: bool, progress: Progress, cancel: Cancel
) -> str:
    """Moves the run's disk when nobody reads from it any more."""
    with _hooked(site, run.back_group, target, run.run, progress=progress, cancel=cancel):
        return _retried(site, run, target, waits=waits, progress=progress, cancel=cancel)


@contextmanager
def _hooked(
    site: OpenSite, back_group: str, target: str, run: str, *, progress: Progress, cancel: Cancel
) -> Iterator[None]:
    """The site's hooks around a move, once however long it waits; none where the disk is there already."""
    if site.cluster.where(back_group) == target:
        yield
        return
    with hooked(site, "move", back_group, run=run, node=target, progress=progress, cancel=cancel):
        yield


def _retried(
    site: OpenSite, run: RunRecord, target: str, *, waits: bool, progress: Progress, cancel: Cancel
) -> str:
    last_message = ""
    while True:
        try:
            return _move(site, run.back_group, target, run.run, progress=progress, cancel=cancel)
        except BusyError as error:
            if not waits:
                raise
            if error.message != last_message:
                progress.say(f"waiting: {error.message}")
                last_message = error.message
        cancel.check()
        site.clock.sleep(1.0)


def _move(
    site: OpenSite,
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
    cluster = site.cluster
    plan = cluster.plan(back_group, target)
    if plan.problems:
        raise MoveFailed(
            f"{back_group} cannot move to {target}: {'; '.join(plan.problems)}", subject=back_group
        )
    sees = site.local_node in (None, plan.source)
    token = _known_token(site, back_group, target, new_disk=new_disk) if sees else None
    if plan.is_noop and token is not None and token.node == target and knows(site, token):
        # Nothing that an earlier move left may carry it away from here.
        cluster.move(plan, run=run, cancel=cancel)
        _remember(site, back_group, token)
        return target
    cancel.check()
    with site.claims.shared(back_group).exclusive():
        if not plan.is_noop:
            _require_unused(site, back_group, plan.source, cancel)
            progress.say(f"moving {back_group} from {plan.source} to {target}")
        cluster.move(plan, run=run, cancel=cancel)
        if cluster.where(back_group) != target:
            raise MoveFailed(f"{back_group} is not on {target} after the move", subject=back_group)
        if site.local_node not in (None, target):
            progress.say(f"{back_group} is on {target}, where its next work takes the disk")
            return target
        token = _known_token(site, back_group, target, new_disk=new_disk)
        known = site.catalog.owner(back_group)
        epoch, above = token.epoch if token else 0, known.epoch if known else 0
        token = site.disk(back_group).take(target, run, expected_epoch=epoch, above=above)
    _remember(site, back_group, token)
    progress.say(f"{back_group} is on {target} (epoch {token.epoch})")
    return target


def _require_unused(site: OpenSite, back_group: str, source: str, cancel: Cancel) -> None:
    """Nobody has anything open on the disk, else its stop would fail, and with fencing cost the node.

    Raises:
        MoveFailed: somebody has, and still has after some seconds.
    """
    if site.local_node != source:
        return  # where one machine plays every node nothing is unmounted; from elsewhere it cannot be seen
    path = site.disk(back_group).path
    if path.stat().st_dev == Path("/").stat().st_dev:
        return  # a folder of the root file system is never unmounted
    end = site.clock.monotonic() + IDLE_WITHIN_S
    while users := users_of(path):
        if site.clock.monotonic() > end:
            raise MoveFailed(
                f"the disk of {back_group} is kept busy by {', '.join(users)}",
                hint="stop them, or let them leave the disk, which cannot be unmounted; nothing was moved",
                subject=back_group,
            )
        cancel.wait(0.25)


def _known_token(site: OpenSite, back_group: str, target: str, *, new_disk: bool) -> OwnerToken | None:
    """The token of the disk that is mounted here; None on a disk that nobody took yet.

    Raises:
        MoveFailed: it is not the disk we know.
        CatalogError: the disk is another catalog's.
    """
    if not new_disk:
        require_own_disk(site, back_group)
    disk = site.disk(back_group)
    token, known = disk.owner(), site.catalog.owner(back_group)
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
            f"the disk of {back_group} has epoch {token.epoch}, the catalog {known.epoch}: "
            "this is another disk",
            hint="check what is mounted there; nothing was moved",
            subject=back_group,
        )
    return token


def _remember(site: OpenSite, back_group: str, token: OwnerToken) -> None:
    known = site.catalog.owner(back_group)
    if known is None or (known.epoch, known.node) != (token.epoch, token.node):
        site.catalog.append(
            OwnerRecord(
                back_group=back_group,
                epoch=token.epoch,
                node=token.node,
                run=token.run,
                at=site.clock.now(),
            )
        )
