"""Endpoints that can less than S3: `check` and the first copy of a night find the same, by the same requests."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from nightferry.destination.s3 import probe
from nightferry.destination.s3.destination import S3Destination
from nightferry.errors import DestinationError
from nightferry.model.destinations import Lock
from nightferry.progress import Cancel
from tests.servers.moto import KEYS as MOTO_KEYS
from tests.servers.moto import Moto
from tests.servers.proxy import Ask, Fault, Proxy, proxied
from tests.servers.seaweed import Seaweed
from tests.support.buckets import PART, open_bucket
from tests.support.outgoing import MIB, PlainImage, put, read_all

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("seaweed")]


@pytest.fixture(autouse=True)
def _ask_the_store_again() -> None:
    probe.forget_abilities()


class Heard:
    """A progress that keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def begin(self, subject: str, phase: str, total_bytes: int | None = None) -> None: ...
    def advance(self, subject: str, done_bytes: int, current: str = "") -> None: ...
    def end(self, subject: str, result: str) -> None: ...
    def say(self, text: str, subject: str = "") -> None:
        self.said.append(text)


class Now:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing is tried again here")


def two_parts(name: str = "i1") -> PlainImage:
    return PlainImage(name, random.Random(name).randbytes(PART + MIB))


def answer(status: int, code: str = "") -> Fault:
    return Fault(answer=(status, {}, f"<Error><Code>{code}</Code></Error>".encode() if code else b""))


def ids(destination: S3Destination) -> list[tuple[str, str]]:
    return [(finding.id, finding.severity) for finding in destination.check()]


def agree_on_failing(destination: S3Destination, finding_id: str, words: str) -> None:
    """Both refuse, in the same words, and the copy before its first byte."""
    failed = [finding for finding in destination.check() if finding.severity == "fail"]
    assert [finding.id for finding in failed] == [finding_id]
    assert words in failed[0].text
    with pytest.raises(DestinationError) as refused:
        put(destination, two_parts())
    scratch = re.compile("check-[0-9a-f]{16}")
    assert scratch.sub("", refused.value.message) == scratch.sub("", failed[0].text)
    assert refused.value.hint == failed[0].fix
    assert not refused.value.retryable


def agree_on_falling_back(
    server: Seaweed, prefix: str, destination: S3Destination, finding_id: str, *, verified: bool = True
) -> None:
    """`check` notes it, the night says it once, and the copies are right, as the server itself gives them."""
    noted = [finding for finding in destination.check() if finding.severity != "fail"]
    assert [finding.id for finding in noted] == [finding_id]
    heard = Heard()
    for name in ("i1", "i2"):
        wanted = two_parts(name)
        receipt = destination.put(wanted, 1, "a", heard, Cancel())
        assert receipt.verified is verified
        body = (
            server.client()
            .get_object(Bucket=server.bucket, Key=f"{prefix}/images/{name}/data")["Body"]
            .read()
        )
        assert hashlib.sha256(body).digest() == hashlib.sha256(wanted.data).digest()
        assert read_all(destination, receipt) == wanted.data
    assert heard.said == [noted[0].text]


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "InvalidArgument"), (403, "AccessDenied"), (412, "PreconditionFailed"), (501, "NotImplemented")],
)
def test_without_conditions_copies_are_written_without_them(
    seaweed: Seaweed, proxy: Proxy, status: int, code: str
) -> None:
    proxy.rule = lambda ask: answer(status, code) if "If-None-Match" in ask.headers else None
    prefix = seaweed.prefix()
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint)
    agree_on_falling_back(seaweed, prefix, destination, "NF-S3-003")


@pytest.mark.parametrize("status", [400, 403, 501])
def test_without_lists_of_uploads_a_cut_one_begins_again(seaweed: Seaweed, proxy: Proxy, status: int) -> None:
    proxy.rule = lambda ask: (
        answer(status, "NotImplemented") if "uploads" in ask.query and ask.method == "GET" else None
    )
    prefix = seaweed.prefix()
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint)
    agree_on_falling_back(seaweed, prefix, destination, "NF-S3-015")
    if status == 501:  # what else is left there is found all the same
        found = list(destination.orphans(datetime.now(UTC) + timedelta(days=1)))
        assert [left.path for left in found] == ["images/i1", "images/i2"]  # no names of images


@pytest.mark.parametrize("status", [400, 403, 501])
def test_without_checksum_headers_copies_are_not_verified_by_them(
    seaweed: Seaweed, proxy: Proxy, status: int
) -> None:
    def refused(ask: Ask) -> Fault | None:
        named = any(name.lower().startswith("x-amz-checksum") for name in ask.headers)
        return answer(status, "AccessDenied") if named and ask.method in ("PUT", "POST") else None

    proxy.rule = refused
    prefix = seaweed.prefix()
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint)
    agree_on_falling_back(seaweed, prefix, destination, "NF-S3-002", verified=False)


def test_a_storage_class_that_the_store_lacks_fails_both(seaweed: Seaweed, proxy: Proxy) -> None:
    def lacks(ask: Ask) -> Fault | None:
        return (
            answer(400, "InvalidStorageClass") if ask.headers.get("x-amz-storage-class") == "FROZEN" else None
        )

    proxy.rule = lacks
    destination = open_bucket(seaweed, seaweed.prefix(), endpoint=proxy.endpoint, storage_class="FROZEN")
    agree_on_failing(destination, "NF-S3-012", "storage_class FROZEN")
    assert proxy.count(lambda ask: "/images/" in ask.path and ask.method in ("PUT", "POST")) == 0
    probe.forget_abilities()
    kept = open_bucket(seaweed, seaweed.prefix(), endpoint=proxy.endpoint, storage_class="STANDARD_IA")
    assert ids(kept) == []


def test_a_store_without_multipart_uploads_fails_both(seaweed: Seaweed, proxy: Proxy) -> None:
    proxy.rule = lambda ask: (
        answer(501, "NotImplemented") if ask.method == "POST" and "uploads" in ask.query else None
    )
    destination = open_bucket(seaweed, seaweed.prefix(), endpoint=proxy.endpoint)
    agree_on_failing(destination, "NF-S3-014", "no multipart uploads")


def test_a_listing_that_lacks_what_was_written_fails_both(seaweed: Seaweed, proxy: Proxy) -> None:
    empty = b"<ListBucketResult><IsTruncated>false</IsTruncated><KeyCount>0</KeyCount></ListBucketResult>"
    proxy.rule = lambda ask: Fault(answer=(200, {}, empty)) if "list-type" in ask.query else None
    destination = open_bucket(seaweed, seaweed.prefix(), endpoint=proxy.endpoint)
    agree_on_failing(destination, "NF-S3-011", "lacks an object that was just written")


LOCK = "x-amz-object-lock-"


@pytest.fixture
def locking(seaweed: Seaweed) -> Iterator[str]:
    """A bucket with object lock."""
    name = "locked-abilities"
    client = seaweed.client()
    client.create_bucket(Bucket=name, ObjectLockEnabledForBucket=True)
    yield name
    versions = client.list_object_versions(Bucket=name)
    for version in versions.get("Versions", []) + versions.get("DeleteMarkers", []):
        client.delete_object(
            Bucket=name, Key=version["Key"], VersionId=version["VersionId"], BypassGovernanceRetention=True
        )
    client.delete_bucket(Bucket=name)


def test_a_key_that_may_not_lock_fails_both(seaweed: Seaweed, proxy: Proxy, locking: str) -> None:
    proxy.rule = lambda ask: (
        answer(403, "AccessDenied") if any(name.lower().startswith(LOCK) for name in ask.headers) else None
    )
    destination = open_bucket(
        seaweed, "x", url=f"s3://{locking}/a", endpoint=proxy.endpoint, lock=Lock(days=3), clock=Now()
    )
    agree_on_failing(destination, "NF-S3-013", "AccessDenied")


def test_a_lock_that_cannot_be_seen_is_not_believed(seaweed: Seaweed, proxy: Proxy, locking: str) -> None:
    proxy.rule = lambda ask: (
        answer(403, "AccessDenied") if ask.method == "HEAD" or "retention" in ask.query else None
    )
    destination = open_bucket(
        seaweed, "x", url=f"s3://{locking}/b", endpoint=proxy.endpoint, lock=Lock(days=3), clock=Now()
    )
    failed = [finding for finding in destination.check() if finding.severity == "fail"]
    assert [finding.id for finding in failed] == ["NF-S3-013"]
    assert "cannot be seen" in failed[0].text


def test_locks_that_are_kept_are_read_back(seaweed: Seaweed, proxy: Proxy, locking: str) -> None:
    destination = open_bucket(
        seaweed, "x", url=f"s3://{locking}/c", endpoint=proxy.endpoint, lock=Lock(days=3), clock=Now()
    )
    assert ids(destination) == []
    assert put(destination, two_parts()).verified
    retention = seaweed.client().get_object_retention(Bucket=locking, Key="c/images/i1/meta.json")[
        "Retention"
    ]
    assert retention["RetainUntilDate"] - datetime.now(UTC) > timedelta(days=2, hours=23)
    assert destination.find("i1", 1) is not None


@pytest.fixture
def dropping(moto: Moto) -> Iterator[tuple[Seaweed, Proxy]]:
    """A bucket with object lock behind a gateway that drops locks. (moto minds no wrong signature.)"""
    moto.client().create_bucket(Bucket="locked-moto", ObjectLockEnabledForBucket=True)
    with proxied(moto.endpoint) as proxy:
        yield Seaweed(moto.endpoint, "locked-moto"), proxy


DROPPED = frozenset({f"{LOCK}mode", f"{LOCK}retain-until-date"})


def dropped(ask: Ask) -> Fault:
    """Asked for a lock that an object has not moto fails with 500; a store says that there is none."""
    return answer(404, "NoSuchObjectLockConfiguration") if "retention" in ask.query else Fault(drop=DROPPED)


@pytest.mark.parametrize("only_the_scratch", [False, True])
def test_locks_dropped_on_the_way_are_no_verified_copies(
    dropping: tuple[Seaweed, Proxy], only_the_scratch: bool
) -> None:
    server, proxy = dropping
    destination = open_bucket(
        server,
        "",
        url="s3://locked-moto/x",
        endpoint=proxy.endpoint,
        keys=MOTO_KEYS,
        lock=Lock(days=3),
        clock=Now(),
    )
    if only_the_scratch:
        small = PlainImage("i1", b"x" * 1000)  # moto forgets the lock of a multipart upload
        # The gateway lets the scratch object's lock by: every copy is looked at all the same.
        proxy.rule = lambda ask: dropped(ask) if "/images/" in ask.path else None
        with pytest.raises(DestinationError, match="stored with a lock, but has none"):
            put(destination, small)
        assert destination.find("i1", 1) is None
        proxy.rule = lambda ask: None
        put(destination, small)
        assert destination.find("i1", 1) is not None
    else:
        proxy.rule = dropped
        agree_on_failing(destination, "NF-S3-013", "stored with a lock, but has none")
