"""Whole nights of a site whose catalog lies in a bucket of a real S3 server."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nightferry.claims import heartbeat
from nightferry.destination.s3 import destination as s3_destination
from nightferry.destination.s3.backoff import Backoff
from nightferry.destination.s3.failure import is_passing
from nightferry.errors import BusyError, CatalogError
from nightferry.health.check import check
from nightferry.health.status import status
from nightferry.model.records import CopyRecord, ImageRecord
from nightferry.site import catalog_bucket
from nightferry.site.opened import OpenSite
from tests.servers.proxy import Fault, Proxy
from tests.servers.seaweed import Seaweed
from tests.support import night
from tests.support.brought import bring_back
from tests.support.bucket_catalog import move_catalog
from tests.support.command_site import Command
from tests.support.night_process import NightProcess
from tests.support.outside import compare_tree, folder_copies, tape_copies, wrong_images
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("seaweed")]

MakeSite = Callable[..., SmallSite]


@pytest.fixture(autouse=True)
def _ask_again() -> None:
    catalog_bucket._honest.clear()


@pytest.fixture
def proxy(proxy: Proxy) -> Proxy:
    s3_destination._backoffs[proxy.endpoint] = Backoff(is_passing, clock=HandClock(), attempts=3)
    return proxy


class RealWaits(HandClock):
    """The night's own time of day; what waits by it waits, since another process sends heartbeats meanwhile."""

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def require_whole(site: SmallSite, opened: OpenSite, to: Path) -> None:
    """Everything is green, and what stands at the destinations and comes back is the stores."""
    assert [s.colour for s in status(opened)] == ["green"] * len(site.names)
    assert wrong_images(folder_copies(site.objects), site.home / "stores") == []
    assert len(tape_copies(site.library)) == len(folder_copies(site.objects)) == len(site.names)
    bring_back(opened, to, copy="tape")
    assert compare_tree(site.store("SG1/a"), to) == ""


def test_a_night_with_its_catalog_in_a_bucket(make_site: MakeSite, seaweed: Seaweed, tmp_path: Path) -> None:
    site = make_site()
    prefix = move_catalog(site.file, seaweed)
    with site.open(HandClock()) as opened:
        record = night.night(opened, BACK_GROUP)
        assert (record.state, record.result) == ("ended", "whole")
        require_whole(site, opened, tmp_path / "back")
    assert not (site.home / "catalog").exists()
    keys = [key.removeprefix(f"{prefix}/") for key in seaweed.keys_below(prefix)]
    assert {key.partition("/")[0] for key in keys} == {"events", "indexes", "logs", "segments"}
    with site.open(HandClock()) as opened:
        again = night.night(opened, BACK_GROUP)
        assert again.run == record.run
        assert len(opened.catalog.runs()) == 1


def test_a_night_killed_at_any_phase_goes_on_after_the_leases_time(
    make_site: MakeSite, seaweed: Seaweed, tmp_path: Path
) -> None:
    site = make_site()
    move_catalog(site.file, seaweed)
    said: list[str] = []

    class Told:
        def begin(self, subject: str, phase: str, total_bytes: int | None = None) -> None: ...
        def advance(self, subject: str, done_bytes: int, current: str = "") -> None: ...
        def end(self, subject: str, result: str) -> None: ...
        def say(self, text: str, subject: str = "") -> None:
            said.append(text)

    for phase in ("stage SG1/b", "stream SG1/b → tape"):
        with NightProcess(site.file) as killed:
            killed.until(phase)
            killed.process.send_signal(signal.SIGKILL)
            killed.process.wait()
    with site.open(HandClock()) as opened:
        before = opened.clock.monotonic()
        record = night.night(opened, BACK_GROUP, progress=Told())
        assert opened.clock.monotonic() - before >= 60
        assert record.result == "whole"
        require_whole(site, opened, tmp_path / "back")
    assert any("sent no heartbeat" in text for text in said)


def test_a_stopped_run_that_was_taken_over_records_nothing_when_it_wakes(
    make_site: MakeSite, seaweed: Seaweed, tmp_path: Path
) -> None:
    site = make_site()
    move_catalog(site.file, seaweed)
    with NightProcess(site.file) as sleeper:
        sleeper.until("stage SG1/b")
        sleeper.process.send_signal(signal.SIGSTOP)
        with site.open(HandClock()) as opened:
            assert night.night(opened, BACK_GROUP).result == "whole"
            known = opened.catalog.export()[0]
            sleeper.process.send_signal(signal.SIGCONT)
            sleeper.go("on")
            assert sleeper.line().startswith("failed 10 TEX-BACK-1 is no longer held by this run")
            assert opened.catalog.refresh() == 0
            assert opened.catalog.export()[0] == known
            require_whole(site, opened, tmp_path / "back")


def test_two_runs_of_one_window_meet_as_one_is_busy(
    make_site: MakeSite, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site()
    move_catalog(site.file, seaweed)
    monkeypatch.setenv("NF_TEST_LEASE_S", "3")
    monkeypatch.setattr(heartbeat, "LEASE_S", 3.0)
    with NightProcess(site.file) as first:
        first.until("stage SG1/a")
        began = time.monotonic()
        with site.open(RealWaits()) as opened, pytest.raises(BusyError, match="on node") as refused:
            night.night(opened, BACK_GROUP)
        assert str(first.process.pid) in refused.value.message
        assert time.monotonic() - began < 3
        first.go("on")
        assert first.line() == "ended ended"


def test_an_endpoint_that_goes_away_in_the_night_leaves_nothing_half(
    make_site: MakeSite, seaweed: Seaweed, proxy: Proxy, tmp_path: Path
) -> None:
    site = make_site()
    move_catalog(site.file, seaweed, proxy.endpoint)
    with site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        writes = 0

        def rule(ask: object) -> Fault | None:
            nonlocal writes
            writes += getattr(ask, "method", "") == "PUT"
            return Fault(cut_request=0) if writes > 6 else None

        proxy.rule = rule
        with pytest.raises(CatalogError) as failed:
            night.stage_two(opened, record)
        assert failed.value.exit_code == 60
        proxy.rule = lambda ask: None
        opened.catalog.refresh()
        for image in opened.catalog.all(ImageRecord):
            for copy in opened.catalog.copies(image.image):
                assert copy.state in ("writing", "whole", "verified")
    with site.open(HandClock()) as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
        require_whole(site, opened, tmp_path / "back")
        assert {c.state for c in opened.catalog.all(CopyRecord)} <= {"verified", "lost", "writing"}


def test_an_empty_bucket_after_a_used_disk_is_refused(make_site: MakeSite, seaweed: Seaweed) -> None:
    site = make_site()
    move_catalog(site.file, seaweed)
    with site.open(HandClock()) as opened:
        night.stage_one(opened, BACK_GROUP)
    text = site.file.read_text()
    site.file.write_text(text.replace(f"s3://{seaweed.bucket}/", f"s3://{seaweed.bucket}/other-"))
    with pytest.raises(CatalogError, match="is empty, but TEX-BACK-1 was used before"):
        site.open(HandClock())


def test_check_looks_whether_the_endpoint_honours_claims(
    make_site: MakeSite, seaweed: Seaweed, proxy: Proxy
) -> None:
    site = make_site()
    move_catalog(site.file, seaweed, proxy.endpoint)
    with site.open() as opened:
        assert [f for f in check(opened.loaded) if f.id.startswith("NF-CAT")] == []
        catalog_bucket._honest.clear()
        asked: set[str] = set()

        def rule(ask: object) -> Fault | None:
            path = str(getattr(ask, "path", ""))
            if getattr(ask, "method", "") != "PUT" or path not in asked:
                asked.add(path)
                return None
            return Fault(answer=(200, {"ETag": '"0"'}, b""))

        proxy.rule = rule
        (finding,) = [f for f in check(opened.loaded) if f.id.startswith("NF-CAT")]
    assert (finding.id, finding.severity) == ("NF-CAT-003", "fail")
    assert "If-None-Match" in finding.text


def test_an_endpoint_that_is_away_exits_60_and_names_the_catalog(
    make_site: MakeSite, seaweed: Seaweed, proxy: Proxy, nightferry: Command
) -> None:
    site = make_site()
    move_catalog(site.file, seaweed, proxy.endpoint)
    proxy.rule = lambda ask: Fault(cut_request=0)
    for verb in (("status",), ("images",), ("restore", "store", "SG1/a", "--to", site.home / "returned")):
        ran = nightferry(site.file, *verb, "--json")
        assert ran.code == 60
        assert f"s3://{seaweed.bucket}/" in ran.error["message"]
    assert not (site.home / "returned").exists()
