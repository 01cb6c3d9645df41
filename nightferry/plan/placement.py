"""The roles of a site's nodes, as one line tells them (``AAAAPpp``), and which passive node takes which BACK group.

A decision for all BACK groups at once, out of nothing but what every node sees. So several groups may move at the
same time, each decided by a process of its own, and do not meet on one node while another is free.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nightferry.model.nodes import NodeSpec


@dataclass(frozen=True, slots=True)
class Layout:
    """Names of nodes by role.

    The primary is the passive node that a service fails over to first, so backups keep it free; the alternates
    are the others.
    """

    active: tuple[str, ...]
    primary: str | None
    alternates: tuple[str, ...]

    @classmethod
    def of(cls, nodes: Iterable[NodeSpec]) -> Layout:
        """The layout of a site's nodes, each role by rank."""
        ranked = sorted(nodes, key=lambda node: node.rank)
        passive = [node.name for node in ranked if node.role == "passive"]
        return cls(
            active=tuple(node.name for node in ranked if node.role == "active"),
            primary=passive[0] if passive else None,
            alternates=tuple(passive[1:]),
        )

    @property
    def pattern(self) -> str:
        """``A`` for each active node, ``P`` for the primary, ``p`` for each alternate."""
        return "A" * len(self.active) + "P" * (self.primary is not None) + "p" * len(self.alternates)

    @property
    def passive(self) -> tuple[str, ...]:
        """The passive nodes in the order in which BACK groups go to them: the alternates, then the primary."""
        return self.alternates + ((self.primary,) if self.primary is not None else ())

    def role_of(self, node: str) -> str:
        """``active``, ``primary`` or ``alternate``; empty for a node of another site."""
        if node in self.active:
            return "active"
        if node == self.primary:
            return "primary"
        return "alternate" if node in self.alternates else ""


def place(
    back_groups: Sequence[str],
    layout: Layout,
    *,
    usable: Collection[str],
    serving: Collection[str] = (),
    owners: Mapping[str, str] | None = None,
    targets: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, str | None]:
    """The node for each BACK group; None where none can take it.

    - A group that is on a passive node that may keep it stays there: a rerun finds the disk where the first try
      brought it.
    - Configured targets win, in their order.
    - Else the alternates share the groups evenly; the primary is kept free as long as one of them can take a group.
    - A node that is down is passed over, and one that serves users after a failover comes last.

    Args:
        back_groups: All of the site, in the order of the site file.
        layout: Roles of the nodes.
        usable: Nodes that can take a group now.
        serving: Nodes that run a MAIL group now.
        owners: Where each BACK group is now, as far as that is known.
        targets: Configured targets of a group; without any, all passive nodes.
    """
    placed: dict[str, str | None] = {}
    load = dict.fromkeys(layout.passive, 0)

    def put(group: str, node: str | None) -> None:
        placed[group] = node
        if node is not None:
            load[node] = load.get(node, 0) + 1

    for group in back_groups:
        owner = (owners or {}).get(group, "")
        if owner in _candidates(group, layout, targets) and owner in usable and owner not in serving:
            put(group, owner)
    for group in back_groups:
        if group not in placed and (targets or {}).get(group):
            candidates = [node for node in _candidates(group, layout, targets) if node in usable]
            put(group, min(candidates, key=serving.__contains__, default=None))
    for position, group in enumerate(back_groups):
        if group in placed:
            continue
        order = _turned(layout.alternates, position) + layout.passive[len(layout.alternates) :]
        candidates = [node for node in order if node in usable]
        put(
            group,
            min(
                candidates,
                key=lambda node: (node in serving, node == layout.primary, load[node]),
                default=None,
            ),
        )
    return {group: placed[group] for group in back_groups}


def _candidates(group: str, layout: Layout, targets: Mapping[str, Sequence[str]] | None) -> Sequence[str]:
    return (targets or {}).get(group) or layout.passive


def _turned(nodes: tuple[str, ...], by: int) -> tuple[str, ...]:
    """Each group begins with another alternate, so that ties do not all fall to the first."""
    start = by % len(nodes) if nodes else 0
    return nodes[start:] + nodes[:start]
