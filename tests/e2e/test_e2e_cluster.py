"""Nights of the live Pacemaker cluster through Prefect: a real worker on each node, each part where its disk is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.conftest import needs
from tests.servers.pacemaker import ACTIVE, ALTERNATE, BACK, MAIL, PRIMARY, PacemakerServer
from tests.support.cluster_site import ClusterSite
from tests.support.placed_cluster import PlacedCluster
from tests.support.prefect_site import until

pytestmark = [pytest.mark.e2e, pytest.mark.server, pytest.mark.xdist_group("cluster"), needs("curl")]


@pytest.fixture(scope="module")
def placed(pacemaker: PacemakerServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlacedCluster]:
    """A server and workers on the active node and on the one that the disk goes to; the third one coordinates."""
    pacemaker.reset()
    placed = PlacedCluster(pacemaker, tmp_path_factory.mktemp("placed"))
    with placed.serving(), ExitStack() as stack:
        site = ClusterSite(pacemaker, tmp_path_factory.mktemp("first"))
        deployed = placed.nightferry(PRIMARY, site, "deploy")
        assert deployed.returncode == 0, deployed.stderr
        for node in (ACTIVE, ALTERNATE):
            placed.worker(stack, node)
        yield placed


@pytest.fixture
def site(placed: PlacedCluster, tmp_path) -> ClusterSite:
    placed.server.reset()
    return ClusterSite(placed.server, tmp_path)


def test_a_night_runs_each_part_on_the_node_that_has_the_disk(placed, site):
    cluster = placed.server
    assert placed.nightferry(PRIMARY, site, "deploy").returncode == 0
    night = placed.nightferry(PRIMARY, site, "backup", "--json")
    assert night.returncode == 0, night.stderr
    assert json.loads(night.stdout)["gate"] == "open"
    assert cluster.look().groups == {MAIL: ACTIVE, BACK: ALTERNATE}
    assert cluster.mounted(BACK) == [ALTERNATE]
    assert cluster.constraints() == []
