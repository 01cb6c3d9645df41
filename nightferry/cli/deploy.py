"""`nightferry deploy`: the site as Prefect deployments."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from nightferry.cli.prefect_server import Server, state_folder, use_server
from nightferry.cli.session import current
from nightferry.errors import ConfigError

if TYPE_CHECKING:
    from nightferry.model.load import LoadedSite


def deploy(*, dry_run: bool = False, allow: bool = False) -> None:
    """Publishes the site file as a Prefect block, and every flow as a deployment with its schedule.

    A node's workers run only site files that were allowed there, or the node's own at its usual place.

    Parameters
    ----------
    dry_run
        Only says what would be deployed.
    allow
        Also allows this node's workers to run this site file. The one before stays allowed until the next change.
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
        "client_file": str(server.client_file) if server and server.client_file else None,
        "allowed_by": str(_allow(loaded)) if server and allow else None,
    }
    words = []
    if server is not None:
        if allow:
            words.append(f"this node's workers may run this site file: {document['allowed_by']}")
        words.append(f"start a worker with: {worker_command(server, pool)}")
        if not _is_allowed(loaded):
            words.append(
                "a worker on this node would refuse this site file; `nightferry deploy --allow` allows it"
            )
    session.out.result(document, *shown, *words)


def worker_command(server: Server, pool: str) -> str:
    """What starts a worker of the site's pool in a shell. It has no secret in it."""
    start = f"prefect worker start --pool {pool}"
    if server.client_file is None:
        return f"PREFECT_API_URL={server.url} {start}"
    return f"(set -a; . {shlex.quote(str(server.client_file))}; exec {start})"


def _allow(loaded: LoadedSite) -> Path:
    from nightferry.model.allowed import allow
    from nightferry.site.opened import operator

    return allow(loaded.site.name, loaded.digest, operator(), datetime.now(UTC))


def _is_allowed(loaded: LoadedSite) -> bool:
    from nightferry.model.allowed import require_allowed

    try:
        require_allowed(loaded.text)
    except ConfigError:
        return False
    return True
