"""The temporary folders that a Prefect worker makes for a flow run, and leaves when it is killed."""

from __future__ import annotations

import json
import os
import re
import tempfile
from functools import cache
from pathlib import Path

from nightferry.site.state import keep_private
from nightferry.transfer.temporary import clear_dead_folders, mark_folder

_WORKING = re.compile(r"tmp[a-z0-9_]{8}prefect")
_RUNTIME = re.compile(r"prefect-workspace-attempt-[a-z0-9_]{8}")


@cache
def adopt_worker_folders() -> None:
    """Once in a process that a worker started: notes in its folders who works there, and removes those whose processes
    are dead. What the process writes is its user's alone from then on. Elsewhere it does nothing."""
    above = _prefect_above()
    if not above:
        return
    temporary = Path(tempfile.gettempdir())
    folders = [
        folder for folder in temporary.iterdir() if _RUNTIME.fullmatch(folder.name) and _is_ours(folder)
    ]
    if _WORKING.fullmatch(Path.cwd().name) and Path.cwd().parent == temporary.resolve():
        folders.append(Path.cwd())
    for folder in folders:
        mark_folder(folder, above)
    clear_dead_folders()
    keep_private()


def _is_ours(runtime: Path) -> bool:
    """Whether a worker made the folder for this process's flow run."""
    try:
        config = json.loads((runtime / "supervisor.json").read_bytes())
    except (OSError, ValueError):
        return False
    run = os.environ.get("PREFECT__FLOW_RUN_ID")
    return isinstance(config, dict) and bool(run) and config.get("flow_run_id") == run


def _prefect_above() -> list[int]:
    """The numbers of this process's parents as far as they are Prefect's, the nearest first."""
    found: list[int] = []
    pid = os.getppid()
    while pid > 1:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            parent = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except OSError:
            break
        if not any(b"prefect" in word for word in words):
            break
        found.append(pid)
        pid = parent
    return found
