"""The temporary folders that a Prefect worker makes for a flow run, and leaves when it is killed."""

from __future__ import annotations

import os
import re
import tempfile
from functools import cache
from pathlib import Path

from nightferry.ops.state import keep_private
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
    pids = [pid for pid, _ in above]
    named = [
        Path(os.fsdecode(word)).parent for _, words in above for word in words if word.endswith(b".json")
    ]
    for folder, pattern in ((Path.cwd(), _WORKING), *((folder, _RUNTIME) for folder in named)):
        if (
            pattern.fullmatch(folder.name)
            and folder.parent == Path(tempfile.gettempdir())
            and folder.is_dir()
        ):
            mark_folder(folder, pids)
    clear_dead_folders()
    keep_private()


def _prefect_above() -> list[tuple[int, list[bytes]]]:
    """This process's parents as far as they are Prefect's, with their command lines; the nearest first."""
    found: list[tuple[int, list[bytes]]] = []
    pid = os.getppid()
    while pid > 1:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            parent = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except OSError:
            break
        if not any(b"prefect" in word for word in words):
            break
        found.append((pid, words))
        pid = parent
    return found
