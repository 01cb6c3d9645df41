"""Whether every node could do its work tonight, and whether they agree."""

from __future__ import annotations

import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

from prefect import flow
from prefect.artifacts import create_table_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from blocks.site import Site
from nightferry.errors import NightferryError
from nightferry.health import everywhere
from nightferry.health.check import findings_exit_code
from nightferry.model.findings import Finding
from nightferry.model.text import safe_markdown
from nightferry.site.opened import OpenSite
from tasks.bridge import at_work, opened
from tasks.place import run_on

FOUND = "Found"
"""The state's name when something fails."""


@flow(name="check-node", flow_run_name="check this node", persist_result=False)
def check_node(site: Site) -> State[Any]:
    """Checks the node it runs on; what it found is the message of its state, for `check_everywhere` to read.

    Args:
        site: The site.
    """
    with at_work():
        return Completed(message=everywhere.inspect_here(site.open()).dump())


@flow(name="check-everywhere", flow_run_name="check every node", persist_result=False)
def check_everywhere(site: Site) -> State[Any]:
    """Runs `check` on each node through its queue, and compares versions, site file, clock and catalog.

    Args:
        site: The site.
    """
    with at_work():
        here = opened(site)
        if here.local_node is None:
            # One machine plays every node.
            findings = everywhere.inspect_here(site.open()).findings_of("")
        else:
            nodes = [node.name for node in here.file.nodes]
            with ThreadPoolExecutor(max_workers=len(nodes), thread_name_prefix="check") as pool:
                futures = [
                    pool.submit(contextvars.copy_context().run, _ask, here, site, node) for node in nodes
                ]
                answers = [future.result() for future in futures]
            findings = everywhere.compare(answers)
        _show(findings)
        message = everywhere.dump_findings(findings)
        return (
            Failed(name=FOUND, message=message)
            if findings_exit_code(findings) == 2
            else Completed(message=message)
        )


def _ask(here: OpenSite, site: Site, node: str) -> everywhere.NodeAnswer:
    requested = here.clock.now()
    try:
        state = run_on(node, check_node, site, key=f"by hand/{uuid4()}")
        found = everywhere.NodeState.load(state.message or "") if state.is_completed() else None
        why = "" if found is not None else state.message or f"its check ended {state.name}"
    except NightferryError as error:
        return everywhere.NodeAnswer(node, None, requested, here.clock.now(), error.message)
    return everywhere.NodeAnswer(node, found, requested, here.clock.now(), why)


def _show(findings: list[Finding]) -> None:
    rows = [
        {
            "id": f.id,
            "severity": f.severity,
            "finding": safe_markdown(f.text),
            "what to do": safe_markdown(f.fix),
        }
        for f in findings
    ]
    create_table_artifact(rows, key="check", description="What could fail tonight, on any node")
