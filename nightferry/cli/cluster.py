"""`nightferry cluster`: who owns what, and the gated move by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App

from nightferry.cli.session import current
from nightferry.errors import ConfigError, GateClosed
from nightferry.site.nodes import has_disk

if TYPE_CHECKING:
    from nightferry.cluster.base import ClusterView, GroupView
    from nightferry.plan.placement import Layout

app = App(name="cluster", help="Nodes, groups, and the gated move.")


@app.command
def view() -> int:
    """Shows nodes, resource groups, owner tokens and readers of the BACK disks.

    Exit code 50 when the cluster's answer about a group cannot be read.
    """
    from nightferry.cli.output import table
    from nightferry.errors import ClusterError
    from nightferry.site.opened import OpenSite

    session = current()
    with OpenSite(session.load_site()) as site:
        site.catalog.refresh()
        view = site.cluster.view()
        disks: list[dict[str, Any]] = []
        for back_group in site.file.back_groups:
            try:
                sees = has_disk(site, back_group.name)
                token = site.disk(back_group.name).owner() if sees else site.catalog.owner(back_group.name)
                disks.append(
                    {
                        "back_group": back_group.name,
                        "path": back_group.path,
                        "owner": token.node if token else None,
                        "epoch": token.epoch if token else 0,
                        "seen": sees,
                        "readers": [r.who for r in site.claims.shared(back_group.name).readers()],
                    }
                )
            except ClusterError as error:
                disks.append({"back_group": back_group.name, "path": back_group.path, "error": error.message})
    fencing = {True: "on", False: "OFF", None: "unknown"}[view.fencing]
    document: dict[str, Any] = {"cluster": view, "disks": disks}
    unread = [f"{group.name} is {_where(group)}" for group in view.groups if group.unread]
    failure = None
    if unread:
        failure = ClusterError(
            "; ".join(unread),
            hint="compare owner, state and states under [cluster] with what the command prints "
            "(docs/cluster-commands.md)",
            subject=next(group.name for group in view.groups if group.unread),
        )
        document |= failure.as_json()
    session.out.result(
        document,
        f"{view.kind}: {_quorum(view)}, fencing {fencing}",
        *(f"left by a move: {text}" for text in view.constraints),
        table(
            ["node", "role", "usable", "note"],
            [[n.name, n.role, "yes" if n.usable else "no", n.note or None] for n in view.nodes],
        ),
        table(
            ["group", "owner", "state", "note"],
            [[g.name, g.owner, g.state, g.note or None] for g in view.groups],
        ),
        table(
            ["BACK disk", "path", "token", "readers"],
            [
                [
                    d["back_group"],
                    d["path"],
                    d.get("error") or _token(d),
                    ", ".join(d.get("readers", ())) or None,
                ]
                for d in disks
            ],
        ),
    )
    if failure is None:
        return 0
    if not session.out.as_json:
        session.out.error(failure)
    return failure.exit_code


@app.command
def install_agent(*, agents: Path = Path("/usr/lib/ocf/resource.d")) -> None:
    """Puts the resource agent nightferry-reader where this node's Pacemaker finds it (docs/cluster.md).

    Parameters
    ----------
    agents
        The folder of the resource agents.
    """
    from nightferry.cluster.reader_agent import install_agent as install

    session = current()
    path = install(agents)
    session.out.result({"agent": path}, f"{path} is there: ocf:nightferry:nightferry-reader")


@app.command
def move(
    back_group: str,
    /,
    *,
    to: str | None = None,
    dry_run: bool = False,
    ungated: bool = False,
    reason: str = "",
) -> None:
    """Moves a BACK group's disk to a passive node, through the gate of its newest run.

    Exit code 50 while the window is not sealed.

    Parameters
    ----------
    back_group
        The BACK group.
    to
        This node; without it the first usable target.
    dry_run
        Shows the plan and what the gate says; moves nothing.
    ungated
        For maintenance: not through the gate; needs --to and --reason.
    reason
        Why it is not gated; recorded.
    """
    from nightferry.night import gate
    from nightferry.night import move as ops
    from nightferry.night.run import run_lock
    from nightferry.plan.placement import Layout
    from nightferry.site.nodes import placement
    from nightferry.site.opened import OpenSite

    session = current()
    with OpenSite(session.load_site(), cancel=session.cancel) as site:
        name = site.file.back_group(back_group).name
        if to is not None and not ungated:
            ops.require_target(site, name, to)
        elif to is not None:
            site.file.node(to)
        site.catalog.refresh()
        run = next(iter(site.catalog.runs(name)), None)
        if ungated and not (to and reason.strip()):
            raise ConfigError(
                "an ungated move needs --to and --reason",
                hint=f"`nightferry cluster move {name} --ungated --to NODE --reason TEXT`",
                subject=name,
            )
        if dry_run:
            plan = site.cluster.plan(name, to or ops.target_of(site, name))
            layout = Layout.of(site.file.nodes)
            placed = placement(site, site.cluster.view())
            state = gate.evaluate(site, run).state if run is not None else "closed"
            way = f"stays on {plan.target}" if plan.is_noop else f"{plan.source} → {plan.target}"
            session.out.result(
                {"plan": plan, "gate": state, "layout": layout.pattern, "placement": placed},
                f"{name}: {'; '.join((way, *plan.problems))}",
                f"the gate is {state}" + ("; the move does not pass it" if ungated else ""),
                f"layout {layout.pattern}; passive nodes take: {_taken(layout, placed)}",
            )
            return
        if run is None and not ungated:
            raise GateClosed(
                f"the gate of {name} is held: there is no run, so nothing is proven staged",
                hint="`nightferry backup` stages; see --ungated for maintenance",
                subject=name,
            )
        with run_lock(site, name, progress=session.out.progress, cancel=session.cancel):
            if ungated and to is not None:
                node = ops.move_ungated(
                    site, name, to, reason, progress=session.out.progress, cancel=session.cancel
                )
            else:
                assert run is not None  # noqa: S101 - refused above
                node = ops.to_passive(site, run, to=to, progress=session.out.progress, cancel=session.cancel)
    session.out.result({"back_group": name, "node": node}, f"{name} is on {node}")


def _where(group: GroupView) -> str:
    at = f"on {group.owner}" if group.owner else "on no node"
    return f"{group.state} {at}: {group.note}"


def _quorum(view: ClusterView) -> str:
    if not view.quorate:
        return "NO QUORUM"
    return "quorum" if view.kind == "pacemaker" else "quorum not checked"


def _token(disk: Mapping[str, object]) -> str:
    known = "" if disk["seen"] else ", as recorded"
    return f"{disk['owner'] or 'nobody'} (epoch {disk['epoch']}{known})"


def _taken(layout: Layout, placed: Mapping[str, str | None]) -> str:
    return ", ".join(
        f"{group} → {node} ({layout.role_of(node)})" if node else f"{group} → none"
        for group, node in placed.items()
    )
