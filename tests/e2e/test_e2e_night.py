"""Nights through Prefect: what they come to, what the run graph shows, what a rerun does."""

import errno
import json
import subprocess
from functools import partial

import pyarrow.parquet
import pytest

from nightferry.errors import GroupStopping, StoreUnreadable
from nightferry.night import stage
from nightferry.night.run import HeldLocks
from nightferry.plan.balance import batches
from tests.support.prefect_site import BACK, PROGRAM, subflows, task_runs, until
from tests.support.prefect_site import environment as environment_of

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("prefect")]


@pytest.fixture
def failing(monkeypatch):
    """Makes opening a store fail: ``failing("SG1/priv1", error, times)``; returns its attempts."""

    def install(store, error, times=99):
        attempts = []
        real = stage.open_source

        def open_source(definition, scratch):
            if definition.name == store.split("/")[1]:
                attempts.append(store)
                if len(attempts) <= times:
                    raise error()
            return real(definition, scratch)

        monkeypatch.setattr(stage, "open_source", open_source)
        return attempts

    return install


def states(site, image):
    return {c.destination: c.state for c in site.opened().catalog.copies(image)}


def test_a_whole_night_ends_completed_and_its_graph_reads_like_the_night(site):
    state = site.night()

    assert (state.type.name, state.name) == ("COMPLETED", "Completed")
    assert "3 of 3 stores whole" in state.message
    run = site.opened().catalog.runs(BACK)[0]
    assert (run.state, run.result) == ("ended", "whole")
    for image in site.opened().catalog.images(run=run.run):
        assert states(site, image.image) == {"tape": "verified", "objects": "verified"}

    night = state.state_details.flow_run_id
    parts = until(lambda: len(found := subflows(night)) == 3 and found)
    assert set(parts) == {f"stage one of {run.run}", f"move {BACK}", f"stage two of {BACK}"}
    moved = parts[f"move {BACK}"]["id"]
    until(lambda: set(task_runs(moved)) >= {f"gate {BACK}", f"{BACK} to a passive node"})
    staged = parts[f"stage one of {run.run}"]["id"]
    expected = {"stage SG1/priv1", "stage SG1/priv2", "stage SG2/shares"}
    expected |= {f"{BACK} to the active node", f"seal {run.run}"}
    until(lambda: set(task_runs(staged)) >= expected)
    stage_two = parts[f"stage two of {BACK}"]["id"]
    until(lambda: set(task_runs(stage_two)) >= {f"free staging of {BACK}", "catalog to tape"})
    streams = subflows(stage_two)
    assert set(streams) == {f"{BACK} to tape", f"{BACK} to objects"}
    copies = {"SG1/priv1 to tape", "SG1/priv2 to tape", "SG2/shares to tape"}
    until(lambda: set(task_runs(streams[f"{BACK} to tape"]["id"])) >= copies)


def test_the_command_line_gives_the_contracts_document_and_says_when_a_window_is_finished(site):
    done = site.cli("backup", "--json")

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["run"] in document["runs"]
    assert document["gate"] == "open"
    assert document["gates"] == [
        {"back_group": BACK, "state": "open", "missing": [], "moved_to": "TEX-PASS-1"}
    ]
    assert document["failed"] == []
    assert {f"{i['group']}/{i['store']}" for i in document["images"]} == {
        "SG1/priv1",
        "SG1/priv2",
        "SG2/shares",
    }
    for image in document["images"]:
        assert image["state"] == "whole"
        assert {c["destination"]: c["state"] for c in image["copies"]} == {
            "tape": "verified",
            "objects": "verified",
        }
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert {line["progress"] for line in lines} == {"begin", "advance", "end", "say"}

    again = site.night()
    assert again.is_completed()
    assert "is finished; repeat it with --new" in again.message
    newer = site.night(new=True)
    assert newer.is_completed()
    assert [r.run for r in site.opened().catalog.runs(BACK)] == [f"{document['run']}-2", document["run"]]


def test_a_retryable_error_is_tried_again_and_the_night_is_whole(site, failing):
    attempts = failing("SG1/priv1", lambda: StoreUnreadable("not now"), times=2)
    state = site.night()
    assert state.is_completed()
    assert len(attempts) == 3
    assert site.opened().catalog.failures(site.opened().catalog.runs(BACK)[0].run) == []


def test_a_store_in_a_batch_is_tried_again_on_its_own(site, failing, monkeypatch):
    assert site.night(stage="one").is_completed()
    monkeypatch.setattr("flows.stage_one.batches", partial(batches, few=0))
    attempts = failing("SG1/priv1", lambda: StoreUnreadable("not now"), times=2)
    others = failing("SG1/priv2", lambda: OSError(errno.EIO, "Input/output error"))
    state = site.night(stage="one", new=True, groups=["SG1"])
    assert state.name == "Partial"
    run = site.opened().catalog.runs(BACK)[0].run
    assert [i.store for i in site.opened().catalog.images(run=run)] == ["priv1"]
    assert (len(attempts), len(others)) == (3, 1)
    staged = subflows(state.state_details.flow_run_id)[f"stage one of {run}"]
    assert staged["state_name"] == "Partial"
    until(lambda: "stage 2 small stores of SG1" in task_runs(staged["id"]))


def test_a_store_that_stays_unreadable_holds_the_gate_and_its_retry_ends_the_night(
    site, failing, monkeypatch
):
    attempts = failing("SG1/priv2", lambda: StoreUnreadable("not now"))
    state = site.night()
    assert (state.type.name, state.name) == ("FAILED", "GateHeld")
    assert "SG1/priv2" in state.message
    assert len(attempts) == 3
    here = site.opened()
    run = here.catalog.runs(BACK)[0]
    assert run.state == "held"
    [failure] = here.catalog.failures(run.run)
    assert failure.attempts == 3
    assert here.catalog.copies(f"{run.run}.SG1.priv1.L0") == []
    assert here.part(HeldLocks) == {}


@pytest.mark.parametrize(
    "error", [lambda: OSError(errno.ENOSPC, "No space left on device"), lambda: ValueError("a fault of ours")]
)
def test_what_no_retry_can_help_is_tried_once(site, failing, error):
    attempts = failing("SG1/priv1", error)
    state = site.night(stores=["SG1/priv1"])
    assert state.name == "GateHeld"
    assert attempts == ["SG1/priv1"]


def test_a_full_disk_is_tried_once_and_holds_the_gate_and_its_retry_ends_the_night(site):
    text = site.path.read_text()
    site.path.write_text(text.replace('keep_free = "0 %"', 'keep_free = "100 %"'))
    done = site.cli("backup", "--json")
    assert done.returncode == 50, done.stderr
    document = json.loads(done.stdout)
    assert document["gate"] == "held"
    assert document["gates"][0]["missing"] == ["SG1/priv1", "SG1/priv2", "SG2/shares"]
    assert {f["store"] for f in document["failed"]} == {"SG1/priv1", "SG1/priv2", "SG2/shares"}
    assert "Traceback" not in done.stderr
    here = site.opened()
    assert {f.attempts for f in here.catalog.failures(document["run"])} == {1}
    assert list((site.here / "backup").rglob("*.partial")) == []

    site.path.write_text(text)
    retried = site.cli("gate", "retry", document["run"], "--json")
    assert retried.returncode == 0, retried.stderr
    document = json.loads(retried.stdout)
    assert (document["gate"], document["failed"], len(document["images"])) == ("open", [], 3)


def test_an_approval_by_command_line_sends_the_night_on(site, failing):
    failing("SG2/shares", lambda: OSError(errno.EIO, "Input/output error"))
    assert site.night().name == "GateHeld"
    run = site.opened().catalog.runs(BACK)[0].run

    approved = site.cli(
        "gate", "approve", run, "--store", "SG2/shares", "--reason", "rebuilt anyway", "--json"
    )
    # The night went on; what was left out is still named and never green.
    assert approved.returncode == 3, approved.stderr
    document = json.loads(approved.stdout)
    assert (document["state"], document["gate"]) == ("Partial", "open")
    assert states(site, f"{run}.SG1.priv1.L0") == {"tape": "verified", "objects": "verified"}
    assert site.opened().catalog.runs(BACK)[0].state == "ended"


def test_an_approval_by_flow_sends_the_night_on(site, failing):
    from flows.gate import approve_gate

    failing("SG2/shares", lambda: OSError(errno.EIO, "Input/output error"))
    assert site.night().name == "GateHeld"
    run = site.opened().catalog.runs(BACK)[0].run
    state = approve_gate(site.block(), run, ["SG2/shares"], "rebuilt anyway", return_state=True)
    assert (state.type.name, state.name) == ("FAILED", "Partial")
    assert states(site, f"{run}.SG1.priv2.L0") == {"tape": "verified", "objects": "verified"}


def test_the_retention_is_applied_by_flow_and_its_table_says_why(site):
    from prefect.artifacts import Artifact

    from flows.expire import expire

    assert site.night().is_completed()
    assert site.night(new=True).is_completed()
    first, last = sorted(run.run for run in site.opened().catalog.runs(BACK))
    site.path.write_text(site.path.read_text() + '\n[retention]\nkeep_last = 1\nat_most = "40 %"\n')
    refused = expire(site.block(), return_state=True)
    assert refused.is_failed()
    assert "would expire at once" in refused.message
    foreseen = expire(site.block(), dry_run=True, return_state=True)
    assert (foreseen.type.name, foreseen.name) == ("FAILED", "Refused")
    assert states(site, f"{first}.SG1.priv1.L0") == {"tape": "verified", "objects": "verified"}
    done = expire(site.block(), "objects", reason="a test of it", return_state=True)
    assert done.is_completed(), done.message
    assert states(site, f"{first}.SG1.priv1.L0") == {"tape": "verified", "objects": "expired"}
    assert states(site, f"{last}.SG1.priv1.L0") == {"tape": "verified", "objects": "verified"}
    table = json.loads(Artifact.get("expire").data)
    assert {row["state"] for row in table} == {"kept", "expired"}


def test_an_approval_given_beforehand_opens_the_gate(site, failing):
    failing("SG1/priv1", lambda: OSError(errno.EIO, "Input/output error"))
    state = site.night(accept_partial=["SG1/priv1"], reason="its disk is being replaced")
    assert state.name == "Partial"
    run = site.opened().catalog.runs(BACK)[0].run
    assert [a.reason for a in site.opened().catalog.approvals(run)] == ["its disk is being replaced"]


def test_a_destination_that_is_away_is_said_and_its_copies_are_delivered_later(site):
    objects = site.here / "objects"
    objects.rmdir()
    objects.write_text("not a folder")
    state = site.night()
    assert (state.type.name, state.name) == ("FAILED", "CopyMissing")
    run = site.opened().catalog.runs(BACK)[0].run
    assert states(site, f"{run}.SG1.priv1.L0")["tape"] == "verified"

    objects.unlink()
    objects.mkdir()
    later = site.night(stage="two")
    assert later.is_completed(), later.message
    assert states(site, f"{run}.SG1.priv1.L0") == {"tape": "verified", "objects": "verified"}


def test_marks_made_by_hand_reach_a_destination_that_still_owes_copies(site):
    assert site.night().is_completed()
    assert site.night(new=True, stage="one").is_completed()
    name = site.opened().catalog.images("SG1", "priv1")[0].image
    held = site.cli("hold", "add", name, "--reason", "the auditors ask for it")
    assert held.returncode == 0, held.stderr
    # Something lies where this one copy is to be made; the others find their place.
    (site.here / "objects/images" / name).write_text("in the way")
    assert site.night(stage="two").name == "CopyMissing"
    assert "objects" not in states(site, name) or states(site, name)["objects"] != "verified"
    newest = max((site.here / "objects/catalog").glob("catalog-*.parquet"))
    rows = pyarrow.parquet.read_table(newest).to_pylist()
    assert [row["subject"] for row in rows if row["kind"] == "hold"] == [name]


def test_the_stages_run_apart(site):
    assert site.night(stage="one").is_completed()
    run = site.opened().catalog.runs(BACK)[0]
    assert run.state == "sealed"
    assert states(site, f"{run.run}.SG1.priv1.L0") == {}
    assert site.night(stage="two").is_completed()
    assert states(site, f"{run.run}.SG1.priv1.L0") == {"tape": "verified", "objects": "verified"}


def test_stores_and_groups_narrow_a_night_and_the_rest_can_follow(site):
    assert site.night(stores=["SG1/priv2"], stage="one").is_completed()
    here = site.opened()
    run = here.catalog.runs(BACK)[0].run
    assert [i.store for i in here.catalog.images(run=run)] == ["priv2"]
    assert site.night(groups=["SG2"]).is_completed()
    assert {i.store for i in site.opened().catalog.images(run=run)} == {"priv2", "shares"}


def test_a_held_night_that_is_run_again_keeps_what_is_staged(site, failing, monkeypatch):
    failing("SG1/priv1", lambda: OSError(errno.EIO, "Input/output error"))
    assert site.night().name == "GateHeld"
    monkeypatch.undo()
    before = {p: p.stat().st_mtime_ns for p in (site.here / "backup").rglob("*.tar")}
    assert len(before) == 2
    assert site.night(stage="one").is_completed()
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert len(list((site.here / "backup").rglob("*.tar"))) == 3


def test_gnu_tar_lists_what_the_night_staged(site):
    assert site.night(stage="one", stores=["SG1/priv1"]).is_completed()
    [image] = (site.here / "backup").rglob("*.tar")
    listed = subprocess.run(["tar", "-tf", image], capture_output=True, text=True, check=True)
    assert "mail.txt" in listed.stdout.splitlines()
    assert listed.stderr == ""


def test_a_service_that_fails_over_during_stage_one_is_followed(site, failing):
    def stopped():
        # The cluster stops the service here and starts it on the passive node.
        owners = {"owners": {"TEX-MAIL-1": "TEX-PASS-1", BACK: "TEX-ACTV-1"}}
        site.opened().file.cluster_state_path.write_text(json.dumps(owners))
        return GroupStopping("TEX-MAIL-1 is being stopped on this node")

    attempts = failing("SG1/priv1", stopped, times=1)
    state = site.night()
    assert state.name == "Completed", state.message
    assert len(attempts) == 2
    here = site.opened()
    (run,) = here.catalog.runs(BACK)
    assert (run.node, run.result) == ("TEX-PASS-1", "whole")
    (again,) = here.catalog.images("SG1", "priv1")
    assert again.node == "TEX-PASS-1"
    assert here.catalog.failures(run.run) == []


def test_a_night_whose_words_cannot_be_written_ends_as_it_came_out(site):
    def backup(words, where, **environment):
        script = f'"$0" -c "$1" --site "$2" backup {words} {where}'
        return subprocess.run(
            ["bash", "-c", script, *(PROGRAM[0], PROGRAM[2]), str(site.path)],
            env=environment_of(**environment),
            timeout=120,
        ).returncode

    assert backup("--json", ">/dev/full 2>/dev/full", PYTHONIOENCODING="ascii") == 0
    run = site.opened().catalog.runs(BACK)[0]
    assert (run.state, run.result) == ("ended", "whole")
    objects = site.here / "objects"
    objects.rename(site.here / "away")
    objects.touch()
    assert backup("--new", ">&- 2>&-") == 20
    assert site.opened().catalog.runs(BACK)[0].run == f"{run.run}-2"
