"""The local cluster's state file. What every driver does is in tests/contract/test_cluster.py."""

import json
import threading

import pytest

from nightferry.cluster.local import LocalCluster
from nightferry.errors import Cancelled, ClusterError, MoveFailed
from nightferry.model.nodes import specify
from nightferry.progress import Cancel

NODES = specify(("TEX-ACTV-1", "TEX-PASS-1", "TEX-PASS-2"), ())
GROUPS = ("TEX-BACK-1", "TEX-BACK-2")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cluster.json"


@pytest.fixture
def cluster(path):
    return LocalCluster(path, NODES, GROUPS)


def move(cluster, group, target, cancel=None):
    cluster.move(cluster.plan(group, target), run="r", cancel=cancel or Cancel())


def test_looking_writes_nothing(cluster, path):
    cluster.view()
    cluster.check()
    assert not path.exists()


def test_a_failed_group_is_nowhere_and_does_not_move(cluster, path):
    path.write_text(json.dumps({"failed": ["TEX-BACK-1"]}))
    with pytest.raises(ClusterError, match="failed"):
        cluster.where("TEX-BACK-1")
    with pytest.raises(MoveFailed, match="failed"):
        move(cluster, "TEX-BACK-1", "TEX-PASS-1")
    assert [f.id for f in cluster.check()] == ["NF-CLUSTER-004"]


def test_a_node_in_standby_keeps_what_it_has_and_takes_nothing(cluster, path):
    path.write_text(json.dumps({"owners": {"TEX-BACK-1": "TEX-PASS-1"}, "standby": ["TEX-PASS-1"]}))
    assert cluster.where("TEX-BACK-1") == "TEX-PASS-1"
    with pytest.raises(MoveFailed, match="standby"):
        move(cluster, "TEX-BACK-2", "TEX-PASS-1")


def test_a_move_keeps_what_else_the_file_says(cluster, path):
    path.write_text(json.dumps({"offline": ["TEX-PASS-2"], "owners": {"TEX-BACK-2": "TEX-PASS-1"}}))
    move(cluster, "TEX-BACK-1", "TEX-PASS-1")
    assert json.loads(path.read_text()) == {
        "owners": {"TEX-BACK-1": "TEX-PASS-1", "TEX-BACK-2": "TEX-PASS-1"},
        "offline": ["TEX-PASS-2"],
        "standby": [],
        "failed": [],
    }
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "[]", '{"owners": []}', '{"owner": {}}', '{"offline": "x"}', "{"])
def test_a_file_that_is_not_ours_is_refused_and_left_alone(cluster, path, text):
    path.write_text(text)
    with pytest.raises(ClusterError, match=r"cluster\.json"):
        cluster.view()
    with pytest.raises(ClusterError):
        move(cluster, "TEX-BACK-1", "TEX-PASS-1")
    assert path.read_text() == text
    assert [f.id for f in cluster.check()] == ["NF-CLUSTER-001"]


def test_an_owner_that_the_site_does_not_know_is_not_believed(cluster, path):
    path.write_text(json.dumps({"owners": {"TEX-BACK-1": "OLD-PASS-1"}}))
    with pytest.raises(ClusterError, match="no such node"):
        cluster.where("TEX-BACK-1")


def test_a_missing_folder_is_found_by_check_and_fails_the_move(tmp_path):
    cluster = LocalCluster(tmp_path / "gone" / "c.json", NODES, GROUPS)
    assert [f.id for f in cluster.check()] == ["NF-CLUSTER-002"]
    with pytest.raises(MoveFailed):
        move(cluster, "TEX-BACK-1", "TEX-PASS-1")


def test_a_cancelled_move_does_not_begin(cluster):
    cancel = Cancel()
    cancel.set("test")
    with pytest.raises(Cancelled):
        move(cluster, "TEX-BACK-1", "TEX-PASS-1", cancel)
    assert cluster.where("TEX-BACK-1") == "TEX-ACTV-1"


def test_of_moves_at_the_same_time_none_is_lost(cluster, path):
    threads = [
        threading.Thread(target=move, args=(LocalCluster(path, NODES, GROUPS), group, "TEX-PASS-1"))
        for group in GROUPS
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [cluster.where(group) for group in GROUPS] == ["TEX-PASS-1", "TEX-PASS-1"]
