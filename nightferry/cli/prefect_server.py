"""Finding a Prefect server for the command line, or starting the site's own on loopback.

``backup`` needs a server to show and retry the night. It takes the one that PREFECT_API_URL names if that
answers, else the site's own background server, which it starts when it is not there. The server is found
through a note in the site's state folder; the note is only believed when the server answers.

The site's own server asks everybody for its auth string, a random one that lies in the state folder: each user of
the machine reaches loopback, and whoever can write to the API commands the workers.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nightferry.errors import PrefectRequired
from nightferry.site.prefect_api import accepts, answers
from nightferry.site.state import make_private_folder, state_home, write_private

START_S = 90.0
"""How long our own server may take to start: its first start makes its database."""

STOP_S = 20.0

QUIET_SERVER = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    "PREFECT_CLI_PROMPT": "false",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}
"""Nothing leaves the machine, and no server is ever made in passing."""

AUTH_FILE = "auth"
"""Below the state folder: the auth string of the site's own server, which is also the UI's password."""

CLIENT_FILE = "client.env"
"""Below the state folder: what a worker needs in its environment to reach the site's own server."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. ``own`` is true for the site's background server."""

    url: str
    pid: int
    own: bool
    started: bool = False
    folder: Path | None = None
    """The state folder of the site's own server."""

    @property
    def auth_file(self) -> Path | None:
        """Where the auth string of the site's own server lies; None for any other server's."""
        return self.folder / AUTH_FILE if self.folder is not None else None

    @property
    def client_file(self) -> Path | None:
        """What a shell or a unit reads before it starts a worker; None for any other server's."""
        return self.folder / CLIENT_FILE if self.folder is not None else None

    @property
    def ui(self) -> str:
        """What to open in a browser."""
        return self.url.removesuffix("/api")


def state_folder(site_name: str, site_path: Path) -> Path:
    """Where the site's background server keeps its database, log and note; made when it is not there."""
    key = hashlib.sha256(str(site_path.resolve()).encode()).hexdigest()[:8]
    return make_private_folder(state_home() / f"{site_name}-{key}")


def use_server(folder: Path, say: Callable[[str], None]) -> Server:
    """A server that answers, with this process's environment set to it. Call it before Prefect is imported.

    Args:
        folder: The site's state folder.
        say: Told which server is used when it is not the one the environment names.

    Raises:
        PrefectRequired: our own server does not come up; its log says why.
    """
    for key, value in QUIET_SERVER.items():
        os.environ.setdefault(key, value)
    named = os.environ.get("PREFECT_API_URL", "")
    with _locked(folder):
        server = find_own(folder)
        if named and (server is None or named.rstrip("/") != server.url):
            if answers(named):
                return Server(named, 0, own=False)
            say(f"the Prefect server at {_without_credentials(named)} does not answer; using the site's own")
        if server is None:
            _stop_unguarded(folder, say)
            say("starting the site's own Prefect server; its first start takes a while")
            server = _start(folder)
            say(f"started the site's own Prefect server: {server.ui}")
        elif not named:
            say(f"using the site's own Prefect server: {server.ui}")
    os.environ["PREFECT_API_URL"] = server.url
    os.environ["PREFECT_API_AUTH_STRING"] = _auth_string(folder)
    os.environ.pop("PREFECT_API_KEY", None)
    return server


def authenticate_to_own(folder: Path) -> None:
    """Where the environment names the site's own server, it gets its auth string too. Before Prefect is imported."""
    own = find_own(folder)
    if own is not None and os.environ.get("PREFECT_API_URL", "").rstrip("/") == own.url:
        os.environ["PREFECT_API_AUTH_STRING"] = _known_auth_string(folder)


def find_own(folder: Path) -> Server | None:
    """The site's background server, if it answers and knows the site's auth string."""
    server = _noted(folder)
    if server is None or not _runs(server):
        return None
    auth = _known_auth_string(folder)
    return server if auth and accepts(server.url, auth) else None


def _noted(folder: Path) -> Server | None:
    try:
        note = json.loads((folder / "server.json").read_text())
        return Server(str(note["url"]), int(note["pid"]), own=True, folder=folder)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _runs(server: Server) -> bool:
    """Whether the noted process is that server still: its number and its port may be others' by now.

    Only a process of this user counts: nobody else's is shown the auth string.
    """
    process = Path(f"/proc/{server.pid}")
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
        owner = process.stat().st_uid
    except OSError:
        return False
    port = str(urllib.parse.urlsplit(server.url).port).encode()
    return owner == os.geteuid() and b"prefect" in words and port in words


def _stop_unguarded(folder: Path, say: Callable[[str], None]) -> None:
    """Ends a server of an earlier release, which lets in every user of the machine."""
    server = _noted(folder)
    if server is not None and _runs(server) and answers(server.url) and not _known_auth_string(folder):
        say("the site's own Prefect server asks nobody who they are: starting it again with an auth string")
        _end(server)


def _known_auth_string(folder: Path) -> str:
    """The auth string of the site's own server; empty before the first start."""
    try:
        return (folder / AUTH_FILE).read_text().strip()
    except FileNotFoundError:
        return ""


def _auth_string(folder: Path) -> str:
    """The auth string, made on the first call. Call it under the lock."""
    known = _known_auth_string(folder)
    if not known:
        known = f"nightferry:{secrets.token_hex(24)}"
        write_private(folder / AUTH_FILE, f"{known}\n".encode())
    return known


def stop_own(folder: Path) -> bool:
    """Stops the site's background server; False when none runs.

    Raises:
        PrefectRequired: it does not end.
    """
    with _locked(folder):
        server = find_own(folder)
        if server is None:
            return False
        _end(server)
        return True


def _end(server: Server) -> None:
    os.kill(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while _lives(server.pid):
        if time.monotonic() > deadline:
            raise PrefectRequired(
                f"the Prefect server (process {server.pid}) does not end", hint="look at its log"
            )
        time.sleep(0.1)


def _start(folder: Path) -> Server:
    port = _port_of_before(folder)
    url = f"http://127.0.0.1:{port}/api"
    auth = _auth_string(folder)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    environment |= QUIET_SERVER | {
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_API_URL": url,
        "PREFECT_SERVER_API_AUTH_STRING": auth,
        "PREFECT_API_AUTH_STRING": auth,
    }
    log = folder / "server.log"
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab") as out:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=environment,
            cwd=folder,
            start_new_session=True,
            umask=0o077,
        )
    deadline = time.monotonic() + START_S
    while not accepts(url, auth, 1.0):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise PrefectRequired(
                "the site's own Prefect server does not start", hint=f"see {log}", subject=str(folder)
            )
        time.sleep(0.1)
    client = f"PREFECT_API_URL={url}\nPREFECT_API_AUTH_STRING={auth}\n"
    write_private(folder / CLIENT_FILE, client.encode())
    write_private(folder / "server.json", json.dumps({"url": url, "pid": process.pid}).encode())
    return Server(url, process.pid, own=True, started=True, folder=folder)


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
