"""What the site file says of the cluster and its nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from nightferry.model.fields import AbsolutePath, Argv, Duration, NodeText, Section
from nightferry.model.names import Role, parse_node

PLACEHOLDER = re.compile(r"\{([a-z]+)\}")


def fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    """Puts values into a template's placeholders, once; other braces stay as they are."""
    return PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)


class NodeSettings(Section):
    """A node whose name says no role."""

    name: NodeText
    role: Role
    host: NodeText | None = None


class _ClusterBase(Section):
    nodes: tuple[NodeText, ...] = ()
    """Names like TEX-ACTV-1 and TEX-PASS-1, which say their role."""
    worker_deadline: Annotated[Duration, Field(gt=0)] = 1800.0
    """How long a node's work waits for a Prefect worker on that node."""


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


GroupState = Literal["started", "stopped", "moving", "failed", "unknown"]


class Reading(Section):
    """Where a program's standard output says something: by a regular expression, or in a JSON document."""

    regex: str | None = None
    """Its only group is what is read. ``{group}`` and ``{node}`` stand for the name that was asked for."""
    json_field: str | None = Field(default=None, alias="json")
    """A path of keys, ``OwnerNode.Name``."""

    @model_validator(mode="after")
    def _one_way(self) -> Reading:
        if (self.regex is None) == (self.json_field is None):
            raise ValueError("say where to read: either regex or json")
        if self.regex is not None:
            try:
                groups = re.compile(fill_placeholders(self.regex, {"group": "g", "node": "n"})).groups
            except re.error as error:
                raise ValueError(f"not a regular expression: {self.regex!r}: {error}") from None
            if groups != 1:
                raise ValueError(f"must have one group, which is what is read: {self.regex!r}")
        return self


def _only(*known: str) -> AfterValidator:
    """Refuses placeholders that a verb does not fill: they would reach the program as they are."""

    def check(value: tuple[str, ...]) -> tuple[str, ...]:
        for name in (name for word in value for name in PLACEHOLDER.findall(word)):
            if name not in known:
                there = ", ".join(f"{{{each}}}" for each in known)
                raise ValueError(f"unknown placeholder {{{name}}}; use one of: {there}")
        return value

    return AfterValidator(check)


class CommandClusterSettings(_ClusterBase):
    """Any other cluster: a program for each verb, and how to read what it prints. A preset brings both."""

    kind: Literal["command"]
    preset: Literal["windows-cluster-exe", "windows-powershell"] | None = None
    via: Argv | None = None
    """A command that runs the preset's program elsewhere: ``["/usr/bin/ssh", "backup@TEX-ACTV-1"]``."""
    view: Annotated[Argv, _only("node")] | None = None
    """Says whether ``{node}`` is up; without it every node counts as up."""
    where: Annotated[Argv, _only("group")] | None = None
    """Says owner and state of ``{group}``."""
    plan: Annotated[Argv, _only("group", "node", "source")] | None = None
    """Ends with 0 when the move may be made; else its last line says why not."""
    move: Annotated[Argv, _only("group", "node", "source")] | None = None
    """Moves ``{group}`` from ``{source}`` to ``{node}``; may return before it is done."""
    release: Annotated[Argv, _only("group")] | None = None
    """Takes back what ``move`` left in the cluster."""
    owner: Reading | None = None
    state: Reading | None = None
    up: Reading | None = None
    """Where ``view``'s output says the node's state."""
    states: dict[str, GroupState] | None = None
    """What the cluster's words for a group's state mean; any other word is unknown."""
    up_words: tuple[str, ...] = ("Up",)
    """What the cluster calls a node that can take a group."""
    paused_words: tuple[str, ...] = ("Paused",)
    """What it calls one that runs groups and takes no other; a node of any other word is down."""
    deadline: Annotated[Duration, Field(gt=0)] = 300.0
    """How long a move may take until the group is started on its target."""

    @model_validator(mode="after")
    def _complete(self) -> CommandClusterSettings:
        needed = ("where", "move", "owner", "state")
        lacking = [name for name in needed if getattr(self, name) is None]
        if self.preset is None and lacking:
            raise ValueError(f"needs a preset, or {', '.join(lacking)}")
        if self.preset is None and self.view is not None and self.up is None:
            raise ValueError("with view, up says where the node's state is read")
        if self.preset is None and self.via is not None:
            raise ValueError("via is for presets; without one each command says itself how it is run")
        return self


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
