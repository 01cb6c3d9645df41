"""`nightferry server`: the site's own background Prefect server."""

from __future__ import annotations

from cyclopts import App

from nightferry.cli.prefect_server import find_own, state_folder, stop_own, use_server
from nightferry.cli.session import current
from nightferry.site.prefect_api import answers

app = App(name="server", help="The site's own background Prefect server.")


@app.command
def status() -> int:
    """Says whether a Prefect server answers, and where its UI is. Exit code 70 when none does."""
    import os

    session = current()
    loaded = session.load_site()
    named = os.environ.get("PREFECT_API_URL", "")
    own = find_own(state_folder(loaded.site.name, loaded.path))
    url = named if named and answers(named) else own.url if own else ""
    is_own = own is not None and own.url == url
    document = {
        "url": url or None,
        "ui": url.removesuffix("/api") or None,
        "own": is_own,
        "auth_file": str(own.auth_file) if own is not None and is_own else None,
        "client_file": str(own.client_file) if own is not None and is_own else None,
    }
    shown = [f"Prefect UI: {document['ui']}" if url else "no Prefect server answers"]
    if document["auth_file"]:
        shown.append(f"its password: the line in {document['auth_file']}")
    session.out.result(document, *shown)
    return 0 if url else 70


@app.command
def start() -> None:
    """Starts the site's own server, unless one answers already."""
    session = current()
    loaded = session.load_site()
    server = use_server(state_folder(loaded.site.name, loaded.path), session.out.say)
    document = {
        "url": server.url,
        "ui": server.ui,
        "auth_file": str(server.auth_file) if server.auth_file else None,
        "client_file": str(server.client_file) if server.client_file else None,
    }
    session.out.result(document, f"Prefect UI: {server.ui}")


@app.command
def stop() -> None:
    """Stops the site's own server."""
    session = current()
    loaded = session.load_site()
    stopped = stop_own(state_folder(loaded.site.name, loaded.path))
    session.out.result(
        {"stopped": stopped}, "stopped" if stopped else "the site's own server was not running"
    )
