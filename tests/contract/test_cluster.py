"""What every cluster driver must do. A driver joins by a rig: an active and two passive nodes."""

import json

import pytest

from nightferry.cluster.command import CommandCluster
from nightferry.cluster.local import LocalCluster
from nightferry.cluster.verbs import verbs
from nightferry.errors import ClusterError, ConfigError, MoveFailed
from nightferry.model.nodes import CommandClusterSettings, specify
from nightferry.progress import Cancel
from tests.conftest import needs
from tests.support.crm_file import CrmFile
from tests.support.fake_cluster import ACTIVE, ALTERNATE, BACK, MAIL, PRIMARY, FakeCluster


class LocalRig:
    """The local driver, with nodes taken offline by the state file's own key."""

    def __init__(self, folder, monkeypatch):
        self.path = folder / "cluster.json"

    def open(self):
        return LocalCluster(self.path, specify((ACTIVE, PRIMARY, ALTERNATE), ()), (MAIL, BACK))

    def offline(self, node):
        owners = {group.name: group.owner for group in self.open().view().groups}
        self.path.write_text(json.dumps({"owners": owners, "offline": [node]}))


class PacemakerRig:
    """The Pacemaker driver over Pacemaker's own tools, with the cluster in a file."""

    def __init__(self, folder, monkeypatch):
        self.file = CrmFile(folder)

    def open(self):
        return self.file.cluster()

    def offline(self, node):
        self.file.lose(node)


class CommandRig:
    """The command driver over programs that stand in for a cluster's own."""

    preset = None

    def __init__(self, folder, monkeypatch):
        self.fake = FakeCluster(folder)
        monkeypatch.setenv("PATH", str(self.fake.bin), prepend=":")

    def settings(self):
        keys = {"kind": "command", "preset": self.preset} if self.preset else self.fake.settings()
        return CommandClusterSettings.model_validate(keys)

    def open(self):
        nodes = specify((ACTIVE, PRIMARY, ALTERNATE), ())
        return CommandCluster(verbs(self.settings()), nodes, (MAIL, BACK), deadline_s=5)

    def offline(self, node):
        self.fake.write(nodes={**self.fake.state["nodes"], node: "Down"})


class ClusterExeRig(CommandRig):
    preset = "windows-cluster-exe"


class PowerShellRig(CommandRig):
    preset = "windows-powershell"


RIGS = {
    "local": LocalRig,
    "pacemaker": PacemakerRig,
    "command": CommandRig,
    "windows-cluster-exe": ClusterExeRig,
    "windows-powershell": PowerShellRig,
}
NEEDS = {"pacemaker": needs("crm_simulate", "crm_mon", "cibadmin")}


@pytest.fixture(params=[pytest.param(name, marks=NEEDS.get(name, ())) for name in RIGS])
def rig(request, tmp_path, monkeypatch):
    return RIGS[request.param](tmp_path, monkeypatch)


def test_every_group_begins_on_the_active_node(rig):
    view = rig.open().view()
    assert view.quorate
    assert {(g.name, g.owner, g.state) for g in view.groups} == {
        (MAIL, ACTIVE, "started"),
        (BACK, ACTIVE, "started"),
    }
    assert [(n.name, n.role, n.usable) for n in view.nodes] == [
        (ACTIVE, "active", True),
        (PRIMARY, "passive", True),
        (ALTERNATE, "passive", True),
    ]


def test_a_move_is_seen_by_everybody_and_moves_nothing_else(rig):
    cluster = rig.open()
    plan = cluster.plan(BACK, ALTERNATE)
    assert (plan.source, plan.target, plan.problems) == (ACTIVE, ALTERNATE, ())
    cluster.move(plan, run="20261130-TEX-BACK-1", cancel=Cancel())
    assert rig.open().where(BACK) == ALTERNATE
    assert rig.open().where(MAIL) == ACTIVE


def test_a_group_moves_back(rig):
    cluster = rig.open()
    for target in (PRIMARY, ACTIVE):
        cluster.move(cluster.plan(BACK, target), run="r", cancel=Cancel())
        cluster.release(BACK)
        assert cluster.where(BACK) == target


def test_a_move_to_where_the_group_is_does_nothing(rig):
    cluster = rig.open()
    plan = cluster.plan(BACK, ACTIVE)
    assert plan.is_noop
    cluster.move(plan, run="r", cancel=Cancel())
    assert cluster.where(BACK) == ACTIVE


def test_a_stale_plan_is_refused(rig):
    cluster = rig.open()
    stale = cluster.plan(BACK, PRIMARY)
    cluster.move(cluster.plan(BACK, ALTERNATE), run="r", cancel=Cancel())
    with pytest.raises(MoveFailed, match="stale"):
        cluster.move(stale, run="r", cancel=Cancel())
    assert cluster.where(BACK) == ALTERNATE


def test_a_node_that_is_offline_takes_nothing(rig):
    cluster = rig.open()
    plan = cluster.plan(BACK, PRIMARY)
    rig.offline(PRIMARY)
    assert not cluster.view().node(PRIMARY).usable
    assert cluster.plan(BACK, PRIMARY).problems
    with pytest.raises(MoveFailed):
        cluster.move(plan, run="r", cancel=Cancel())
    assert cluster.where(BACK) == ACTIVE


def test_nobody_knows_where_a_group_is_whose_owner_is_offline(rig):
    rig.offline(ACTIVE)
    with pytest.raises(ClusterError):
        rig.open().where(BACK)


def test_unknown_groups_and_nodes_are_answered_with_the_known_ones(rig):
    cluster = rig.open()
    with pytest.raises(ConfigError) as refused:
        cluster.where("TEX-BACK-9")
    assert BACK in refused.value.hint
    with pytest.raises(ConfigError) as refused:
        cluster.plan(BACK, "TEX-PASS-9")
    assert PRIMARY in refused.value.hint


def test_a_healthy_cluster_has_no_failing_finding(rig):
    assert [f for f in rig.open().check() if f.severity == "fail"] == []
