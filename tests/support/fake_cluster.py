"""Programs that stand in for a cluster's own: they keep nodes and groups in a JSON file.

``cluster.exe`` prints the tables of Windows Server 2003, ``powershell.exe`` decodes its command and answers the
cmdlets of FailoverClusters, ``groupctl`` is anybody's own tool. After a move the looks at the group show what
``after_move`` lists, one after the other; without it the group is there at once.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

ACTIVE, PRIMARY, ALTERNATE = "TEX-ACTV-1", "TEX-PASS-1", "TEX-PASS-2"
MAIL, BACK = "TEX-MAIL-1", "TEX-BACK-1"

_PROGRAM = """#!{python} -IS
import base64, json, re, sys
STATE = {state!r}


def load():
    with open(STATE) as file:
        return json.load(file)


def save(state):
    with open(STATE, "w") as file:
        json.dump(state, file)


def look(name):
    state = load()
    group = state["groups"].get(name)
    if group is None:
        return None
    if state["next"].get(name):
        group = state["groups"][name] = state["next"][name].pop(0)
        save(state)
    return group


def move(name, node):
    state = load()
    state["moves"].append([name, node])
    if state["refuse"]:
        save(state)
        sys.stderr.write("\\n" + state["refuse"] + "\\nmore\\n")
        sys.exit(1)
    if state["after_move"] is None:
        state["groups"][name] = [node, "Online"]
    else:
        state["next"][name] = state["after_move"]
    save(state)


def table(*rows):
    for row in rows:
        print("".join(word.ljust(21) for word in row).rstrip(), end="\\r\\n")


def cluster_exe(words):
    kind, name, *rest = words
    if kind == "node":
        print("Listing status for node '%s':\\r\\n\\r" % name)
        number = str(1 + list(load()["nodes"]).index(name))
        table(("Node", "Node ID", "Status"), ("-" * 14, "-" * 7, "-" * 20))
        table((name, number, load()["nodes"][name]))
    elif rest:
        move(name, rest[0].removeprefix("/move:"))
    else:
        group = look(name)
        if group is None:
            print("System error 5013 has occurred (0x00001395).\\r")
            sys.exit(5013 & 255)
        print("Listing status for resource group '%s':\\r\\n\\r" % name)
        table(("Group", "Node", "Status"), ("-" * 20, "-" * 15, "-" * 6), (name, *group))


def powershell(words):
    assert words[:3] == ["-NoProfile", "-NonInteractive", "-EncodedCommand"], words
    script = base64.b64decode(words[3], validate=True).decode("utf-16-le")
    names = re.findall(r"-(?:Name|Node) '([^']*)'", script)
    if "Get-ClusterNode" in script:
        print(json.dumps({{"state": load()["nodes"][names[0]]}}))
    elif "Move-ClusterGroup" in script:
        assert script.endswith("-Wait 0 | Out-Null") and "IgnoreLocked" not in script, script
        move(*names)
    else:
        owner, state = look(names[0])
        print(json.dumps({{"owner": owner, "state": state}}))


def groupctl(words):
    verb, *names = words
    if verb == "node":
        print("node %s is %s" % (names[0], load()["nodes"][names[0]]))
    elif verb == "where":
        group = look(names[0])
        if group is None:
            sys.exit("no such group")
        print("group %s: owner=%s state=%s" % (names[0], *group))
    elif verb == "plan":
        if load()["vetoed"]:
            sys.exit(load()["vetoed"])
    elif verb == "move":
        move(names[0], names[2])
    elif verb == "release":
        state = load()
        state["released"].append(names[0])
        save(state)


{role}(sys.argv[1:])
"""

ROLES = {"cluster.exe": "cluster_exe", "powershell.exe": "powershell", "groupctl": "groupctl"}


@dataclass
class FakeCluster:
    """The programs in ``folder``/bin and the state they keep."""

    folder: Path

    def __post_init__(self) -> None:
        self.bin.mkdir(parents=True, exist_ok=True)
        for name, role in ROLES.items():
            path = self.bin / name
            path.write_text(
                _PROGRAM.format(python=os.path.realpath(sys.executable), state=str(self.file), role=role)
            )
            path.chmod(0o755)
        if not self.file.exists():
            self.write(
                nodes={ACTIVE: "Up", PRIMARY: "Up", ALTERNATE: "Up"},
                groups={MAIL: [ACTIVE, "Online"], BACK: [ACTIVE, "Online"]},
                next={},
                after_move=None,
                refuse="",
                vetoed="",
                moves=[],
                released=[],
            )

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def file(self) -> Path:
        return self.folder / "cluster-state.json"

    @property
    def state(self) -> dict[str, object]:
        return dict(json.loads(self.file.read_text()))

    def write(self, **changes: object) -> None:
        before = self.state if self.file.exists() else {}
        self.file.write_text(json.dumps(before | changes))

    def settings(self) -> dict[str, object]:
        """The keys of a ``[cluster]`` section that drives ``groupctl``."""
        tool = str(self.bin / "groupctl")
        return {
            "kind": "command",
            "view": [tool, "node", "{node}"],
            "where": [tool, "where", "{group}"],
            "plan": [tool, "plan", "{group}", "{source}", "{node}"],
            "move": [tool, "move", "{group}", "{source}", "{node}"],
            "release": [tool, "release", "{group}"],
            "owner": {"regex": r"^group {group}: owner=(\S+)"},
            "state": {"regex": r"^group {group}: .* state=(.*)$"},
            "up": {"regex": r"^node {node} is (.*)$"},
        }
