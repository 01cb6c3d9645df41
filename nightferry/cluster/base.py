"""The seam of the cluster room: who owns which group's disk, and how it gets elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from nightferry.errors import MoveFailed
from nightferry.model.findings import Finding
from nightferry.progress import Cancel

SILENT_S = 30.0
"""How long a cluster may give no answer until that is believed."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as the cluster sees it. ``usable``: online, clean, not standby, not in maintenance."""

    name: str
    role: Literal["active", "passive"]
    online: bool
    usable: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class GroupView:
    """A resource group as the cluster sees it."""

    name: str
    owner: str
    state: Literal["started", "stopped", "moving", "failed", "unknown"]
    note: str = ""
    unread: bool = False
    """The cluster gave no answer, or one that the site file does not know how to read; the note says which."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One consistent look."""

    kind: str
    quorate: bool
    nodes: tuple[NodeView, ...]
    groups: tuple[GroupView, ...]
    fencing: bool | None = None
    """Whether a lost node is fenced off before another takes its disks; None where the driver cannot know."""
    constraints: tuple[str, ...] = ()
    """What moves left in the cluster and still pins a group, one sentence each."""

    def node(self, name: str) -> NodeView | None:
        return next((n for n in self.nodes if n.name == name), None)

    def group(self, name: str) -> GroupView | None:
        return next((g for g in self.groups if g.name == name), None)


@dataclass(frozen=True, slots=True)
class MovePlan:
    """A move that was thought through before it is made. With ``problems`` it must not be made."""

    group: str
    source: str
    target: str
    problems: tuple[str, ...] = ()

    @property
    def is_noop(self) -> bool:
        return self.source == self.target

    def failed(self, what: str) -> MoveFailed:
        """What the group did instead, or why it stays: ``is on …``, ``cannot move …``."""
        return MoveFailed(f"{self.group} {what}", subject=self.group)

    def require_still(self, fresh: MovePlan) -> None:
        """Compares it with the same plan made again.

        Raises:
            MoveFailed: it is stale, or must not be made.
        """
        if fresh.source != self.source:
            raise self.failed(f"is on {fresh.source}, no longer on {self.source}: the plan is stale")
        if fresh.problems:
            raise self.failed(f"cannot move to {self.target}: {'; '.join(fresh.problems)}")


class Cluster(Protocol):
    """One driver's verbs; one contract suite (tests/contract/test_cluster.py) over all drivers."""

    @property
    def local_node(self) -> str | None:
        """The node this process runs on; None where this machine plays every node.

        Raises:
            ClusterError: the cluster does not know this machine.
        """

    def view(self) -> ClusterView: ...

    def where(self, group: str) -> str:
        """The node that owns the group now.

        Raises:
            ClusterError: nobody, or not certain.
        """

    def plan(self, group: str, target: str) -> MovePlan: ...

    def move(self, plan: MovePlan, *, run: str, cancel: Cancel) -> None:
        """Makes the planned move and returns when it is verified; a plan that became stale is refused.

        A move to where the group is leaves it there, and nothing of ours that could carry it away.

        Raises:
            MoveFailed: the group is not Started on the target; what was begun has been taken back.
        """

    def release(self, group: str) -> None:
        """Takes back what a move left in the cluster (a constraint); nothing to do is fine."""

    def check(self) -> list[Finding]: ...
