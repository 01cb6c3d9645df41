"""Pacemaker's own tools with the cluster in a file: what stands in the way of a move, and how one ends."""

import shutil
from pathlib import Path

import pytest

from nightferry.cluster import tools as tools_module
from nightferry.cluster.pacemaker import PacemakerCluster
from nightferry.cluster.run import Finished
from nightferry.cluster.tools import MEANINGS, CrmTools
from nightferry.errors import Cancelled, ClusterError, MoveFailed
from nightferry.model.nodes import specify
from nightferry.progress import Cancel
from tests.conftest import needs
from tests.servers.pacemaker import ACTIVE, ALTERNATE, BACK, MAIL, NODES, PRIMARY
from tests.support.crm_file import CrmFile

pytestmark = needs("crm_simulate", "crm_mon", "cibadmin", "crm_attribute", "crm_resource")

RUN = "20261130-TEX-BACK-1"


@pytest.fixture
def crm(tmp_path):
    return CrmFile(tmp_path)


def move(cluster, target, cancel=None):
    cluster.move(cluster.plan(BACK, target), run=RUN, cancel=cancel or Cancel())


OBSTACLES = {
    "target standby": (lambda crm: crm.standby(ALTERNATE), "TEX-PASS-2 cannot take it: standby"),
    "target offline": (lambda crm: crm.act("-d", ALTERNATE), "TEX-PASS-2 cannot take it: offline"),
    "target banned by an operator": (
        lambda crm: crm.tool("crm_resource", "--ban", "-r", BACK, "-N", ALTERNATE),
        "cli-ban-TEX-BACK-1-on-TEX-PASS-2 keeps TEX-BACK-1 away from TEX-PASS-2, and nightferry did not set it",
    ),
    "pinned by an operator": (
        lambda crm: crm.tool("crm_resource", "--move", "-r", BACK, "-N", PRIMARY),
        "cli-prefer-TEX-BACK-1 pins TEX-BACK-1 to TEX-PASS-1, and nightferry did not set it",
    ),
    "target forbidden by the configuration": (
        lambda crm: crm.constrain(
            f'<rsc_location id="never" rsc="{BACK}" node="{ALTERNATE}" score="-INFINITY"/>'
        ),
        "the cluster would not move back1-disk from TEX-ACTV-1 to TEX-PASS-2",
    ),
    "another group would move as well": (
        lambda crm: crm.constrain(
            f'<rsc_colocation id="with" rsc="{MAIL}" with-rsc="{BACK}" score="INFINITY"/>'
        ),
        "the cluster would also move mail1-disk from TEX-ACTV-1 to TEX-PASS-2",
    ),
    "group unmanaged": (lambda crm: crm.meta(BACK, "is-managed", "false"), "not managed by the cluster"),
    "maintenance": (
        lambda crm: crm.option("maintenance-mode", "true"),
        "the cluster is in maintenance mode",
    ),
    "no quorum": (lambda crm: crm.edit(".", **{"have-quorum": "0"}), "the cluster has no quorum"),
    "a node is unclean": (lambda crm: crm.lose(PRIMARY), "node TEX-PASS-1 is unclean"),
    "fencing off": (lambda crm: crm.option("stonith-enabled", "false"), "fencing is off"),
    "member stopped": (
        lambda crm: (crm.meta("back1-fs", "target-role", "Stopped"), crm.act()),
        "TEX-BACK-1 is moving on TEX-ACTV-1: not started: back1-fs, back1-reader",
    ),
    "failed before on the target": (
        lambda crm: crm.fail("back1-fs", ALTERNATE),
        "failed before: back1-fs_start_0 on TEX-PASS-2",
    ),
}


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_what_stands_in_the_way_is_named_and_nothing_moves(crm, obstacle, monkeypatch):
    monkeypatch.setattr("nightferry.cluster.pacemaker.SETTLE_S", 0.1)
    make, said = OBSTACLES[obstacle]
    make(crm)
    before = crm.path.read_bytes()
    cluster = crm.cluster()
    plan = cluster.plan(BACK, ALTERNATE)
    assert any(problem.startswith(said) for problem in plan.problems), plan.problems
    with pytest.raises(MoveFailed):
        cluster.move(plan, run=RUN, cancel=Cancel())
    assert crm.path.read_bytes() == before
    assert crm.notes.written == []


def test_fencing_off_is_allowed_by_the_site_file_and_recorded(crm):
    crm.option("stonith-enabled", "false")
    move(crm.cluster(allow_without_fencing=True), ALTERNATE)
    assert [(r.state, r.without_fencing) for r in crm.notes.written] == [("placed", True)]


def test_a_move_is_recorded_before_it_is_made_and_its_constraint_stays_until_released(crm):
    cluster = crm.cluster()
    move(cluster, ALTERNATE)
    assert crm.pins() == {"cli-prefer-TEX-BACK-1": ALTERNATE}
    (record,) = crm.notes.written
    assert (record.group, record.node, record.run, record.state) == (BACK, ALTERNATE, RUN, "placed")
    assert cluster.view().constraints == ("cli-prefer-TEX-BACK-1 pins TEX-BACK-1 to TEX-PASS-2 (ours)",)
    cluster.release(BACK)
    assert crm.pins() == {}
    assert crm.notes.constraint(BACK).state == "taken back"
    assert cluster.where(BACK) == ALTERNATE


def test_a_rerun_knows_its_own_constraint_and_moves_on_from_it(crm):
    move(crm.cluster(), ALTERNATE)
    again = crm.cluster()
    assert again.plan(BACK, ALTERNATE).is_noop
    move(again, ACTIVE)
    assert crm.pins() == {"cli-prefer-TEX-BACK-1": ACTIVE}
    assert crm.notes.constraint(BACK).before == ALTERNATE


def test_a_coordinator_killed_before_the_constraint_was_replaced_still_knows_the_old_one(crm):
    cluster = crm.cluster()
    move(cluster, ALTERNATE)
    crm.notes.place(BACK, ACTIVE, run=RUN, before=ALTERNATE, without_fencing=False)
    move(crm.cluster(), PRIMARY)
    assert crm.pins() == {"cli-prefer-TEX-BACK-1": PRIMARY}


def test_a_constraint_that_would_send_the_group_back_stays_until_the_next_move(crm):
    crm.edit("configuration/rsc_defaults/meta_attributes/nvpair", value="0")
    cluster = crm.cluster()
    move(cluster, ALTERNATE)
    cluster.release(BACK)
    assert crm.pins() == {"cli-prefer-TEX-BACK-1": ALTERNATE}
    assert cluster.where(BACK) == ALTERNATE
    move(cluster, ACTIVE)
    cluster.release(BACK)
    assert crm.pins() == {}


def test_an_operators_ban_of_another_group_survives_a_move(crm):
    crm.tool("crm_resource", "--ban", "-r", MAIL, "-N", ALTERNATE)
    cluster = crm.cluster()
    move(cluster, ALTERNATE)
    cluster.release(BACK)
    assert crm.pins() == {"cli-ban-TEX-MAIL-1-on-TEX-PASS-2": ALTERNATE}


def test_of_two_that_move_at_once_one_is_refused_and_takes_nothing_back(crm):
    cluster = crm.cluster()
    plan = cluster.plan(BACK, PRIMARY)
    recorded = crm.notes.place

    def late(*arguments, **more):
        recorded(*arguments, **more)
        crm.tool("crm_resource", "--move", "-r", BACK, "-N", ALTERNATE)

    crm.notes.place = late
    with pytest.raises(MoveFailed, match="by somebody else in the meantime"):
        cluster.move(plan, run=RUN, cancel=Cancel())
    assert crm.pins() == {"cli-prefer-TEX-BACK-1": ALTERNATE}
    assert crm.notes.constraint(BACK).state == "taken back"


FAULTS = {
    "the stop fails": ("-F", f"back1-fs_stop_0@{ACTIVE}=1"),
    "the start fails": ("-F", f"back1-fs_start_0@{ALTERNATE}=1"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_move_that_fails_takes_its_constraint_back(crm, fault, monkeypatch):
    monkeypatch.setattr("nightferry.cluster.pacemaker.SETTLE_S", 0.1)
    crm.inject = FAULTS[fault]
    operation = FAULTS[fault][1].partition("@")[0]
    with pytest.raises(MoveFailed, match=f"did not arrive on TEX-PASS-2: {operation} on"):
        move(crm.cluster(), ALTERNATE)
    assert crm.pins() == {}
    assert crm.notes.constraint(BACK).state == "taken back"
    assert operation in crm.notes.constraint(BACK).reason


def test_a_wish_to_stop_takes_the_constraint_back(crm, monkeypatch):
    cancel = Cancel()
    cluster = crm.cluster()
    monkeypatch.setattr(crm, "act", lambda: cancel.set("enough"))
    with pytest.raises(Cancelled):
        move(cluster, ALTERNATE, cancel)
    assert crm.pins() == {}


def test_a_cluster_that_does_nothing_is_given_up_after_the_deadline(crm, monkeypatch):
    cluster = crm.cluster()
    monkeypatch.setattr(crm, "act", lambda: None)
    with pytest.raises(MoveFailed, match="within 2 s: it is started on TEX-ACTV-1"):
        move(cluster, ALTERNATE)
    assert crm.pins() == {}


def test_a_constraint_that_cannot_be_taken_back_is_said_and_known_to_the_next_run(crm, monkeypatch):
    crm.inject = FAULTS["the start fails"]
    cluster = crm.cluster()

    def refuse(self, group, node, **_):
        raise ClusterError("cibadmin: the cluster did not answer in time (exit status 124)")

    with monkeypatch.context() as patch:
        patch.setattr(CrmTools, "take_back", refuse)
        with pytest.raises(MoveFailed, match="could not be removed") as failed:
            move(cluster, ALTERNATE)
    assert "crm_resource --clear" in failed.value.hint
    assert crm.notes.constraint(BACK).state == "placed"
    assert crm.cluster().view().constraints == ("cli-prefer-TEX-BACK-1 pins TEX-BACK-1 to TEX-PASS-2 (ours)",)


@pytest.mark.parametrize("stickiness", ["100", "0"])
def test_the_return_of_a_node_that_died_moves_nothing(crm, stickiness):
    """With stickiness the constraint goes; without it follows the group, which would leave for the active node."""
    crm.edit("configuration/rsc_defaults/meta_attributes/nvpair", value=stickiness)
    move(crm.cluster(), ALTERNATE)
    crm.act("-d", ALTERNATE)
    cluster = crm.cluster()
    crm.act()
    fled_to = cluster.where(BACK)
    assert fled_to != ALTERNATE
    move(cluster, fled_to)
    assert ALTERNATE not in crm.pins().values()
    crm.act("-u", ALTERNATE)
    crm.act()
    assert cluster.where(BACK) == fled_to
    assert crm.pins() in ({}, {"cli-prefer-TEX-BACK-1": fled_to})


def test_a_move_to_where_the_group_is_leaves_the_constraint_that_keeps_it_there(crm):
    crm.edit("configuration/rsc_defaults/meta_attributes/nvpair", value="0")
    cluster = crm.cluster()
    move(cluster, ALTERNATE)
    records = len(crm.notes.written)
    move(cluster, ALTERNATE)
    assert crm.pins() == {"cli-prefer-TEX-BACK-1": ALTERNATE}
    assert len(crm.notes.written) == records


def test_a_constraint_removed_without_quorum_is_not_released_and_is_known_when_it_comes_back(
    crm, monkeypatch
):
    cluster = crm.cluster()
    act, before = crm.act, None

    def alone():
        """The move's constraint is placed, and then this node is on its own."""
        nonlocal before
        before = before or crm.path.read_bytes()
        monkeypatch.setattr(type(cluster._tools), "has_quorum", lambda tools: False)

    crm.act = alone
    with pytest.raises(MoveFailed, match="lost its quorum; the constraint was removed without quorum"):
        move(cluster, ALTERNATE)
    assert crm.pins() == {}
    assert crm.notes.constraint(BACK).state == "placed"

    # The cluster is whole again, and what the majority had is what counts.
    monkeypatch.undo()
    crm.act = act
    crm.path.write_bytes(before)
    crm.act()
    whole = crm.cluster()
    assert whole.view().constraints == ("cli-prefer-TEX-BACK-1 pins TEX-BACK-1 to TEX-PASS-2 (ours)",)
    move(whole, PRIMARY)
    whole.release(BACK)
    assert crm.pins() == {}
    assert crm.notes.constraint(BACK).state == "taken back"


def test_a_constraint_of_ours_is_known_whatever_was_recorded_since(crm):
    cluster = crm.cluster()
    move(cluster, ALTERNATE)
    before = crm.path.read_bytes()
    cluster.release(BACK)
    assert crm.notes.constraint(BACK).state == "taken back"
    crm.path.write_bytes(before)
    move(crm.cluster(), PRIMARY)
    assert crm.pins() == {"cli-prefer-TEX-BACK-1": PRIMARY}


def test_an_operators_constraint_of_the_same_name_is_not_ours_though_one_was(crm):
    cluster = crm.cluster()
    move(cluster, ALTERNATE)
    cluster.release(BACK)
    crm.tool("crm_resource", "--move", "-r", BACK, "-N", ACTIVE)
    crm.act()
    plan = cluster.plan(BACK, PRIMARY)
    assert plan.problems == (
        "cli-prefer-TEX-BACK-1 pins TEX-BACK-1 to TEX-ACTV-1, and nightferry did not set it",
    )
    cluster.release(BACK)
    assert crm.pins() == {"cli-prefer-TEX-BACK-1": ACTIVE}


def test_crm_resource_clear_removes_a_constraint_of_ours(crm):
    move(crm.cluster(), ALTERNATE)
    crm.tool("crm_resource", "--clear", "-r", BACK)
    assert crm.pins() == {}


def test_a_constraint_that_an_older_release_placed_is_ours_while_it_is_on_record(crm):
    crm.notes.place(BACK, ALTERNATE, run=RUN, before="", without_fencing=False)
    crm.tool("crm_resource", "--move", "-r", BACK, "-N", ALTERNATE)
    crm.act()
    cluster = crm.cluster()
    cluster.release(BACK)
    assert (crm.pins(), crm.notes.constraint(BACK).state) == ({}, "taken back")


def test_a_quorum_counts_only_when_the_membership_layer_says_so_too(crm, monkeypatch):
    cluster = crm.cluster()
    monkeypatch.setattr(type(cluster._tools), "has_quorum", lambda tools: False)
    assert not cluster.view().quorate
    with pytest.raises(ClusterError, match="no quorum here"):
        cluster.where(BACK)
    assert "the cluster has no quorum" in cluster.plan(BACK, ALTERNATE).problems


def test_a_tool_that_fails_while_a_move_is_watched_is_asked_again(crm, monkeypatch):
    cluster = crm.cluster()
    status, failures = CrmTools.status, ["first", "second"]

    def failing(tools):
        if crm.pins() and failures:
            raise ClusterError(failures.pop())
        return status(tools)

    monkeypatch.setattr(CrmTools, "status", failing)
    move(cluster, ALTERNATE)
    assert failures == []


def test_nobody_relies_on_a_group_on_an_unclean_node(crm):
    crm.lose(ACTIVE)
    with pytest.raises(ClusterError, match="unclean"):
        crm.cluster().where(BACK)


@pytest.mark.parametrize("code", MEANINGS)
def test_an_exit_status_of_the_tools_is_said_in_words(code, monkeypatch):
    monkeypatch.setattr(
        tools_module, "run_program", lambda *_, **__: Finished(code, b"", b"Call failed: whatever\n")
    )
    with pytest.raises(ClusterError, match=rf"{MEANINGS[code]} \(exit status {code}\)"):
        CrmTools().status()


def test_an_exit_status_without_a_meaning_is_said_in_the_tools_words(monkeypatch):
    monkeypatch.setattr(tools_module, "run_program", lambda *_, **__: Finished(78, b"", b"not valid\n"))
    with pytest.raises(ClusterError, match=r"not valid \(exit status 78\)"):
        CrmTools().cib()


@pytest.mark.skipif(shutil.which("pacemakerd") is None, reason="no Pacemaker on this machine")
def test_without_a_cluster_on_this_node_that_is_what_is_said(crm):
    cluster = PacemakerCluster(specify(NODES, ()), (BACK,), crm.notes)
    with pytest.raises(ClusterError, match="the cluster does not run on this node") as refused:
        cluster.view()
    assert "systemctl start pacemaker" in refused.value.hint
    assert [f.id for f in cluster.check()] == ["NF-CLUSTER-001"]


def test_a_machine_without_the_tools_is_told_to_install_them(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(ClusterError, match="crm_mon is not on this machine") as refused:
        CrmTools().status()
    assert "pacemaker-cli-utils" in refused.value.hint


def drop(crm, resource):
    crm.tool("cibadmin", "--delete", "--xpath", f"//primitive[@id='{resource}']")
    crm.act()


FINDINGS = {
    "no quorum": (lambda crm: crm.edit(".", **{"have-quorum": "0"}), "NF-CLUSTER-020", "fail"),
    "fencing off": (lambda crm: crm.option("stonith-enabled", "false"), "NF-CLUSTER-021", "fail"),
    "no fence device": (lambda crm: drop(crm, "fence"), "NF-CLUSTER-022", "fail"),
    "maintenance": (lambda crm: crm.option("maintenance-mode", "true"), "NF-CLUSTER-023", "fail"),
    "standby": (lambda crm: crm.standby(ALTERNATE), "NF-CLUSTER-003", "warn"),
    "a node too many": (
        lambda crm: crm.tool("cibadmin", "-C", "-o", "nodes", "-X", '<node id="9" uname="TEX-PASS-9"/>'),
        "NF-CLUSTER-025",
        "warn",
    ),
    "a node too few": (
        lambda crm: crm.tool("cibadmin", "--delete", "--xpath", f"//*[@uname='{ALTERNATE}']"),
        "NF-CLUSTER-024",
        "fail",
    ),
    "unmanaged": (lambda crm: crm.meta(MAIL, "is-managed", "false"), "NF-CLUSTER-026", "fail"),
    "failed before": (lambda crm: crm.fail("back1-fs", ALTERNATE), "NF-CLUSTER-027", "warn"),
    "no reader agent": (lambda crm: drop(crm, "mail1-reader"), "NF-CLUSTER-028", "fail"),
    "the reader agent of another group": (
        lambda crm: crm.edit(".//nvpair[@id='mail1-reader-group']", value=BACK),
        "NF-CLUSTER-029",
        "fail",
    ),
    "a reader agent without time to stop": (
        lambda crm: crm.edit(".//primitive[@id='mail1-reader']/operations/op[@name='stop']", timeout="19s"),
        "NF-CLUSTER-029",
        "fail",
    ),
    "a reader agent with as little time to stop as every operation has": (
        lambda crm: (
            crm.tool("cibadmin", "--delete", "--xpath", "//primitive[@id='mail1-reader']//op[@name='stop']"),
            crm.tool(
                "cibadmin",
                "--modify",
                "--allow-create",
                "--scope",
                "op_defaults",
                "--xml-text",
                '<op_defaults><meta_attributes id="d"><nvpair id="d-t" name="timeout" value="15s"/>'
                "</meta_attributes></op_defaults>",
            ),
        ),
        "NF-CLUSTER-029",
        "fail",
    ),
    "no reader agent on this node": (
        lambda crm: (crm.agents / "nightferry/nightferry-reader").unlink(),
        "NF-CLUSTER-029",
        "fail",
    ),
    "an old reader agent on this node": (
        lambda crm: (crm.agents / "nightferry/nightferry-reader").write_text("#!/bin/sh"),
        "NF-CLUSTER-029",
        "fail",
    ),
    "force_unmount": (
        lambda crm: crm.edit(".//nvpair[@id='back1-fs-force_unmount']", value="true"),
        "NF-CLUSTER-030",
        "note",
    ),
    "a ban": (
        lambda crm: crm.tool("crm_resource", "--ban", "-r", BACK, "-N", ALTERNATE),
        "NF-CLUSTER-031",
        "warn",
    ),
    "a constraint of ours": (lambda crm: move(crm.cluster(), ALTERNATE), "NF-CLUSTER-032", "note"),
    "little stickiness": (
        lambda crm: crm.edit("configuration/rsc_defaults/meta_attributes/nvpair", value="10"),
        "NF-CLUSTER-033",
        "warn",
    ),
    "a path that the group does not mount": (lambda crm: None, "NF-CLUSTER-034", "fail"),
}


@pytest.mark.parametrize("case", FINDINGS)
def test_check_says_what_endangers_the_night(crm, case):
    make, id_, severity = FINDINGS[case]
    path = Path("/elsewhere" if id_ == "NF-CLUSTER-034" else "/srv/back1")
    if id_ != "NF-CLUSTER-034":
        assert crm.cluster().check() == []
    make(crm)
    # Asked on another node than the group's: what is mounted there is not looked at.
    found = crm.cluster(disks={BACK: path}, here=PRIMARY).check()
    assert (id_, severity) in {(f.id, f.severity) for f in found}
    assert all(f.text and f.fix for f in found)


def test_a_reader_agent_may_also_stand_beside_its_group(crm):
    """Ordered after and colocated with it; not without."""
    drop(crm, "mail1-reader")
    crm.tool(
        "cibadmin", "--create", "--scope", "resources", "--xml-text",
        '<primitive id="apart" class="ocf" provider="nightferry" type="nightferry-reader">'
        f'<instance_attributes id="apart-p"><nvpair id="apart-g" name="group" value="{MAIL}"/></instance_attributes>'
        "</primitive>",
    )  # fmt: skip
    assert [f.id for f in crm.cluster().check()] == ["NF-CLUSTER-029"]
    crm.constrain(f'<rsc_colocation id="c" rsc="apart" with-rsc="{MAIL}" score="INFINITY"/>')
    crm.constrain(f'<rsc_order id="o" first="{MAIL}" then="apart" kind="Mandatory"/>')
    assert crm.cluster().check() == []
