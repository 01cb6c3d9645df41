"""`nightferry server`: the site's own background Prefect server."""

from __future__ import annotations

from cyclopts import App

from nightferry.cli.prefect_server import answers, find_own, state_folder, stop_own, use_server
from nightferry.cli.session import current

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
    document = {
        "url": url or None,
        "ui": url.removesuffix("/api") or None,
        "own": bool(own and own.url == url),
    }
    session.out.result(document, f"Prefect UI: {document['ui']}" if url else "no Prefect server answers")
    return 0 if url else 70


@app.command
def start() -> None:
    """Starts the site's own server, unless one answers already."""
    session = current()
    loaded = session.load_site()
    server = use_server(state_folder(loaded.site.name, loaded.path), session.out.say)
    session.out.result({"url": server.url, "ui": server.ui}, f"Prefect UI: {server.ui}")


@app.command
def stop() -> None:
    """Stops the site's own server."""
    session = current()
    loaded = session.load_site()
    stopped = stop_own(state_folder(loaded.site.name, loaded.path))
    session.out.result(
        {"stopped": stopped}, "stopped" if stopped else "the site's own server was not running"
    )
