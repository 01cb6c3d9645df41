"""Copies in archived classes: moto's server plays the archive; where checksums count, a real server behind a
proxy that lets nothing be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from nightferry.copies import verify
from nightferry.copies.read_back import mark_damaged
from nightferry.destination.s3 import probe
from nightferry.errors import Cancelled, DestinationError, NeedsRecall, Unavailable
from nightferry.health.check import check
from nightferry.model.records import RecallRecord
from nightferry.progress import QUIET, Cancel
from nightferry.restore import restore
from nightferry.site.destinations import destination_of
from nightferry.site.opened import OpenSite
from nightferry.staging.images import staged_path
from tests.servers.moto import KEYS, Moto
from tests.servers.proxy import Ask, Fault, Proxy, proxied
from tests.servers.seaweed import Seaweed
from tests.support import night, toml
from tests.support.brought import bring_back, states
from tests.support.command_site import Command
from tests.support.outside import compare_tree
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

pytestmark = pytest.mark.server
MakeSite = Callable[..., SmallSite]


class Said:
    """A sink that keeps what was said, shown and begun."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.lines: list[str] = []
        self.shown: set[str] = set()
        self.begun: list[str] = []
        self.ended: dict[str, str] = {}
        self.then = then

    def begin(self, subject: str, phase: str, total_bytes: int | None = None) -> None:
        self.begun.append(phase)

    def advance(self, subject: str, done_bytes: int, current: str = "") -> None:
        if current.startswith("waiting") and current not in self.shown:
            self.shown.add(current)
            self.then()

    def end(self, subject: str, result: str) -> None:
        self.ended[subject] = result

    def say(self, text: str, subject: str = "") -> None:
        self.lines.append(text)


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NF_TEST_ACCESS", KEYS[0])
    monkeypatch.setenv("NF_TEST_SECRET", KEYS[1])
    probe.forget_abilities()


@pytest.fixture
def proxy(moto: Moto) -> Iterator[Proxy]:
    with proxied(moto.endpoint) as proxy:
        yield proxy


def asks(proxy: Proxy) -> int:
    return proxy.count(lambda ask: ask.method == "POST" and "restore" in ask.query)


def archived_site(
    site: SmallSite,
    server: Moto | Seaweed,
    endpoint: str,
    storage_class: str = "DEEP_ARCHIVE",
    more: str = "",
) -> SmallSite:
    in_class = f'storage_class = "{storage_class}"\n{more}'
    cloud = toml.bucket(f"s3://{server.bucket}/{server.prefix()}", endpoint, in_class)
    site.write_file(copies=(*site.copies, "cloud"), more=cloud)
    return site


def on_the_cloud_alone(site: SmallSite, clock: HandClock) -> OpenSite:
    """The site after a night, its images gone from staging."""
    opened = site.open(clock)
    record = night.stage_one(opened, BACK_GROUP)
    night.stage_two(opened, record)
    for image in opened.catalog.images():
        staged_path(opened, image).unlink(missing_ok=True)
    return opened


@pytest.mark.xdist_group("moto")
@pytest.mark.parametrize("storage_class", ["GLACIER", "DEEP_ARCHIVE"])
def test_a_restore_asks_waits_in_sight_and_reads(
    make_site: MakeSite, moto: Moto, proxy: Proxy, tmp_path: Path, storage_class: str
) -> None:
    moto.arrive_after(6)
    site, clock = archived_site(make_site(copies=()), moto, proxy.endpoint, storage_class), HandClock()
    with on_the_cloud_alone(site, clock) as opened:
        assert asks(proxy) == 0
        said, begun = Said(), clock.now()
        done = bring_back(opened, tmp_path / "back", progress=said)
        assert done.copy == "cloud"
        assert clock.now() > begun
        image = done.plan.image.image
        assert said.ended[f"{image} at cloud"] == "arrived"
    assert asks(proxy) == 1
    assert compare_tree(site.store("SG1/a"), tmp_path / "back") == ""
    (line,) = said.shown
    assert line.startswith(f"waiting for its recall from {storage_class} (standard), asked 2026-11-")
    assert f"until {begun + timedelta(hours=48):%Y-%m-%d}" in line
    assert line in said.lines


@pytest.mark.xdist_group("moto")
def test_tier_and_days_are_what_the_site_file_says(
    make_site: MakeSite, moto: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moto.arrive_after(2)
    more = 'recall = { tier = "bulk", days = 9, wait = "3d" }'
    site = archived_site(make_site(copies=()), moto, moto.endpoint, more=more)
    with on_the_cloud_alone(site, HandClock()) as opened:
        sent = []
        client = destination_of(opened, "cloud")._bucket._connection.client  # type: ignore[attr-defined]  # its events
        client.meta.events.register(
            "before-call.s3.RestoreObject", lambda params, **_: sent.append(bytes(params["body"]))
        )
        said = Said()
        bring_back(opened, tmp_path / "back", progress=said)
    (body,) = sent
    assert b"<Days>9</Days>" in body
    assert b"<Tier>Bulk</Tier>" in body
    assert any("(bulk)" in line for line in said.lines), said.lines


@pytest.mark.xdist_group("moto")
def test_copies_that_need_no_recall_are_read_first_suspect_ones_too(
    make_site: MakeSite, moto: Moto, proxy: Proxy, tmp_path: Path
) -> None:
    site = archived_site(make_site(copies=("tape", "folder")), moto, proxy.endpoint)
    with on_the_cloud_alone(site, HandClock()) as opened:
        image = restore.find_image(opened, "SG1", "a")
        assert bring_back(opened, tmp_path / "1").copy == "folder"
        for copy in opened.catalog.copies(image.image):
            if copy.destination == "folder":
                destination_of(opened, "folder").remove(copy.location)
            if copy.destination == "tape":
                opened.catalog.append(copy.model_copy(update={"state": "suspect"}))
        plan = restore.plan_restore(opened, image, (), tmp_path / "2")
        seen = restore.look_for_recalls(opened, plan)
        assert [(p.source, p.needs_recall) for p in seen.sources] == [
            ("folder", False),
            ("tape", False),
            ("cloud", True),
        ]
        assert bring_back(opened, tmp_path / "2").copy == "tape"
        assert asks(proxy) == 0


@pytest.mark.xdist_group("moto")
def test_a_dry_run_says_that_a_recall_is_needed_and_asks_for_none(
    make_site: MakeSite, moto: Moto, proxy: Proxy, tmp_path: Path, nightferry: Command
) -> None:
    site = archived_site(make_site(copies=()), moto, proxy.endpoint)
    on_the_cloud_alone(site, HandClock()).close()
    ran = nightferry(
        site.file, "restore", "store", "SG1/a", "--to", str(tmp_path / "x"), "--dry-run", "--json"
    )
    assert ran.code == 0, ran.err
    assert ran.document["needs_recall"] == ["cloud"]
    assert ran.document["predicted_s"] > 3600
    ran = nightferry(site.file, "restore", "store", "SG1/a", "--to", str(tmp_path / "x"), "--dry-run")
    assert "needs recall from an archive: cloud" in ran.out
    assert asks(proxy) == 0


@pytest.mark.xdist_group("moto")
def test_a_deadline_that_passed_is_an_error_and_the_rerun_waits_on_without_asking(
    make_site: MakeSite, moto: Moto, proxy: Proxy, tmp_path: Path
) -> None:
    moto.arrive_after(0)
    site = archived_site(make_site(copies=()), moto, proxy.endpoint, more='recall = { wait = "2h" }')
    clock = HandClock()
    with on_the_cloud_alone(site, clock) as opened:
        # moto lets a recall be under way only when its first look says so; from then on it takes for ever.
        never = Said(lambda: moto.arrive_after(1 << 30))
        with pytest.raises(Unavailable, match="did not arrive within 2 h") as caught:
            bring_back(opened, tmp_path / "back", progress=never)
        assert "waits for the same recall" in caught.value.hint
        assert not (tmp_path / "back" / "big.bin").exists()
        image = restore.find_image(opened, "SG1", "a").image
        (record,) = opened.catalog.all(RecallRecord)
        assert (record.image, record.destination) == (image, "cloud")
    asked = f"{record.asked:%Y-%m-%d %H:%M}"
    clock.advance(timedelta(hours=1))
    with site.open(clock) as opened:
        cancel = Cancel()
        said = Said(lambda: cancel.set("by hand"))
        with pytest.raises(Cancelled):
            bring_back(opened, tmp_path / "back", progress=said, cancel=cancel)
        assert any(f"asked {asked}, until" in line for line in said.lines), said.lines
        moto.arrive_after(1)
        assert bring_back(opened, tmp_path / "back").copy == "cloud"
    assert asks(proxy) == 1
    assert compare_tree(site.store("SG1/a"), tmp_path / "back") == ""


def site_prefix(site: SmallSite) -> str:
    return site.file.read_text().split('url = "s3://copies/')[1].split('"')[0]


@pytest.mark.xdist_group("moto")
def test_a_recall_begun_by_hand_is_waited_for_and_not_asked_again(
    make_site: MakeSite, moto: Moto, proxy: Proxy, tmp_path: Path
) -> None:
    moto.arrive_after(8)
    site = archived_site(make_site(copies=()), moto, proxy.endpoint)
    with on_the_cloud_alone(site, HandClock()) as opened:
        image = restore.find_image(opened, "SG1", "a").image
        moto.client().restore_object(
            Bucket=moto.bucket,
            Key=f"{site_prefix(site)}/images/{image}/data",
            RestoreRequest={"Days": 1, "GlacierJobParameters": {"Tier": "Standard"}},
        )
        said = Said()
        assert bring_back(opened, tmp_path / "back", progress=said).copy == "cloud"
        assert any("asked earlier, by somebody else" in line for line in said.lines), said.lines
    assert asks(proxy) == 0


@pytest.mark.xdist_group("moto")
def test_neither_a_night_nor_verify_asks_for_a_recall_unless_told_to(
    make_site: MakeSite, moto: Moto, proxy: Proxy, nightferry: Command
) -> None:
    moto.arrive_after(3)
    site = archived_site(make_site(copies=("folder",)), moto, proxy.endpoint)
    with on_the_cloud_alone(site, HandClock()) as opened:
        image = restore.find_image(opened, "SG1", "a").image
        # moto compares no checksum: nothing there is ever verified on arrival, and check says so.
        assert states(opened, image) == {"folder": "verified", "cloud": "whole"}
        assert "NF-S3-010" in [f.id for f in check(opened.loaded)]
    ran = nightferry(site.file, "verify", "--copy", "cloud", "--json")
    assert ran.code == 0
    assert {c["state"] for c in ran.document["copies"]} == {"whole"}
    assert all("--recall asks for it" in c["note"] for c in ran.document["copies"])
    ran = nightferry(site.file, "verify", "--copy", "cloud")
    assert "0 of 2 copies right, 2 out of reach and not read" in ran.out
    assert asks(proxy) == 0
    with site.open(HandClock()) as opened:
        checked = list(verify.verify_copies(opened, "cloud", recalling=True, progress=QUIET, cancel=Cancel()))
        assert [(c.error, c.copy.state) for c in checked] == [("", "verified")] * 2
    assert asks(proxy) == 2


@pytest.mark.xdist_group("moto")
def test_a_copy_is_made_from_an_archived_one_when_there_is_no_other(
    make_site: MakeSite, moto: Moto, proxy: Proxy
) -> None:
    moto.arrive_after(3)
    site = archived_site(make_site(copies=("folder",)), moto, proxy.endpoint)
    with on_the_cloud_alone(site, HandClock()) as opened:
        image = restore.find_image(opened, "SG1", "a")
        (copy,) = [c for c in opened.catalog.copies(image.image) if c.destination == "folder"]
        mark_damaged(opened, copy, DestinationError("for the test"))
        made = verify.remake_copy(opened, image, "folder", progress=QUIET, cancel=Cancel())
        assert made.state == "verified"
    assert asks(proxy) == 1


@pytest.mark.xdist_group("moto")
def test_a_refused_recall_is_told_with_what_to_do(
    make_site: MakeSite, moto: Moto, proxy: Proxy, tmp_path: Path
) -> None:
    site = archived_site(make_site(copies=()), moto, proxy.endpoint)
    with on_the_cloud_alone(site, HandClock()) as opened:
        denied = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
        proxy.rule = lambda ask: Fault(answer=(403, {}, denied)) if "restore" in ask.query else None
        with pytest.raises(DestinationError, match="AccessDenied") as caught:
            bring_back(opened, tmp_path / "back")
        assert "docs/s3.md" in caught.value.hint
        assert opened.catalog.all(RecallRecord) == []


@pytest.mark.xdist_group("seaweed")
@pytest.mark.usefixtures("bucket_keys")
@pytest.mark.parametrize("encode", ["", 'encode = { compress = "zstd:1" }'])
def test_where_checksums_count_an_archived_copy_is_verified_as_it_arrives(
    make_site: MakeSite, seaweed: Seaweed, encode: str
) -> None:
    away = b"<Error><Code>InvalidObjectState</Code><Message>archived</Message></Error>"

    def archive(ask: Ask) -> Fault | None:
        is_data = ask.path.endswith(("/data", "/data.zst"))
        return Fault(answer=(403, {}, away)) if ask.method == "GET" and is_data else None

    with proxied(seaweed.endpoint) as proxy:
        proxy.rule = archive
        site = archived_site(make_site(copies=()), seaweed, proxy.endpoint, more=encode)
        (site.store("SG1/a") / "deep" / "letter.txt").write_text("dear reader\n" * 300_000)
        with site.open(HandClock()) as opened:
            assert night.night(opened, BACK_GROUP).result == "whole"
            image = restore.find_image(opened, "SG1", "a").image
            (copy,) = opened.catalog.copies(image)
            assert copy.state == "verified"
            assert copy.location.get("encoding", "") == ("zstd" if encode else "")
            # A crash between the last object and the record: the copy is found again, and still proved.
            found = destination_of(opened, "cloud").find(image, copy.epoch)
            assert found is not None
            assert found.verified
            with pytest.raises(NeedsRecall), destination_of(opened, "cloud").open(copy.location):
                pass
            (checked, _) = verify.verify_copies(opened, "cloud", progress=QUIET, cancel=Cancel())
            assert checked.note
            assert checked.copy.state == "verified"
        assert asks(proxy) == 0


@pytest.mark.xdist_group("seaweed")
@pytest.mark.usefixtures("bucket_keys")
def test_a_store_that_reads_an_archived_class_all_the_same_is_read(
    make_site: MakeSite, seaweed: Seaweed, tmp_path: Path
) -> None:
    site = archived_site(make_site(copies=()), seaweed, seaweed.endpoint, "GLACIER")
    with on_the_cloud_alone(site, HandClock()) as opened:
        said = Said()
        assert bring_back(opened, tmp_path / "back", progress=said).copy == "cloud"
        assert "recall" not in said.begun
    assert compare_tree(site.store("SG1/a"), tmp_path / "back") == ""
