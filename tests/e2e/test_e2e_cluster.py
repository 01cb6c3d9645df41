"""Nights of the live Pacemaker cluster through Prefect: a real worker on each node, each part where its disk is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest

from tests.conftest import needs
from tests.servers.pacemaker import ACTIVE, ALTERNATE, BACK, MAIL, MOUNTS, PRIMARY, PacemakerServer
from tests.support.cluster_site import ClusterSite
from tests.support.placed_cluster import PlacedCluster

pytestmark = [
    pytest.mark.soak,
    pytest.mark.e2e,
    pytest.mark.server,
    pytest.mark.xdist_group("cluster"),
    needs("curl"),
]

SLOW = 'bandwidth = ["00:00 1 MiB/s"]'


@pytest.fixture(scope="module")
def placed(pacemaker: PacemakerServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlacedCluster]:
    """A server and workers on the active node and on the one that the disk goes to; the third one coordinates."""
    pacemaker.reset()
    placed = PlacedCluster(pacemaker, tmp_path_factory.mktemp("placed"))
    with placed.serving(), ExitStack() as stack:
        site = ClusterSite(pacemaker, tmp_path_factory.mktemp("first"))
        deployed = placed.nightferry(PRIMARY, site, "deploy")
        assert deployed.returncode == 0, deployed.stderr
        placed.worker(stack, ACTIVE)
        placed.set_clock_ahead(ALTERNATE, minutes=31)
        placed.worker(stack, ALTERNATE)
        yield placed


@pytest.fixture
def site(placed: PlacedCluster, tmp_path) -> ClusterSite:
    placed.server.reset()
    site = ClusterSite(placed.server, tmp_path, staging=SLOW, docs_mib=16)
    placed.allow(site)
    return site


def test_a_night_follows_the_disk_and_outlives_its_coordinator(placed, site):
    """Stage one on the active node, stage two where the disk goes, where the clock is ahead; started on a third node
    by a process that is killed."""
    cluster = placed.server
    began = datetime.now(UTC)
    assert placed.nightferry(PRIMARY, site, "deploy").returncode == 0
    coordinator = cluster.start(PRIMARY, *placed.argv(PRIMARY, site, "backup"), stdout=-3, stderr=-3)
    cluster.until(lambda _: bool(cluster.leases(ACTIVE, MAIL)), "stage one works on the active node")
    coordinator.kill()
    coordinator.wait()

    # At once again: what runs there still is waited for, and never joined by a second one.
    site.edit(SLOW, "")
    assert placed.nightferry(PRIMARY, site, "deploy").returncode == 0
    night = placed.nightferry(PRIMARY, site, "backup", "--json")
    assert night.returncode == 0, night.stderr
    first, second = placed.runs("stage-one", ACTIVE)
    assert (second["state_name"], first["state_name"] != "Completed") == ("Completed", True)
    assert first["end_time"] <= second["start_time"]
    assert [r["state_name"] for r in placed.runs("stage-two", ALTERNATE)] == ["Completed"]
    with site.opened() as here:
        (run,) = here.catalog.runs(BACK)
        assert (run.state, run.result, run.node) == ("ended", "whole", ACTIVE)
        assert {image.node for image in here.catalog.images()} == {ACTIVE}
        assert here.catalog.owner(BACK).node == ALTERNATE
        # The clock of stage two's node was ahead.
        copies = [copy for image in here.catalog.images() for copy in here.catalog.copies(image.image)]
        assert min(copy.started for copy in copies) > began + timedelta(minutes=31)
    assert cluster.look().groups == {MAIL: ACTIVE, BACK: ALTERNATE}
    assert cluster.mounted(BACK) == [ALTERNATE]
    assert (cluster.constraints(), cluster.fenced, cluster.look().failures) == ([], [], [])
    # Nothing of ours lies where the disks are mounted elsewhere.
    for node, mount in ((PRIMARY, MOUNTS[BACK]), (PRIMARY, MOUNTS[MAIL]), (ALTERNATE, MOUNTS[MAIL])):
        assert cluster.shell(node, f"ls -A {mount}") == ""
    site.require_whole(PRIMARY)
