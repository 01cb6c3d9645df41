"""What the site file says of the cluster and its nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from nightferry.model.fields import AbsolutePath, Argv, Duration, Section
from nightferry.model.names import HOST_NAME, Role, parse_node

NodeText = Annotated[str, StringConstraints(pattern=f"^{HOST_NAME}$")]


class NodeSettings(Section):
    """A node whose name says no role."""

    name: NodeText
    role: Role
    host: NodeText | None = None


class _ClusterBase(Section):
    nodes: tuple[NodeText, ...] = ()
    """Names like TEX-ACTV-1 and TEX-PASS-1, which say their role."""


class LocalClusterSettings(_ClusterBase):
    """One machine plays every node; who owns what stands in a state file."""

    kind: Literal["local"] = "local"
    state_path: AbsolutePath | None = None
    """The state file; None: beside the catalog."""


class PacemakerSettings(_ClusterBase):
    """Pacemaker, asked with its own tools on the node where nightferry runs."""

    kind: Literal["pacemaker"]
    allow_without_fencing: Annotated[bool, Field(strict=True)] = False
    """Move a disk although a lost node would not be fenced off; every such move is recorded."""
    move_deadline: Annotated[Duration, Field(gt=0)] = 300.0
    """Within this time a group stops, starts on the other node and is seen there."""


class CommandClusterSettings(_ClusterBase):
    """Any other cluster: programs that view and move, or a preset of them."""

    kind: Literal["command"]
    preset: Literal["windows-cluster-exe", "windows-powershell"] | None = None
    view: Argv | None = None
    where: Argv | None = None
    move: Argv | None = None


ClusterSettings = Annotated[
    LocalClusterSettings | PacemakerSettings | CommandClusterSettings,
    Field(discriminator="kind"),
]


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node as the rest of the house knows it.

    ``rank`` orders the nodes of one role; 0 is the active node that stages, or the primary passive one.
    """

    name: str
    role: Role
    rank: int
    host: str


def specify(names: Iterable[str], foreign: Iterable[NodeSettings]) -> tuple[NodeSpec, ...]:
    """Roles and ranks of all nodes: by number where names say one, as listed where they are given.

    Raises:
        ConfigError: a name says no role.
    """
    specs: list[NodeSpec] = []
    ranks: dict[Role, int] = {"active": 0, "passive": 0}

    def add(name: str, role: Role, host: str) -> None:
        specs.append(NodeSpec(name, role, ranks[role], host))
        ranks[role] += 1

    for node in sorted((parse_node(name) for name in names), key=lambda n: (n.role, n.number, n.name)):
        add(node.name, node.role, node.name)
    for settings in foreign:
        add(settings.name, settings.role, settings.host or settings.name)
    return tuple(sorted(specs, key=lambda spec: (spec.role, spec.rank)))
