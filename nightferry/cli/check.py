"""`nightferry check`: everything that could fail tonight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nightferry.cli.session import Session, current

if TYPE_CHECKING:
    from nightferry.model.findings import Finding


def check(*, everywhere: bool = False) -> int:
    """Looks for everything that could fail tonight: paths, space, rights, disks, destinations, labels.

    Exit code 0 when nothing is wrong, 3 when there are only warnings, 2 when something fails.

    Parameters
    ----------
    everywhere
        On each node, through its worker; also whether the nodes agree on release, site file, clock and catalog.
    """
    from rich.text import Text

    from nightferry.cli.output import table
    from nightferry.health.check import check as look
    from nightferry.health.check import findings_exit_code
    from nightferry.units import counted

    session = current()
    findings = _everywhere(session) if everywhere else look(session.load_site())
    code = findings_exit_code(findings)
    colours = {"fail": "bold red", "warn": "yellow", "note": "dim"}
    rows = [[f.id, Text(f.severity, style=colours[f.severity]), f.text, f.fix or None] for f in findings]
    counts = {s: sum(f.severity == s for f in findings) for s in ("fail", "warn", "note")}
    summary = ", ".join(
        [
            counted(counts["fail"], "failure"),
            counted(counts["warn"], "warning"),
            counted(counts["note"], "note"),
        ]
    )
    shown = [table(["id", "", "finding", "what to do"], rows)] if rows else []
    document = {"findings": findings, **counts, "exit_code": code}
    session.out.result(
        document, *shown, "no problem found that would make tonight fail" if not code else summary
    )
    return code


def _everywhere(session: Session) -> list[Finding]:
    """Asks every node through Prefect."""
    from nightferry.cli.backup import use_prefect

    loaded = session.load_site()
    cancel = session.cancel
    use_prefect(session, loaded)
    from blocks.site import Site
    from flows.check import FOUND, check_everywhere
    from nightferry.health.everywhere import load_findings
    from tasks.bridge import serve

    serve(session.out.progress, session.stop)
    state = check_everywhere(Site(text=loaded.text), return_state=True)
    cancel.check()
    if state.name != FOUND and not state.is_completed():
        state.result()
    return load_findings(state.message or "")
