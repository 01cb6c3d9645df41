"""What `check` says of a Pacemaker cluster, out of what its tools say. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from nightferry.cluster.crm import ClusterStatus, Configured, CrmGroup, Primitive
from nightferry.cluster.reader_agent import AGENT, AGENT_PATH
from nightferry.model.findings import Finding
from nightferry.model.nodes import NodeSpec

INFINITY = 1_000_000
"""Source: Pacemaker Explained, scores."""

SHORTEST_STOP_S = 20.0
"""The agent's stop takes five seconds. On a machine that is busy enough it takes longer, and one that is cut off costs
the node."""

READER_TYPE = f"ocf:nightferry:{AGENT}"


def whole_cluster(status: ClusterStatus, configured: Configured, *, allowed: bool) -> Iterator[Finding]:
    """Quorum, fencing and what keeps the cluster from acting at all.

    Args:
        allowed: The site file moves without fencing.
    """
    if not (status.dc and status.quorate):
        yield Finding(
            "NF-CLUSTER-020",
            "fail",
            "the cluster has no quorum here",
            "restore the other nodes, or the network to them",
        )
    if not status.fencing:
        yield Finding(
            "NF-CLUSTER-021",
            "warn" if allowed else "fail",
            "fencing is off: after a partition two nodes can mount the same disk",
            "configure a fence device and stonith-enabled=true"
            + ("; moves are still made, and recorded" if allowed else "; until then no disk is moved"),
        )
    elif not any(p.agent.startswith("stonith:") for p in configured.elsewhere):
        yield Finding(
            "NF-CLUSTER-022",
            "fail",
            "fencing is on and there is no fence device: a lost node stops everything",
            "configure a fence device",
        )
    if status.frozen:
        yield Finding("NF-CLUSTER-023", "fail", status.frozen, "end it before the night")


def nodes(status: ClusterStatus, specs: Sequence[NodeSpec]) -> Iterator[Finding]:
    """Nodes that cannot work tonight, and names that site file and cluster do not share."""
    for spec in specs:
        node = status.node(spec.host)
        called = "" if spec.host == spec.name else f" (in the cluster {spec.host})"
        if node is None:
            yield Finding(
                "NF-CLUSTER-024",
                "fail",
                f"the cluster has no node {spec.name}{called}",
                "correct [cluster] nodes, or give the node's own name as host under [[nodes]]",
            )
        elif node.trouble:
            yield Finding("NF-CLUSTER-003", "warn", f"{spec.name} is {node.trouble}", "bring the node back")
    known = {spec.host for spec in specs}
    strangers = sorted(node.name for node in status.nodes if node.name not in known)
    if strangers:
        yield Finding(
            "NF-CLUSTER-025",
            "warn",
            f"nodes of the cluster that the site file does not name: {', '.join(strangers)}",
            "add them to the site file: no work is placed on an unknown node, and a group that moves there is lost",
        )


def check_group(found: CrmGroup, status: ClusterStatus, configured: Configured) -> Iterator[Finding]:
    """What would spoil a move of one group, or make its stop fail."""
    unmanaged = [member.name for member in found.members if not member.managed]
    if unmanaged:
        yield Finding(
            "NF-CLUSTER-026",
            "fail",
            f"{found.name}: not managed by the cluster: {', '.join(unmanaged)}",
            f"`crm_resource --resource {found.name} --meta --delete-parameter is-managed`",
        )
    for failure in status.failures:
        if failure.is_of(found):
            yield Finding(
                "NF-CLUSTER-027",
                "warn",
                f"{found.name}: failed before: {failure}",
                f"fix the cause, then `crm_resource --cleanup --resource {failure.resource}`: "
                "until then nothing is moved from or to that node",
            )
    yield from _reader_agent(found.name, configured)
    yield from _forced(found.name, configured)


def _reader_agent(name: str, configured: Configured) -> Iterator[Finding]:
    members = configured.members.get(name, ())
    inside = [n for n, p in enumerate(members) if p.agent.endswith(f":{AGENT}")]
    if inside:
        last_disk = max((n for n, p in enumerate(members) if p.agent.endswith(":Filesystem")), default=-1)
        agent = members[inside[0]]
        if inside[0] < last_disk:
            yield Finding(
                "NF-CLUSTER-029",
                "fail",
                f"{name}: {agent.name} comes before {members[last_disk].name}, so it stops after the unmounting",
                f"make {agent.name} the last member of {name}",
            )
        yield from _well_set(agent, name, configured.default_timeout)
        return
    outside = [
        p for p in configured.elsewhere if p.agent.endswith(f":{AGENT}") and p.parameters.get("group") == name
    ]
    if not outside:
        yield Finding(
            "NF-CLUSTER-028",
            "fail",
            f"{name} has no {AGENT}: a file that we have open makes its stop fail, and the node is fenced",
            f"`nightferry cluster install-agent` on each node, then add {READER_TYPE} group={name} as the last member",
        )
        return
    agent = outside[0]
    names = {name, *(p.name for p in members)}
    if not any(one == agent.name and other in names for one, other in configured.together) or not any(
        first in names and then == agent.name for first, then in configured.order
    ):
        yield Finding(
            "NF-CLUSTER-029",
            "fail",
            f"{agent.name} is neither a member of {name} nor colocated with it and ordered after it",
            f"make it the last member of {name}",
        )
    yield from _well_set(agent, name, configured.default_timeout)


def installed(configured: Configured, agents: Path) -> Iterator[Finding]:
    """Whether this node has the agent of this release."""
    groups = (primitive for members in configured.members.values() for primitive in members)
    for kind in sorted({p.agent for p in (*groups, *configured.elsewhere) if p.agent.endswith(f":{AGENT}")}):
        path = agents / kind.split(":")[1] / AGENT
        try:
            content = path.read_bytes()
        except OSError as error:
            content = None
            why = f"{path}: {error.strerror}"
        else:
            why = f"{path} is not the one of this release"
        if content != AGENT_PATH.read_bytes():
            yield Finding(
                "NF-CLUSTER-029",
                "fail",
                f"the reader agent on this node: {why}",
                "`nightferry cluster install-agent`",
            )


def _well_set(agent: Primitive, name: str, default_timeout: str) -> Iterator[Finding]:
    given = agent.parameters.get("group", "")
    if given != name:
        yield Finding(
            "NF-CLUSTER-029",
            "fail",
            f"{agent.name} of {name} has group={given or 'nothing'}: it cannot reach what works on {name}",
            f"`crm_resource --resource {agent.name} --set-parameter group --parameter-value {name}`",
        )
    # Without either the cluster's own default counts, which is 20 s.
    stop = agent.timeouts.get("stop") or default_timeout
    given_s = seconds(stop)
    if given_s is not None and given_s < SHORTEST_STOP_S:
        yield Finding(
            "NF-CLUSTER-029",
            "fail",
            f"{agent.name} of {name} has {stop} to stop, and must have {SHORTEST_STOP_S:.0f} s: a stop that times out "
            "fails, and the node is fenced",
            f"`pcs resource update {agent.name} op stop timeout=20s`",
        )


def _forced(name: str, configured: Configured) -> Iterator[Finding]:
    forced = [
        p.name
        for p in configured.members.get(name, ())
        if p.agent.endswith(":Filesystem") and p.parameters.get("force_unmount", "true") != "false"
    ]
    if forced:
        yield Finding(
            "NF-CLUSTER-030",
            "note",
            f"{name}: {', '.join(forced)} kills whatever still uses the disk when it stops (force_unmount)",
            "nightferry does not need that: the reader agent stops first",
        )


def pins(configured: Configured, ours: Sequence[str]) -> Iterator[Finding]:
    """Constraints that tools left behind.

    Args:
        ours: The ids of those that moves of ours have placed.
    """
    for pin in configured.pins:
        if pin.id in ours:
            yield Finding(
                "NF-CLUSTER-032",
                "note",
                f"{pin}, by a move of nightferry's",
                "the next move, or the end of stage two, removes it",
            )
        else:
            yield Finding(
                "NF-CLUSTER-031",
                "warn",
                f"{pin}, and nightferry did not set it",
                f"`crm_resource --clear --resource {pin.resource}` if nobody needs it: it blocks moves",
            )


def stickiness(name: str, configured: Configured) -> Iterator[Finding]:
    """A BACK group that prefers a node more than it sticks goes back as soon as nothing pins it."""
    sticks = configured.group_stickiness.get(name) or configured.stickiness or "0"
    total = min(INFINITY, score(sticks) * max(1, len(configured.members.get(name, ()))))
    wishes = [pin for pin in configured.preferences if pin.resource == name and score(pin.score) > 0]
    strongest = max(wishes, key=lambda pin: score(pin.score), default=None)
    if strongest is not None and score(strongest.score) >= total:
        yield Finding(
            "NF-CLUSTER-033",
            "warn",
            f"{name} prefers {strongest.node} ({strongest.score}) and sticks with {total}: our constraint stays after "
            "stage two, otherwise the group would move back at once",
            f"give {name} more resource-stickiness, or its preference a lower score",
        )


def seconds(text: str) -> float | None:
    """A timeout as a number; None for what is none, and the cluster's own counts."""
    found = re.fullmatch(r"(\d+)\s*(ms|msec|s|sec|m|min|h|hr)?", text.strip(), re.IGNORECASE)
    if found is None:
        return None
    unit = (found[2] or "s").lower()
    return (
        int(found[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}["ms" if unit[:2] == "ms" else unit[0]]
    )


def score(text: str) -> int:
    """A score as a number; what is none counts nothing."""
    if text.lstrip("+-") in ("INFINITY", "infinity"):
        return -INFINITY if text.startswith("-") else INFINITY
    try:
        return max(-INFINITY, min(INFINITY, int(text)))
    except ValueError:
        return 0
