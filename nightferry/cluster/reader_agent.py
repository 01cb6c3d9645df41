"""What the `nightferry-reader` agent asks of a process: to close its files when their group is stopped here.

The agent is a member of each resource group (nightferry/cluster/ocf). While it is started, the file ``here`` lies in
``/run/nightferry/<group>``, and whoever works on the group's disks keeps a lease beside it. Where that folder is
missing, the cluster has no such agent on this node, and nothing is registered.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from nightferry.errors import Cancelled, ClusterError, GroupStopping
from nightferry.progress import Cancel
from nightferry.transfer.durable import replace_file

AGENT = "nightferry-reader"
AGENT_PATH = Path(__file__).with_name("ocf") / AGENT
"""The agent, to be copied below the resource agents of each node."""

OCF_AGENTS = Path("/usr/lib/ocf/resource.d")
"""Where the cluster looks for agents, in a folder per provider. Source: OCF resource agent API 1.1, 3.2."""

PROVIDER = "nightferry"

RUN_FOLDER = Path("/run/nightferry")
LOOK_EVERY_S = 0.25


def install_agent(agents: Path = OCF_AGENTS) -> Path:
    """Puts the agent where this node's cluster finds it; returns its path.

    Raises:
        ClusterError: it cannot be written.
    """
    path = agents / PROVIDER / AGENT
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        replace_file(path, AGENT_PATH.read_bytes())
        path.chmod(0o755)
    except OSError as error:
        raise ClusterError(
            f"cannot write {path}: {error.strerror}", hint="run as root", subject=str(path)
        ) from error
    return path


@contextmanager
def working_on(
    groups: Sequence[str], cancel: Cancel, *, if_here: bool = False, folder: Path = RUN_FOLDER
) -> Iterator[Cancel]:
    """Registers work on the disks of resource groups; gives what the work must look at to know when to stop.

    The block closes every file on those disks before it ends.

    Args:
        groups: The resource groups.
        cancel: The wish to stop that the work had anyway.
        if_here: Groups that are not on this node are none of the work's business.
        folder: Where the agents look.

    Raises:
        GroupStopping: a group is being stopped on this node, before the block or while it ran.
    """
    needed = "here" if if_here else ""
    watched = [name for name in dict.fromkeys(groups) if (folder / name / needed).exists()]
    if not watched:
        yield cancel
        return
    ended = threading.Event()
    with ExitStack() as stack, cancel.narrower() as narrower:
        for name in watched:
            stack.enter_context(_lease(folder / name))
        # Looked at after the leases lie there: the agent removes `here` before it looks for leases.
        _require_here(folder, watched)
        watcher = threading.Thread(
            target=_watch, args=(folder, watched, narrower, ended), name="reader agent", daemon=True
        )
        watcher.start()
        try:
            yield narrower
        except Cancelled:
            if not cancel.is_set():
                _require_here(folder, watched)
            raise
        finally:
            ended.set()
            watcher.join()


def _watch(folder: Path, groups: Sequence[str], cancel: Cancel, ended: threading.Event) -> None:
    while not ended.wait(LOOK_EVERY_S):
        for name in groups:
            if not (folder / name / "here").exists():
                cancel.set(f"{name} is being stopped on this node")
                return


def _require_here(folder: Path, groups: Sequence[str]) -> None:
    for name in groups:
        if not (folder / name / "here").exists():
            raise GroupStopping(f"{name} is not on this node, or is being stopped on it", subject=name)


@contextmanager
def _lease(folder: Path) -> Iterator[None]:
    # A pid alone may be another process's by the time the agent looks.
    began = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    path = folder / f"{os.getpid()}.{began}.{secrets.token_hex(6)}.lease"
    path.touch(mode=0o600, exist_ok=False)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
