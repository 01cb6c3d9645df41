"""Pacemaker's own tools, run on this node: what is asked of them and what their exit statuses mean."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from xml.sax.saxutils import quoteattr

from nightferry.cluster.crm import Action, Status, read_actions, read_status
from nightferry.cluster.run import CLEAN_ENVIRONMENT, Finished, run_program
from nightferry.errors import ClusterError

ANSWER_S = 20.0
"""No tool takes longer to answer, unless the cluster hangs."""

EXISTS = 108

MEANINGS = {
    4: "this user may not ask the cluster",
    102: "the cluster does not run on this node",
    105: "the cluster knows no such thing",
    106: "the cluster has no quorum",
    108: "it is there already",
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
    """

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._env = dict(env or {})

    def status(self) -> Status:
        """One look at the live cluster.

        Raises:
            ClusterError: it does not answer.
        """
        return read_status(self._run("crm_mon", "-1", "--output-as=xml").stdout)

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

    def take_back(self, group: str, node: str) -> None:
        """Removes exactly this pin; whatever else pins the group or keeps it away stays."""
        self._run("cibadmin", "--delete", "--scope", "constraints", "--xml-text", _pin(group, node))

    def simulate(self, cib: bytes, change: Callable[[CrmTools], object]) -> tuple[Action, ...]:
        """What the cluster would do if ``change`` were made; nothing is changed.

        Args:
            cib: Its configuration and state.
            change: Is given tools that work on a copy of that.
        """
        with tempfile.TemporaryDirectory(prefix="nightferry-plan-") as folder:
            path = Path(folder) / "cib.xml"
            path.write_bytes(cib)
            change(CrmTools({**self._env, "CIB_file": str(path)}))
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
        ended = run_program([program, *arguments], deadline_s=ANSWER_S, env=self._env)
        if ended.code not in (0, accept):
            meaning = MEANINGS.get(ended.code) or ended.said()
            raise ClusterError(
                f"{tool}: {meaning} (exit status {ended.code})",
                hint=_HINTS.get(ended.code, ""),
                subject=tool,
            )
        return ended


def pin_id(group: str) -> str:
    """The constraint's name: that of ``crm_resource --move``, so that its ``--clear`` removes it as well."""
    return f"cli-prefer-{group}"


def _pin(group: str, node: str) -> str:
    values = {"id": pin_id(group), "rsc": group, "role": "Started", "node": node, "score": "INFINITY"}
    return f"<rsc_location {' '.join(f'{name}={quoteattr(value)}' for name, value in values.items())}/>"
