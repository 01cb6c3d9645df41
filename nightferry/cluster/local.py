"""One machine that plays every node: who owns which group stands in a state file.

For sites without a cluster, for the demo and for tests. The file may also say what a real cluster would find
out: ``offline`` and ``standby`` list nodes, ``failed`` lists groups.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from nightferry.cluster.base import ClusterView, GroupView, MovePlan, NodeView
from nightferry.errors import ClusterError, MoveFailed
from nightferry.model.findings import Finding
from nightferry.model.names import choose
from nightferry.model.nodes import NodeSpec
from nightferry.progress import Cancel
from nightferry.transfer.durable import remove_dead_drafts, replace_file


@dataclass(frozen=True, slots=True)
class _State:
    owners: dict[str, str] = field(default_factory=dict)
    offline: tuple[str, ...] = ()
    standby: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    def dump(self) -> bytes:
        return json.dumps(
            {
                "owners": self.owners,
                "offline": list(self.offline),
                "standby": list(self.standby),
                "failed": list(self.failed),
            },
            indent=2,
        ).encode()


class LocalCluster:
    """Owners in a JSON file, replaced whole under a lock.

    Args:
        state_path: The state file; written by the first move. Without it every group is on the active node.
        nodes: All nodes.
        groups: The resource groups, MAIL and BACK.
    """

    def __init__(self, state_path: Path, nodes: Sequence[NodeSpec], groups: Sequence[str]) -> None:
        self._path = state_path
        self._nodes = tuple(nodes)
        self._groups = tuple(dict.fromkeys(groups))

    @property
    def local_node(self) -> str | None:
        return None

    def view(self) -> ClusterView:
        return self._view(self._read())

    def where(self, group: str) -> str:
        view = self._group(self.view(), group)
        if view.state != "started":
            raise ClusterError(f"{group} is {view.state} on {view.owner}: {view.note}", subject=group)
        return view.owner

    def plan(self, group: str, target: str) -> MovePlan:
        view = self.view()
        here = self._group(view, group)
        there = view.node(target)
        if there is None:
            raise choose(target, [node.name for node in view.nodes], "node")
        problems = []
        if here.state != "started":
            problems.append(f"{group} is {here.state} on {here.owner}: {here.note}")
        if not there.usable:
            problems.append(f"{target} cannot take it: {there.note}")
        return MovePlan(group, here.owner, target, tuple(problems))

    def move(self, plan: MovePlan, *, run: str, cancel: Cancel) -> None:
        cancel.check()
        with self._locked():
            fresh = self.plan(plan.group, plan.target)
            plan.require_still(fresh)
            if not fresh.is_noop:
                state = self._read()
                self._write(replace(state, owners={**state.owners, plan.group: plan.target}))
        owner = self.where(plan.group)
        if owner != plan.target:
            raise plan.failed(f"is on {owner} after it was moved to {plan.target}")

    def release(self, group: str) -> None:
        """A local move leaves nothing behind."""
        self._group(self.view(), group)

    def check(self) -> list[Finding]:
        findings = []
        try:
            view = self.view()
        except ClusterError as error:
            return [Finding("NF-CLUSTER-001", "fail", error.message, error.hint)]
        folder = self._path.parent
        if not os.access(folder, os.W_OK | os.X_OK):
            findings.append(
                Finding(
                    "NF-CLUSTER-002",
                    "fail",
                    f"the cluster's state file cannot be written in {folder}",
                    f"create {folder}, writable for the user that runs nightferry",
                )
            )
        for node in view.nodes:
            if not node.usable:
                findings.append(
                    Finding("NF-CLUSTER-003", "warn", f"{node.name} is {node.note}", f"fix {self._path}")
                )
        for group in view.groups:
            if group.state != "started":
                text = f"{group.name} is {group.state} on {group.owner}: {group.note}"
                findings.append(Finding("NF-CLUSTER-004", "fail", text, f"fix {self._path}"))
        return findings

    def _view(self, state: _State) -> ClusterView:
        nodes = tuple(self._node_view(node, state) for node in self._nodes)
        usable = {node.name: node for node in nodes}
        groups = []
        for name in self._groups:
            owner = state.owners.get(name, self._active)
            if owner not in usable:
                groups.append(GroupView(name, owner, "unknown", "no such node in the site file"))
            elif name in state.failed:
                groups.append(GroupView(name, owner, "failed", "listed as failed in the state file"))
            elif not usable[owner].online:
                groups.append(GroupView(name, owner, "unknown", f"{owner} is offline"))
            else:
                groups.append(GroupView(name, owner, "started"))
        return ClusterView("local", True, nodes, tuple(groups))

    @staticmethod
    def _node_view(node: NodeSpec, state: _State) -> NodeView:
        online = node.name not in state.offline
        note = "" if online else "offline"
        if online and node.name in state.standby:
            note = "standby"
        return NodeView(node.name, node.role, online, usable=not note, note=note)

    @property
    def _active(self) -> str:
        return next(node.name for node in self._nodes if node.role == "active")

    @staticmethod
    def _group(view: ClusterView, name: str) -> GroupView:
        group = view.group(name)
        if group is None:
            raise choose(name, [known.name for known in view.groups], "resource group")
        return group

    def _read(self) -> _State:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return _State()
        except OSError as error:
            raise ClusterError(
                f"cannot read the cluster's state file {self._path}: {error.strerror}",
                hint="give the file to the user that runs nightferry, or correct state_path under [cluster]",
                subject=str(self._path),
            ) from error
        try:
            return _parse(json.loads(data))
        except ValueError as error:
            raise ClusterError(
                f"the cluster's state file {self._path} is not valid: {error}",
                hint="fix it, or move it away: then every group is on the active node",
                subject=str(self._path),
            ) from error

    def _write(self, state: _State) -> None:
        try:
            remove_dead_drafts(self._path.parent)
            replace_file(self._path, state.dump())
        except OSError as error:
            raise MoveFailed(
                f"cannot write the cluster's state file {self._path}: {error.strerror}",
                subject=str(self._path),
            ) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = self._path.with_name(self._path.name + ".lock")
        try:
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise MoveFailed(f"cannot lock {lock}: {error.strerror}", subject=str(self._path)) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _parse(value: object) -> _State:
    """Raises:
    ValueError: the JSON is something else.
    """
    if not isinstance(value, dict) or not value.keys() <= {"owners", "offline", "standby", "failed"}:
        raise ValueError("expected an object with owners, offline, standby and failed")
    owners = value.get("owners", {})
    if not isinstance(owners, dict) or not all(isinstance(owner, str) for owner in owners.values()):
        raise ValueError("owners must name a node for each group")
    return _State(owners, *(_names(value, key) for key in ("offline", "standby", "failed")))


def _names(value: dict[str, object], key: str) -> tuple[str, ...]:
    names = value.get(key, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{key} must be a list of names")
    return tuple(names)
