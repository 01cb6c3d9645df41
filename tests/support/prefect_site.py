"""A small real site for nights through Prefect, and what the server says of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import toml

ROOT = Path(__file__).resolve().parents[2]
BACK = "TEX-BACK-1"
PROGRAM = [sys.executable, "-c", "from nightferry.cli.app import main; raise SystemExit(main())"]

HEAD = """\
schema = 1

[site]
name = "TEX"
catalog = "{here}/catalog"
timezone = "America/Chicago"
restore_roots = ["{here}/restored"]

[cluster]
kind = "local"
nodes = ["TEX-ACTV-1", "TEX-PASS-1"]

[staging]
path = "{here}/backup"
keep_free = "0 %"
"""


@dataclass(frozen=True)
class NightSite:
    """A site in a folder of its own, and how a test drives it."""

    here: Path

    @classmethod
    def make(cls, here: Path, *, bandwidth: str = "[]") -> NightSite:
        """Three small stores in two storage groups on one BACK group."""
        for folder in ("backup", "restored", "objects", "catalog", "stores"):
            (here / folder).mkdir(parents=True)
        for number, store in enumerate(("priv1", "priv2", "shares")):
            folder = here / "stores" / store
            folder.mkdir()
            (folder / "mail.txt").write_text(f"{store}\n" * (100 + number))
            (folder / "blob.bin").write_bytes(bytes(range(256)) * 5000)
        path = here / "nightferry.toml"
        copies, in_back, stores = ("tape", "objects"), f'back_group = "{BACK}"\n', here / "stores"
        path.write_text(
            HEAD.format(here=here)
            + toml.group("SG1", copies, start="20:00", more=in_back)
            + toml.store("priv1", stores / "priv1")
            + toml.store("priv2", stores / "priv2")
            + toml.group("SG2", copies, start="20:30", more=in_back)
            + toml.store("shares", stores / "shares")
            + toml.tape(toml.virtual(here / "vtl", drives=2, cartridge="16 MiB"))
            + toml.folder(here / "objects", more=f"bandwidth = {bandwidth}\n")
        )
        path.chmod(0o600)
        return cls(here)

    @property
    def path(self) -> Path:
        return self.here / "nightferry.toml"

    def block(self) -> Any:
        from blocks.site import Site

        return Site(text=self.path.read_text())

    def opened(self) -> Any:
        """The site as this process's flows have it open, with its records read again."""
        from tasks.bridge import opened

        found = opened(self.block())
        found.catalog.refresh()
        return found

    def night(self, **parameters: Any) -> Any:
        """One night in this process; its final state."""
        from flows.two_stage import two_stage_backup

        return two_stage_backup(self.block(), BACK, **({"stagger": False} | parameters), return_state=True)

    def cli(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """The command line in a process of its own."""
        return subprocess.run(
            [*PROGRAM, "--site", str(self.path), *words],
            capture_output=True,
            text=True,
            cwd=self.here,
            env=environment(**more),
            timeout=120,
        )

    def start(self, *words: str, **more: str) -> subprocess.Popen[str]:
        """The same without waiting for its end."""
        return subprocess.Popen(
            [*PROGRAM, "--site", str(self.path), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.here,
            env=environment(**more),
        )


def environment(**more: str) -> dict[str, str]:
    """This process's environment for a child that imports this tree's nightferry."""
    return os.environ | {"PYTHONPATH": str(ROOT)} | more


def until(what: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Asks until the answer is true: the server records task runs a little later than they end."""
    deadline = time.monotonic() + seconds
    while not (answer := what()):
        if time.monotonic() > deadline:
            raise AssertionError(f"did not come about in {seconds:.0f} s; last answer: {answer!r}")
        time.sleep(0.05)
    return answer


def ask(path: str, body: object = None, *, method: str = "POST", server: str = "") -> Any:
    """A question to the Prefect API by plain HTTP, so that no client of ours hides anything."""
    import httpx

    url = (server or os.environ["PREFECT_API_URL"]) + path
    auth = tuple(os.environ.get("PREFECT_API_AUTH_STRING", ":").split(":", 1))

    def answered() -> httpx.Response | None:
        reply = httpx.request(
            method, url, json=None if method == "GET" else body or {}, auth=auth, timeout=20
        )
        # Its database is locked by another writer: the server asks for another try.
        return None if reply.status_code == httpx.codes.SERVICE_UNAVAILABLE else reply

    reply = until(answered)
    reply.raise_for_status()
    return reply.json() if reply.content else None


def task_runs(flow_run_id: object) -> dict[str, dict[str, Any]]:
    """Name → task run of one flow run."""
    found = ask("/task_runs/filter", {"flow_runs": {"id": {"any_": [str(flow_run_id)]}}, "limit": 200})
    return {run["name"]: run for run in found}


def subflows(flow_run_id: object) -> dict[str, dict[str, Any]]:
    """Name → flow run of one flow run's children."""
    wanted = {"flow_runs": {"parent_flow_run_id": {"any_": [str(flow_run_id)]}}}
    return {run["name"]: run for run in ask("/flow_runs/filter", wanted)}


def everything(server: str = "") -> str:
    """All that the API shows of runs, logs, artifacts, blocks and deployments, as text."""
    pages = []
    for kind in ("flow_runs", "task_runs", "logs", "artifacts", "block_documents", "deployments"):
        offset = 0
        while page := ask(f"/{kind}/filter", {"limit": 200, "offset": offset}, server=server):
            pages.append(json.dumps(page))
            offset += len(page)
    return "\n".join(pages)
