"""A site of three nodes on one machine: a command cluster of stand-in programs, one folder tree, a real worker for
each node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.fake_cluster import ACTIVE, ALTERNATE, PRIMARY, FakeCluster
from tests.support.played_fault import PlayedFault
from tests.support.prefect_site import NightSite, ask, environment, until


class PlacedSite(NightSite):
    """The nights' small site, on a cluster whose nodes are processes."""

    @classmethod
    def create(cls, here: Path, name: str, **keys: str) -> PlacedSite:
        """Its own name keeps its work pool apart from other tests'."""
        made = NightSite.make(here)
        fake = FakeCluster(here / "cluster")
        lines = "\n".join(f"{key} = {as_toml(value)}" for key, value in {**fake.settings(), **keys}.items())
        text = made.path.read_text()
        text = text.replace('name = "TEX"', f'name = "{name}"')
        text = text.replace(
            'kind = "local"\nnodes = ["TEX-ACTV-1", "TEX-PASS-1"]',
            f'nodes = ["{ACTIVE}", "{PRIMARY}", "{ALTERNATE}"]\n{lines}',
        )
        tomllib.loads(text)
        made.path.write_text(text)
        return cls(here)

    @property
    def cluster(self) -> FakeCluster:
        return FakeCluster(self.here / "cluster")

    @property
    def fault(self) -> PlayedFault:
        """What goes wrong on the nodes when a test says so."""
        return PlayedFault(self.here / "fault")

    @property
    def name(self) -> str:
        return str(tomllib.loads(self.path.read_text())["site"]["name"]).lower()

    def deploy(self) -> None:
        done = self.cli("deploy", "--json")
        assert done.returncode == 0, done.stderr

    @contextmanager
    def worker(self, node: str, *queues: str) -> Iterator[subprocess.Popen[bytes]]:
        """A real worker that plays a node, in a folder of its own; ends with the block."""
        folder = self.here / f"worker-{node}"
        (folder / "tmp").mkdir(parents=True, exist_ok=True)
        names = [word for queue in (node.lower(), *queues) for word in ("--work-queue", queue)]
        with (folder / "log").open("a") as log:
            process = subprocess.Popen(
                [
                    *(
                        sys.executable,
                        "-m",
                        "prefect",
                        "worker",
                        "start",
                        "--pool",
                        f"nightferry-{self.name}",
                    ),
                    *("--name", node, *names),
                ],
                cwd=folder,
                env=environment(
                    TMPDIR=str(folder / "tmp"),
                    NIGHTFERRY_NODE=node,
                    NIGHTFERRY_SITE=str(self.path),
                    PYTHONPATH=self.fault.path,
                    PREFECT_WORKER_QUERY_SECONDS="1",
                    PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL="INFO",
                ),
                stdout=log,
                stderr=log,
                # See the worker of test_e2e_deploy.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads hold locks here
            )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(timeout=60)

    def log_of(self, node: str) -> str:
        """What the node's workers wrote."""
        return (self.here / f"worker-{node}/log").read_text()

    def start_flow(self, deployment: str, **parameters: Any) -> str:
        found = ask(f"/deployments/name/{deployment}", method="GET")
        return str(ask(f"/deployments/{found['id']}/create_flow_run", {"parameters": parameters})["id"])


def ended(flow_run: str, seconds: float = 240.0) -> dict[str, Any]:
    """The flow run when it is final."""

    def final() -> dict[str, Any] | None:
        run: dict[str, Any] = ask(f"/flow_runs/{flow_run}", method="GET")
        return run if run["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED") else None

    answer: dict[str, Any] = until(final, seconds)
    return answer


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and everything below it, as a node that loses its power does."""
    found = [process.pid]
    for pid in found:
        with suppress(FileNotFoundError, ProcessLookupError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(timeout=30)


def as_toml(value: object) -> str:
    """A value as TOML, tables inline."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {as_toml(each)}" for key, each in value.items()) + " }"
    return json.dumps(value)
