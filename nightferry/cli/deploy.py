"""`nightferry deploy`: the site as Prefect deployments."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from nightferry.cli.prefect_server import state_folder, use_server
from nightferry.cli.session import current


def deploy(*, dry_run: Annotated[bool, Parameter(negative=())] = False) -> None:
    """Publishes the site file as a Prefect block, and every flow as a deployment with its schedule.

    Parameters
    ----------
    dry_run
        Only says what would be deployed.
    """
    from nightferry.cli.output import table

    session = current()
    loaded = session.load_site()
    loaded.site.require_delivered()
    server = None
    if not dry_run:
        server = use_server(state_folder(loaded.site.name, loaded.path), session.out.say)
    from blocks.site import pool_name
    from deployments.apply import apply, plan_deployments

    planned = plan_deployments(loaded.site) if dry_run else apply(loaded)
    pool = pool_name(loaded.site)
    rows = [
        [p.full_name, p.entrypoint, ", ".join(cron for cron, _ in p.schedules.values()) or None]
        for p in planned
    ]
    shown = [table(["deployment", "flow", "schedule"], rows)]
    document = {
        "dry_run": dry_run,
        "work_pool": pool,
        "deployments": [p.as_json() for p in planned],
        "api_url": server.url if server else None,
    }
    words = (
        []
        if dry_run or server is None
        else [f"start a worker with: PREFECT_API_URL={server.url} prefect worker start --pool {pool}"]
    )
    session.out.result(document, *shown, *words)
