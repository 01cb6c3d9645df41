"""Whole nights to a bucket of a real S3 server, and back."""

from __future__ import annotations

import json
import logging
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nightferry.cli.output import dump_json
from nightferry.copies import sources, verify
from nightferry.errors import DestinationError, NightferryError
from nightferry.health.check import check
from nightferry.night.report import night_result, report_markdown
from nightferry.progress import QUIET, Cancel
from nightferry.restore import restore
from nightferry.site.destinations import speeds
from nightferry.staging.images import staged_path
from tests.servers.proxy import Proxy
from tests.servers.seaweed import KEYS, Seaweed
from tests.support import night, toml
from tests.support.brought import bring_back, states
from tests.support.outside import compare_tree
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("seaweed"), pytest.mark.usefixtures("bucket_keys")]

MakeSite = Callable[..., SmallSite]


class CloudSite:
    """A small site whose copies go to a bucket."""

    def __init__(self, site: SmallSite, server: Seaweed, endpoint: str = "") -> None:
        self.site = site
        self.server = server
        self.prefix = server.prefix()
        secret = site.home / "secret"
        secret.write_text(KEYS[1])
        secret.chmod(0o600)
        url = f"s3://{server.bucket}/{self.prefix}"
        cloud = toml.bucket(url, endpoint or server.endpoint, keys=("env:NF_TEST_ACCESS", f"file:{secret}"))
        site.write_file(copies=(*site.copies, "cloud"), more=cloud)

    def data_key(self, image: str) -> str:
        return f"{self.prefix}/images/{image}/data"


def test_a_night_ends_verified_without_reading_back_and_a_file_costs_three_requests(
    make_site: MakeSite, seaweed: Seaweed, proxy: Proxy, tmp_path: Path
) -> None:
    cloud = CloudSite(make_site(copies=()), seaweed, proxy.endpoint)
    with cloud.site.open(HandClock()) as opened:
        record = night.night(opened, BACK_GROUP)
        assert record.result == "whole"
        image = restore.find_image(opened, "SG1", "a")
        assert states(opened, image.image) == {"cloud": "verified"}
        assert proxy.count(lambda ask: ask.method == "GET" and ask.path.endswith("/data")) == 0
        before = len(proxy.asked)
        bring_back(opened, tmp_path / "one", ("deep/letter.txt",), "cloud")
        assert len(proxy.asked) - before <= 3
        bring_back(opened, tmp_path / "back", copy="cloud")
    assert compare_tree(cloud.site.store("SG1/a"), tmp_path / "back") == ""
    letter = "deep/letter.txt"
    assert (tmp_path / "one" / letter).read_bytes() == (cloud.site.store("SG1/a") / letter).read_bytes()


def test_a_copy_is_brought_back_by_tar_alone(make_site: MakeSite, seaweed: Seaweed, tmp_path: Path) -> None:
    cloud = CloudSite(make_site(copies=()), seaweed)
    with cloud.site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
        image = restore.find_image(opened, "SG1", "a").image
    target = tmp_path / "back"
    target.mkdir()
    body = seaweed.client().get_object(Bucket=seaweed.bucket, Key=cloud.data_key(image))["Body"].read()
    command = ["tar", "--xattrs", "--acls", "--exclude=.nightferry", "-C", str(target), "-xpf", "-"]
    subprocess.run(command, input=body, check=True)
    assert compare_tree(cloud.site.store("SG1/a"), target) == ""
    meta = seaweed.client().get_object(
        Bucket=seaweed.bucket, Key=cloud.data_key(image).replace("/data", "/meta.json")
    )
    assert json.loads(meta["Body"].read())["image"] == image


@pytest.mark.parametrize("fault", ["replaced", "truncated", "gone"])
def test_a_restore_falls_back_from_an_object_changed_behind_our_back(
    make_site: MakeSite, seaweed: Seaweed, tmp_path: Path, fault: str
) -> None:
    cloud = CloudSite(make_site(copies=("folder",)), seaweed)
    with cloud.site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
        image = restore.find_image(opened, "SG1", "a")
        staged_path(opened, image).unlink()
        client, key = seaweed.client(), cloud.data_key(image.image)
        if fault == "gone":
            client.delete_object(Bucket=seaweed.bucket, Key=key)
        else:
            size = image.size_bytes if fault == "replaced" else 1000
            client.put_object(Bucket=seaweed.bucket, Key=key, Body=b"z" * size)
        named = [choice.source for choice in sources.sources_of(opened, image)]
        assert sorted(named) == ["cloud", "folder"]
        for copy in opened.catalog.copies(image.image):
            if copy.destination == "cloud":
                result = verify.check_one(opened, copy, sample=1.0, progress=QUIET, cancel=Cancel())
                assert result.copy.state == "damaged"
        done = bring_back(opened, tmp_path / "back")
        assert done.copy == "folder"
        assert compare_tree(cloud.site.store("SG1/a"), tmp_path / "back") == ""
        verify.remake_copy(opened, image, "cloud", progress=QUIET, cancel=Cancel())
        assert states(opened, image.image)["cloud"] == "verified"
        bring_back(opened, tmp_path / "again", copy="cloud")
        assert compare_tree(cloud.site.store("SG1/a"), tmp_path / "again") == ""


def test_a_restore_that_meets_the_changed_object_first_goes_on_with_the_next(
    make_site: MakeSite, seaweed: Seaweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = CloudSite(make_site(copies=("folder",)), seaweed)
    with cloud.site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
        image = restore.find_image(opened, "SG1", "a")
        staged_path(opened, image).unlink()
        client, key = seaweed.client(), cloud.data_key(image.image)
        body = bytearray(client.get_object(Bucket=seaweed.bucket, Key=key)["Body"].read())
        body[len(body) // 2] ^= 1
        client.put_object(Bucket=seaweed.bucket, Key=key, Body=bytes(body))
        known = speeds(opened)
        known["cloud"], known["folder"] = known["folder"], known["cloud"]
        monkeypatch.setattr(sources, "speeds", lambda _: known)
        done = bring_back(opened, tmp_path / "back")
        assert (done.copy, states(opened, image.image)["cloud"]) == ("folder", "damaged")
        assert compare_tree(cloud.site.store("SG1/a"), tmp_path / "back") == ""


def test_secrets_are_nowhere_after_a_night_that_fails(
    make_site: MakeSite,
    seaweed: Seaweed,
    proxy: Proxy,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.INFO)
    wrong = "open-sesame-wrong-51c7"
    cloud = CloudSite(make_site(copies=("folder",)), seaweed, proxy.endpoint)
    (cloud.site.home / "secret").write_text(wrong)
    said = []
    with cloud.site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        with pytest.raises(DestinationError) as failed:
            night.stage_two(opened, record)
        said += [str(failed.value), dump_json(failed.value.as_json())]
        said.append(report_markdown(night_result(opened, record)))
        said += [f"{finding}" for finding in check(opened.loaded)]
    (cloud.site.home / "secret").unlink()
    said += [caplog.text, *capsys.readouterr()]
    for text in said:
        assert wrong not in text
    left = [path for path in cloud.site.home.rglob("*") if path.is_file()]
    assert [path for path in left if wrong.encode() in path.read_bytes()] == []
    assert isinstance(failed.value, NightferryError)
    assert "SignatureDoesNotMatch" in said[0]
