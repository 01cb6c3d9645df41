"""What the `nightferry-reader` agent asks of a process: to close its files when their group is stopped here.

The agent is a member of each resource group (nightferry/cluster/ocf). While it is started, the file ``here`` lies in
``/run/nightferry/<group>``, and whoever opens files on the group's disks keeps a lease beside it: a process for
itself, and one for each program that it runs there. Where that folder is missing, the cluster has no such agent on
this node, and nothing is registered.
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
from nightferry.transfer.durable import remove_dead_drafts, replace_file

AGENT = "nightferry-reader"
AGENT_PATH = Path(__file__).with_name("ocf") / AGENT
"""The agent, to be copied below the resource agents of each node."""

OCF_AGENTS = Path("/usr/lib/ocf/resource.d")
"""Where the cluster looks for agents, in a folder per provider. Source: OCF resource agent API 1.1, 3.2."""

PROVIDER = "nightferry"

RUN_FOLDER = Path("/run/nightferry")
POLL_STOP_S = 0.25


def install_agent(agents: Path = OCF_AGENTS) -> Path:
    """Puts the agent where this node's cluster finds it; returns its path.

    Raises:
        ClusterError: it cannot be written.
    """
    path = agents / PROVIDER / AGENT
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
            # Whatever the umask: the cluster's own user reads it, too.
            path.parent.chmod(0o755)
        remove_dead_drafts(path.parent)
        replace_file(path, AGENT_PATH.read_bytes())
        path.chmod(0o755)
    except OSError as error:
        raise ClusterError(
            f"cannot write {path}: {error.strerror}", hint="run as root", subject=str(path)
        ) from error
    return path


@contextmanager
def registered_work(
    groups: Sequence[str], cancel: Cancel, *, if_here: bool = False, folder: Path | None = None
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
    folder = folder or RUN_FOLDER
    with registered(groups, if_here=if_here, folder=folder) as watched, cancel.narrower() as narrower:
        if not watched:
            yield cancel
            return
        ended = threading.Event()
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


@contextmanager
def registered(
    groups: Sequence[str], *, if_here: bool = False, folder: Path | None = None
) -> Iterator[tuple[str, ...]]:
    """As ``registered_work``, for a block that opens files for a moment only and is not worth stopping; gives the
    groups that have an agent here.

    Raises:
        GroupStopping: a group is being stopped on this node, or is not on it.
    """
    folder = folder or RUN_FOLDER
    needed = "here" if if_here else ""
    names = tuple(name for name in dict.fromkeys(groups) if (folder / name / needed).exists())
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(_lease(folder / name, os.getpid()))
        # Looked at after the leases lie there: the agent removes `here` before it looks for leases.
        _require_here(folder, names)
        yield names


@contextmanager
def program_on(groups: Sequence[str], pid: int, *, folder: Path | None = None) -> Iterator[None]:
    """Registers a program with a session of its own, and all in that session, beside the process that runs it.

    The agent ends them too, also when that process was killed before it could.

    Args:
        groups: The resource groups on whose disks the program may open files; those that are not here do not count.
        pid: The program, which leads its session.
        folder: Where the agents look.
    """
    with ExitStack() as stack:
        for name in dict.fromkeys(groups):
            place = (folder or RUN_FOLDER) / name
            if (place / "here").exists():
                stack.enter_context(_lease(place, pid, ".session"))
        yield


def groups_here() -> list[str]:
    """The resource groups whose reader agents are started on this node."""
    return sorted(path.parent.name for path in RUN_FOLDER.glob("*/here"))


def _watch(folder: Path, groups: Sequence[str], cancel: Cancel, ended: threading.Event) -> None:
    while not ended.wait(POLL_STOP_S):
        for name in groups:
            if not (folder / name / "here").exists():
                cancel.set(f"{name} is being stopped on this node")
                return


def _require_here(folder: Path, groups: Sequence[str]) -> None:
    for name in groups:
        if not (folder / name / "here").exists():
            raise GroupStopping(f"{name} is not on this node, or is being stopped on it", subject=name)


@contextmanager
def _lease(folder: Path, pid: int, kind: str = "") -> Iterator[None]:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except FileNotFoundError:
        # A program that has ended already.
        yield
        return
    # A pid alone may be another process's by the time the agent looks.
    process = f"{pid}.{stat.rpartition(')')[2].split()[19]}"
    name = f"{process}.{secrets.token_hex(6)}{kind}"
    draft, path = folder / f".{name}", folder / f"{name}.lease"
    try:
        draft.touch(mode=0o600, exist_ok=False)
        draft.write_text(f"{process}\n")
        draft.rename(path)
        yield
    finally:
        for each in (draft, path):
            each.unlink(missing_ok=True)
