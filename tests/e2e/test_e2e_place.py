"""Parts of a night on the nodes whose work they are: a real server, and a real worker for each node."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.support.fake_cluster import ACTIVE, ALTERNATE, PRIMARY
from tests.support.placed_site import PlacedSite, ended
from tests.support.prefect_site import BACK, ask, until

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("prefect")]


@pytest.fixture(scope="module")
def site(prefect_server, tmp_path_factory):
    """Deployed once; a worker on the active node and one on the passive node that the layout chooses, which also
    coordinates."""
    site = PlacedSite.create(tmp_path_factory.mktemp("placed"), "PLACED", worker_deadline="20s")
    site.deploy()
    with site.worker(ACTIVE), site.worker(ALTERNATE, "default"):
        yield site


def children(flow_run):
    """Deployment runs that a flow run started, the oldest first."""
    wanted = {
        "flow_runs": {"parent_flow_run_id": {"any_": [flow_run]}},
        "sort": "START_TIME_ASC",
    }
    return [run for run in ask("/flow_runs/filter", wanted) if run["deployment_id"]]


def runs_of(site, flow, node):
    """Every flow run of a node's deployment."""
    found = ask(f"/deployments/name/{flow}/{site.name}-{node.lower()}", method="GET")
    return ask("/flow_runs/filter", {"deployments": {"id": {"any_": [found["id"]]}}})


def staged_by(site, run):
    return {i.node for i in site.opened().catalog.images(run=run)}


def reset(site):
    """The cluster as it was in the beginning."""
    from tests.support.fake_cluster import MAIL

    groups = site.cluster.state["groups"] | {MAIL: [ACTIVE, "Online"]}
    site.cluster.write(nodes={ACTIVE: "Up", PRIMARY: "Up", ALTERNATE: "Up"}, groups=groups)


@pytest.fixture(autouse=True)
def as_before(site, monkeypatch):
    # This process looks at the records as the node that coordinates.
    monkeypatch.setenv("NIGHTFERRY_NODE", ALTERNATE)
    yield
    reset(site)


def test_every_node_has_its_deployments_and_its_queue(site):
    found = {d["name"]: d for d in ask("/deployments/filter") if d["name"].startswith("placed-")}
    assert set(found) == {f"placed-{node.lower()}" for node in (ACTIVE, PRIMARY, ALTERNATE)}
    for node in (ACTIVE, PRIMARY, ALTERNATE):
        staged = ask(f"/deployments/name/stage-one/placed-{node.lower()}", method="GET")
        assert staged["work_queue_name"] == node.lower()


def test_stage_one_runs_on_the_active_node_and_stage_two_on_the_target(site):
    flow_run = site.start_flow(f"two-stage-backup/{site.name}", back_group=BACK, stagger=False)
    night = ended(flow_run)
    assert night["state_name"] == "Completed", night["state"]["message"]
    here = site.opened()
    (run,) = here.catalog.runs(BACK)
    assert (run.state, run.result, run.node) == ("ended", "whole", ACTIVE)
    assert staged_by(site, run.run) == {ACTIVE}
    assert here.disk(BACK).owner().node == here.catalog.owner(BACK).node == ALTERNATE
    copies = [c for i in here.catalog.images() for c in here.catalog.copies(i.image)]
    assert {c.state for c in copies} == {"verified"}
    # What each process did stands in its node's own worker log.
    logs = {node: (site.here / f"worker-{node}/log").read_text() for node in (ACTIVE, ALTERNATE)}
    assert f"stage one of {run.run}" in logs[ACTIVE]
    assert f"{BACK} to tape" in logs[ALTERNATE]
    assert f"{BACK} to tape" not in logs[ACTIVE]
    names = {run["name"]: run["work_queue_name"] for run in children(flow_run)}
    assert names == {f"stage one of {run.run}": ACTIVE.lower(), f"move {BACK}": ACTIVE.lower()}


def test_a_rerun_of_a_whole_night_starts_nothing_on_any_node(site):
    before = len(runs_of(site, "stage-one", ACTIVE))
    again = ended(site.start_flow(f"two-stage-backup/{site.name}", back_group=BACK, stagger=False))
    assert again["state_name"] == "Completed"
    assert "is finished" in again["state"]["message"]
    assert len(runs_of(site, "stage-one", ACTIVE)) == before


def test_a_held_gate_on_another_node_holds_the_night(site):
    store = site.here / "stores/shares"
    store.rename(site.here / "away")
    try:
        night = site.start_flow(f"two-stage-backup/{site.name}", back_group=BACK, stagger=False, new=True)
        held = ended(night)
    finally:
        (site.here / "away").rename(store)
    assert (held["state_type"], held["state_name"]) == ("FAILED", "GateHeld"), held["state"]["message"]
    assert "SG2/shares" in held["state"]["message"]
    assert site.cluster.state["groups"][BACK] == [ACTIVE, "Online"]


def test_a_cancelled_night_stops_the_node_that_works(site):
    subprocess.run(
        ["dd", "if=/dev/urandom", f"of={site.here}/stores/shares/large", "bs=1M", "count=64", "status=none"],
        check=True,
    )
    text = site.path.read_text()
    site.path.write_text(text.replace("[staging]\n", '[staging]\nbandwidth = ["00:00 2 MiB/s"]\n'))
    site.deploy()
    try:
        flow_run = site.start_flow(
            f"two-stage-backup/{site.name}", back_group=BACK, stores=["SG2/shares"], new=True, stagger=False
        )
        partial = until(lambda: list((site.here / "backup").rglob("*.partial")), 60)
        (child,) = [run for run in runs_of(site, "stage-one", ACTIVE) if run["state_type"] == "RUNNING"]
        ask(f"/flow_runs/{flow_run}/set_state", {"state": {"type": "CANCELLING"}})
        assert ended(flow_run)["state_type"] == "CANCELLED"
        assert ended(child["id"])["state_type"] == "CANCELLED"
        until(lambda: not partial[0].exists(), 20)
    finally:
        site.path.write_text(text)
        (site.here / "stores/shares/large").unlink()
        site.deploy()


def test_restores_run_on_the_node_that_is_asked_for(site):
    where = {"to": f"{site.here}/restored/a", "node": ACTIVE}
    done = ended(
        site.start_flow(f"restore-files/{site.name}", store="SG1/priv1", patterns=["mail.txt"], **where)
    )
    assert done["state_name"] == "Completed", done["state"]["message"]
    back = site.here / "restored/a/mail.txt"
    assert back.read_bytes() == (site.here / "stores/priv1/mail.txt").read_bytes()
    (placed,) = runs_of(site, "restore-files", ACTIVE)
    assert placed["state_name"] == "Completed"


def test_a_node_without_a_worker_is_waited_for_by_name_and_not_for_ever(site):
    flow_run = site.start_flow(
        f"restore-files/{site.name}",
        **{"store": "SG1/priv1", "patterns": ["mail.txt"], "to": f"{site.here}/restored/b", "node": PRIMARY},
    )

    def waiting():
        run = ask(f"/flow_runs/{flow_run}", method="GET")
        return run["state_name"] == "WaitingForWorker" and run

    assert f"no worker on {PRIMARY}" in until(waiting, 60)["state"]["message"]
    failed = ended(flow_run, 60)
    assert failed["state_type"] == "FAILED"
    assert f"no worker on {PRIMARY} took restore-files within 20" in failed["state"]["message"]
    # Nobody takes it up later.
    assert [run["state_type"] for run in runs_of(site, "restore-files", PRIMARY)] == ["CANCELLED"]


def test_check_everywhere_names_the_node_that_does_not_answer(site):
    done = site.cli("check", "--everywhere", "--json", NIGHTFERRY_NODE=ALTERNATE)
    document = json.loads(done.stdout)
    assert done.returncode == 2, done.stderr
    away = [f for f in document["findings"] if f["id"] == "NF-NODE-001"]
    assert [f["text"].split()[0] for f in away] == [PRIMARY]
    assert {f["text"].split(":")[0] for f in document["findings"] if f["id"].startswith("NF-CLUSTER")} <= {
        ACTIVE,
        ALTERNATE,
    }
    assert not [f for f in document["findings"] if f["id"] in ("NF-NODE-002", "NF-NODE-003", "NF-NODE-006")]
