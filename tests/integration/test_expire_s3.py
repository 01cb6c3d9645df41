"""Expiry in buckets of a real S3 server: locks, versions, keys of its own, uploads that were cut off."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nightferry.progress import QUIET, Cancel
from nightferry.retention import expire
from nightferry.site.opened import OpenSite
from tests.servers.seaweed import KEYS, WRITER_KEYS, Seaweed
from tests.support import toml
from tests.support.brought import bring_back
from tests.support.buckets import PART, open_bucket
from tests.support.night import nights
from tests.support.outgoing import MARK, MIB, PlainImage, put
from tests.support.outside import compare_tree
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("seaweed"), pytest.mark.usefixtures("bucket_keys")]

MakeSite = Callable[..., SmallSite]
DAY = timedelta(days=1)
KEEP_1 = '[retention]\nkeep_last = 1\nat_most = "90 %"\n'

NO_REMOVAL = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Deny",
            "Principal": {"AWS": f"arn:aws:iam::000000000000:user/{WRITER_KEYS[0]}"},
            "Action": ["s3:DeleteObject", "s3:DeleteObjectVersion", "s3:AbortMultipartUpload"],
            "Resource": ["arn:aws:s3:::{bucket}/*"],
        }
    ],
}
"""With the rights that the server gives it, this key may then only put."""
EXPIRE = 'expire = { access_key = "env:NF_TEST_EXPIRE", secret_key = "env:NF_TEST_EXPIRE_SECRET" }'


@pytest.fixture
def bucket(seaweed: Seaweed, request: pytest.FixtureRequest) -> str:
    """A bucket of one's own: ``locked``, ``versioned`` or ``plain``, by the test's parameter."""
    kind = getattr(request, "param", "plain")
    client, name = seaweed.client(), f"{kind}-{seaweed.prefix()}"
    client.create_bucket(Bucket=name, ObjectLockEnabledForBucket=kind == "locked")
    if kind == "versioned":
        client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    return name


def build(make_site: MakeSite, seaweed: Seaweed, bucket: str, more: str = "") -> SmallSite:
    site = make_site(copies=())
    cloud = toml.bucket(f"s3://{bucket}/tex", seaweed.endpoint, more)
    site.write_file(copies=("cloud",), more=KEEP_1 + cloud)
    return site


def run_expire(opened: OpenSite, **options: Any) -> expire.Expiry:
    return expire.expire(opened, progress=QUIET, cancel=Cancel(), **options)


def fates(done: expire.Expiry) -> dict[str, str]:
    return {row.image.image: row.fate for row in done.copies if ".a." in row.image.image}


def versions(seaweed: Seaweed, bucket: str) -> dict[str, list[str]]:
    """``Versions`` and ``DeleteMarkers``: the images that have some, by boto3's own listing."""
    answer = seaweed.client().list_object_versions(Bucket=bucket, Prefix="tex/images/")
    return {
        kind: sorted({entry["Key"].split("/")[2] for entry in answer.get(kind, ())})
        for kind in ("Versions", "DeleteMarkers")
    }


def image(day: int, store: str = "a") -> str:
    return f"202611{day}-TEX-BACK-1.SG1.{store}.L0"


@pytest.mark.parametrize("bucket", ["plain", "versioned"], indirect=True)
def test_what_expired_is_gone_in_every_version_and_what_stays_comes_back(
    make_site: MakeSite, seaweed: Seaweed, bucket: str, tmp_path: Path
) -> None:
    site, clock = build(make_site, seaweed, bucket), HandClock()
    with site.open(clock) as opened:
        nights(opened, clock, 3)
        done = run_expire(opened)
        assert fates(done) == {image(12): "kept", image(11): "expired", image(10): "expired"}
        assert done.freed_bytes == sum(r.copy.size_bytes for r in done.gone)
        assert versions(seaweed, bucket) == {
            "Versions": [image(12), image(12, "b")],
            "DeleteMarkers": [],
        }
        bring_back(opened, tmp_path / "back", copy="cloud")
    assert compare_tree(site.store("SG1/a"), tmp_path / "back") == ""
    client = seaweed.client()
    body = client.get_object(Bucket=bucket, Key=f"tex/images/{image(12)}/data")["Body"].read()
    told = subprocess.run(["sha256sum"], input=body, capture_output=True, check=True).stdout.split()[0]
    staged = site.disk / "SG1" / "a" / f"{image(12)}.tar"
    assert subprocess.run(["sha256sum", staged], capture_output=True, check=True).stdout.split()[0] == told


def test_a_bucket_that_began_to_keep_versions_later_keeps_none_of_what_expired(
    make_site: MakeSite, seaweed: Seaweed, bucket: str
) -> None:
    site, clock = build(make_site, seaweed, bucket), HandClock()
    client = seaweed.client()
    with site.open(clock) as opened:
        nights(opened, clock, 1)
        client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        nights(opened, clock, 1)
        key = f"tex/images/{image(10)}/data"
        client.delete_object(Bucket=bucket, Key=key)  # somebody hid it: what is hidden takes room, too
        assert fates(run_expire(opened))[image(10)] == "expired"
    assert versions(seaweed, bucket) == {"Versions": [image(11), image(11, "b")], "DeleteMarkers": []}


@pytest.mark.parametrize("bucket", ["locked"], indirect=True)
@pytest.mark.parametrize("mode", ["governance", "compliance"])
def test_a_locked_copy_is_kept_and_explained_until_its_lock_has_ended(
    make_site: MakeSite, seaweed: Seaweed, bucket: str, mode: str
) -> None:
    site = build(make_site, seaweed, bucket, f'lock = {{ mode = "{mode}", days = 30 }}')
    clock = HandClock(datetime.now(UTC))
    with site.open(clock) as opened:
        nights(opened, clock, 2)
        old, new = sorted(i.image for i in opened.catalog.images("SG1", "a"))
        for _ in range(2):
            foreseen = run_expire(opened, dry_run=True)
            done = run_expire(opened)
            assert done.exit_code == 0
            assert fates(done) == fates(foreseen) == {new: "kept", old: "locked"}
            why = next(row.why for row in done.copies if row.image.image == old)
            until = clock.now() + timedelta(days=28)
            assert f"{mode} lock until {until:%Y-%m-%d}" in why
            (copy,) = opened.catalog.copies(old)
            assert copy.state == "verified"
            assert versions(seaweed, bucket)["DeleteMarkers"] == []
        head = seaweed.client().head_object(Bucket=bucket, Key=f"tex/images/{old}/data")
        assert head["ObjectLockMode"] == mode.upper()


@pytest.mark.parametrize("bucket", ["locked"], indirect=True)
def test_the_next_expire_removes_what_is_locked_no_more(
    make_site: MakeSite, seaweed: Seaweed, bucket: str
) -> None:
    """A lock that ends is not waited for: a legal hold is taken away instead."""
    site, clock = build(make_site, seaweed, bucket), HandClock()
    client = seaweed.client()
    with site.open(clock) as opened:
        nights(opened, clock, 2)
        key = f"tex/images/{image(10)}/data"
        client.put_object_legal_hold(Bucket=bucket, Key=key, LegalHold={"Status": "ON"})
        done = run_expire(opened)
        assert fates(done)[image(10)] == "locked"
        assert "legal hold until it is taken away" in next(r.why for r in done.copies if r.fate == "locked")
        client.put_object_legal_hold(Bucket=bucket, Key=key, LegalHold={"Status": "OFF"})
        assert fates(run_expire(opened))[image(10)] == "expired"
    assert image(10) not in versions(seaweed, bucket)["Versions"]


@pytest.mark.parametrize("bucket", ["plain", "versioned"], indirect=True)
def test_nights_need_no_right_to_remove_and_expire_has_a_key_of_its_own(
    make_site: MakeSite, seaweed: Seaweed, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = json.dumps(NO_REMOVAL).replace("{bucket}", bucket)
    seaweed.client().put_bucket_policy(Bucket=bucket, Policy=policy)
    monkeypatch.setenv("NF_TEST_ACCESS", WRITER_KEYS[0])
    monkeypatch.setenv("NF_TEST_SECRET", WRITER_KEYS[1])
    writer = seaweed.client(WRITER_KEYS)
    site, clock = build(make_site, seaweed, bucket), HandClock()
    with site.open(clock) as opened:
        nights(opened, clock, 3)
        with pytest.raises(writer.exceptions.ClientError, match="AccessDenied"):
            writer.delete_object(Bucket=bucket, Key=f"tex/images/{image(10)}/data")
        done = run_expire(opened)
        assert fates(done) == {image(12): "kept", image(11): "failed", image(10): "failed"}
        assert done.exit_code == 20
        (copy,) = opened.catalog.copies(image(10))
        assert copy.state == "verified"
        assert "AccessDenied" in next(r.note for r in done.copies if r.fate == "failed")
    secret = 'secret_key = "env:NF_TEST_SECRET"'
    site.write_file(more=site.more.replace(secret, f"{secret}\n{EXPIRE}"))
    with site.open(clock) as opened:
        # The night's key alone: that of expiry need not even be known there.
        nights(opened, clock, 1)
    monkeypatch.setenv("NF_TEST_EXPIRE", KEYS[0])
    monkeypatch.setenv("NF_TEST_EXPIRE_SECRET", KEYS[1])
    with site.open(clock) as opened:
        done = run_expire(opened)
        assert done.exit_code == 0
        assert set(fates(done).values()) == {"kept", "expired"}
    assert versions(seaweed, bucket) == {"Versions": [image(13), image(13, "b")], "DeleteMarkers": []}


@pytest.mark.parametrize("bucket", ["versioned"], indirect=True)
def test_a_key_that_may_not_remove_versions_hides_the_copy_and_says_so(
    make_site: MakeSite, seaweed: Seaweed, bucket: str
) -> None:
    policy = json.loads(json.dumps(NO_REMOVAL).replace("{bucket}", bucket))
    policy["Statement"][0]["Action"] = ["s3:DeleteObjectVersion"]
    policy["Statement"][0]["Principal"] = "*"
    seaweed.client().put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
    site, clock = build(make_site, seaweed, bucket), HandClock()
    with site.open(clock) as opened:
        nights(opened, clock, 2)
        done = run_expire(opened)
        (row,) = [r for r in done.copies if r.image.image == image(10)]
        assert (row.fate, row.freed_bytes) == ("expired", 0)
        assert row.note.startswith("hidden behind delete markers; its versions stay")
        (copy,) = opened.catalog.copies(image(10))
        assert (copy.state, "delete markers" in copy.note) == ("expired", True)
    assert versions(seaweed, bucket)["DeleteMarkers"] == [image(10), image(10, "b")]
    listed = seaweed.client().list_objects_v2(Bucket=bucket, Prefix=f"tex/images/{image(10)}/")
    assert listed.get("Contents", []) == []


def test_uploads_nobody_goes_on_with_are_listed_and_aborted(
    make_site: MakeSite, seaweed: Seaweed, bucket: str
) -> None:
    site = build(make_site, seaweed, bucket)
    clock = HandClock(datetime.now(UTC))
    client = seaweed.client()
    with site.open(clock) as opened:
        nights(opened, clock, 1)
        (name,) = [i.image for i in opened.catalog.images("SG1", "a")]
        key = f"tex/images/{name}/data"
        begun = client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
        client.upload_part(Bucket=bucket, Key=key, UploadId=begun, PartNumber=1, Body=b"z" * 1000)
        foreign = client.create_multipart_upload(Bucket=bucket, Key="other/images/x")["UploadId"]
        assert run_expire(opened, dry_run=True).orphans == []
        clock.advance(2 * DAY)
        lock = opened.claims.exclusive(BACK_GROUP).acquire("somebody", "20261130")
        assert run_expire(opened).orphans == []
        lock.release()
        foreseen = run_expire(opened, dry_run=True)
        assert [(r.orphan.what, r.orphan.size_bytes) for r in foreseen.orphans] == [("upload", 1000)]
        assert len(client.list_multipart_uploads(Bucket=bucket)["Uploads"]) == 2
        done = run_expire(opened)
        assert (done.freed_bytes, done.exit_code) == (1000, 0)
        left = client.list_multipart_uploads(Bucket=bucket)["Uploads"]
        assert [upload["UploadId"] for upload in left] == [foreign]
        assert set(fates(done).values()) == {"kept"}


def test_data_left_beside_a_compressed_copy_goes_and_the_copy_stays(seaweed: Seaweed) -> None:
    clock = HandClock(datetime.now(UTC) + 3 * DAY)
    prefix = seaweed.prefix()
    destination = open_bucket(seaweed, prefix, clock=clock)
    wanted = PlainImage(image(10), b"compressed" * 9000, encoding="zstd")
    receipt = put(destination, wanted)
    client = seaweed.client()
    folder = f"{prefix}/images/{image(10)}"
    client.put_object(Bucket=seaweed.bucket, Key=f"{folder}/data", Body=b"x" * 77)
    client.put_object(Bucket=seaweed.bucket, Key=f"{prefix}/images/{image(11)}/data", Body=b"y" * 5)
    said = json.dumps({"image": image(11), "site": MARK.site, "id": MARK.id, "run": "r", "epoch": 1})
    client.put_object(
        Bucket=seaweed.bucket, Key=f"{prefix}/images/{image(11)}/origin.json", Body=said.encode()
    )
    before = set(seaweed.keys_below(prefix))
    assert list(destination.orphans(clock.now() - 4 * DAY)) == []
    found = list(destination.orphans(clock.now() - 2 * DAY))
    assert [(x.what, x.path, x.size_bytes) for x in found] == [
        ("data", f"images/{image(10)}/data", 77),
        ("unfinished", f"images/{image(11)}", 5 + len(said)),
    ]
    for orphan in found:
        destination.clear(orphan)
    assert before - set(seaweed.keys_below(prefix)) == {
        f"{folder}/data",
        f"{prefix}/images/{image(11)}/data",
        f"{prefix}/images/{image(11)}/origin.json",
    }
    assert destination.find(image(10), 1) is not None
    with destination.open(receipt.location) as reader:
        assert reader.read(0, reader.size_bytes) == wanted.data


def test_parts_being_added_to_keep_an_old_upload(seaweed: Seaweed) -> None:
    prefix, client = seaweed.prefix(), seaweed.client()
    destination = open_bucket(seaweed, prefix)
    key = f"{prefix}/images/{image(12)}/data"
    said = json.dumps({"image": image(12), "site": MARK.site, "id": MARK.id, "run": "r", "epoch": 1})
    client.put_object(Bucket=seaweed.bucket, Key=key.replace("/data", "/origin.json"), Body=said.encode())
    begun = client.create_multipart_upload(Bucket=seaweed.bucket, Key=key)["UploadId"]
    client.upload_part(Bucket=seaweed.bucket, Key=key, UploadId=begun, PartNumber=1, Body=b"a" * (PART + MIB))
    (upload,) = client.list_multipart_uploads(Bucket=seaweed.bucket, Prefix=prefix)["Uploads"]
    (part,) = client.list_parts(Bucket=seaweed.bucket, Key=key, UploadId=begun)["Parts"]
    newest = max(upload["Initiated"], part["LastModified"])
    assert [x for x in destination.orphans(newest) if x.what == "upload"] == []
    (found,) = (x for x in destination.orphans(newest + timedelta(seconds=1)) if x.what == "upload")
    assert found.since == newest
    client.abort_multipart_upload(Bucket=seaweed.bucket, Key=key, UploadId=begun)
    destination.clear(found)  # gone already is fine
