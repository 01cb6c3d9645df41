"""Finding a Prefect server for the command line, or starting the site's own on loopback.

``backup`` needs a server to show and retry the night. It takes the one that PREFECT_API_URL names if that
answers, else the site's own background server, which it starts when it is not there. The server is found
through a note in the site's state folder; the note is only believed when the server answers.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nightferry.errors import PrefectRequired

ANSWER_S = 3.0
"""How long a server may take to answer before it counts as away."""

START_S = 90.0
"""How long our own server may take to start: its first start makes its database."""

QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    "PREFECT_CLI_PROMPT": "false",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}
"""Nothing leaves the machine, and no server is ever made in passing."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. ``own`` is true for the site's background server."""

    url: str
    pid: int
    own: bool
    started: bool = False

    @property
    def ui(self) -> str:
        """What to open in a browser."""
        return self.url.removesuffix("/api")


def state_folder(site_name: str, site_path: Path) -> Path:
    """Where the site's background server keeps its database, log and note; made when it is not there.

    ``NIGHTFERRY_STATE`` names the parent; else ``/var/lib/nightferry`` for root and the user's XDG state
    folder.
    """
    given = os.environ.get("NIGHTFERRY_STATE")
    if given:
        parent = Path(given)
    elif os.geteuid() == 0:
        parent = Path("/var/lib/nightferry")
    else:
        home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        parent = Path(home) / "nightferry"
    import hashlib

    key = hashlib.sha256(str(site_path.resolve()).encode()).hexdigest()[:8]
    folder = parent / f"{site_name}-{key}"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def answers(url: str, timeout_s: float = ANSWER_S) -> bool:
    """Whether a Prefect API answers its health question there."""
    if not url.startswith(("http://", "https://")):
        return False
    request = urllib.request.Request(url.rstrip("/") + "/health", headers=_authorization())  # noqa: S310 - http(s) only
    host = urllib.parse.urlsplit(url).hostname or ""
    # A proxy that the environment names leads away from this machine.
    proxies: dict[str, str] | None = {} if host == "localhost" or host.startswith("127.") else None
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
    try:
        with opener.open(request, timeout=timeout_s) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False


def _authorization() -> dict[str, str]:
    import base64

    key = os.environ.get("PREFECT_API_KEY")
    if key:
        return {"Authorization": f"Bearer {key}"}
    auth = os.environ.get("PREFECT_API_AUTH_STRING")
    if auth:
        return {"Authorization": "Basic " + base64.b64encode(auth.encode()).decode()}
    return {}


def use_server(folder: Path, say: Callable[[str], None]) -> Server:
    """A server that answers, with this process's environment set to it. Call it before Prefect is imported.

    Args:
        folder: The site's state folder.
        say: Told which server is used when it is not the one the environment names.

    Raises:
        PrefectRequired: our own server does not come up; its log says why.
    """
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    named = os.environ.get("PREFECT_API_URL", "")
    if named:
        if answers(named):
            return Server(named, 0, own=False)
        say(f"the Prefect server at {_without_credentials(named)} does not answer; using the site's own")
    with _locked(folder):
        server = find_own(folder)
        if server is None:
            say("starting the site's own Prefect server; its first start takes a while")
            server = _start(folder)
            say(f"started the site's own Prefect server: {server.ui}")
        elif not named:
            say(f"using the site's own Prefect server: {server.ui}")
    os.environ["PREFECT_API_URL"] = server.url
    os.environ.pop("PREFECT_API_KEY", None)
    os.environ.pop("PREFECT_API_AUTH_STRING", None)
    return server


def find_own(folder: Path) -> Server | None:
    """The site's background server, if it answers."""
    try:
        note = json.loads((folder / "server.json").read_text())
        server = Server(str(note["url"]), int(note["pid"]), own=True)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return server if _runs(server) and answers(server.url) else None


def _runs(server: Server) -> bool:
    """Whether the noted process is that server still: its number and its port may be others' by now."""
    try:
        words = Path(f"/proc/{server.pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    port = str(urllib.parse.urlsplit(server.url).port).encode()
    return b"prefect" in words and port in words


def stop_own(folder: Path, patience_s: float = 20.0) -> bool:
    """Stops the site's background server; False when none runs.

    Raises:
        PrefectRequired: it does not end.
    """
    with _locked(folder):
        server = find_own(folder)
        if server is None:
            return False
        os.kill(server.pid, signal.SIGTERM)
        deadline = time.monotonic() + patience_s
        while _lives(server.pid):
            if time.monotonic() > deadline:
                raise PrefectRequired(
                    f"the Prefect server (process {server.pid}) does not end", hint="look at its log"
                )
            time.sleep(0.1)
        return True


def _start(folder: Path) -> Server:
    port = _port_of_before(folder)
    url = f"http://127.0.0.1:{port}/api"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    environment |= QUIET | {"PREFECT_HOME": str(folder / "prefect"), "PREFECT_API_URL": url}
    log = folder / "server.log"
    with log.open("ab") as out:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_S
    while not answers(url, 1.0):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise PrefectRequired(
                "the site's own Prefect server does not start", hint=f"see {log}", subject=str(folder)
            )
        time.sleep(0.1)
    note = folder / "server.json"
    partial = note.with_suffix(".partial")
    partial.write_text(json.dumps({"url": url, "pid": process.pid}))
    partial.replace(note)
    return Server(url, process.pid, own=True, started=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time looks for, starts or stops the server."""
    fd = os.open(folder / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _port_of_before(folder: Path) -> int:
    """The port the site's server had last, so that workers and bookmarks find it again; else a free one."""
    try:
        note = json.loads((folder / "server.json").read_text())
        wanted = urllib.parse.urlsplit(str(note["url"])).port or 0
    except (OSError, ValueError, KeyError, TypeError):
        wanted = 0
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue  # somebody else's by now
            return int(probe.getsockname()[1])
    raise PrefectRequired("no port is free on 127.0.0.1 for the site's own Prefect server")


def _lives(pid: int) -> bool:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _without_credentials(url: str) -> str:
    head, _, tail = url.rpartition("@")
    return f"{head.split('://')[0]}://…@{tail}" if head else url
