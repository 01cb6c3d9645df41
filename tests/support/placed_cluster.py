"""A Prefect server that the nodes of the live cluster reach, and a real worker on each of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from nightferry.cli.prefect_server import QUIET_SERVER
from tests.servers.pacemaker import HUB, PacemakerServer
from tests.support.cluster_site import CLI, ROOT, ClusterSite
from tests.support.prefect_site import until

URL = f"http://{HUB}:4200/api"
AUTH = "nightferry:the nodes know it"

_AHEAD = """\
from datetime import UTC, datetime, timedelta
from nightferry.clock import SystemClock
SystemClock.now = lambda clock: datetime.now(UTC) + timedelta(minutes={minutes})
"""


class PlacedCluster:
    """What is shown of a night by a Prefect server at the nodes' own network.

    Args:
        server: The cluster.
        home: For the server's and the nodes' files.
    """

    def __init__(self, server: PacemakerServer, home: Path) -> None:
        self.server = server
        self.home = home
        self._paths: dict[str, str] = {}

    def set_clock_ahead(self, node: str, minutes: int) -> None:
        """Every process of ours that starts on a node from now on finds that node's clock ahead."""
        folder = self.home / f"clock-{node}"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(_AHEAD.format(minutes=minutes))
        self._paths[node] = f"{folder}:"

    def allow(self, site: ClusterSite) -> None:
        """The nodes' own site file is this one from now on; no other is run by their workers."""
        link = self.home / "nightferry.toml"
        link.unlink(missing_ok=True)
        link.symlink_to(site.file)

    def environment(self, node: str) -> list[str]:
        """What a process on a node is started with."""
        given = QUIET_SERVER | {
            "PYTHONPATH": f"{self._paths.get(node, '')}{ROOT}",
            "PREFECT_API_URL": URL,
            "PREFECT_API_AUTH_STRING": AUTH,
            "PREFECT_HOME": str(self.home / node),
            "NIGHTFERRY_SITE": str(self.home / "nightferry.toml"),
            "NIGHTFERRY_STATE": str(self.home / node),
            "NIGHTFERRY_NO_DELAYS": "1",
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO",
        }
        return ["env", "-u", "NIGHTFERRY_NODE", *(f"{name}={value}" for name, value in given.items())]

    @contextmanager
    def serving(self) -> Iterator[None]:
        """The Prefect server; it ends with the block."""
        with ExitStack() as stack:
            answers = self._process(
                stack,
                "server",
                self.server.hub_argv(
                    *(
                        "setpriv",
                        "--pdeathsig",
                        "KILL",
                        "env",
                        *(f"{k}={v}" for k, v in QUIET_SERVER.items()),
                    ),
                    *(f"PREFECT_HOME={self.home}/server", f"PREFECT_SERVER_API_AUTH_STRING={AUTH}"),
                    *(f"PREFECT_API_URL={URL}", f"PREFECT_API_AUTH_STRING={AUTH}"),
                    *(sys.executable, "-m", "prefect", "server", "start", "--host", HUB, "--port", "4200"),
                ),
            )
            until(lambda: answers.poll() is not None or self._curl("GET", "/health") == "true", 90)
            yield

    def worker(self, stack: ExitStack, node: str) -> subprocess.Popen[bytes]:
        """A worker that takes what is a node's work; ends with the stack."""
        command = (
            "worker",
            "start",
            "--pool",
            "nightferry-tex",
            "--name",
            node,
            "--work-queue",
            node.lower(),
        )
        return self._process(
            stack,
            f"worker-{node}",
            self.server.argv(
                node,
                *("setpriv", "--pdeathsig", "KILL", *self.environment(node)),
                *(sys.executable, "-m", "prefect", *command),
            ),
        )

    def log(self, node: str) -> str:
        """What the node's worker wrote."""
        return (self.home / f"worker-{node}.log").read_text()

    def nightferry(self, node: str, site: ClusterSite, *words: str) -> subprocess.CompletedProcess[str]:
        """The command line on a node, which knows the server."""
        return self.server.run(node, *self.argv(node, site, *words), timeout=240)

    def argv(self, node: str, site: ClusterSite, *words: str) -> list[str]:
        return [*self.environment(node), sys.executable, "-c", CLI, "--site", str(site.file), *words]

    def ask(self, path: str, body: object = None, *, method: str = "POST") -> Any:
        """A question to the server by plain HTTP."""
        return json.loads(self._curl(method, path, "" if method == "GET" else json.dumps(body or {})))

    def runs(self, flow: str, node: str) -> list[dict[str, Any]]:
        """Every run of a node's deployment, the oldest first."""
        found = self.ask(f"/deployments/name/{flow}/tex-{node.lower()}", method="GET")
        wanted = {"deployments": {"id": {"any_": [found["id"]]}}, "sort": "START_TIME_ASC"}
        runs: list[dict[str, Any]] = self.ask("/flow_runs/filter", wanted)
        return runs

    def _curl(self, method: str, path: str, body: str = "") -> str:
        given = ["--data", body, "--header", "content-type: application/json"] if body else []
        command = ["curl", "--silent", "--user", AUTH, "--request", method, *given, URL + path]
        return subprocess.run(self.server.hub_argv(*command), capture_output=True, text=True).stdout

    def _process(self, stack: ExitStack, name: str, argv: list[str]) -> subprocess.Popen[bytes]:
        folder = self.home / name
        folder.mkdir(exist_ok=True)
        log = stack.enter_context((self.home / f"{name}.log").open("ab"))
        process = subprocess.Popen(
            argv, cwd=folder, env=dict(os.environ), stdout=log, stderr=log, start_new_session=True
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        return process
