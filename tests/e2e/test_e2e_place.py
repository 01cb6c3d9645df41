"""Parts of a night on the nodes whose work they are: a real server, and a real worker for each node.

What coordinates is this process, or a command, wherever that shows the same: a worker run costs seconds.
"""

from __future__ import annotations

import contextvars
import json
import signal
import subprocess
import threading
from contextlib import ExitStack

import pytest

from nightferry.transfer.temporary import PROCESS_FILE
from tests.support.fake_cluster import ACTIVE, ALTERNATE, PRIMARY
from tests.support.placed_site import PlacedSite, ended, kill_all
from tests.support.prefect_site import BACK, ask, until

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("prefect")]


class Workers:
    """A worker on the active node and one on the passive node that the layout chooses, which also coordinates."""

    def __init__(self, site, stack):
        self.site = site
        self.stack = stack
        self.active = stack.enter_context(site.worker(ACTIVE))
        stack.enter_context(site.worker(ALTERNATE, "default"))

    def power_off(self):
        """The active node is gone at once, with all that ran on it."""
        kill_all(self.active)

    def power_on(self):
        self.active = self.stack.enter_context(self.site.worker(ACTIVE))


@pytest.fixture(scope="module")
def workers(prefect_server, tmp_path_factory):
    site = PlacedSite.create(tmp_path_factory.mktemp("placed"), "PLACED", worker_deadline="45s")
    site.deploy()
    with ExitStack() as stack:
        yield Workers(site, stack)


@pytest.fixture
def site(workers, monkeypatch):
    # This process coordinates, and looks at the records, as that node.
    monkeypatch.setenv("NIGHTFERRY_NODE", ALTERNATE)
    return workers.site


def children(flow_run):
    """Deployment runs that a flow run started, the oldest first."""
    wanted = {
        "flow_runs": {"parent_flow_run_id": {"any_": [flow_run]}},
        "sort": "START_TIME_ASC",
    }
    return [run for run in ask("/flow_runs/filter", wanted) if run["deployment_id"]]


def runs_of(site, flow, node):
    """Every flow run of a node's deployment, the oldest first."""
    found = ask(f"/deployments/name/{flow}/{site.name}-{node.lower()}", method="GET")
    wanted = {"deployments": {"id": {"any_": [found["id"]]}}, "sort": "EXPECTED_START_TIME_ASC"}
    return ask("/flow_runs/filter", wanted)


def test_every_node_has_its_deployments_and_its_queue(site):
    found = {d["name"]: d for d in ask("/deployments/filter") if d["name"].startswith("placed-")}
    assert set(found) == {f"placed-{node.lower()}" for node in (ACTIVE, PRIMARY, ALTERNATE)}
    for node in (ACTIVE, PRIMARY, ALTERNATE):
        staged = ask(f"/deployments/name/stage-one/placed-{node.lower()}", method="GET")
        assert staged["work_queue_name"] == node.lower()


def test_a_gate_that_is_held_on_another_node_holds_the_night(site):
    store = site.here / "stores/shares"
    store.rename(site.here / "away")
    try:
        flow_run = site.start_flow(f"two-stage-backup/{site.name}", back_group=BACK, stagger=False)
        held = ended(flow_run)
    finally:
        (site.here / "away").rename(store)
    assert (held["state_type"], held["state_name"]) == ("FAILED", "GateHeld"), held["state"]["message"]
    assert "SG2/shares" in held["state"]["message"]
    assert site.cluster.state["groups"][BACK] == [ACTIVE, "Online"]
    (run,) = site.opened().catalog.runs(BACK)
    assert (run.state, run.node) == ("held", ACTIVE)
    names = {run["name"]: run["work_queue_name"] for run in children(flow_run)}
    assert names == {f"stage one of {run.run}": ACTIVE.lower(), f"move {BACK}": ACTIVE.lower()}


def test_its_approval_is_written_where_the_disk_is_and_stage_two_runs_where_it_goes(site):
    from flows.gate import approve_gate

    (run,) = site.opened().catalog.runs(BACK)
    refused = site.cli("gate", "approve", run.run, "--store", "SG2/shares", "--reason", "moved away")
    assert refused.returncode == 50
    assert f"is the work of {ACTIVE}; this is {ALTERNATE}" in refused.stderr
    approved = approve_gate(site.block(), run.run, ["SG2/shares"], "moved away", return_state=True)
    assert approved.name == "Partial", approved.message
    here = site.opened()
    (run,) = here.catalog.runs(BACK)
    assert (run.state, run.node) == ("ended", ACTIVE)
    assert here.disk(BACK).owner().node == here.catalog.owner(BACK).node == ALTERNATE
    assert {i.node for i in here.catalog.images(run=run.run)} == {ACTIVE}
    copies = [c for i in here.catalog.images() for c in here.catalog.copies(i.image)]
    assert {c.state for c in copies} == {"verified"}
    # What each process did stands in its node's own worker log.
    assert f"stage one of {run.run}" in site.log_of(ACTIVE)
    assert f"{BACK} to tape" in site.log_of(ALTERNATE)
    assert f"{BACK} to tape" not in site.log_of(ACTIVE)


def test_a_rerun_of_a_whole_night_starts_nothing_on_any_node(site):
    before = len(runs_of(site, "stage-one", ACTIVE))
    again = site.night()
    assert again.is_completed()
    assert "is finished" in again.message
    assert len(runs_of(site, "stage-one", ACTIVE)) == before


@pytest.fixture
def slow(site):
    """The site with a store that takes half a minute to stage."""
    subprocess.run(
        ["dd", "if=/dev/urandom", f"of={site.here}/stores/shares/large", "bs=1M", "count=64", "status=none"],
        check=True,
    )
    text = site.path.read_text()
    site.path.write_text(text.replace("[staging]\n", '[staging]\nbandwidth = ["00:00 2 MiB/s"]\n'))
    site.deploy()
    yield site
    site.path.write_text(text)
    site.deploy()


STAGE_ONE = ("backup", "--store", "SG2/shares", "--new", "--stage", "one")


def partial(site):
    """The images that are being staged."""
    return list((site.here / "backup").rglob("*.partial"))


def marked_folders(site):
    """Prefect's folders in the active worker's temporary directory that bear our mark."""
    return {mark.parent.name for mark in (site.here / f"worker-{ACTIVE}" / "tmp").glob(f"*/{PROCESS_FILE}")}


def test_stage_one_on_another_node_stops_with_its_night(slow):
    # Told to stop, a night waits until its part on the other node has stopped.
    night = slow.start(*STAGE_ONE, NIGHTFERRY_NODE=ALTERNATE)
    until(lambda: partial(slow), 60)
    night.send_signal(signal.SIGTERM)
    said, complained = night.communicate(timeout=60)
    assert night.returncode == 143, said + complained
    stopped = runs_of(slow, "stage-one", ACTIVE)[-1]
    assert stopped["state_type"] == "CANCELLED"
    assert not partial(slow)


@pytest.mark.soak
def test_stage_one_that_is_stopped_there_alone_ends_the_command_as_a_stop_here_does(slow):
    night = slow.start(*STAGE_ONE, "--json", NIGHTFERRY_NODE=ALTERNATE)
    until(lambda: partial(slow), 60)
    working = runs_of(slow, "stage-one", ACTIVE)[-1]
    ask(f"/flow_runs/{working['id']}/set_state", {"state": {"type": "CANCELLING"}})
    said, complained = night.communicate(timeout=60)
    assert night.returncode == 130, said + complained
    assert f"stage-one on {ACTIVE} ended Cancelled" in json.loads(said)["error"]["message"]
    assert not partial(slow)


@pytest.mark.soak
def test_a_node_that_dies_in_stage_one_is_not_waited_for_for_ever(slow, workers, monkeypatch):
    # It says nothing. Its run is given up once it has been silent for long enough.
    monkeypatch.setattr("tasks.heartbeat.HEARTBEAT_SILENT_S", 6.0)
    loose = {"stores": ["SG2/shares"], "stage": "one", "stagger": False}
    states = []
    # Prefect keeps which server it talks to in the context, which a thread does not inherit.
    context = contextvars.copy_context()
    night = threading.Thread(target=context.run, args=(lambda: states.append(slow.night(new=True, **loose)),))
    night.start()
    until(lambda: partial(slow), 60)
    working = runs_of(slow, "stage-one", ACTIVE)[-1]
    beats = {
        "event": {"name": ["prefect.flow-run.heartbeat"]},
        "resource": {"id": [f"prefect.flow-run.{working['id']}"]},
    }
    until(lambda: ask("/events/filter", {"filter": beats})["total"], 60)
    workers.power_off()
    left = marked_folders(slow)
    assert {name.startswith("prefect-workspace-attempt-") for name in left} == {True, False}
    night.join(90)
    (state,) = states
    assert state.is_failed()
    assert f"{ACTIVE} sent no heartbeat for" in state.message
    assert ask(f"/flow_runs/{working['id']}", method="GET")["state_type"] == "CRASHED"

    workers.power_on()
    text = slow.path.read_text()
    slow.path.write_text(text.replace('bandwidth = ["00:00 2 MiB/s"]\n', ""))
    slow.deploy()
    again = slow.night(**loose)
    assert again.is_completed(), again.message
    here = slow.opened()
    run = here.catalog.runs(BACK)[0]
    (image,) = here.catalog.images(run=run.run)
    assert (image.state, image.node) == ("whole", ACTIVE)
    assert not partial(slow)
    # What the dead worker left in its temporary directory is cleared by the first run of the next one.
    assert not left & marked_folders(slow)


def test_restores_run_on_the_node_that_is_asked_for(site):
    from flows.restore import restore_files

    asked = {"store": "SG1/priv1", "patterns": ["mail.txt"], "to": f"{site.here}/restored/a"}
    done = restore_files(site.block(), **asked, node=ACTIVE, return_state=True)
    assert done.is_completed(), done.message
    back = site.here / "restored/a/mail.txt"
    assert back.read_bytes() == (site.here / "stores/priv1/mail.txt").read_bytes()
    (placed,) = runs_of(site, "restore-files", ACTIVE)
    assert placed["state_name"] == "Completed"


def test_an_error_on_another_node_is_the_same_error_here(site):
    from flows.restore import restore_files
    from nightferry.errors import ConfigError

    asked = {"store": "SG1/priv1", "patterns": ["no such file"], "to": f"{site.here}/restored/c"}
    with pytest.raises(ConfigError, match=r"nothing in image .* matches no such file"):
        restore_files(site.block(), **asked, node=ACTIVE)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("nightferry.copies.stream.StagedDamage", 30),  # known by that name to its own room only
        ("builtins.KeyError", 1),
    ],
)
def test_the_command_ends_with_the_code_of_an_error_on_another_node_as_with_one_here(site, kind, code):
    site.fault.play("stage-one", kind)
    words = ("backup", "--store", "SG2/shares", "--new", "--stage", "one", "--json")
    try:
        there = site.cli(*words, NIGHTFERRY_NODE=ALTERNATE)
        here = site.cli(*words, NIGHTFERRY_NODE=ACTIVE, PYTHONPATH=site.fault.path)
    finally:
        site.fault.stop()
    assert (there.returncode, here.returncode) == (code, code), there.stderr + here.stderr
    told, own = (json.loads(done.stdout)["error"] for done in (there, here))
    assert told["exit_code"] == own["exit_code"] == code
    assert "what was played" in told["message"]
    if code != 1:
        assert told["message"] == own["message"] == "what was played"


@pytest.mark.soak
def test_a_node_without_a_worker_is_waited_for_by_name_and_not_for_ever(site):
    flow_run = site.start_flow(
        f"restore-files/{site.name}",
        **{"store": "SG1/priv1", "patterns": ["mail.txt"], "to": f"{site.here}/restored/b", "node": PRIMARY},
    )

    def waiting():
        run = ask(f"/flow_runs/{flow_run}", method="GET")
        return run["state_name"] == "WaitingForWorker" and run

    assert f"no worker on {PRIMARY}" in until(waiting, 60)["state"]["message"]
    failed = ended(flow_run, 120)
    assert failed["state_type"] == "FAILED"
    assert f"no worker on {PRIMARY} took restore-files within 45" in failed["state"]["message"]
    # Nobody takes it up later.
    assert [run["state_type"] for run in runs_of(site, "restore-files", PRIMARY)] == ["CANCELLED"]


@pytest.mark.soak
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
