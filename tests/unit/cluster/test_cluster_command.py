"""The command driver: what it believes of a move, and what it does when a move goes wrong."""

import threading
import time

import pytest

from nightferry.cluster.command import CommandCluster
from nightferry.cluster.run import OutputWithoutEnd
from nightferry.cluster.verbs import verbs
from nightferry.errors import Cancelled, ClusterError, MoveFailed
from nightferry.model.nodes import CommandClusterSettings, specify
from nightferry.progress import Cancel
from tests.support.fake_cluster import ACTIVE, ALTERNATE, BACK, MAIL, PRIMARY, FakeCluster
from tests.support.small_site import HandClock


@pytest.fixture
def fake(tmp_path):
    return FakeCluster(tmp_path)


def open_cluster(fake, *, deadline_s=60, host="", cancel=None, silent_s=30.0, **changes):
    settings = CommandClusterSettings.model_validate(fake.settings() | changes)
    nodes = specify((ACTIVE, PRIMARY, ALTERNATE), ())
    clock = HandClock()
    return CommandCluster(
        verbs(settings),
        nodes,
        (BACK,),
        deadline_s=deadline_s,
        host=host,
        silent_s=silent_s,
        clock=clock,
        cancel=cancel,
    )


def script(path, lines):
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    return str(path)


def failing_once(fake, verb):
    """The verb's program, which fails the first time it is run, and then does what it should."""
    command = fake.settings()[verb]
    ran = fake.folder / f"{verb}-ran"
    program = script(
        fake.folder / f"{verb}-failing", f'[ -e {ran} ] || {{ touch {ran}; exit 1; }}\nexec {command[0]} "$@"'
    )
    return {verb: [program, *command[1:]]}


def waited_s(cluster):
    """How long it has waited between looks."""
    return cluster._clock.monotonic() - HandClock().monotonic()


def move(cluster, target=PRIMARY, cancel=None):
    cluster.move(cluster.plan(BACK, target), run="r", cancel=cancel or Cancel())


def test_a_move_ends_when_the_group_is_started_on_its_target(fake):
    fake.write(
        after_move=[[ACTIVE, "Pending"], [PRIMARY, "Pending"], [PRIMARY, "Offline"], [PRIMARY, "Online"]]
    )
    cluster = open_cluster(fake)
    move(cluster)
    assert fake.state["next"][BACK] == []
    assert cluster.where(BACK) == PRIMARY
    assert fake.state["released"] == []


def test_a_move_whose_command_ends_well_and_does_nothing_fails_at_its_deadline(fake):
    fake.write(after_move=[])
    with pytest.raises(MoveFailed, match=f"is started on {ACTIVE} .* 3 s after it was sent to {PRIMARY}"):
        move(open_cluster(fake, deadline_s=3))
    assert fake.state["released"] == [BACK]


def test_a_group_that_hangs_on_its_way_fails_at_the_deadline(fake):
    fake.write(after_move=[[PRIMARY, "Pending"]])
    with pytest.raises(MoveFailed, match=r"is moving on TEX-PASS-1 \(the cluster says Pending\)"):
        move(open_cluster(fake, deadline_s=3))


def test_a_group_that_fails_on_its_way_or_lands_elsewhere_ends_the_move_at_once(fake):
    fake.write(after_move=[[PRIMARY, "Pending"], [PRIMARY, "Failed"]])
    with pytest.raises(MoveFailed, match=f"failed on {PRIMARY}"):
        move(open_cluster(fake))
    fake.write(groups={BACK: [ACTIVE, "Online"]}, after_move=[[ALTERNATE, "Online"]])
    with pytest.raises(MoveFailed, match=f"is on {ALTERNATE} instead of {PRIMARY}"):
        move(open_cluster(fake))
    assert fake.state["released"] == [BACK, BACK]


def test_a_command_that_fails_is_believed_when_nothing_moves_and_its_words_are_told(fake):
    fake.write(refuse="the group is locked by \x1b[31mADMIN")
    with pytest.raises(
        MoveFailed, match=r"stays on TEX-ACTV-1; its command printed: the group is locked by \\x1b"
    ):
        move(open_cluster(fake, deadline_s=3600))


def test_a_move_that_is_cancelled_takes_back_what_it_began(fake):
    fake.write(after_move=[[ACTIVE, "Pending"]])
    cluster = open_cluster(fake)
    cancel = Cancel()
    cluster._clock.sleep = lambda seconds: cancel.set("an operator")
    with pytest.raises(Cancelled):
        move(cluster, cancel=cancel)
    assert fake.state["released"] == [BACK]


def test_the_clusters_own_plan_is_asked_and_told(fake):
    fake.write(vetoed="the disk is being checked")
    cluster = open_cluster(fake)
    plan = cluster.plan(BACK, PRIMARY)
    assert plan.problems == ("the cluster's own plan refuses it: the disk is being checked",)
    with pytest.raises(MoveFailed, match="being checked"):
        cluster.move(plan, run="r", cancel=Cancel())
    assert fake.state["moves"] == []


@pytest.mark.parametrize("word", ["Offline", "PartialOnline", "Pending", "Failed", "Strange"])
def test_only_a_started_group_has_an_owner(fake, word):
    fake.write(groups={BACK: [ACTIVE, word]})
    cluster = open_cluster(fake)
    with pytest.raises(ClusterError, match=f"the cluster says {word}"):
        cluster.where(BACK)
    assert cluster.plan(BACK, PRIMARY).problems


NO_ANSWERS = {
    "nothing": "exit 0",
    "a failure": "echo broken >&2; exit 3",
    "half of it": "echo owner=TEX-ACTV-1",
}


@pytest.mark.parametrize("kind", NO_ANSWERS)
def test_output_that_says_nothing_and_programs_that_fail_are_no_answer(fake, tmp_path, kind):
    cluster = open_cluster(fake, where=[script(tmp_path / "where", NO_ANSWERS[kind]), "{group}"])
    with pytest.raises(ClusterError, match=f"cannot read where {BACK} is") as caught:
        cluster.view()
    assert waited_s(cluster) >= 30
    assert "by hand" in caught.value.hint
    assert "cluster view" not in caught.value.hint
    began = waited_s(cluster)
    with pytest.raises(ClusterError, match=f"cannot read where {BACK} is"):
        cluster.where(BACK)
    assert waited_s(cluster) >= began + 30
    (finding,) = (f for f in cluster.check() if f.severity == "fail")
    assert finding.id == "NF-CLUSTER-001"
    assert finding.fix


def test_a_program_that_is_not_there_is_no_answer(fake):
    with pytest.raises(ClusterError, match="cannot run /nonexistent/tool"):
        open_cluster(fake, where=["/nonexistent/tool", "{group}"]).view()


@pytest.mark.parametrize("verb", ["where", "view"])
def test_one_look_that_fails_is_repeated_by_every_verb(fake, verb):
    def cluster():
        (fake.folder / f"{verb}-ran").unlink(missing_ok=True)
        return open_cluster(fake, **failing_once(fake, verb))

    assert cluster().where(BACK) == ACTIVE
    assert cluster().plan(BACK, PRIMARY).problems == ()
    looked = cluster()
    view = looked.view()
    assert 0 < waited_s(looked) < 30
    assert (view.group(BACK).state, {node.usable for node in view.nodes}) == ("started", {True})
    assert cluster().check() == []
    move(cluster())
    assert open_cluster(fake).where(BACK) == PRIMARY


def test_a_look_that_is_repeated_by_its_caller_is_not_repeated_here(fake):
    cluster = open_cluster(fake, silent_s=0, **failing_once(fake, "where"))
    with pytest.raises(ClusterError, match="cannot read where"):
        cluster.view()
    assert cluster.view().group(BACK).state == "started"
    assert waited_s(cluster) == 0


@pytest.mark.parametrize("verb", ["where", "view", "plan", "release"])
def test_a_program_that_writes_without_end_is_killed_and_named_at_once(fake, tmp_path, verb):
    ran = tmp_path / "ran"
    flood = script(tmp_path / "flood", f"echo >> {ran}; exec yes")
    cluster = open_cluster(fake, **{verb: [flood, *fake.settings()[verb][1:]]})
    asked = {
        "where": [cluster.view, lambda: cluster.where(BACK)],
        "view": [cluster.view, lambda: cluster.where(BACK), lambda: cluster.plan(BACK, PRIMARY)],
        "plan": [lambda: cluster.plan(BACK, PRIMARY)],
        "release": [lambda: cluster.release(BACK)],
    }[verb]
    for ask in asked:
        with pytest.raises(OutputWithoutEnd, match=r"flood wrote more than 16\.0 MiB and was killed"):
            ask()
    assert len(ran.read_text().splitlines()) == len(asked)
    assert waited_s(cluster) == 0


def test_a_state_in_a_word_that_nobody_knows_is_said_with_the_words_that_are_known(fake):
    fake.write(groups={BACK: [ACTIVE, "Strange"]})
    cluster = open_cluster(fake, states={"Online": "started", "Offline": "stopped"})
    group = cluster.view().group(BACK)
    assert (group.state, group.unread) == ("unknown", True)
    assert group.note == "the cluster says Strange; known are Online, Offline"
    with pytest.raises(ClusterError, match="Strange; known are Online, Offline"):
        cluster.where(BACK)
    (finding,) = cluster.check()
    assert (finding.id, finding.severity) == ("NF-CLUSTER-004", "fail")
    assert "Strange; known are Online, Offline" in finding.text


def test_a_cluster_that_does_not_know_a_groups_state_itself_was_read(fake):
    fake.write(groups={BACK: [ACTIVE, "Unknown"]})
    group = open_cluster(fake).view().group(BACK)
    assert (group.state, group.unread) == ("unknown", False)


def test_a_group_that_cannot_be_read_does_not_speak_for_the_others(fake, tmp_path):
    tool, *words = fake.settings()["where"]
    nodes = specify((ACTIVE, PRIMARY, ALTERNATE), ())
    program = script(tmp_path / "where", f'[ "$2" != {BACK} ] || exit 1\nexec {tool} "$@"')
    settings = CommandClusterSettings.model_validate(fake.settings() | {"where": [program, *words]})
    cluster = CommandCluster(verbs(settings), nodes, (BACK, MAIL), deadline_s=60, clock=HandClock())
    view = cluster.view()
    assert (view.quorate, view.group(MAIL).state, view.group(BACK).state) == (True, "started", "unknown")
    assert (view.group(MAIL).unread, view.group(BACK).unread) == (False, True)


def test_a_plan_and_a_release_that_cannot_be_run_once_are_run_again(fake, tmp_path):
    for verb in ("plan", "release"):
        command = fake.settings()[verb]
        program = tmp_path / verb
        cluster = open_cluster(fake, **{verb: [str(program), *command[1:]]})
        cluster._clock.sleep = lambda _, program=program, tool=command[0]: script(
            program, f'exec {tool} "$@"'
        )
        if verb == "plan":
            assert cluster.plan(BACK, PRIMARY).problems == ()
        else:
            cluster.release(BACK)
    assert fake.state["released"] == [BACK]


@pytest.mark.parametrize("verb", ["where", "view", "plan", "release", "move"])
def test_a_stop_ends_a_program_that_hangs(fake, tmp_path, verb):
    cancel = Cancel()
    hangs = tmp_path / "hangs"
    hanging = [script(tmp_path / "hanging", f"touch {hangs}; exec sleep 600"), *fake.settings()[verb][1:]]
    cluster = open_cluster(fake, cancel=cancel, **{verb: hanging})
    began = time.monotonic()

    def stop():
        while not hangs.exists() and time.monotonic() - began < 20:
            time.sleep(0.01)
        cancel.set("an operator")

    threading.Thread(target=stop).start()
    with pytest.raises(Cancelled, match="an operator"):
        cluster.release(BACK) if verb == "release" else move(cluster, cancel=cancel)
    assert time.monotonic() - began < 20
    if verb == "move":
        assert fake.state["released"] == [BACK]


def test_a_moves_command_that_hangs_fails_the_move_only_when_the_group_is_not_there(fake, tmp_path):
    tool, *words = fake.settings()["move"]
    program = script(tmp_path / "move", f'{tool} "$@"; exec sleep 600')
    move(open_cluster(fake, deadline_s=1, move=[program, *words]))
    assert open_cluster(fake).where(BACK) == PRIMARY
    program = script(tmp_path / "hanging", "exec sleep 600")
    with pytest.raises(MoveFailed, match=r"is started on TEX-PASS-1 [\s\S]*hanging did not end within 1 s"):
        move(open_cluster(fake, deadline_s=1, move=[program, *words]), ALTERNATE)


def test_what_could_not_be_taken_back_is_said_beside_what_ended_the_move(fake):
    fake.write(after_move=[[ACTIVE, "Failed"]])
    with pytest.raises(MoveFailed, match=r"failed on TEX-ACTV-1 .*; and what the move of .* was not removed"):
        move(open_cluster(fake, release=["/bin/false"]))


def test_an_owner_that_the_site_file_does_not_know_is_no_owner(fake):
    fake.write(groups={BACK: ["OTHER-1", "Online"]})
    with pytest.raises(ClusterError, match="no such node"):
        open_cluster(fake).where(BACK)


def test_names_are_the_same_in_upper_and_lower_case(fake):
    fake.write(groups={BACK: [PRIMARY.lower(), "ONLINE"]})
    assert open_cluster(fake).where(BACK) == PRIMARY


def test_a_paused_node_keeps_its_groups_and_takes_no_other(fake):
    fake.write(nodes={ACTIVE: "Paused", PRIMARY: "Paused", ALTERNATE: "Up"})
    cluster = open_cluster(fake)
    assert cluster.where(BACK) == ACTIVE
    node = cluster.view().node(PRIMARY)
    assert (node.online, node.usable, node.note) == (True, False, "it is Paused")
    with pytest.raises(MoveFailed, match="cannot take it: it is Paused"):
        move(cluster)


def test_a_cluster_without_a_view_counts_every_node_as_up_and_check_says_so(fake):
    cluster = open_cluster(fake, view=None, up=None)
    assert all(node.usable for node in cluster.view().nodes)
    assert [(f.id, f.severity) for f in cluster.check()] == [("NF-CLUSTER-051", "warn")]


def test_check_names_nodes_and_groups_that_are_not_well(fake):
    fake.write(nodes={ACTIVE: "Up", PRIMARY: "Down", ALTERNATE: "Up"}, groups={BACK: [ACTIVE, "Failed"]})
    found = open_cluster(fake).check()
    assert [(f.id, f.severity) for f in found] == [("NF-CLUSTER-003", "warn"), ("NF-CLUSTER-004", "fail")]
    assert f"{PRIMARY}: it is Down" in found[0].text


def test_what_cannot_be_taken_back_is_said(fake):
    with pytest.raises(ClusterError, match="was not removed"):
        open_cluster(fake, release=["/bin/false"]).release(BACK)


def test_this_machine_is_the_node_of_its_name(fake):
    for host in ("tex-pass-1", "TEX-PASS-1.example.org"):
        assert open_cluster(fake, host=host).local_node == PRIMARY
    with pytest.raises(ClusterError, match="not a node of the cluster"):
        _ = open_cluster(fake, host="elsewhere").local_node
