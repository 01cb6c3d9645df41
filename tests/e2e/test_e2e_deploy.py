"""The site as Prefect deployments: what is published, what is refused, and a worker that runs it."""

import json
import os
import signal
import subprocess
import sys

import httpx
import pytest

from nightferry.errors import ConfigError
from tests.support.prefect_site import BACK, NightSite, ask, environment, until
from tests.support.small_site import SmallSite

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("prefect")]

FLOWS = {
    "two-stage-backup",
    "move-group",
    "stage-two",
    "approve-gate",
    "restore-files",
    "restore-store",
    "restore-group",
    "verify-copies",
    "media-inventory",
    "media-import",
    "media-export",
    "expire",
    "check-everywhere",
}


@pytest.fixture(scope="module")
def deployed(prefect_server, tmp_path_factory):
    """A site that the command line deployed once, for the tests of this module."""
    # Slow enough for a large image to be cancelled on its way.
    site = NightSite.make(tmp_path_factory.mktemp("deployed"), bandwidth='["00:00 4 MiB/s"]')
    # One of the tests makes this store a hundred times as large.
    text = site.path.read_text().replace('name = "shares"\n', 'name = "shares"\nexpect = { most = "any" }\n')
    site.path.write_text(text)
    done = site.cli("deploy", "--json")
    assert done.returncode == 0, done.stderr
    return site, json.loads(done.stdout)


def deployment(flow):
    return ask(f"/deployments/name/{flow}/tex", method="GET")


def apply(site):
    from deployments.apply import apply
    from nightferry.model.load import load_site

    return apply(load_site(site.path))


def test_block_pool_queues_and_deployments_are_published(deployed):
    site, document = deployed
    assert document["work_pool"] == "nightferry-tex"
    assert {d["deployment"] for d in document["deployments"]} == {f"{flow}/tex" for flow in FLOWS}
    block = ask("/block_types/slug/nightferry-site/block_documents/name/tex", method="GET")
    assert block["data"]["text"] == site.path.read_text()
    queues = ask("/work_pools/nightferry-tex/queues/filter")
    assert {"tex-actv-1", "tex-pass-1"} <= {queue["name"] for queue in queues}
    night = deployment("two-stage-backup")
    [schedule] = night["schedules"]
    assert (schedule["schedule"]["cron"], schedule["schedule"]["timezone"]) == (
        "0 20 * * *",
        "America/Chicago",
    )
    assert schedule["parameters"] == {"back_group": BACK}
    assert night["parameters"]["site"] == {"$ref": {"block_document_id": block["id"]}}


def test_names_are_choices_that_the_server_enforces(deployed):
    properties = deployment("two-stage-backup")["parameter_openapi_schema"]["properties"]
    assert properties["back_group"]["enum"] == [BACK]
    [groups] = [option for option in properties["groups"]["anyOf"] if option["type"] == "array"]
    assert groups["items"]["enum"] == ["SG1", "SG2"]
    nodes = deployment("restore-files")["parameter_openapi_schema"]["properties"]["node"]["anyOf"]
    assert [option["enum"] for option in nodes if option["type"] == "string"] == [
        ["TEX-ACTV-1", "TEX-PASS-1"]
    ]
    for parameters in ({"back_group": "TEX-BACK-9"}, {"back_group": BACK, "stores": ["SG1/nosuch"]}):
        with pytest.raises(httpx.HTTPStatusError) as refused:
            ask(
                f"/deployments/{deployment('two-stage-backup')['id']}/create_flow_run",
                {"parameters": parameters},
            )
        assert refused.value.response.status_code == 409


def test_deploying_again_doubles_nothing_and_keeps_a_paused_schedule_paused(deployed):
    site, _ = deployed
    before = deployment("two-stage-backup")
    [schedule] = before["schedules"]
    ask(f"/deployments/{before['id']}/schedules/{schedule['id']}", {"active": False}, method="PATCH")
    apply(site)
    after = deployment("two-stage-backup")
    assert after["id"] == before["id"]
    assert [(s["slug"], s["active"]) for s in after["schedules"]] == [("tex-back-1", False)]
    assert len([d for d in ask("/deployments/filter") if d["name"] == "tex"]) == len(FLOWS)


def test_a_block_edited_in_the_ui_is_not_overwritten(deployed):
    site, _ = deployed
    block = ask("/block_types/slug/nightferry-site/block_documents/name/tex", method="GET")
    edited = block["data"] | {"text": block["data"]["text"].replace("20:30", "21:30")}
    ask(f"/block_documents/{block['id']}", {"data": edited}, method="PATCH")
    try:
        with pytest.raises(ConfigError, match="was edited in the Prefect UI"):
            apply(site)
    finally:
        ask(f"/block_documents/{block['id']}", {"data": block["data"]}, method="PATCH")


def test_a_night_over_midnight_is_scheduled_at_its_first_storage_group(tmp_path):
    from deployments.apply import plan_deployments
    from nightferry.model.load import load_site

    site = SmallSite(tmp_path, stores={"SG1": ("a",), "SG2": ("b",)}, copies=("folder",)).build()
    text = site.file.read_text()
    site.file.write_text(text.replace('start = "20:00"', 'start = "01:00"', 1))
    night = plan_deployments(load_site(site.file).site)[0]
    assert [cron for cron, _ in night.schedules.values()] == ["0 20 * * *"]


def test_expiry_is_scheduled_when_the_site_says_when(tmp_path):
    from deployments.apply import plan_deployments
    from nightferry.model.load import load_site

    site = SmallSite(tmp_path, copies=("folder",)).build()

    def schedules():
        planned = plan_deployments(load_site(site.file).site)
        return next(p.schedules for p in planned if p.full_name == "expire/tex")

    assert schedules() == {}
    site.write_file(more='[retention]\nkeep_last = 3\nexpire_at = "13:05"\n')
    assert schedules() == {"daily": ("5 13 * * *", {})}


def test_a_foreign_package_called_flows_is_refused(prefect_server, site):
    (site.here / "flows").mkdir()
    (site.here / "flows" / "__init__.py").write_text("")
    program = (
        "import sys; sys.path.insert(0, '.'); from nightferry.cli.app import main; raise SystemExit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--site", str(site.path), "deploy"],
        capture_output=True,
        text=True,
        cwd=site.here,
        env=environment(),
    )
    assert done.returncode == 2
    assert f"the package flows is {site.here}/flows/__init__.py, not nightferry's" in done.stderr


def test_an_api_that_everybody_reaches_and_nobody_guards_is_refused(site):
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    from deployments.apply import require_guarded_api
    from nightferry.model.load import load_site

    model = load_site(site.path).site
    with temporary_settings(
        {PREFECT_API_URL: "http://prefect.example:4200/api", PREFECT_API_AUTH_STRING: None}
    ):
        with pytest.raises(ConfigError, match="not on loopback"):
            require_guarded_api(model)
        with temporary_settings({PREFECT_API_AUTH_STRING: "admin:for-a-test"}):
            require_guarded_api(model)


@pytest.fixture(scope="module")
def worker(deployed, tmp_path_factory):
    """A real worker in an empty working directory."""
    folder = tmp_path_factory.mktemp("worker")
    log = (folder.parent / "worker.log").open("w")
    process = subprocess.Popen(
        [sys.executable, "-m", "prefect", "worker", "start", "--pool", "nightferry-tex"],
        cwd=folder,
        env=environment(
            NIGHTFERRY_SITE=str(deployed[0].path),
            PREFECT_WORKER_QUERY_SECONDS="1",
            PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL="INFO",
        ),
        stdout=log,
        stderr=log,
        # Whoever runs the tests in the background has SIGINT ignored, which children inherit; Prefect's worker
        # turns SIGTERM into SIGINT to end itself.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads hold locks here
    )
    yield log.name
    process.terminate()
    process.wait(timeout=60)


def prefect(*words):
    done = subprocess.run(
        [sys.executable, "-m", "prefect", *words], capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def start(flow, **parameters):
    made = ask(f"/deployments/{deployment(flow)['id']}/create_flow_run", {"parameters": parameters})
    return made["id"]


def ended(flow_run):
    def final():
        run = ask(f"/flow_runs/{flow_run}", method="GET")
        done = run["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
        return done and run

    return until(final, 90)


def test_a_worker_runs_the_night_and_a_retry_of_the_held_flow_run_ends_it(deployed, worker):
    site, _ = deployed
    store = site.here / "stores/shares"
    store.rename(site.here / "away")
    shown = prefect(
        *("deployment", "run", "two-stage-backup/tex"),
        *("--param", f"back_group={BACK}", "--param", "stagger=false"),
    )
    flow_run = next(
        run["id"] for run in ask("/flow_runs/filter", {"sort": "START_TIME_DESC"}) if run["id"] in shown
    )
    held = ended(flow_run)
    assert (held["state_type"], held["state_name"]) == ("FAILED", "GateHeld"), held["state"]["message"]
    assert "SG2/shares" in held["state"]["message"]
    staged = {p: p.stat().st_mtime_ns for p in (site.here / "backup").rglob("*.tar")}
    assert len(staged) == 2

    (site.here / "away").rename(store)
    prefect("flow-run", "retry", flow_run)
    night = until(lambda: (run := ended(flow_run))["run_count"] == 2 and run)
    assert night["state_name"] == "Completed", night["state"]["message"]
    assert {p: p.stat().st_mtime_ns for p in staged} == staged
    here = site.opened()
    run = here.catalog.runs(BACK)[0]
    assert (run.state, run.result, run.flow_run) == ("ended", "whole", flow_run)
    assert {c.state for i in here.catalog.images() for c in here.catalog.copies(i.image)} == {"verified"}


def test_a_worker_restores_below_a_restore_root_and_nowhere_else(deployed, worker):
    site, _ = deployed
    # By the records alone: another run of the window finds what is staged, or stages it.
    assert site.night().is_completed()
    where = {"to": f"{site.here}/restored/a", "node": "TEX-PASS-1"}
    inside = start("restore-files", store="SG1/priv1", patterns=["mail.txt"], **where)
    outside = start("restore-files", store="SG1/priv1", patterns=["mail.txt"], to=f"{site.here}/elsewhere")
    whole = start("restore-group", group="SG1", to=f"{site.here}/restored/group", copy_from="tape")
    good, refused, group = ended(inside), ended(outside), ended(whole)
    for run in (good, group):
        assert run["state_name"] == "Completed", run["state"]["message"]
    for store in ("priv1", "priv2"):
        subprocess.run(
            ["diff", "-r", site.here / "stores" / store, site.here / "restored/group" / store], check=True
        )
    back = site.here / "restored/a/mail.txt"
    assert back.read_bytes() == (site.here / "stores/priv1/mail.txt").read_bytes()
    assert refused["state_type"] == "FAILED"
    assert "is not below a restore root" in refused["state"]["message"]
    assert not (site.here / "elsewhere").exists()


def test_a_worker_run_that_is_cancelled_stops_and_leaves_nothing_that_looks_whole(deployed, worker):
    site, _ = deployed
    subprocess.run(
        ["dd", "if=/dev/urandom", f"of={site.here}/stores/shares/large", "bs=1M", "count=96", "status=none"],
        check=True,
    )
    flow_run = start("two-stage-backup", back_group=BACK, stores=["SG2/shares"], new=True, stagger=False)

    def writing():
        catalog = site.opened().catalog
        images = [i.image for i in catalog.images() if i.size_bytes > 90 << 20]
        copies = [c for image in images for c in catalog.copies(image) if c.destination == "objects"]
        return copies and copies[0]

    copy = until(writing, 60)
    ask(f"/flow_runs/{flow_run}/set_state", {"state": {"type": "CANCELLING"}})
    stopped = ended(flow_run)
    assert stopped["state_type"] == "CANCELLED", stopped["state"]
    until(lambda: site.opened().claims.exclusive(BACK).holder() is None)
    assert {c.state for c in site.opened().catalog.all_copies(copy.image) if c.destination == "objects"} == {
        "writing"
    }
    objects = [p for p in (site.here / "objects").rglob("*") if copy.image in str(p) and p.is_file()]
    assert not any(p.name == "copy.json" for p in objects)


def test_the_block_is_found_by_its_entry_point_and_by_its_module(prefect_server):
    from importlib.metadata import entry_points

    [found] = [e for e in entry_points(group="prefect.collections") if e.name == "nightferry"]
    assert found.load().Site.get_block_type_slug() == "nightferry-site"
    assert "nightferry site" in prefect("block", "register", "-m", "blocks")


def test_a_site_saved_and_loaded_is_the_same_and_holds_no_secret(prefect_server, site, monkeypatch):
    from blocks.site import Site

    monkeypatch.setenv("NF_KEY", "a-secret-of-this-test")
    text = site.path.read_text().replace(
        f'url = "file://{site.here}/objects"',
        f'url = "file://{site.here}/objects"\noptions = {{ key = "env:NF_KEY" }}',
    )
    Site(text=text, published="").save("saved", overwrite=True)
    loaded = Site.of("saved")
    assert loaded.text == text
    assert loaded.open().site.site.name == "TEX"
    raw = json.dumps(ask("/block_types/slug/nightferry-site/block_documents/name/saved", method="GET"))
    assert os.environ["NF_KEY"] not in raw
    with pytest.raises(ConfigError, match="site nosuch is not published"):
        Site.of("nosuch")
