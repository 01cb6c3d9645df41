"""What Pacemaker's tools say, read: `crm_mon`, `crm_simulate` and `cibadmin` as XML. No I/O.

Source: the schemas of Pacemaker's tool output (``crm_mon-2.*.rng``, ``crm_simulate-2.*.rng``) and of its CIB
(``constraints-3.*.rng``).
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import NoReturn

from nightferry.errors import ClusterError


@dataclass(frozen=True, slots=True)
class CrmNode:
    """A node. ``trouble``: why it can take nothing; empty when it can."""

    name: str
    online: bool
    unclean: bool
    trouble: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A resource of a group; ``nodes``: where the cluster believes it to be active."""

    name: str
    agent: str
    role: str
    nodes: tuple[str, ...]
    failed: bool
    blocked: bool
    managed: bool
    pending: str


@dataclass(frozen=True, slots=True)
class CrmGroup:
    """A resource group, or a resource outside of any."""

    name: str
    members: tuple[GroupMember, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed operation that nobody has cleaned up yet."""

    key: str
    """``<resource>_<operation>_<interval in ms>``."""
    node: str
    status: str

    @property
    def resource(self) -> str:
        return self.key.rpartition("_")[0].rpartition("_")[0]

    def is_of(self, group: CrmGroup) -> bool:
        return any(self.resource == member.name for member in group.members)

    def __str__(self) -> str:
        return f"{self.key} on {self.node}: {self.status}"


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """One look at the live cluster."""

    dc: str
    quorate: bool
    fencing: bool
    frozen: str
    """Why the cluster does nothing at all (maintenance, everything stopped); empty when it acts."""
    nodes: tuple[CrmNode, ...]
    groups: tuple[CrmGroup, ...]
    failures: tuple[Failure, ...]

    def node(self, name: str) -> CrmNode | None:
        return next((n for n in self.nodes if n.name == name), None)

    def group(self, name: str) -> CrmGroup | None:
        return next((g for g in self.groups if g.name == name), None)


@dataclass(frozen=True, slots=True)
class Action:
    """What the cluster would do to a resource. ``source`` and ``dest`` are nodes, empty where there is none."""

    kind: str
    resource: str
    source: str
    dest: str

    def __str__(self) -> str:
        way = " to ".join(filter(None, (self.source, self.dest)))
        return f"{self.kind} {self.resource} {'from ' if self.source and self.dest else 'on '}{way}"


DISCOVERY_MARK = ("resource-discovery", "always")
"""An attribute of a constraint that says what holds without it. `crm_resource` never writes it, and does remove a
constraint that has it, so it tells ours from an operator's of the same id."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A location constraint that a tool left in the CIB (``cli-…``)."""

    id: str
    resource: str
    node: str
    score: str
    marked: bool = False
    """Whether it bears our mark."""

    @property
    def is_ban(self) -> bool:
        return self.score == "-INFINITY"

    def __str__(self) -> str:
        verb = "keeps {} away from {}" if self.is_ban else "pins {} to {}"
        return f"{self.id} {verb.format(self.resource, self.node)}"


@dataclass(frozen=True, slots=True)
class Primitive:
    """A resource as configured."""

    name: str
    agent: str
    parameters: dict[str, str]
    timeouts: dict[str, str]
    """Operation → timeout, as written."""


@dataclass(frozen=True, slots=True)
class Configured:
    """The part of the CIB we look at."""

    stickiness: str
    """Of all resources; empty when the CIB does not say."""
    group_stickiness: dict[str, str]
    members: dict[str, tuple[Primitive, ...]]
    """Resource group → its resources, in order."""
    elsewhere: tuple[Primitive, ...]
    """Resources outside of groups, also inside clones."""
    pins: tuple[Pin, ...]
    preferences: tuple[Pin, ...]
    """The other location constraints that name a node and a score."""
    together: tuple[tuple[str, str], ...]
    """(resource, the one it must be with), mandatory colocations."""
    order: tuple[tuple[str, str], ...]
    """(first, then), mandatory orders."""
    default_timeout: str = ""
    """Of operations that name none; empty when the CIB does not say."""

    def pins_of(self, group: CrmGroup) -> tuple[Pin, ...]:
        names = {group.name, *(m.name for m in group.members)}
        return tuple(pin for pin in self.pins if pin.resource in names)


def read_status(xml: bytes) -> ClusterStatus:
    """The answer of ``crm_mon -1 --output-as=xml``.

    Raises:
        ClusterError: it is something else.
    """
    root = _parse(xml, "crm_mon")
    summary, nodes, resources = root.find("summary"), root.find("nodes"), root.find("resources")
    if summary is None or nodes is None:
        _refuse("crm_mon", "no summary or no nodes in it")
    dc, options = summary.find("current_dc"), summary.find("cluster_options")
    has_dc = dc is not None and _is(dc, "present")
    groups = []
    for holder in resources if resources is not None else ():
        if holder.tag == "group":
            groups.append(CrmGroup(_name(holder, "id"), tuple(map(_member, holder.findall("resource")))))
        elif holder.tag == "resource":
            groups.append(CrmGroup(_name(holder, "id"), (_member(holder),)))
    return ClusterStatus(
        dc=dc.get("name", "") if dc is not None and has_dc else "",
        quorate=dc is not None and has_dc and _is(dc, "with_quorum"),
        fencing=options is not None and _is(options, "stonith-enabled"),
        frozen=_frozen(options),
        nodes=tuple(map(_node, nodes.findall("node"))),
        groups=tuple(groups),
        failures=tuple(
            Failure(f.get("op_key", f.get("id", "")), f.get("node", ""), _why(f))
            for f in root.findall("failures/failure")
        ),
    )


def read_actions(xml: bytes) -> tuple[Action, ...]:
    """What the cluster would do, out of ``crm_simulate --output-as=xml``.

    Raises:
        ClusterError: it is something else.
    """
    root = _parse(xml, "crm_simulate")
    if root.find("cluster_status") is None:
        _refuse("crm_simulate", "no cluster status in it")
    return tuple(
        Action(
            a.get("action", ""),
            a.get("resource", ""),
            a.get("source", "") or a.get("node", ""),
            a.get("dest", ""),
        )
        for a in root.findall("actions/rsc_action")
    )


def read_cib(xml: bytes) -> Configured:
    """A CIB.

    Raises:
        ClusterError: it is something else.
    """
    root = _parse(xml, "cibadmin")
    configuration = root.find("configuration")
    if configuration is None:
        _refuse("cibadmin", "no configuration in it")
    resources, constraints = configuration.find("resources"), configuration.find("constraints")
    members: dict[str, tuple[Primitive, ...]] = {}
    elsewhere: list[Primitive] = []
    group_stickiness: dict[str, str] = {}
    for holder in resources if resources is not None else ():
        found = tuple(map(_primitive, holder.iter("primitive")))
        if holder.tag in ("group", "primitive"):
            members[_name(holder, "id")] = found
            group_stickiness[_name(holder, "id")] = _pairs(holder, "meta_attributes").get(
                "resource-stickiness", ""
            )
        if holder.tag != "group":
            elsewhere.extend(found)
    locations = list(map(_pin, constraints.findall("rsc_location"))) if constraints is not None else []
    return Configured(
        stickiness=_pairs(configuration.find("rsc_defaults"), "meta_attributes").get(
            "resource-stickiness", ""
        ),
        group_stickiness=group_stickiness,
        members=members,
        elsewhere=tuple(elsewhere),
        pins=tuple(pin for pin in locations if pin.id.startswith("cli-")),
        preferences=tuple(pin for pin in locations if not pin.id.startswith("cli-")),
        together=_couples(constraints, "rsc_colocation", "rsc", "with-rsc"),
        order=_couples(constraints, "rsc_order", "first", "then"),
        default_timeout=_pairs(configuration.find("op_defaults"), "meta_attributes").get("timeout", ""),
    )


def _parse(xml: bytes, tool: str) -> ET.Element:
    try:
        # Text, whatever encoding the document names: the parser knows some that would hide a document type.
        text = xml.decode()
    except UnicodeDecodeError:
        _refuse(tool, "it is not UTF-8")
    if "<!DOCTYPE" in text:
        _refuse(tool, "a document type in it")
    try:
        return ET.fromstring(text)  # noqa: S314 - a local tool's bounded output, without a document type
    except ET.ParseError as error:
        _refuse(tool, str(error))


def _refuse(tool: str, why: str) -> NoReturn:
    raise ClusterError(
        f"cannot read the answer of {tool}: {why}", hint=f"run {tool} by hand on this node", subject=tool
    )


def _is(element: ET.Element, name: str) -> bool:
    return element.get(name) == "true"


def _name(element: ET.Element, attribute: str) -> str:
    name = element.get(attribute)
    if not name:
        _refuse("the cluster", f"a {element.tag} without {attribute}")
    return name


def _frozen(options: ET.Element | None) -> str:
    if options is not None and _is(options, "maintenance-mode"):
        return "the cluster is in maintenance mode"
    if options is not None and _is(options, "stop-all-resources"):
        return "the cluster stops all resources"
    return ""


def _node(element: ET.Element) -> CrmNode:
    troubles = [
        word
        for word, attributes in (
            ("unclean", ("unclean",)),
            ("pending", ("pending",)),
            ("standby", ("standby", "standby_onfail")),
            ("in maintenance", ("maintenance",)),
            ("shutting down", ("shutdown",)),
        )
        if any(_is(element, attribute) for attribute in attributes)
    ]
    online = _is(element, "online")
    if not online:
        troubles.insert(0, "offline")
    return CrmNode(_name(element, "name"), online, _is(element, "unclean"), ", ".join(troubles))


def _member(element: ET.Element) -> GroupMember:
    return GroupMember(
        name=_name(element, "id"),
        agent=element.get("resource_agent", ""),
        role=element.get("role", ""),
        nodes=tuple(_name(node, "name") for node in element.findall("node")),
        failed=_is(element, "failed"),
        blocked=_is(element, "blocked"),
        managed=_is(element, "managed"),
        pending=element.get("pending", ""),
    )


def _why(failure: ET.Element) -> str:
    words = [failure.get("exitstatus", ""), failure.get("exitreason", "")]
    return ", ".join(word for word in words if word and word != "none") or failure.get("status", "failed")


def _primitive(element: ET.Element) -> Primitive:
    agent = ":".join(filter(None, (element.get("class"), element.get("provider"), element.get("type"))))
    return Primitive(
        _name(element, "id"),
        agent,
        _pairs(element, "instance_attributes"),
        {op.get("name", ""): op.get("timeout", "") for op in element.findall("operations/op")},
    )


def _pairs(parent: ET.Element | None, block: str) -> dict[str, str]:
    if parent is None:
        return {}
    return {pair.get("name", ""): pair.get("value", "") for pair in parent.findall(f"{block}/nvpair")}


def _pin(element: ET.Element) -> Pin:
    expression = element.find("rule/expression[@attribute='#uname']")
    rule = element.find("rule")
    node = element.get("node", "") or (expression.get("value", "") if expression is not None else "")
    score = element.get("score", "") or (rule.get("score", "") if rule is not None else "")
    return Pin(
        _name(element, "id"),
        element.get("rsc", ""),
        node,
        score,
        element.get(DISCOVERY_MARK[0]) == DISCOVERY_MARK[1],
    )


def _couples(constraints: ET.Element | None, tag: str, one: str, other: str) -> tuple[tuple[str, str], ...]:
    if constraints is None:
        return ()
    return tuple(
        (c.get(one, ""), c.get(other, ""))
        for c in constraints.findall(tag)
        if c.get("score", "INFINITY") == "INFINITY" and c.get("kind", "Mandatory") == "Mandatory"
    )
