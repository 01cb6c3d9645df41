"""Pacemaker: moves that are planned on a copy, made by one recorded constraint, and believed when seen.

What the tools' exit statuses say of a move is not believed, nor what ``crm_resource`` says of a group's place:
only ``crm_mon``, which tells members, nodes and failures apart.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from nightferry.cluster import crm_check, crm_disk
from nightferry.cluster.base import SILENT_S, ClusterView, GroupView, MovePlan, NodeView
from nightferry.cluster.crm import Action, ClusterStatus, Configured, CrmGroup, Failure, Pin, read_cib
from nightferry.cluster.reader_agent import OCF_AGENTS
from nightferry.cluster.tools import CrmTools, pin_id
from nightferry.errors import ClusterError, MoveFailed
from nightferry.model.claim_records import ConstraintRecord
from nightferry.model.findings import Finding
from nightferry.model.names import choose
from nightferry.model.nodes import NodeSpec
from nightferry.progress import Cancel

POLL_STATUS_S = 0.25
MOVE_S = 300.0
"""A group that takes longer to stop and start needs a longer `move_deadline`."""
SETTLE_S = 60.0
"""How long a group may be on its way when somebody asks where it is."""
RECOVER_S = 10.0
"""How long the cluster has to bring a group back whose move failed before we say where it is."""
STOPPED_S = 3.0
"""Between its stop and its start a group looks stopped for a moment."""


class ConstraintRegister(Protocol):
    """Where constraints of ours are recorded; every node must be able to read it."""

    def constraint(self, group: str) -> ConstraintRecord | None:
        """The newest record about a group."""

    def place(self, group: str, node: str, *, run: str, before: str, without_fencing: bool) -> None:
        """Records, durably, that the constraint about to be placed is ours."""

    def take_back(self, group: str, reason: str) -> None:
        """Records that none of ours pins the group any more."""


@dataclass(frozen=True, slots=True)
class _Inspection:
    """One look at everything that a plan depends on. ``own``: our constraint on the group, if there is one."""

    status: ClusterStatus
    cib: bytes
    configured: Configured
    own: Pin | None


class PacemakerCluster:
    """The cluster of the node this process runs on.

    Args:
        nodes: The site's nodes; ``host`` is what the cluster calls each.
        groups: The resource groups, MAIL and BACK.
        register: Remembers our constraints.
        disks: BACK group → where the site file expects its disk, for `check`.
        allow_without_fencing: Move although a lost node would not be fenced off.
        move_s: How long a group's stop and start may take.
        tools: Pacemaker's.
        agents: Where this node has its resource agents, for `check`.
        cancel: Ends a tool that hangs; what takes back a move that was stopped is not ended by it.
    """

    def __init__(
        self,
        nodes: Sequence[NodeSpec],
        groups: Sequence[str],
        register: ConstraintRegister,
        *,
        disks: Mapping[str, Path] | None = None,
        allow_without_fencing: bool = False,
        move_s: float = MOVE_S,
        tools: CrmTools | None = None,
        agents: Path = OCF_AGENTS,
        cancel: Cancel | None = None,
    ) -> None:
        self._nodes = tuple(nodes)
        self._groups = tuple(dict.fromkeys(groups))
        self._register = register
        self._disks = dict(disks or {})
        self._allow_without_fencing = allow_without_fencing
        self._move_s = move_s
        self._tools = tools or CrmTools(cancel=cancel)
        self._agents = agents
        # The same question of the same configuration and state, as `plan` and then `move` ask it.
        self._last_simulated: tuple[tuple[MovePlan, bytes], MovePlan] | None = None

    @property
    def local_node(self) -> str | None:
        host = self._tools.node()
        spec = next((spec for spec in self._nodes if spec.host == host), None)
        if spec is None:
            raise ClusterError(
                f"the site file has no node that the cluster calls {host}",
                hint="name it in [cluster] nodes, or as [[nodes]] with host",
                subject=host,
            )
        return spec.name

    def view(self) -> ClusterView:
        status = self._tools.status()
        constraints = []
        for pin in read_cib(self._tools.cib()).pins:
            ours = " (ours)" if self._is_ours(pin) else ""
            constraints.append(f"{pin}{ours}")
        return ClusterView(
            "pacemaker",
            status.quorate,
            tuple(self._node_view(spec, status) for spec in self._nodes),
            tuple(self._group_view(name, status) for name in self._groups),
            fencing=status.fencing,
            constraints=tuple(constraints),
        )

    def where(self, group: str) -> str:
        self._require_known(group)
        status = self._settled(group, self._tools)
        view = self._group_view(group, status)
        if not status.quorate:
            raise ClusterError(f"it is unknown where {group} is: no quorum here", subject=group)
        if view.state != "started":
            raise ClusterError(f"{group} is {view.state} on {view.owner}: {view.note}", subject=group)
        return view.owner

    def plan(self, group: str, target: str) -> MovePlan:
        return self._plan(self._inspect(group, target), group, target)

    def move(self, plan: MovePlan, *, run: str, cancel: Cancel) -> None:
        cancel.check()
        inspection = self._inspect(plan.group, plan.target)
        fresh = self._plan(inspection, plan.group, plan.target)
        plan.require_still(fresh)
        if fresh.is_noop:
            self._keep(plan, run, inspection)
            return
        self._record(plan, run, inspection)
        try:
            if placed := self._pin(self._tools.stopped_by(cancel), inspection.own, plan):
                self._watch(plan, inspection.status, cancel)
        except BaseException as error:
            self._undo(plan, error)
            raise
        if not placed:
            self._register.take_back(plan.group, "not placed: another one came first")
            raise plan.failed("was pinned to a node by somebody else in the meantime")

    def release(self, group: str) -> None:
        """Takes our constraint back, unless the group would leave its node for that: then it stays until the
        next move."""
        self._require_known(group)
        inspection = self._inspect_group(group)
        if not inspection.status.quorate:
            raise ClusterError(f"the constraint on {group} stays: no quorum here", subject=group)
        if inspection.own is not None and not self._would_act_without(inspection.own, inspection.cib):
            self._take_back(inspection.own, "released")

    def _keep(self, plan: MovePlan, run: str, inspection: _Inspection) -> None:
        """Leaves nothing of ours that could carry the group away from where it is: a constraint on a node that died
        would as soon as the node is back."""
        own = inspection.own
        if own is None or own.node == self._host(plan.target):
            return
        if not self._would_act_without(own, inspection.cib):
            self._take_back(own, f"{plan.group} is on {plan.target}")
            return
        self._record(plan, run, inspection)
        self._tools.replace(plan.group, self._host(plan.target))

    def _would_act_without(self, own: Pin, cib: bytes) -> bool:
        return bool(
            self._tools.simulate(cib, lambda copy: copy.take_back(own.resource, own.node, marked=own.marked))
        )

    def _take_back(self, own: Pin, reason: str) -> None:
        """Removes our constraint. That it is gone is recorded only where a cluster with quorum says so: what is
        removed in a partition may be there again when the cluster is whole."""
        self._tools.take_back(own.resource, own.node, marked=own.marked)
        self._record_gone(self._tools, own.resource, reason)

    def _record_gone(self, tools: CrmTools, group: str, reason: str) -> bool:
        """Returns whether it is gone."""
        cib = tools.cib()
        gone = tools.status().quorate and self._own_pin(group, read_cib(cib)) is None
        if gone:
            self._register.take_back(group, reason)
        return gone

    def _record(self, plan: MovePlan, run: str, inspection: _Inspection) -> None:
        self._register.place(
            plan.group,
            plan.target,
            run=run,
            before=self._site_name(inspection.own.node) if inspection.own else "",
            without_fencing=not inspection.status.fencing,
        )

    def check(self) -> list[Finding]:
        try:
            status, configured = self._tools.status(), read_cib(self._tools.cib())
            here = self.local_node
        except ClusterError as error:
            return [Finding("NF-CLUSTER-001", "fail", error.message, error.hint)]
        findings = [
            *crm_check.whole_cluster(status, configured, allowed=self._allow_without_fencing),
            *crm_check.nodes(status, self._nodes),
            *crm_check.installed(configured, self._agents),
        ]
        for name in self._groups:
            view = self._group_view(name, status)
            if view.state != "started":
                text = f"{name} is {view.state} on {view.owner or 'no node'}: {view.note}"
                findings.append(Finding("NF-CLUSTER-004", "fail", text, "start it; see `crm_mon -1rf`"))
            findings += crm_check.check_group(self._group(name, status), status, configured)
            if name in self._disks:
                is_here = view.state == "started" and view.owner == here
                findings += crm_check.stickiness(name, configured)
                findings += crm_disk.disk(name, self._disks[name], configured, here=is_here)
        ours = [pin.id for pin in configured.pins if self._is_ours(pin)]
        return [*findings, *crm_check.pins(configured, ours)]

    # -- what stands in the way ---------------------------------------------------------------

    def _inspect(self, group: str, target: str) -> _Inspection:
        self._require_known(group)
        if target not in (names := [spec.name for spec in self._nodes]):
            raise choose(target, names, "node")
        return self._inspect_group(group)

    def _inspect_group(self, group: str) -> _Inspection:
        status = self._settled(group, self._tools)
        cib = self._tools.cib()
        configured = read_cib(cib)
        return _Inspection(status, cib, configured, self._own_pin(group, configured))

    def _plan(self, inspection: _Inspection, group: str, target: str) -> MovePlan:
        here = self._group_view(group, inspection.status)
        problems = self._standing_problems(here, inspection.status)
        if here.owner != target and not problems:
            problems = self._moving_problems(group, here.owner, target, inspection)
        plan = MovePlan(group, here.owner, target, tuple(problems))
        return plan if problems or plan.is_noop else self._simulated(plan, inspection)

    def _standing_problems(self, here: GroupView, status: ClusterStatus) -> list[str]:
        """Why nobody may rely on the group where it is."""
        problems = []
        if not status.dc:
            problems.append("the cluster has no coordinator (DC)")
        if not status.quorate:
            problems.append("the cluster has no quorum")
        if here.state != "started":
            problems.append(f"{here.name} is {here.state} on {here.owner or 'no node'}: {here.note}")
        return problems

    def _moving_problems(self, group: str, source: str, target: str, inspection: _Inspection) -> list[str]:
        status = inspection.status
        problems = []
        if not status.fencing and not self._allow_without_fencing:
            problems.append(
                "fencing is off, so two nodes could mount the same disk "
                "(cluster.allow_without_fencing = true moves all the same)"
            )
        if status.frozen:
            problems.append(status.frozen)
        problems += [f"node {self._site_name(n.name)} is unclean" for n in status.nodes if n.unclean]
        there = status.node(self._host(target))
        if there is None:
            problems.append(f"the cluster has no node {self._host(target)}")
        elif there.trouble:
            problems.append(f"{target} cannot take it: {there.trouble}")
        found = self._group(group, status)
        unmanaged = [member.name for member in found.members if not member.managed]
        if unmanaged:
            problems.append(f"not managed by the cluster: {', '.join(unmanaged)}")
        ends = (self._host(source), self._host(target))
        problems += [f"failed before: {f}" for f in status.failures if f.is_of(found) and f.node in ends]
        problems += [
            f"{pin}, and nightferry did not set it"
            for pin in inspection.configured.pins_of(found)
            if pin != inspection.own
        ]
        return problems

    def _simulated(self, plan: MovePlan, inspection: _Inspection) -> MovePlan:
        """Requires the simulated cluster to move each member from source to target, and nothing else."""
        question = (plan, inspection.cib)
        if self._last_simulated is not None and self._last_simulated[0] == question:
            return self._last_simulated[1]
        source, target = self._host(plan.source), self._host(plan.target)
        members = self._group(plan.group, inspection.status).members
        wanted = {Action("move", member.name, source, target) for member in members}
        would = set(self._tools.simulate(inspection.cib, lambda copy: self._pin(copy, inspection.own, plan)))
        problems = [f"the cluster would also {action}" for action in sorted(map(str, would - wanted))]
        problems += [f"the cluster would not {action}" for action in sorted(map(str, wanted - would))]
        answer = replace(plan, problems=tuple(problems))
        self._last_simulated = (question, answer)
        return answer

    def _pin(self, tools: CrmTools, own: Pin | None, plan: MovePlan) -> bool:
        """False when somebody else pinned the group meanwhile."""
        if own is None:
            return tools.place(plan.group, self._host(plan.target))
        tools.replace(plan.group, self._host(plan.target))
        return True

    # -- the move ------------------------------------------------------------------------------

    def _watch(self, plan: MovePlan, before: ClusterStatus, cancel: Cancel) -> None:
        """Returns when the group has arrived.

        Raises:
            MoveFailed: it will not arrive.
        """
        end = time.monotonic() + self._move_s
        known = set(before.failures)
        answered = time.monotonic()
        tools = self._tools.stopped_by(cancel)
        while True:
            try:
                status = tools.status()
            except ClusterError:
                if time.monotonic() - answered >= SILENT_S:
                    raise
                cancel.wait(POLL_STATUS_S)
                continue
            answered = time.monotonic()
            view = self._group_view(plan.group, status)
            if why := self._why_it_failed(plan, view, status, known):
                raise plan.failed(f"did not arrive on {plan.target}: {why}")
            if view.state == "started" and view.owner == plan.target:
                return
            if time.monotonic() > end:
                raise plan.failed(
                    f"did not arrive on {plan.target} within {self._move_s:g} s: "
                    f"it is {view.state} on {view.owner or 'no node'}"
                )
            cancel.wait(POLL_STATUS_S)

    def _why_it_failed(
        self, plan: MovePlan, view: GroupView, status: ClusterStatus, known: set[Failure]
    ) -> str:
        group = self._group(plan.group, status)
        there = status.node(self._host(plan.target))
        failures = [str(f) for f in status.failures if f not in known and f.is_of(group)]
        if failures:
            return "; ".join(failures)
        if not status.quorate:
            return "the cluster lost its quorum"
        unclean = [self._site_name(n.name) for n in status.nodes if n.unclean]
        if unclean:
            return f"{', '.join(unclean)} became unclean"
        if there is None or there.trouble:
            return f"{plan.target} is {there.trouble if there else 'gone'}"
        if status.frozen:
            return status.frozen
        if view.state == "failed":
            return view.note
        if view.state == "started" and view.owner not in (plan.source, plan.target):
            return f"it went to {view.owner}"
        return ""

    def _undo(self, plan: MovePlan, error: BaseException) -> None:
        """Takes the constraint back and lets the group come to rest; what cannot be done goes into the error.

        A failed operation stays as the cluster shows it: to clean it up is for people.
        """
        # A stop was perhaps what ended the move.
        tools = self._tools.stopped_by(None)
        try:
            tools.take_back(plan.group, self._host(plan.target))
            gone = self._record_gone(tools, plan.group, str(error) or type(error).__name__)
            status = self._settled(plan.group, tools, failed_s=min(RECOVER_S, SETTLE_S))
            view = self._group_view(plan.group, status)
        except ClusterError as second:
            raise MoveFailed(
                f"{plan.group}: {error}; and the constraint {pin_id(plan.group)} could not be removed: {second}",
                hint=f"`crm_resource --clear --resource {plan.group}` removes it; so does a rerun",
                subject=plan.group,
            ) from error
        if isinstance(error, MoveFailed):
            now = f"now it is {view.state} on {view.owner or 'no node'}"
            if not gone:
                now = "the constraint was removed without quorum, so the next move checks for it again"
            error.args = (f"{error.message}; {now}",)
            error.message = error.args[0]

    # -- our constraint --------------------------------------------------------------------------

    def _own_pin(self, group: str, configured: Configured) -> Pin | None:
        pins = (pin for pin in configured.pins if pin.resource == group)
        return next((pin for pin in pins if self._is_ours(pin)), None)

    def _is_ours(self, pin: Pin) -> bool:
        """Whether it is one that we recorded. With our mark it is, whatever was recorded since: one that was removed
        in a partition comes back with the cluster. Without the mark, as older releases placed it, only while it is on
        record as placed."""
        record = self._register.constraint(pin.resource)
        if record is None or pin.id != pin_id(pin.resource):
            return False
        return pin.marked or (
            record.state == "placed" and pin.node in (self._host(record.node), self._host(record.before))
        )

    # -- views -------------------------------------------------------------------------------------

    def _settled(self, group: str, tools: CrmTools, *, failed_s: float = 0.0) -> ClusterStatus:
        """The cluster's state, waited for while the group is on its way, and ``failed_s`` while it is failed."""
        began = time.monotonic()
        while True:
            status = tools.status()
            state = self._group_view(group, status).state
            patience = {"moving": SETTLE_S, "stopped": STOPPED_S, "failed": failed_s}.get(state, 0.0)
            if not status.quorate or time.monotonic() - began >= patience:
                return status
            tools.wait(POLL_STATUS_S)

    def _node_view(self, spec: NodeSpec, status: ClusterStatus) -> NodeView:
        node = status.node(spec.host)
        if node is None:
            return NodeView(spec.name, spec.role, False, usable=False, note="not in the cluster")
        return NodeView(spec.name, spec.role, node.online, usable=not node.trouble, note=node.trouble)

    def _group_view(self, name: str, status: ClusterStatus) -> GroupView:
        group = status.group(name)
        if group is None or not group.members:
            return GroupView(name, "", "unknown", "the cluster has no such resource group")
        members = group.members
        hosts = {host for member in members for host in member.nodes}
        owner = self._site_name(hosts.pop()) if len(hosts) == 1 else ""
        bad = [m.name for m in members if m.failed or m.blocked]
        if bad:
            return GroupView(name, owner, "failed", f"failed or blocked: {', '.join(bad)}")
        nodes = [status.node(self._host(owner))] if owner else []
        if any(node is None or node.unclean or not node.online for node in nodes):
            return GroupView(name, owner, "unknown", f"{owner} is offline or unclean")
        if all(m.role == "Stopped" and not m.pending for m in members):
            return GroupView(name, owner, "stopped", "every member is stopped")
        restless = [m.name for m in members if m.role != "Started" or m.pending or len(m.nodes) != 1]
        if restless or not owner:
            still = ", ".join(restless) or "its members are on several nodes"
            return GroupView(name, owner, "moving", f"not started: {still}")
        unmanaged = "" if all(m.managed for m in members) else "not managed by the cluster"
        return GroupView(name, owner, "started", unmanaged)

    @staticmethod
    def _group(name: str, status: ClusterStatus) -> CrmGroup:
        return status.group(name) or CrmGroup(name, ())

    def _require_known(self, group: str) -> None:
        if group not in self._groups:
            raise choose(group, self._groups, "resource group")

    def _host(self, name: str) -> str:
        return next((spec.host for spec in self._nodes if spec.name == name), name)

    def _site_name(self, host: str) -> str:
        return next((spec.name for spec in self._nodes if spec.host == host), host)
