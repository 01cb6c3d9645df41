"""Wrong keys, missing buckets, rights that lack, objects that changed behind our back, hostile answers."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from nightferry.destination.base import Odd
from nightferry.destination.s3 import probe
from nightferry.destination.s3.client import is_loopback, split_url
from nightferry.errors import ConfigError, DestinationError, IntegrityError, MediumDamaged, Unavailable
from nightferry.model.destinations import Lock
from nightferry.model.load import parse_site
from tests.servers.proxy import Ask, Fault, Proxy, proxied
from tests.servers.seaweed import KEYS, READER_KEYS, WRITER_KEYS, Seaweed
from tests.support.buckets import PART, open_bucket
from tests.support.outgoing import MIB, PlainImage, at_chunk, put, read_all
from tests.support.peak import peak_bytes
from tests.support.tapes import named

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("seaweed")]
IMAGE = named("i1")


@pytest.fixture(autouse=True)
def _ask_the_store_anew() -> None:
    probe.forget_abilities()


def small() -> PlainImage:
    return PlainImage(IMAGE, random.Random(1).randbytes(MIB + 3))


@pytest.mark.parametrize(
    ("keys", "hint"),
    [
        (("nobody", "x" * 20), "access key is unknown"),
        ((KEYS[0], "wrong-secret-e5d1"), "does not match the access key"),
    ],
)
def test_wrong_keys_are_said_without_being_shown(
    seaweed: Seaweed, keys: tuple[str, str], hint: str, caplog: pytest.LogCaptureFixture
) -> None:
    destination = open_bucket(seaweed, seaweed.prefix(), keys=keys)
    with pytest.raises(DestinationError) as refused:
        put(destination, small())
    (finding,) = destination.check()
    assert finding.severity == "fail"
    assert not refused.value.retryable
    assert hint in refused.value.hint or hint in finding.fix
    shown = f"{refused.value} {refused.value.hint} {finding} {caplog.text}"
    assert keys[1] not in shown


def test_a_missing_bucket_is_no_damage_and_no_absence(seaweed: Seaweed) -> None:
    destination = open_bucket(seaweed, "x", url="s3://nobucket/tex")
    location = {"image": IMAGE, "epoch": 1, "size_bytes": 5}
    for ask in (
        lambda: put(destination, small()),
        lambda: destination.find(IMAGE, 1),
        lambda: destination.open(location).__enter__(),
        lambda: destination.side_file(location, "index"),
    ):
        with pytest.raises(DestinationError, match=r"no bucket 'nobucket'|NoSuchBucket") as refused:
            ask()
        assert not isinstance(refused.value, MediumDamaged)
    assert [f.id for f in destination.check()] == ["NF-S3-001"]


def test_a_key_that_may_only_read_restores_and_is_refused_for_writing(seaweed: Seaweed) -> None:
    prefix, wanted = seaweed.prefix(), small()
    receipt = put(open_bucket(seaweed, prefix), wanted)
    reader = open_bucket(seaweed, prefix, keys=READER_KEYS)
    assert read_all(reader, receipt) == wanted.data
    with pytest.raises(DestinationError, match="AccessDenied"):
        put(reader, PlainImage(named("i2"), wanted.data))
    assert [f.id for f in reader.check()] == ["NF-S3-001"]


def test_a_key_that_may_only_write_makes_verified_copies(seaweed: Seaweed) -> None:
    prefix = seaweed.prefix()
    writer = open_bucket(seaweed, prefix, keys=WRITER_KEYS)
    wanted = PlainImage(IMAGE, random.Random(2).randbytes(PART + MIB))
    receipt = put(writer, wanted)
    assert receipt.verified
    assert read_all(open_bucket(seaweed, prefix), receipt) == wanted.data
    assert put(writer, wanted, epoch=2).verified
    assert [f.epoch for f in open_bucket(seaweed, prefix).scan()] == [2]
    assert "NF-S3-004" in [f.id for f in writer.check()]
    writer.put_catalog("catalog-1.parquet", b"x")


def test_an_object_replaced_while_it_is_read_is_not_believed(seaweed: Seaweed) -> None:
    prefix, wanted = seaweed.prefix(), PlainImage(IMAGE, random.Random(3).randbytes(9 * MIB))
    destination = open_bucket(seaweed, prefix)
    receipt = put(destination, wanted)
    with destination.open(receipt.location) as reader:
        assert reader.read(0, 5) == wanted.data[:5]
        seaweed.client().put_object(
            Bucket=seaweed.bucket, Key=f"{prefix}/images/{IMAGE}/data", Body=b"y" * len(wanted.data)
        )
        with pytest.raises(MediumDamaged, match="no longer the object"):
            list(reader.stream(0, reader.size_bytes))


def test_an_object_truncated_or_gone_is_damaged(seaweed: Seaweed) -> None:
    prefix, wanted = seaweed.prefix(), small()
    destination = open_bucket(seaweed, prefix)
    receipt = put(destination, wanted)
    client, key = seaweed.client(), f"{prefix}/images/{IMAGE}/data"
    client.put_object(Bucket=seaweed.bucket, Key=key, Body=wanted.data[:100])
    with pytest.raises(MediumDamaged, match="has 100 bytes"), destination.open(receipt.location):
        pass
    assert destination.find(IMAGE, 1) is None
    client.delete_object(Bucket=seaweed.bucket, Key=key)
    with pytest.raises(MediumDamaged, match="is not there"), destination.open(receipt.location):
        pass


def test_bytes_that_are_hurt_every_time_never_arrive(seaweed: Seaweed, proxy: Proxy) -> None:
    prefix = seaweed.prefix()
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint, attempts=3)
    destination.check()
    proxy.rule = lambda ask: Fault(spoil=True) if ask.method == "PUT" and ask.path.endswith("/data") else None
    with pytest.raises(Unavailable, match="BadDigest"):
        put(destination, small())
    assert [k for k in seaweed.keys_below(prefix) if k.endswith("/data")] == []


def test_a_clock_that_is_wrong_is_named(seaweed: Seaweed, proxy: Proxy) -> None:
    skewed = (
        b"<Error><Code>RequestTimeTooSkewed</Code><Message>The difference is too large.</Message></Error>"
    )
    proxy.rule = lambda ask: Fault(answer=(403, {}, skewed))
    destination = open_bucket(seaweed, seaweed.prefix(), endpoint=proxy.endpoint)
    with pytest.raises(DestinationError) as refused:
        destination.put_catalog("catalog-1.parquet", b"x")
    assert "clock" in refused.value.hint
    assert not refused.value.retryable
    later = format_datetime(datetime.now(UTC) + timedelta(hours=3), usegmt=True)
    proxy.rule = lambda ask: Fault(answer=(200, {"Date": later}, b"")) if is_bucket_head(ask) else None
    (finding,) = destination.check()
    assert (finding.id, finding.severity) == ("NF-S3-009", "warn")
    assert "3 h 0 min apart" in finding.text or "2 h 59 min" in finding.text


def is_bucket_head(ask: Ask) -> bool:
    return ask.method == "HEAD" and ask.path.count("/") == 1


def test_damaged_staging_leaves_neither_object_nor_parts(seaweed: Seaweed) -> None:
    def damaged() -> None:
        raise IntegrityError("chunk 6 is damaged")

    prefix = seaweed.prefix()
    destination = open_bucket(seaweed, prefix)
    with pytest.raises(IntegrityError, match="chunk 6"):
        put(destination, PlainImage(IMAGE, bytes(12 * MIB), on_chunk=at_chunk(6, damaged)))
    assert seaweed.keys_below(prefix) == []
    assert seaweed.uploads_below(prefix) == []


def test_an_endpoint_that_does_not_compare_is_found_out_and_read_back(seaweed: Seaweed, proxy: Proxy) -> None:
    def without_comparison(ask: Ask) -> Fault | None:
        named = {name.lower(): value for name, value in ask.headers.items()}.get("x-amz-checksum-crc64nvme")
        wrong = ask.method == "PUT" and ".nightferry-check" in ask.path and named == probe._WRONG
        return Fault(answer=(200, {"ETag": '"x"'}, b"")) if wrong else None

    proxy.rule = without_comparison
    destination = open_bucket(seaweed, seaweed.prefix(), endpoint=proxy.endpoint)
    wanted = PlainImage(IMAGE, random.Random(4).randbytes(PART + MIB))
    receipt = put(destination, wanted)
    assert not receipt.verified
    assert read_all(destination, receipt) == wanted.data
    assert [f.id for f in destination.check()] == ["NF-S3-002"]


def test_an_endpoint_without_conditions_is_written_to_all_the_same(seaweed: Seaweed, proxy: Proxy) -> None:
    unknown = Fault(answer=(501, {}, b"<Error><Code>NotImplemented</Code></Error>"))
    proxy.rule = lambda ask: unknown if "If-None-Match" in ask.headers else None
    destination = open_bucket(seaweed, seaweed.prefix(), endpoint=proxy.endpoint)
    for name, size in ((IMAGE, MIB), (named("i2"), PART + MIB)):
        wanted = PlainImage(name, random.Random(name).randbytes(size))
        assert read_all(destination, put(destination, wanted)) == wanted.data


def test_a_redirect_is_an_error_and_nothing_goes_there(seaweed: Seaweed, proxy: Proxy) -> None:
    with proxied(seaweed.endpoint) as elsewhere:
        moved = {"Location": f"{elsewhere.endpoint}/copies/x"}
        for status in (301, 302, 307, 308):
            proxy.rule = lambda ask, status=status: Fault(answer=(status, moved, b""))
            destination = open_bucket(seaweed, seaweed.prefix(), endpoint=proxy.endpoint)
            with pytest.raises(DestinationError):
                destination.put_catalog("catalog-1.parquet", b"x")
        assert elsewhere.asked == []


def test_an_answer_without_an_end_is_cut_off(seaweed: Seaweed, proxy: Proxy) -> None:
    long = b"<Error>" + b"x" * (17 * MIB)
    proxy.rule = lambda ask: Fault(answer=(400, {}, long))
    destination = open_bucket(seaweed, seaweed.prefix(), endpoint=proxy.endpoint)
    with pytest.raises(DestinationError, match="more than"):
        destination.put_catalog("catalog-1.parquet", b"x")


def test_a_side_file_of_a_huge_length_is_not_read(seaweed: Seaweed, proxy: Proxy) -> None:
    proxy.rule = lambda ask: Fault(answer=(200, {"Content-Length": str(1 << 50)}, b"x"))
    destination = open_bucket(seaweed, seaweed.prefix(), endpoint=proxy.endpoint)
    with pytest.raises(MediumDamaged, match="may have"):
        destination.side_file({"image": IMAGE, "epoch": 1, "size_bytes": 5}, "meta.json")


@pytest.mark.parametrize("name", ["meta.json", "index"])
def test_a_side_file_without_length_or_end_is_refused_and_hung_up_on(
    seaweed: Seaweed, proxy: Proxy, name: str
) -> None:
    proxy.rule = lambda ask: Fault(endless=ask.method == "GET" and ask.path.endswith(name))
    prefix = seaweed.prefix()
    receipt = put(open_bucket(seaweed, prefix), small())
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint)
    with pytest.raises(MediumDamaged, match="without a length"):
        destination.side_file(receipt.location, name)
    destination.close()
    # What is under way when nobody listens any more: a few buffers of the kernel's.
    assert 0 < proxy.endless_bytes < 32 * MIB


def test_a_listing_of_a_hundred_thousand_foreign_names_is_told_page_by_page(
    seaweed: Seaweed, proxy: Proxy
) -> None:
    destination = open_bucket(seaweed, prefix := seaweed.prefix(), endpoint=proxy.endpoint)
    proxy.rule = lambda ask: Fault(answer=_page(ask, f"{prefix}/images/", pages=100))
    told, begun = 0, 0

    def tell(odd: Odd) -> None:
        nonlocal told, begun
        assert odd.image == ""
        told += 1
        if told == 5_000:
            begun = peak_bytes()

    assert list(destination.scan(tell)) == []
    assert told == 100_000
    assert len(proxy.asked) == 100, "nothing is read of what is not called as an image"
    assert peak_bytes() - begun < 16 * MIB


def _page(ask: Ask, below: str, pages: int) -> tuple[int, dict[str, str], bytes]:
    """A page of a listing with a thousand folders, and the way to the next."""
    number = int(ask.query.get("continuation-token", ["0"])[0])
    folders = "".join(
        f"<CommonPrefixes><Prefix>{below}holiday-{number:03d}-{each:03d}/</Prefix></CommonPrefixes>"
        for each in range(1000)
    )
    more = f"<NextContinuationToken>{number + 1}</NextContinuationToken>" if number + 1 < pages else ""
    text = (
        f"<ListBucketResult><Name>copies</Name><Prefix>{below}</Prefix><Delimiter>/</Delimiter><KeyCount>1000"
        f"</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>{'true' if more else 'false'}</IsTruncated>{more}{folders}"
        "</ListBucketResult>"
    )
    return 200, {"Content-Type": "application/xml"}, text.encode()


def test_a_range_that_is_not_the_one_asked_for_is_refused(seaweed: Seaweed, proxy: Proxy) -> None:
    destination = open_bucket(seaweed, seaweed.prefix(), endpoint=proxy.endpoint)
    receipt = put(destination, small())
    whole = Fault(answer=(200, {"ETag": '"x"'}, b"z" * 100))
    proxy.rule = lambda ask: whole if ask.method == "GET" else None
    with (
        destination.open(receipt.location) as reader,
        pytest.raises(DestinationError, match="asked for bytes"),
    ):
        reader.read(5, 10)


def test_orphans_older_than_two_days_are_listed_by_check(seaweed: Seaweed) -> None:
    prefix = seaweed.prefix()
    seaweed.client().create_multipart_upload(Bucket=seaweed.bucket, Key=f"{prefix}/images/i7/data")
    destination = open_bucket(seaweed, prefix, clock=_Later(days=3))
    (finding,) = destination.check()
    assert (finding.id, finding.severity) == ("NF-S3-008", "warn")
    assert "images/i7/data" in finding.text
    assert open_bucket(seaweed, prefix, clock=_Later(days=1)).check() == []


class _Later:
    def __init__(self, days: int) -> None:
        self.span = timedelta(days=days)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.span

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing fails here")


@pytest.fixture
def locking(seaweed: Seaweed) -> Iterator[str]:
    """A bucket with object lock."""
    name = "locked"
    seaweed.client().create_bucket(Bucket=name, ObjectLockEnabledForBucket=True)
    yield name
    versions = seaweed.client().list_object_versions(Bucket=name)
    for version in versions.get("Versions", []) + versions.get("DeleteMarkers", []):
        seaweed.client().delete_object(
            Bucket=name, Key=version["Key"], VersionId=version["VersionId"], BypassGovernanceRetention=True
        )
    seaweed.client().delete_bucket(Bucket=name)


def test_locked_copies_cannot_be_erased_before_their_time(seaweed: Seaweed, locking: str) -> None:
    lock = Lock(mode="governance", days=3)
    destination = open_bucket(seaweed, "x", url=f"s3://{locking}/tex", lock=lock, clock=_Later(days=0))
    assert destination.check() == []
    wanted = PlainImage(IMAGE, random.Random(5).randbytes(PART + MIB))
    receipt = put(destination, wanted)
    client, key = seaweed.client(), f"tex/images/{IMAGE}/data"
    head = client.head_object(Bucket=locking, Key=key)
    assert head["ObjectLockMode"] == "GOVERNANCE"
    assert head["ObjectLockRetainUntilDate"] - datetime.now(UTC) > timedelta(days=2, hours=23)
    with pytest.raises(client.exceptions.ClientError, match="AccessDenied"):
        client.delete_object(Bucket=locking, Key=key, VersionId=head["VersionId"])
    assert read_all(destination, receipt) == wanted.data
    destination.remove(receipt.location)  # hidden by a marker: the lock keeps the bytes
    assert destination.find(IMAGE, 1) is None
    assert put(destination, wanted, epoch=2).verified


def test_a_bucket_that_locks_by_itself_takes_copies_and_is_told_of(seaweed: Seaweed, locking: str) -> None:
    seaweed.client().put_object_lock_configuration(
        Bucket=locking,
        ObjectLockConfiguration={
            "ObjectLockEnabled": "Enabled",
            "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}},
        },
    )
    destination = open_bucket(seaweed, "x", url=f"s3://{locking}/own", clock=_Later(days=0))
    (finding,) = destination.check()
    assert (finding.id, finding.severity) == ("NF-S3-007", "note")
    assert "1 days" in finding.text
    wanted = PlainImage(IMAGE, random.Random(6).randbytes(PART + MIB))
    receipt = put(destination, wanted)
    assert receipt.verified
    destination.put_catalog("catalog-1.parquet", b"x")
    assert read_all(destination, receipt) == wanted.data


def test_a_lock_on_a_bucket_that_has_none_fails_the_check(seaweed: Seaweed) -> None:
    destination = open_bucket(seaweed, seaweed.prefix(), lock=Lock(days=1))
    assert [(f.id, f.severity) for f in destination.check()] == [("NF-S3-006", "fail")]


def test_storage_classes_are_the_datas_alone(seaweed: Seaweed) -> None:
    prefix = seaweed.prefix()
    put(open_bucket(seaweed, prefix, storage_class="STANDARD_IA"), small())
    client = seaweed.client()
    classes = {
        name: client.head_object(Bucket=seaweed.bucket, Key=f"{prefix}/images/{IMAGE}/{name}").get(
            "StorageClass"
        )
        for name in ("data", "meta.json")
    }
    assert classes == {"data": "STANDARD_IA", "meta.json": None}


def test_an_archived_copy_is_no_damaged_one(seaweed: Seaweed, proxy: Proxy) -> None:
    destination = open_bucket(seaweed, seaweed.prefix(), endpoint=proxy.endpoint)
    receipt = put(destination, small())
    archived = Fault(answer=(403, {}, b"<Error><Code>InvalidObjectState</Code></Error>"))
    proxy.rule = lambda ask: archived if ask.method == "GET" else None
    with destination.open(receipt.location) as reader, pytest.raises(DestinationError) as refused:
        reader.read(0, 10)
    assert not isinstance(refused.value, MediumDamaged)
    assert "recall" in refused.value.hint


def test_memory_is_bounded_over_all_streams(seaweed: Seaweed) -> None:
    destination = open_bucket(seaweed, seaweed.prefix(), uploader={"memory_bytes": 2 * PART})
    threads = [
        threading.Thread(target=put, args=(destination, PlainImage(named(f"i{number}"), bytes(3 * PART))))
        for number in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(destination.scan())) == 3
    assert 0 < destination._uploader.memory.most_taken <= 2 * PART


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"endpoint": "http://backup.example.org"}, "without encryption"),
        ({"url": "s3://"}, "not the URL of a bucket"),
        ({"url": "https://bucket/x"}, "not the URL of a bucket"),
        ({"profile": "no-such-profile"}, "no-such-profile"),
        ({"secret_key": "env:NF_TEST_UNSET"}, "is not set"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_is_sent(
    seaweed: Seaweed, settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        open_bucket(seaweed, "x", **settings)


def test_there_is_no_switch_for_certificates() -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        parse_site(
            'schema = 1\n[site]\nname = "T"\ncatalog = "/c"\n[[destinations]]\nname = "c"\nkind = "s3"\n'
            'url = "s3://b"\nverify = false\n'
        )


def test_urls_are_taken_apart() -> None:
    assert split_url("s3://b") == ("b", "")
    assert split_url("s3://b/a/c/") == ("b", "a/c/")
    assert [is_loopback(f"http://{h}:1") for h in ("127.0.0.1", "[::1]", "localhost", "10.0.0.1", "x")] == [
        True, True, True, False, False,
    ]  # fmt: skip
