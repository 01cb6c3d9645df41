"""Who may command a night: the site's own server asks for its auth string, and a worker runs only what its node allows.

Through Prefect, because the API, the worker's process and the UI's cancel are what is tried.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from nightferry.model.load import parse_site
from tests.support.prefect_site import NightSite, ask, environment, until

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("prefect")]

NOBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]


@pytest.fixture(scope="module")
def deployment(prefect_server, tmp_path_factory):
    """The id of a deployment that is there."""
    assert NightSite.make(tmp_path_factory.mktemp("deployed")).cli("deploy", "--json").returncode == 0
    return ask("/deployments/name/two-stage-backup/tex", method="GET")["id"]


@pytest.fixture
def everyones():
    """A folder that everyone may enter, from the root down; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="nightferry-door-", dir="/var/tmp"))
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder)


def open_to_others(folder):
    """What another user may read, write or enter below a folder, by GNU find as that user."""
    may = ["-readable", "-o", "-writable", "-o", "-type", "d", "-executable"]
    found = subprocess.run(
        [*NOBODY, "find", folder, "(", "!", "-type", "l", "(", *may, ")", ")", "-print"],
        capture_output=True,
        text=True,
    )
    return set(found.stdout.splitlines())


class Watched:
    """What was open to others at any moment of the block."""

    def __init__(self, folder):
        self.folder, self.seen, self.looks = folder, set(), 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

    def _watch(self):
        while not self._ended.is_set():
            self.seen |= open_to_others(self.folder)
            self.looks += 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_reads_writes_and_enters_nothing_of_ours_while_we_work_and_after(everyones):
    """State, server, catalog, staging, destinations, locks and temporary files, in folders that he may enter."""
    site = NightSite.make(everyones / "site")
    for made, mode in (("tmp", 0o1777), ("out", 0o755), ("state", 0o755), ("home", 0o755)):
        (everyones / made).mkdir()
        (everyones / made).chmod(mode)
    before = open_to_others(everyones)
    assert {str(site.here / "objects"), str(site.here / "backup"), str(everyones / "tmp")} <= before
    places = {
        "NIGHTFERRY_STATE": str(everyones / "state"),
        "PREFECT_HOME": str(everyones / "home"),
        "TMPDIR": str(everyones / "tmp"),
        "PREFECT_API_URL": "",
        "PREFECT_API_AUTH_STRING": "",
    }
    restored = site.here / "restored" / "back"
    try:
        with Watched(everyones) as watched:
            for words in (
                ("backup",),
                ("deploy",),
                ("verify",),
                ("expire",),
                ("support", "--to", str(everyones / "out" / "support.tar.gz")),
                ("catalog", "rebuild", "--copy", "objects", "--to", str(everyones / "out" / "rebuilt")),
                ("restore", "store", "SG1/priv1", "--to", str(restored)),
            ):
                ran = site.cli(*words, **places)
                assert ran.returncode == 0, (words, ran.stdout, ran.stderr)
        assert watched.looks > 20
        # What is restored has the modes of what was saved.
        assert {path for path in watched.seen - before if not path.startswith(str(restored))} == set()
        assert list((everyones / "state").iterdir())
        if Path("/run/nightferry-locks").exists():
            assert open_to_others(Path("/run/nightferry-locks")) == set()
        (everyones / "out" / "note").touch()
        (everyones / "out" / "note").chmod(0o604)
        assert open_to_others(everyones / "out") - before == {str(everyones / "out" / "note")}
    finally:
        site.cli("server", "stop", **places)


def curl(*words, prefix=()):
    """The HTTP status that curl is answered with."""
    command = [*prefix, "curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/admin/version"),
        ("POST", "/block_documents/filter"),
        ("POST", "/deployments/filter"),
        ("POST", "/flow_runs/filter"),
        ("POST", "/flow_runs/"),
        ("POST", "/flow_runs/00000000-0000-0000-0000-000000000000/set_state"),
        ("GET", "/block_types/slug/secret/block_documents?include_secrets=true"),
        ("POST", "/deployments/"),
        ("POST", "/deployments/{deployment}/create_flow_run"),
        ("GET", "/deployments/{deployment}"),
        ("PATCH", "/deployments/{deployment}"),
        ("DELETE", "/deployments/{deployment}"),
        ("POST", "/deployments/{deployment}/pause_deployment"),
        ("POST", "/deployments/{deployment}/schedules"),
        ("POST", "/deployments/name/two-stage-backup/tex"),
        ("PATCH", "/work_pools/nightferry-tex"),
        ("POST", "/work_pools/nightferry-tex/get_scheduled_flow_runs"),
        ("POST", "/automations/"),
        ("POST", "/variables/"),
        ("POST", "/logs/filter"),
        ("POST", "/artifacts/filter"),
        ("POST", "/events"),
        ("POST", "/admin/database/clear"),
    ],
)
def test_another_user_of_the_machine_gets_nothing_from_the_sites_own_server(
    prefect_server, deployment, method, path
):
    path = path.format(deployment=deployment)
    words = ["--request", method, "--header", "content-type: application/json", "--data", "{}"]
    assert curl(*words, prefect_server.url + path, prefix=NOBODY) == "401"
    assert curl("--user", "nightferry:wrong", *words, prefect_server.url + path, prefix=NOBODY) == "401"
    assert curl(f"{prefect_server.url}/health", prefix=NOBODY) == "200"


def test_what_opens_the_server_lies_where_only_its_user_reads(prefect_server):
    for path in (prefect_server.auth_file, prefect_server.client_file, prefect_server.folder / "server.log"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    words = prefect_server.auth_file.read_text().strip()
    process = f"/proc/{prefect_server.pid}/cmdline"
    with open(process, "rb") as line:
        assert words.encode() not in line.read()
    assert curl("--user", words, f"{prefect_server.url}/admin/version") == "200"


def test_the_command_line_shows_the_sites_own_server_who_asks(prefect_server, site, tmp_path):
    started = site.cli(
        "server", "start", "--json", NIGHTFERRY_STATE=str(tmp_path / "state"), PREFECT_API_URL=""
    )
    try:
        server = json.loads(started.stdout)
        named = {"NIGHTFERRY_STATE": str(tmp_path / "state"), "PREFECT_API_URL": server["url"]}
        done = site.cli("deploy", "--json", **named, PREFECT_API_AUTH_STRING="")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["client_file"] == server["client_file"]
    finally:
        site.cli("server", "stop", NIGHTFERRY_STATE=str(tmp_path / "state"))


@contextmanager
def worker(site, pool="nightferry-tex", **more):
    with (site.here / "worker.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--run-once"],
            cwd=site.here / "restored",
            env=environment(PREFECT_WORKER_QUERY_SECONDS="1", **more),
            stdout=log,
            stderr=log,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads hold locks here
        )
    try:
        yield process
        process.wait(timeout=120)
    finally:
        process.kill()
        process.wait()


def test_a_worker_refuses_a_site_that_its_node_does_not_allow_and_runs_none_of_it(prefect_server, site):
    """Somebody who got hold of the API sends a site of his own, whose hook would run as the worker's user."""
    done = site.cli("deploy", "--json")
    assert done.returncode == 0, done.stderr
    canary = site.here / "canary"
    words = f'stage = "stage-one"\nwhen = "before"\ncommand = ["/usr/bin/touch", "{canary}"]\n'
    hook = f'[[hooks]]\nname = "in"\n{words}'
    foreign = site.path.read_text() + hook
    parse_site(foreign)  # nothing but the node's list keeps it from being run
    deployment = ask("/deployments/name/two-stage-backup/tex", method="GET")
    parameters = {"site": {"text": foreign}, "back_group": "TEX-BACK-1", "stagger": False}
    sent = ask(
        f"/deployments/{deployment['id']}/create_flow_run",
        {"parameters": parameters, "enforce_parameter_schema": False},
    )
    with worker(site, NIGHTFERRY_SITE=str(site.path)):
        run = until(lambda: _final(sent["id"]), 120)
    assert run["state_type"] == "FAILED"
    assert "does not allow the site file with SHA-256" in run["state"]["message"]
    assert not canary.exists()
    assert not any((site.here / "backup").iterdir())


def test_a_worker_runs_the_site_files_that_its_node_allows(prefect_server, site):
    done = site.cli("deploy", "--json")
    assert done.returncode == 0, done.stderr
    deployment = ask("/deployments/name/two-stage-backup/tex", method="GET")
    sent = ask(f"/deployments/{deployment['id']}/create_flow_run", {"parameters": {"stagger": False}})
    with worker(site, NIGHTFERRY_SITE=str(site.path)):
        run = until(lambda: _final(sent["id"]), 120)
    assert run["state_type"] == "COMPLETED", run["state"]["message"]


def test_a_night_by_hand_that_is_cancelled_in_the_ui_ends_130(prefect_server, tmp_path):
    site = NightSite.make(tmp_path, bandwidth='["00:00 100 KiB/s"]')
    night = site.start("backup", "--json")
    wanted = {
        "flow_runs": {"name": {"any_": ["night of TEX-BACK-1"]}, "state": {"type": {"any_": ["RUNNING"]}}}
    }
    [run] = until(lambda: [r for r in ask("/flow_runs/filter", wanted) if _is_streaming(r)])
    ask(f"/flow_runs/{run['id']}/set_state", {"state": {"type": "CANCELLING"}})
    out, err = night.communicate(timeout=60)
    assert night.returncode == 130, err
    assert json.loads(out)["error"]["exit_code"] == 130


def _is_streaming(run):
    found = ask("/flow_runs/filter", {"flow_runs": {"parent_flow_run_id": {"any_": [run["id"]]}}})
    return any(child["name"].startswith("stage two") for child in found)


def _final(flow_run):
    run = ask(f"/flow_runs/{flow_run}", method="GET")
    return run if run["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED") else None
