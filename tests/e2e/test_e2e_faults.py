"""A night whose Prefect server dies, that is stopped, or that holds secrets."""

import json
import os
import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest

from nightferry.cli.prefect_server import state_folder
from tests.support.prefect_site import BACK, ask, everything, until

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("prefect")]


def lines_of(process):
    """A process's stderr as it comes: progress documents."""
    for line in process.stderr:
        assert line.startswith("{"), f"not a progress line: {line}"
        yield json.loads(line)


def warm(server_home, own_home):
    """A copy of the running server's database, so that another server need not make its own."""
    own_home.mkdir(parents=True)
    source = sqlite3.connect(server_home / "prefect.db")
    target = sqlite3.connect(own_home / "prefect.db")
    source.backup(target)
    source.close()
    target.close()


def test_without_its_server_before_and_during_stage_one_a_night_ends_whole(prefect_server, site, tmp_path):
    """PREFECT_API_URL names a dead server; the site's own is used, and killed when the first store is read."""
    state = tmp_path / "state"
    own = state / state_folder("TEX", site.path).name
    warm(Path(os.environ["NIGHTFERRY_STATE"]) / "server" / "prefect", own / "prefect")
    night = site.start(
        "backup",
        "--json",
        NIGHTFERRY_STATE=str(state),
        PREFECT_API_URL="http://127.0.0.1:9/api",
        PREFECT_CLIENT_MAX_RETRIES="1",
    )
    said = []
    killed = None
    for line in lines_of(night):
        said.append(line.get("text", ""))
        if killed is None and (line["progress"], line.get("phase")) == ("begin", "stage"):
            killed = json.loads((own / "server.json").read_text())["pid"]
            os.kill(killed, signal.SIGKILL)
    stdout = night.stdout.read()
    assert night.wait(timeout=60) == 0, stdout
    assert killed is not None
    assert any("127.0.0.1:9/api does not answer; using the site's own" in text for text in said)
    assert any("the Prefect server is gone" in text for text in said)
    document = json.loads(stdout)
    assert (document["state"], document["result"]) == ("Completed", "whole")
    for image in document["images"]:
        assert {c["state"] for c in image["copies"]} == {"verified"}


def test_a_stopped_backup_leaves_nothing_half_and_a_rerun_ends_the_night(site):
    """SIGINT, then SIGTERM, in the middle of a store; then the night is run to its end."""
    subprocess.run(
        ["dd", "if=/dev/zero", f"of={site.here}/stores/priv1/large", "bs=1M", "count=64", "status=none"],
        check=True,
    )
    # So slow that the signal comes in the middle, however busy the machine is.
    text = site.path.read_text()
    site.path.write_text(text.replace("[staging]\n", '[staging]\nbandwidth = ["00:00 2 MiB/s"]\n'))
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        night = site.start("backup", "--json", "--store", "SG1/priv1")
        ends = []
        for line in lines_of(night):
            if (line["progress"], line.get("phase")) == ("begin", "stage"):
                night.send_signal(number)
            if line["progress"] == "end":
                ends.append((line["subject"], line["result"]))
        document = json.loads(night.stdout.read())
        assert night.wait(timeout=60) == code
        assert document["error"]["exit_code"] == code
        assert ends == [("SG1/priv1", "cancelled")]
        assert [p for p in (site.here / "backup" / "SG1").rglob("*") if p.is_file()] == []
        assert site.opened().catalog.images() == []
        stopped = ask("/flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 50})
        assert "CANCELLED" in {run["state_type"] for run in stopped if run["name"] == f"night of {BACK}"}
    site.path.write_text(text)
    assert site.night(stores=["SG1/priv1"], stage="one").is_completed()
    assert [i.state for i in site.opened().catalog.images()] == ["whole"]


def test_planted_secrets_reach_no_run_log_artifact_or_block(site, monkeypatch, tmp_path):
    secrets = ["in-the-environment-7f3a", "in-a-file-91c2", "in-a-mail-5d08", "for-the-api-e4b7"]
    monkeypatch.setenv("NF_PLANTED", secrets[0])
    (tmp_path / "secret").write_text(secrets[1])
    (tmp_path / "secret").chmod(0o600)
    (site.here / "stores/priv1/mail.txt").write_text(secrets[2])
    text = site.path.read_text()
    options = f'options = {{ token = "env:NF_PLANTED", key = "file:{tmp_path}/secret" }}'
    site.path.write_text(
        text.replace(f'url = "file://{site.here}/objects"', f'url = "file://{site.here}/objects"\n{options}')
    )
    (site.here / "stores/shares/mail.txt").unlink()
    (site.here / "stores/shares/blob.bin").unlink()
    (site.here / "stores/shares").rmdir()
    assert site.night().name == "GateHeld"
    assert site.night(accept_partial=["SG2/shares"], reason="gone for good").name == "Partial"
    done = site.cli("status", "--json", PREFECT_API_AUTH_STRING=secrets[3])
    site.block().save("planted", overwrite=True)

    run = site.opened().catalog.runs(BACK)[0].run
    seen = until(lambda: run in (page := everything()) and "gone for good" in page and page)
    seen += done.stdout + done.stderr
    seen += "".join(p.read_text(errors="replace") for p in (site.here / "catalog").rglob("*") if p.is_file())
    # What is there to be found is found: the references, and the store's name.
    assert "env:NF_PLANTED" in seen
    assert [secret for secret in secrets if secret in seen] == []


def test_two_backups_of_one_back_group_at_once(site):
    """The second is busy, and says whose turn it is."""
    from nightferry.night.run import window_begins

    here = site.opened()
    lock = here.claims.exclusive(BACK)
    lock.acquire(run="20261129-TEX-BACK-1", window=f"{window_begins(here, BACK):%Y%m%dT%H%M%SZ}")
    try:
        done = site.cli("backup", "--json")
    finally:
        lock.release()
    assert done.returncode == 10, done.stderr
    assert json.loads(done.stdout)["error"]["exit_code"] == 10
    assert "Traceback" not in done.stderr
    assert here.catalog.runs(BACK) == []
