"""`nightferry gate`: look at a held gate, try again, or go on by approval."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cyclopts import App

from nightferry.cli.session import Session, current
from nightferry.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from nightferry.model.records import ApprovalRecord, RunRecord
    from nightferry.site.opened import OpenSite

app = App(name="gate", help="A held gate.")


@app.command
def show(run: str | None = None, /) -> int:
    """Says whether the gate of a run is open, and what keeps it shut.

    Parameters
    ----------
    run
        The run; without it the newest of every BACK group.
    """
    from nightferry.cli.output import table
    from nightferry.night.gate import evaluate
    from nightferry.site.opened import OpenSite

    session = current()
    with OpenSite(session.load_site()) as site:
        views = [evaluate(site, record) for record in _runs(site, run)]
    shown: list[RenderableType] = []
    for view in views:
        shown.append(f"{view.back_group}: the gate of run {view.run} is {view.state}{_because(view.reason)}")
        if view.seal is not None:
            rows = [
                [line.name, line.state, line.reason or None, _approved(view.approvals, line.name)]
                for line in view.seal.stores
            ]
            shown.append(table(["store", "state", "reason", "approved"], rows))
    session.out.result({"gates": [view.as_json() for view in views]}, *shown)
    return 0 if all(view.state == "open" for view in views) else 50


@app.command
def retry(run: str, /) -> int:
    """Stages what is missing again, seals again, and goes on with the night if the gate opens.

    Parameters
    ----------
    run
        The held run.
    """
    session = current()
    record = _find(session, run)
    return _go_on(session, record, "both")


@app.command
def approve(
    run: str,
    /,
    *,
    store: tuple[str, ...],
    reason: str,
    record_only: bool = False,
) -> int:
    """Accepts the named stores as they are, by record, then goes on with the night: partial, missing or suspect.

    Parameters
    ----------
    run
        The held run.
    store
        GROUP/STORE, one that the seal lacks; may be repeated.
    reason
        Why; kept with the record.
    record_only
        Only records; `nightferry backup` or `gate retry` goes on later.
    """
    from nightferry.night import gate
    from nightferry.site.opened import OpenSite

    session = current()
    with OpenSite(session.load_site()) as site:
        site.catalog.refresh()
        record = site.catalog.run(run)
        approval = gate.approve(site, record, store, reason)
        state = gate.evaluate(site, record).state
    session.out.say(f"approved by {approval.who}: {', '.join(approval.stores)}")
    if record_only or state != "open":
        document = {"run": run, "approved": list(approval.stores), "gate": state}
        session.out.result(document, f"the gate of run {run} is {state}")
        return 0 if state == "open" else 50
    return _go_on(session, record, "two")


def _go_on(session: Session, record: RunRecord, stage: str) -> int:
    from nightferry.cli.backup import Night, run_nights

    options = {"level": None, "stage": stage, "new": False, "reason": "", "stagger": False}
    return run_nights(session, session.load_site(), [Night(record.back_group, run=record.run)], options)


def _find(session: Session, run: str) -> RunRecord:
    from nightferry.site.opened import OpenSite

    with OpenSite(session.load_site()) as site:
        site.catalog.refresh()
        return site.catalog.run(run)


def _runs(site: OpenSite, run: str | None) -> list[RunRecord]:
    site.catalog.refresh()
    if run is not None:
        return [site.catalog.run(run)]
    newest = [r[0] for b in site.file.back_groups if (r := site.catalog.runs(b.name))]
    if not newest:
        raise ConfigError("there is no run yet", hint="`nightferry backup` starts one")
    return newest


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _approved(approvals: tuple[ApprovalRecord, ...], store: str) -> str | None:
    return next((f"{a.reason} ({a.who})" for a in approvals if store in a.stores), None)
