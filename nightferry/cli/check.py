"""`nightferry check`: everything that could fail tonight."""

from __future__ import annotations

from nightferry.cli.session import current


def check() -> int:
    """Looks for everything that could fail tonight: paths, space, rights, disks, destinations, labels.

    Exit code 0 when nothing is wrong, 3 when there are only warnings, 2 when something fails.
    """
    from rich.text import Text

    from nightferry.cli.output import table
    from nightferry.ops.check import check as look
    from nightferry.ops.check import exit_code
    from nightferry.units import counted

    session = current()
    findings = look(session.load_site())
    code = exit_code(findings)
    colours = {"fail": "bold red", "warn": "yellow", "note": "dim"}
    rows = [[f.id, Text(f.severity, style=colours[f.severity]), f.text, f.fix or None] for f in findings]
    counts = {s: sum(f.severity == s for f in findings) for s in ("fail", "warn", "note")}
    said = ", ".join(
        [
            counted(counts["fail"], "failure"),
            counted(counts["warn"], "warning"),
            counted(counts["note"], "note"),
        ]
    )
    shown = [table(["id", "", "finding", "what to do"], rows)] if rows else []
    document = {"findings": findings, **counts, "exit_code": code}
    session.out.result(
        document, *shown, "nothing that can be seen now will fail tonight" if not code else said
    )
    return code
