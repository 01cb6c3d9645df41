"""Pacemaker's real tools on a CIB in a file: no daemon, and the cluster acts when it is told to.

Source: the ``CIB_file`` mode of Pacemaker's tools, and ``crm_simulate --simulate --save-output``.
"""

from __future__ import annotations

import os
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

from nightferry.cluster.pacemaker import PacemakerCluster
from nightferry.cluster.reader_agent import install_agent
from nightferry.cluster.tools import CrmTools
from nightferry.model.claim_records import ConstraintRecord
from nightferry.model.nodes import specify
from tests.servers.pacemaker import BACK, MAIL, NODES, configuration

AT = "2026-11-30T20:00:00Z"


class Notes:
    """A register that forgets with its process."""

    def __init__(self):
        self.written = []

    def constraint(self, group):
        return next((r for r in reversed(self.written) if r.group == group), None)

    def place(self, group, node, *, run, before, without_fencing):
        self._note(group, node, "placed", run, before=before, without_fencing=without_fencing)

    def take_back(self, group, reason):
        known = self.constraint(group)
        self._note(group, known.node, "taken back", known.run, reason=reason)

    def _note(self, group, node, state, run, **more):
        values = {"group": group, "node": node, "state": state, "run": run, "at": AT, **more}
        self.written.append(ConstraintRecord.model_validate(values))


class CrmFile:
    """A cluster whose groups are started on its active node.

    ``inject``: options of ``crm_simulate`` for whatever the cluster does next, such as
    ``("-F", "back1-fs_stop_0@TEX-ACTV-1=1")``.
    """

    def __init__(self, folder: Path):
        self.path = folder / "cib.xml"
        self.inject: tuple[str, ...] = ()
        self.notes = Notes()
        self.agents = folder / "agents"
        install_agent(self.agents)
        root = ET.fromstring(configuration({MAIL: "/dev/mapper/mail1", BACK: "/dev/mapper/back1"}))
        root.attrib.update({"have-quorum": "1", "dc-uuid": "1"})
        status = root.find("status")
        for number, name in enumerate(NODES, 1):
            member = {"in_ccm": "true", "crmd": "online", "join": "member", "expected": "member"}
            node = ET.SubElement(status, "node_state", {"id": str(number), "uname": name, **member})
            ET.SubElement(ET.SubElement(node, "lrm", id=str(number)), "lrm_resources")
        self._write(root)
        self.act()

    def act(self, *inject: str) -> None:
        """Lets the cluster act once."""
        new = self.path.with_suffix(".new")
        command = ["crm_simulate", "-x", self.path, "-S", "-O", new, "--output-as=xml", *self.inject, *inject]
        subprocess.run(command, check=True, capture_output=True)
        new.replace(self.path)

    def tool(self, *command: str) -> None:
        """One of Pacemaker's own tools, as an operator would use it."""
        subprocess.run(
            command, check=True, capture_output=True, env=os.environ | {"CIB_file": str(self.path)}
        )

    def edit(self, path: str, **values: str) -> None:
        """Sets attributes of the first element at an ElementTree path."""
        root = ET.parse(self.path).getroot()
        root.find(path).attrib.update(values)
        self._write(root)

    def option(self, name: str, value: str) -> None:
        self.tool("crm_attribute", "--name", name, "--update", value)

    def meta(self, resource: str, name: str, value: str) -> None:
        self.tool("crm_resource", "-r", resource, "--meta", "-p", name, "-v", value)

    def standby(self, node: str) -> None:
        self.tool("crm_attribute", "--node", node, "--name", "standby", "--update", "on")

    def constrain(self, constraint: str) -> None:
        self.tool("cibadmin", "--create", "--scope", "constraints", "--xml-text", constraint)
        self.act()

    def lose(self, node: str) -> None:
        """The node was lost and nobody knows what it does."""
        self.edit(f"status/node_state[@uname='{node}']", crmd="offline", in_ccm="false")

    def fail(self, resource: str, node: str) -> None:
        """A start of the resource failed there, the cluster went on, and nobody has cleaned up."""
        failure = f"{resource}_start_0@{node}=1"
        self.tool("crm_simulate", "-x", str(self.path), "-O", str(self.path), "-i", failure)
        self.act()

    def pins(self) -> dict[str, str]:
        """Every constraint that a tool left, with its node."""
        root = ET.parse(self.path).getroot()
        found = root.iter("rsc_location")
        return {c.get("id"): c.get("node") for c in found if c.get("id").startswith("cli-")}

    def cluster(self, **options) -> PacemakerCluster:
        """A driver to which the cluster reacts at once."""
        tools = _Acting(self, options.pop("here", NODES[0]))
        values = {"tools": tools, "move_s": 2.0, "agents": self.agents, **options}
        return PacemakerCluster(specify(NODES, ()), (MAIL, BACK), self.notes, **values)

    def _write(self, root: ET.Element) -> None:
        self.path.write_bytes(ET.tostring(root, xml_declaration=True))


class _Acting(CrmTools):
    def __init__(self, file: CrmFile, here: str):
        super().__init__({"CIB_file": str(file.path)})
        self._here = here
        self._file = file

    def node(self):
        return self._here

    def has_quorum(self):
        return True

    def place(self, group, node):
        placed = super().place(group, node)
        self._file.act()
        return placed

    def replace(self, group, node):
        super().replace(group, node)
        self._file.act()

    def take_back(self, group, node, *, marked=True):
        super().take_back(group, node, marked=marked)
        self._file.act()
