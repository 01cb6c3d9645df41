"""Nights on a real Pacemaker cluster with real disks: what goes right, and what is taken from under them."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightferry.site.opened import OpenSite
from tests.servers.pacemaker import ACTIVE, ALTERNATE, BACK, MAIL, MOUNTS, NODES, PRIMARY, PacemakerServer
from tests.support import toml
from tests.support.cluster_site import ClusterSite

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("cluster")]


@pytest.fixture
def cluster(pacemaker: PacemakerServer) -> PacemakerServer:
    pacemaker.reset()
    return pacemaker


@pytest.fixture
def site(cluster: PacemakerServer, tmp_path: Path) -> ClusterSite:
    return ClusterSite(cluster, tmp_path)


@pytest.fixture(autouse=True)
def nothing_left(cluster: PacemakerServer) -> Iterator[None]:
    """After every test: no constraint of ours, each disk mounted once at most."""
    yield
    assert cluster.constraints() == []
    for group in (MAIL, BACK):
        assert len(cluster.mounted(group)) <= 1


def ended(step: subprocess.CompletedProcess[str], *, saying: str = "ended", code: int = 0) -> None:
    assert step.returncode == code, step.stdout + step.stderr
    assert saying in step.stdout, step.stdout


def stage_two(site: ClusterSite, node: str = ALTERNATE) -> None:
    """Gate and move where the disk is, the streams where it comes to; nothing is left of it in the cluster."""
    moved = site.nightferry(site.server.look().groups[BACK], "cluster", "move", BACK, "--to", node)
    assert moved.returncode == 0, moved.stderr
    ended(site.step(node, "two"), saying="ended ended")


def test_a_whole_night_and_the_next_one(cluster: PacemakerServer, site: ClusterSite) -> None:
    ended(site.step(ACTIVE, "one"))
    stage_two(site)
    assert cluster.mounted(BACK) == [ALTERNATE]
    site.require_whole()
    found = site.asked(ALTERNATE, "check")["findings"]
    assert [f["id"] for f in found if f["id"].startswith("NF-CLUSTER")] == ["NF-CLUSTER-035"]
    (disk,) = (f["text"] for f in found if f["id"] == "NF-CLUSTER-035")
    uuid = cluster.done(ACTIVE, "blkid", "-p", "-s", "UUID", "-o", "value", cluster.device(BACK)).strip()
    assert disk == (
        f"TEX-BACK-1: {cluster.device(BACK)} (ext4) at /srv/back1, UUID {uuid}; against a second node: fencing alone"
    )
    view = site.asked(ALTERNATE, "cluster", "view")
    assert [(d["owner"], d["epoch"], d["readers"]) for d in view["disks"]] == [(ALTERNATE, 2, [])]
    assert (view["cluster"]["fencing"], view["cluster"]["constraints"]) == (True, [])

    ended(site.step(ACTIVE, "new"), saying="said moving TEX-BACK-1 from TEX-PASS-2 to TEX-ACTV-1")
    assert cluster.mounted(BACK) == [ACTIVE]
    assert cluster.constraints() == []
    stage_two(site)
    site.require_whole()
    assert cluster.fenced == []
    assert cluster.look().failures == []


def move_anyway(site: ClusterSite, target: str = ALTERNATE) -> subprocess.CompletedProcess[str]:
    return site.nightferry(ACTIVE, "cluster", "move", BACK, "--to", target, "--ungated", "--reason", "a test")


def stands_still(site: ClusterSite) -> None:
    """The BACK group is on the active node, nobody was fenced, and the disk has the active node's token."""
    assert site.server.look().groups[BACK] == ACTIVE
    assert site.server.mounted(BACK) == [ACTIVE]
    assert site.server.fenced == []
    with site.opened() as here:
        owner = here.catalog.owner(BACK)
    assert owner is None or owner.node == ACTIVE


def test_nothing_moves_while_the_gate_is_held(cluster: PacemakerServer, site: ClusterSite) -> None:
    cluster.shell(ACTIVE, f"rm {MOUNTS[MAIL]}/ledger.db")
    ended(site.step(ACTIVE, "one"), saying="failed ledger")
    for words in (("cluster", "move", BACK), ("cluster", "move", BACK, "--to", ALTERNATE)):
        refused = site.nightferry(ACTIVE, *words)
        assert refused.returncode == 50, refused.stderr
    assert site.step(ACTIVE, "two").returncode == 50
    stands_still(site)


def test_a_node_without_the_disk_says_whose_work_it_is_and_touches_nothing(
    cluster: PacemakerServer, site: ClusterSite
) -> None:
    cluster.shell(ACTIVE, f"mv {MOUNTS[MAIL]}/ledger.db {MOUNTS[MAIL]}/away")
    ended(site.step(ACTIVE, "one"), saying="failed ledger")
    run = site.asked(ALTERNATE, "runs")["runs"][0]["run"]
    for words, said in (
        (
            ("gate", "approve", run, "--store", "SG1/ledger", "--reason", "a test"),
            "an approval for TEX-BACK-1",
        ),
        (("cluster", "move", BACK), "the gate of TEX-BACK-1"),
        (("restore", "store", "SG1/docs", "--to", str(site.root / "x")), "from the disk of TEX-BACK-1"),
        (("restore", "store", "SG1/docs", "--in-place", "--yes"), "restoring SG1/docs in place"),
        (("copy", "--missing", "--to", "objects"), "is the work of"),
    ):
        refused = site.nightferry(ALTERNATE, *words)
        assert refused.returncode == 50, (words, refused.stdout, refused.stderr)
        assert said in refused.stdout + refused.stderr
        assert f"is the work of {ACTIVE}; this is {ALTERNATE}" in refused.stdout + refused.stderr
    assert site.nightferry(ALTERNATE, "gate", "show").returncode == 50
    (docs, _) = site.asked(ALTERNATE, "status")["stores"]
    assert (docs["colour"], docs["staged"]) == ("amber", True)
    (disk,) = site.asked(ALTERNATE, "cluster", "view")["disks"]
    assert (disk["owner"], disk["epoch"], disk["seen"]) == (ACTIVE, 1, False)
    found = {f["id"]: f["text"] for f in site.asked(ALTERNATE, "check")["findings"]}
    assert f"its stores and its disk /srv/back1 are not on {ALTERNATE}" in found["NF-NODE-007"]
    assert not [name for name in found if name.startswith(("NF-STORE", "NF-STAGE"))]
    assert [cluster.shell(ALTERNATE, f"ls -A {mount}") for mount in MOUNTS.values()] == ["", ""]
    stands_still(site)


def test_targets_that_cannot_take_it_are_refused_and_nothing_changes(
    cluster: PacemakerServer, site: ClusterSite
) -> None:
    ended(site.step(ACTIVE, "one"))
    before = cluster.done(ACTIVE, "cibadmin", "--query", "--scope", "constraints")

    def refused(target: str, said: str, code: int = 50) -> None:
        answer = site.nightferry(ACTIVE, "cluster", "move", BACK, "--to", target)
        assert (answer.returncode, said in answer.stderr) == (code, True), answer.stderr

    refused("TEX-PASS-9", "no node is called", code=2)
    refused(ACTIVE, "is not a target of TEX-BACK-1", code=2)
    cluster.done(ACTIVE, "crm_attribute", "--node", ALTERNATE, "--name", "standby", "--update", "on")
    cluster.until(lambda seen: ALTERNATE not in seen.usable, "standby")
    refused(ALTERNATE, "no passive node can take TEX-BACK-1")
    cluster.done(ACTIVE, "crm_attribute", "--node", ALTERNATE, "--name", "standby", "--delete")
    cluster.until(lambda seen: ALTERNATE in seen.usable, "not standby")
    cluster.done(ACTIVE, "crm_resource", "--resource", BACK, "--meta", "-p", "is-managed", "-v", "false")
    refused(ALTERNATE, "not managed by the cluster")
    cluster.done(ACTIVE, "crm_resource", "--resource", BACK, "--meta", "-d", "is-managed")
    assert cluster.done(ACTIVE, "cibadmin", "--query", "--scope", "constraints") == before

    cluster.done(ACTIVE, "crm_resource", "--ban", "--resource", BACK, "--node", ALTERNATE)
    refused(ALTERNATE, "keeps TEX-BACK-1 away from TEX-PASS-2, and nightferry did not set it")
    assert cluster.constraints() == ["cli-ban-TEX-BACK-1-on-TEX-PASS-2"]
    cluster.done(ACTIVE, "crm_resource", "--clear", "--resource", BACK)

    cluster.kill(ALTERNATE)
    cluster.until(lambda seen: ALTERNATE not in seen.online and not seen.unclean, "offline and fenced")
    refused(ALTERNATE, "no passive node can take TEX-BACK-1")
    cluster.fenced.clear()
    stands_still(site)


def test_a_disk_that_somebody_keeps_busy_is_not_moved(cluster: PacemakerServer, site: ClusterSite) -> None:
    ended(site.step(ACTIVE, "one"))
    idler = cluster.start(ACTIVE, "tail", "-f", str(MOUNTS[BACK] / ".nightferry/owner.1"), stdout=-3)
    try:
        refused = site.nightferry(ACTIVE, "cluster", "move", BACK, "--to", ALTERNATE)
        assert refused.returncode == 50, refused.stderr
        assert "is kept busy by tail (pid " in refused.stderr
    finally:
        idler.kill()
        idler.wait()
    stands_still(site)
    stage_two(site)
    site.require_whole()


@pytest.mark.soak
def test_a_stop_that_fails_ends_the_move_and_nothing_is_written_on_the_target(
    cluster: PacemakerServer, site: ClusterSite
) -> None:
    """A loop device keeps the disk busy without a process that could be seen; nobody answers for fencing."""
    ended(site.step(ACTIVE, "one"))
    cluster.fencing_answers = False
    cluster.shell(ACTIVE, f"truncate -s 1M {MOUNTS[BACK]}/inner.img")
    loop = cluster.done(ACTIVE, "losetup", "--find", "--show", str(MOUNTS[BACK] / "inner.img")).strip()
    try:
        failed = site.nightferry(ACTIVE, "cluster", "move", BACK, "--to", ALTERNATE)
        assert failed.returncode == 50, failed.stderr
        assert "did not arrive on TEX-PASS-2" in failed.stderr
        assert cluster.constraints() == []
        assert cluster.mounted(BACK) == [ACTIVE]
        with site.opened() as here:
            assert here.catalog.owner(BACK).node == ACTIVE
    finally:
        cluster.done(ACTIVE, "losetup", "--detach", loop)


def test_a_target_that_cannot_start_it_ends_the_move_and_the_night_goes_to_another_node(
    cluster: PacemakerServer, site: ClusterSite
) -> None:
    ended(site.step(ACTIVE, "one"))
    cluster.shell(ALTERNATE, f"rmdir {MOUNTS[BACK]} && touch {MOUNTS[BACK]}")
    try:
        failed = site.nightferry(ACTIVE, "cluster", "move", BACK, "--to", ALTERNATE)
        assert failed.returncode == 50, failed.stderr
        assert "did not arrive on TEX-PASS-2: back1-fs_start_0 on TEX-PASS-2" in failed.stderr
        assert "now it is started on TEX-ACTV-1" in failed.stderr
        stands_still(site)
        again = site.nightferry(ACTIVE, "cluster", "move", BACK, "--to", ALTERNATE)
        assert "failed before: back1-fs_start_0 on TEX-PASS-2" in again.stderr
        stage_two(site, PRIMARY)
        site.require_whole(PRIMARY)
    finally:
        cluster.shell(ALTERNATE, f"rm {MOUNTS[BACK]}; mkdir {MOUNTS[BACK]}")


SLOW = 'bandwidth = ["00:00 1 MiB/s"]'


def read_until(step: subprocess.Popen[str], wanted: str) -> str:
    """The step's output up to a line that holds ``wanted``."""
    seen = ""
    assert step.stdout is not None
    for line in step.stdout:
        seen += line
        if wanted in line:
            return seen
    raise AssertionError(f"no {wanted!r} in: {seen}")


@pytest.fixture
def slow_site(cluster: PacemakerServer, tmp_path: Path) -> ClusterSite:
    """A site whose first store takes half a minute to stage."""
    return ClusterSite(cluster, tmp_path, staging=SLOW, docs_mib=30)


def leaves(cluster: PacemakerServer, group: str, holders: int) -> None:
    """Waits until our processes have leases on a group, then lets it leave the active node."""
    cluster.until(lambda _: len(cluster.leases(ACTIVE, group)) >= holders, "leases")
    cluster.done(ACTIVE, "crm_resource", "--move", "--resource", group, "--node", PRIMARY)
    cluster.until(lambda seen: seen.groups[group] == PRIMARY, f"{group} on {PRIMARY}")
    cluster.done(ACTIVE, "crm_resource", "--clear", "--resource", group)


def test_our_reader_lets_the_service_go_and_nobody_is_fenced(
    cluster: PacemakerServer, slow_site: ClusterSite
) -> None:
    with slow_site.led_step(ACTIVE, "one") as step:
        leaves(cluster, MAIL, 1)
        said, _ = step.communicate(timeout=60)
    assert "failed docs: TEX-MAIL-1 is not on this node, or is being stopped on it" in said
    assert cluster.look().failures == []
    assert cluster.fenced == []
    assert cluster.mounted(MAIL) == [PRIMARY]


def test_a_reader_that_does_not_answer_is_ended_and_nobody_is_fenced(
    cluster: PacemakerServer, slow_site: ClusterSite
) -> None:
    with slow_site.led_step(ACTIVE, "one") as step:
        cluster.until(lambda _: bool(cluster.leases(ACTIVE, MAIL)), "a lease")
        (pid,) = {lease.partition(".")[0] for lease in cluster.leases(ACTIVE, MAIL)}
        cluster.done(ACTIVE, "kill", "-STOP", pid)
        leaves(cluster, MAIL, 1)
        step.send_signal(signal.SIGCONT)  # nsenter stops with its child
        step.communicate(timeout=60)
    assert step.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert cluster.look().failures == []
    assert cluster.fenced == []


def nobody_was_fenced(cluster: PacemakerServer) -> None:
    assert cluster.look().failures == []
    assert cluster.fenced == []
    assert all(cluster.is_up(node) for node in NODES)


def sixteen_stores(cluster: PacemakerServer, folder: Path) -> ClusterSite:
    """A site with so many stores and more, which take half a minute to stage."""
    site = ClusterSite(cluster, folder, staging=f"{SLOW}\nstreams = 16")
    names = [f"s{number:02}" for number in range(16)]
    for name in names:
        cluster.shell(ACTIVE, f"head -c 2M /dev/urandom > {MOUNTS[MAIL]}/{name}")
    with site.file.open("a") as file:
        file.write(toml.group("SG2", ("objects",), mail_group=MAIL, more=f'back_group = "{BACK}"\n'))
        file.write("".join(toml.store(name, MOUNTS[MAIL] / name) for name in names))
    return site


def test_sixteen_stores_at_once_let_the_service_go_and_nobody_is_fenced(
    cluster: PacemakerServer, tmp_path: Path
) -> None:
    site = sixteen_stores(cluster, tmp_path)
    with site.led_step(ACTIVE, "parallel") as step:
        leaves(cluster, MAIL, 16)
        said, _ = step.communicate(timeout=60)
    nobody_was_fenced(cluster)
    assert cluster.mounted(MAIL) == [PRIMARY]
    assert said.count("TEX-MAIL-1 is not on this node, or is being stopped on it") >= 16, said


@pytest.mark.soak
def test_sixteen_stores_whose_process_does_not_answer_fence_nobody_either(
    cluster: PacemakerServer, tmp_path: Path
) -> None:
    site = sixteen_stores(cluster, tmp_path)
    with site.led_step(ACTIVE, "parallel") as step:
        cluster.until(lambda _: len(cluster.leases(ACTIVE, MAIL)) >= 16, "leases")
        (pid,) = {lease.partition(".")[0] for lease in cluster.leases(ACTIVE, MAIL)}
        cluster.done(ACTIVE, "kill", "-STOP", pid)
        leaves(cluster, MAIL, 16)
        step.send_signal(signal.SIGCONT)
        step.communicate(timeout=60)
    assert step.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    nobody_was_fenced(cluster)


HOOK = """
[[hooks]]
name = "holds"
stage = "move"
when = "before"
command = ["/bin/sh", "{program}"]
"""


@pytest.mark.parametrize("killed", [False, True])
def test_a_hook_with_files_open_lets_the_disk_go_and_nobody_is_fenced(
    cluster: PacemakerServer, site: ClusterSite, killed: bool
) -> None:
    """A child of the hook has one open too, in a session of its own unless nightferry is killed: then nobody but the
    agent can end them, by their session."""
    ended(site.step(ACTIVE, "one"))
    program = site.root / "hook.sh"
    apart = "" if killed else "setsid"
    program.write_text(
        f"exec 3>> {MOUNTS[BACK]}/held\n{apart} sleep 600 3>> {MOUNTS[BACK]}/held-too &\nsleep 600\n"
    )
    site.file.write_text(site.file.read_text() + HOOK.format(program=program))
    words = [*site.command(), "cluster", "move", BACK, "--to", ALTERNATE]
    with cluster.start(ACTIVE, *words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as moving:
        cluster.until(lambda _: any("session" in each for each in cluster.leases(ACTIVE, BACK)), "the hook")
        cluster.until(
            lambda _: cluster.run(ACTIVE, "test", "-e", f"{MOUNTS[BACK]}/held-too").returncode == 0,
            "its child",
        )
        if killed:
            (pid,) = {
                each.partition(".")[0] for each in cluster.leases(ACTIVE, BACK) if "session" not in each
            }
            cluster.done(ACTIVE, "kill", "-KILL", pid)
        leaves(cluster, BACK, 1)
        said, _ = moving.communicate(timeout=60)
    assert moving.returncode in ((-signal.SIGKILL, 128 + signal.SIGKILL) if killed else (50,)), said
    nobody_was_fenced(cluster)
    assert cluster.mounted(BACK) == [PRIMARY]


def test_the_adoption_of_a_large_image_lets_the_disk_go_and_is_done_later(
    cluster: PacemakerServer, tmp_path: Path
) -> None:
    site = ClusterSite(cluster, tmp_path, docs_mib=30)
    killed = site.step(ACTIVE, "one", "kill:image recorded").returncode
    assert killed in (-signal.SIGKILL, 128 + signal.SIGKILL)
    with site.led_step(ACTIVE, "one", "slow:chunk checked") as step:
        read_until(step, "slow before chunk checked")
        leaves(cluster, BACK, 1)
        said, _ = step.communicate(timeout=60)
    assert "TEX-BACK-1 is not on this node, or is being stopped on it" in said
    nobody_was_fenced(cluster)
    assert site.nightferry(PRIMARY, "cluster", "view").returncode == 0
    ended(site.step(ACTIVE, "one"))
    with site.opened() as here:
        (docs,) = here.catalog.images("SG1", "docs")
        assert docs.files > 1
    stage_two(site)
    site.require_whole()


def test_a_node_that_died_takes_nothing_when_it_is_back(cluster: PacemakerServer, site: ClusterSite) -> None:
    ended(site.step(ACTIVE, "one"))
    assert site.nightferry(ACTIVE, "cluster", "move", BACK, "--to", ALTERNATE).returncode == 0
    assert cluster.constraints() == ["cli-prefer-TEX-BACK-1"] or cluster.constraints() == []
    with site.led_step(ALTERNATE, "two", "copy written") as step:
        read_until(step, "stopped before copy written")
        cluster.kill(ALTERNATE)
        step.wait()
    seen = cluster.until(lambda seen: seen.groups[BACK] not in (None, ALTERNATE), "failover")
    there = seen.groups[BACK]
    again = site.nightferry(there, "cluster", "move", BACK, "--to", there, "--ungated", "--reason", "a test")
    assert again.returncode == 0, again.stderr
    cluster.boot(ALTERNATE)
    seen = cluster.until(lambda seen: seen.online == set(NODES), "all nodes")
    assert seen.groups[BACK] == there
    if there == ACTIVE:
        stage_two(site)
        site.require_whole()
    else:
        ended(site.step(there, "two"), saying="ended ended")
        site.require_whole(there)


def test_without_quorum_nothing_moves_and_nothing_does_later(
    cluster: PacemakerServer, site: ClusterSite
) -> None:
    ended(site.step(ACTIVE, "one"))
    with site.led_step(ACTIVE, "two", "move watched") as step:
        read_until(step, "stopped before move watched")
        cluster.until(lambda seen: seen.groups[BACK] == ALTERNATE, "the move's end")
        for node in (PRIMARY, ALTERNATE):
            cluster.kill(node)
        cluster.until_alone(ACTIVE)
        said, _ = step.communicate("\n", timeout=60)
    assert "the cluster lost its quorum" in said
    refused = move_anyway(site)
    assert refused.returncode == 50, refused.stderr
    assert "quorum" in refused.stderr
    for node in (PRIMARY, ALTERNATE):
        cluster.boot(node)
    assert cluster.fenced == []
    whole_again(cluster, site)


@pytest.mark.soak
def test_a_partition_that_heals_moves_nothing_and_what_was_cut_off_is_known_again(
    cluster: PacemakerServer, site: ClusterSite
) -> None:
    ended(site.step(ACTIVE, "one"))
    with site.led_step(ACTIVE, "two", "move watched") as step:
        read_until(step, "stopped before move watched")
        cluster.until(lambda seen: seen.groups[BACK] == ALTERNATE, "the move's end")
        for node in (PRIMARY, ALTERNATE):
            cluster.cut(node)
        cluster.until_alone(ACTIVE)
        said, _ = step.communicate("\n", timeout=60)
    assert "the cluster lost its quorum" in said
    for node in (PRIMARY, ALTERNATE):
        cluster.heal(node)
    # Two nodes with quorum have the third one fenced: they cannot know what it does.
    assert cluster.fenced in ([], [ALTERNATE])
    whole_again(cluster, site)


def whole_again(cluster: PacemakerServer, site: ClusterSite) -> None:
    """One cluster, each disk on one node; what a coordinator without quorum took back is no obstacle to the next."""
    seen = cluster.until(
        lambda seen: seen.online == set(NODES) and all(seen.groups.values()), "one cluster again"
    )
    assert len(cluster.mounted(BACK)) == 1
    where = seen.groups[BACK]
    stage_two(site, ALTERNATE if where == ACTIVE else where)
    site.require_whole()


def test_an_owner_killed_during_stage_one_is_followed_to_the_new_one(
    cluster: PacemakerServer, slow_site: ClusterSite
) -> None:
    site = slow_site
    with site.led_step(ACTIVE, "one") as step:
        cluster.until(lambda _: bool(cluster.leases(ACTIVE, MAIL)), "a lease")
        cluster.kill(ACTIVE)
        step.wait()
    seen = cluster.until(lambda seen: not {None, ACTIVE} & set(seen.groups.values()), "failover")
    assert cluster.mounted(MAIL) == [seen.groups[MAIL]]
    site.edit(SLOW, "")
    ended(site.step(seen.groups[MAIL], "one"))
    assert cluster.mounted(BACK) == [seen.groups[MAIL]]
    (other,) = {PRIMARY, ALTERNATE} - {seen.groups[MAIL]}
    stage_two(site, other)
    site.require_whole(other)


def test_an_owner_killed_during_stage_two_is_followed_to_the_new_one(
    cluster: PacemakerServer, site: ClusterSite
) -> None:
    ended(site.step(ACTIVE, "one"))
    assert site.nightferry(ACTIVE, "cluster", "move", BACK).returncode == 0
    with site.led_step(ALTERNATE, "two", "copy written") as step:
        read_until(step, "stopped before copy written")
        cluster.kill(ALTERNATE)
        step.wait()
    cluster.until(lambda seen: seen.groups[BACK] not in (None, ALTERNATE), "failover")
    stage_two(site, PRIMARY)
    site.require_whole(PRIMARY)


def copies_missing(here: OpenSite) -> Counter[str]:
    """By run, how many copies of its images are not verified."""
    return Counter(
        image.run
        for image in here.catalog.images()
        for destination in ("tape", "objects")
        if not any(
            (copy.destination, copy.state) == (destination, "verified")
            for copy in here.catalog.copies(image.image)
        )
    )


def test_the_next_night_waits_for_the_reader_and_takes_the_disk_back_with_what_is_still_owed(
    cluster: PacemakerServer, site: ClusterSite
) -> None:
    ended(site.step(ACTIVE, "last-one"))
    assert site.nightferry(ACTIVE, "cluster", "move", BACK).returncode == 0
    with site.led_step(ALTERNATE, "last-two", "copy written") as older:
        read_until(older, "stopped before copy written")
        with site.led_step(ACTIVE, "one") as newer:
            read_until(newer, "waiting for run ")
            assert cluster.mounted(BACK) == [ALTERNATE]
            drained, _ = older.communicate("\n", timeout=60)
            assert "ended drained" in drained
            said, _ = newer.communicate(timeout=120)
    assert "said moving TEX-BACK-1 from TEX-PASS-2 to TEX-ACTV-1" in said
    assert cluster.mounted(BACK) == [ACTIVE]
    with site.opened() as here:
        newest, first = here.catalog.runs(BACK)
        assert (first.state, first.result) == ("ended", "partial")
        missing = copies_missing(here)
    assert missing == {first.run: 3, newest.run: 4}
    stage_two(site)
    site.require_whole()
    with site.opened() as here:
        assert copies_missing(here) == {}
    assert (cluster.fenced, cluster.look().failures) == ([], [])


def test_the_next_night_leaves_an_older_one_alone_or_waits_for_all_of_it_as_the_site_file_says(
    cluster: PacemakerServer, site: ClusterSite
) -> None:
    ended(site.step(ACTIVE, "last-one"))
    assert site.nightferry(ACTIVE, "cluster", "move", BACK).returncode == 0
    named = f'[[back_groups]]\nname = "{BACK}"\n'
    site.edit(named, f'{named}on_overrun = "skip"\n')
    with site.led_step(ALTERNATE, "last-two", "copy written") as older:
        read_until(older, "stopped before copy written")
        skipped = site.step(ACTIVE, "one")
        assert skipped.returncode == 10, skipped.stdout + skipped.stderr
        assert "said asked run" not in skipped.stdout
        # Not even by hand, while it is read from.
        by_hand = site.nightferry(
            ALTERNATE, "cluster", "move", BACK, "--to", ACTIVE, "--ungated", "--reason", "a test"
        )
        assert by_hand.returncode == 10, by_hand.stderr
        assert cluster.mounted(BACK) == [ALTERNATE]
        site.edit('on_overrun = "skip"', 'on_overrun = "hold"')
        with site.led_step(ACTIVE, "one") as newer:
            asked = read_until(newer, "waiting for run ")
            assert "to drain" not in asked
            whole, _ = older.communicate("\n", timeout=60)
            assert "ended ended" in whole
            said, _ = newer.communicate(timeout=120)
    assert "said moving TEX-BACK-1 from TEX-PASS-2 to TEX-ACTV-1" in said
    assert cluster.mounted(BACK) == [ACTIVE]
    with site.opened() as here:
        newest, first = here.catalog.runs(BACK)
        assert (first.state, first.result) == ("ended", "whole")
        assert copies_missing(here) == {newest.run: 4}
    stage_two(site)
    site.require_whole()
    assert (cluster.fenced, cluster.look().failures) == ([], [])


def test_of_two_coordinators_one_moves_and_the_other_is_busy(
    cluster: PacemakerServer, site: ClusterSite
) -> None:
    ended(site.step(ACTIVE, "one"))
    with site.led_step(ACTIVE, "two", "move watched") as first:
        read_until(first, "stopped before move watched")
        for second in (site.step(ACTIVE, "two"), move_anyway(site, PRIMARY)):
            assert second.returncode == 10, second.stdout + second.stderr
        said, _ = first.communicate("\n", timeout=60)
    assert "is on TEX-PASS-2" in said
    stage_two(site)
    site.require_whole()


@pytest.mark.soak
def test_a_coordinator_killed_at_every_step_of_the_move_is_followed_by_one_that_ends_it(
    cluster: PacemakerServer, site: ClusterSite
) -> None:
    def killed(node: str, step: str, point: str) -> None:
        ended_by = site.step(node, step, f"kill:{point}").returncode
        assert ended_by in (-signal.SIGKILL, 128 + signal.SIGKILL), point

    for point in ("disk taken", "owner recorded", "image written", "image recorded", "sealed"):
        killed(ACTIVE, "one", point)
    ended(site.step(ACTIVE, "one"))
    for point in ("constraint recorded", "constraint placed", "move watched"):
        killed(ACTIVE, "two", point)
    cluster.until(lambda seen: seen.groups[BACK] == ALTERNATE, "what was begun")
    assert cluster.constraints() == ["cli-prefer-TEX-BACK-1"]
    for point in ("disk taken", "owner recorded", "copy written", "constraint released"):
        killed(ALTERNATE, "two", point)
    ended(site.step(ALTERNATE, "two"), saying="ended ended")
    site.require_whole()

    killed(ACTIVE, "new", "constraint placed")
    killed(ACTIVE, "one", "move watched")
    cluster.until(lambda seen: seen.groups[BACK] == ACTIVE, "what was begun")
    killed(ACTIVE, "one", "constraint released")
    killed(ACTIVE, "one", "image written")
    ended(site.step(ACTIVE, "one"))
    assert cluster.constraints() == []
    stage_two(site)
    site.require_whole()
    assert cluster.fenced == []
    assert cluster.look().failures == []


def test_the_agent_passes_the_cluster_labs_own_tester(cluster: PacemakerServer) -> None:
    agent = "/usr/lib/ocf/resource.d/nightferry/nightferry-reader"
    cluster.done(ACTIVE, "ocf-tester", "-n", "tested", "-o", "group=TEX-TEST-1", agent)
