"""Pacemaker's own tools, run on this node: what is asked of them and what their exit statuses mean."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Self
from xml.sax.saxutils import quoteattr

from nightferry.cluster.crm import DISCOVERY_MARK, Action, ClusterStatus, read_actions, read_status
from nightferry.cluster.run import CLEAN_ENVIRONMENT, Finished, run_program
from nightferry.errors import ClusterError
from nightferry.progress import Cancel
from nightferry.transfer.temporary import temporary_folder

ANSWER_S = 20.0
"""No tool takes longer to answer, unless the cluster hangs."""

EXISTS = 108
NO_QUORUM = 106

MEANINGS = {
    4: "this user may not ask the cluster",
    102: "the cluster does not run on this node",
    105: "the cluster has no such object",
    106: "the cluster has no quorum",
    108: "it exists already",
    109: "it is not managed by the cluster",
    124: "the cluster did not answer in time",
}
"""Exit statuses of Pacemaker's tools. Source: Pacemaker's ``crm_error --list --exit``."""

_HINTS = {
    4: "run as root, or as a member of the group haclient",
    102: "run on a node of the cluster, or start it there (`systemctl start pacemaker`)",
}


class CrmTools:
    """The tools, each found once below the system's own folders.

    Args:
        env: Added to their clean environment; ``CIB_file`` makes them work on a file in place of the cluster.
        cancel: Ends a tool that hangs.
    """

    def __init__(self, env: Mapping[str, str] | None = None, cancel: Cancel | None = None) -> None:
        self._env = dict(env or {})
        self._cancel = cancel

    def stopped_by(self, cancel: Cancel | None) -> Self:
        """The same tools, which ``cancel`` ends, or nothing but their deadlines: for what must be done after a stop."""
        other = copy.copy(self)
        other._cancel = cancel
        return other

    def wait(self, seconds: float) -> None:
        """Waits between two looks.

        Raises:
            Cancelled: a stop was asked for.
        """
        (self._cancel or Cancel()).wait(seconds)

    def status(self) -> ClusterStatus:
        """One look at the live cluster.

        It has a quorum when `crm_mon` and the membership layer both say so: `crm_mon` reads it from the CIB, and on a
        node that was cut off it says so for seconds longer.

        Raises:
            ClusterError: it does not answer.
        """
        status = read_status(self._run("crm_mon", "-1", "--output-as=xml").stdout)
        return status if not status.quorate or self.has_quorum() else replace(status, quorate=False)

    def has_quorum(self) -> bool:
        """What the membership layer says of this node's partition now."""
        return self._run("crm_node", "--quorum", accept=NO_QUORUM).stdout.strip() == b"1"

    def cib(self) -> bytes:
        """The cluster's configuration and state as it is now."""
        return self._run("cibadmin", "--query").stdout

    def node(self) -> str:
        """What the cluster calls this node."""
        return self._run("crm_node", "--name").stdout.decode(errors="replace").strip()

    def place(self, group: str, node: str) -> bool:
        """Pins the group to a node; False when it is pinned already: of two that try, one succeeds.

        Raises:
            ClusterError: the cluster refuses, or does not say whether it did it.
        """
        constraint = ("--scope", "constraints", "--xml-text", _pin(group, node))
        return self._run("cibadmin", "--create", *constraint, accept=EXISTS).code == 0

    def replace(self, group: str, node: str) -> None:
        """Pins a pinned group to another node in one step."""
        self._run("cibadmin", "--modify", "--scope", "constraints", "--xml-text", _pin(group, node))

    def take_back(self, group: str, node: str, *, marked: bool = True) -> None:
        """Removes exactly this pin; whatever else pins the group or keeps it away stays.

        Args:
            group: The resource group.
            node: Where it is pinned.
            marked: Whether the pin bears our mark; those of older releases do not.
        """
        text = _pin(group, node, marked=marked)
        self._run("cibadmin", "--delete", "--scope", "constraints", "--xml-text", text)

    def simulate(self, cib: bytes, change: Callable[[CrmTools], object]) -> tuple[Action, ...]:
        """What the cluster would do if ``change`` were made; nothing is changed.

        Args:
            cib: Its configuration and state.
            change: Is given tools that work on a copy of that.
        """
        with temporary_folder("plan") as folder:
            path = folder / "cib.xml"
            path.write_bytes(cib)
            change(CrmTools({**self._env, "CIB_file": str(path)}, self._cancel))
            return read_actions(
                self._run("crm_simulate", "--run", "--xml-file", str(path), "--output-as=xml").stdout
            )

    def _run(self, tool: str, *arguments: str, accept: int = 0) -> Finished:
        """Raises:
        ClusterError: the tool is not there, does not answer, or ends with another exit status than 0 or
            ``accept``.
        """
        program = shutil.which(tool, path=CLEAN_ENVIRONMENT["PATH"])
        if program is None:
            raise ClusterError(
                f"{tool} is not on this machine",
                hint="install Pacemaker's tools (on Debian: pacemaker-cli-utils), or correct cluster.kind",
                subject=tool,
            )
        ended = run_program([program, *arguments], deadline_s=ANSWER_S, env=self._env, cancel=self._cancel)
        if ended.code not in (0, accept):
            meaning = MEANINGS.get(ended.code) or ended.error_line()
            raise ClusterError(
                f"{tool}: {meaning} (exit status {ended.code})",
                hint=_HINTS.get(ended.code, f"run {tool} by hand on this node"),
                subject=tool,
            )
        return ended


def pin_id(group: str) -> str:
    """The constraint's name: that of ``crm_resource --move``, so that its ``--clear`` removes it as well."""
    return f"cli-prefer-{group}"


def _pin(group: str, node: str, *, marked: bool = True) -> str:
    values = {"id": pin_id(group), "rsc": group, "role": "Started", "node": node, "score": "INFINITY"}
    if marked:
        values |= dict([DISCOVERY_MARK])
    return f"<rsc_location {' '.join(f'{name}={quoteattr(value)}' for name, value in values.items())}/>"
