"""Listings that come short: whatever reads one, images, parts, uploads, versions, the catalog, must not believe it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from nightferry.destination.s3 import listing, probe
from nightferry.destination.s3.destination import S3Destination
from nightferry.errors import CatalogError, DestinationError
from nightferry.site.catalog_bucket import BucketStorage
from tests.servers.proxy import Ask, Fault, Proxy
from tests.servers.seaweed import Seaweed
from tests.support.bucket_catalog import bucket_place
from tests.support.buckets import open_bucket
from tests.support.outgoing import MIB, PlainImage, put
from tests.support.tapes import named

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("seaweed")]

IMAGES = 5
LATER = datetime.now(UTC) + timedelta(days=1)


@pytest.fixture(autouse=True)
def _ask_the_store_again() -> None:
    probe.forget_abilities()


@pytest.fixture
def copies(seaweed: Seaweed, proxy: Proxy) -> Iterator[S3Destination]:
    """Five copies, reached through the proxy."""
    destination = open_bucket(seaweed, seaweed.prefix(), endpoint=proxy.endpoint)
    for number in range(IMAGES):
        put(destination, PlainImage(named(f"i{number}"), bytes(100)))
    yield destination
    destination.close()


def is_listing(ask: Ask) -> bool:
    return ask.method == "GET" and bool(
        {"list-type", "versions", "uploads", "uploadId"}.intersection(ask.query)
    )


def cut(body: bytes) -> bytes:
    """More is announced, and no word of where it begins."""
    body = re.sub(
        rb"<Next(ContinuationToken|KeyMarker|VersionIdMarker|UploadIdMarker|PartNumberMarker)>.*?</Next\1>",
        b"",
        body,
    )
    return body.replace(b"<IsTruncated>false<", b"<IsTruncated>true<")


def silent(body: bytes) -> bytes:
    """Not a word of whether there is more."""
    return re.sub(rb"<IsTruncated>.*?</IsTruncated>", b"", body)


def of_version_1(body: bytes) -> bytes:
    """As ListObjects answers: a marker, no token."""
    body = re.sub(rb"<(KeyCount|NextContinuationToken|ContinuationToken)>.*?</\1>", b"", body)
    return body.replace(b"<IsTruncated>false</IsTruncated>", b"<Marker/><IsTruncated>true</IsTruncated>")


def short(body: bytes) -> bytes:
    """An entry is lost on the way; the count still has it."""
    return re.sub(rb"<(Contents|CommonPrefixes)>.*?</\1>", b"", body, count=1, flags=re.DOTALL)


def foreign(body: bytes) -> bytes:
    """The answer to another question."""
    return body.replace(b"/images/", b"/pictures/")


READINGS: dict[str, Callable[[S3Destination], object]] = {
    "copies": lambda d: list(d.scan()),
    "catalogs": lambda d: d.catalog_copies(),
    "orphans": lambda d: list(d.orphans(LATER)),
    "expiry": lambda d: d.expire({"image": named("i1"), "epoch": 1, "size_bytes": 100}, "d1"),
}


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("edit", [cut, silent], ids=lambda edit: str(edit.__name__))
def test_a_listing_cut_short_is_an_error_wherever_it_is_read(
    copies: S3Destination, proxy: Proxy, reading: str, edit: Callable[[bytes], bytes]
) -> None:
    READINGS["copies"](copies)
    proxy.rule = lambda ask: Fault(edit=edit) if is_listing(ask) else None
    with pytest.raises(DestinationError, match="this listing is incomplete") as refused:
        READINGS[reading](copies)
    assert not refused.value.retryable
    proxy.rule = lambda ask: None
    assert [found.image for found in copies.scan()] == [
        named(f"i{n}") for n in range(IMAGES)
    ]  # nothing was removed


@pytest.mark.parametrize("edit", [of_version_1, short, foreign], ids=lambda edit: str(edit.__name__))
def test_an_answer_to_another_question_is_an_error(
    copies: S3Destination, proxy: Proxy, edit: Callable[[bytes], bytes]
) -> None:
    proxy.rule = lambda ask: Fault(edit=edit) if "list-type" in ask.query else None
    with pytest.raises(DestinationError, match="this listing is incomplete"):
        list(copies.scan())


def test_a_store_that_ignores_the_delimiter_has_not_lost_every_copy(
    seaweed: Seaweed, copies: S3Destination, proxy: Proxy
) -> None:
    def flat(body: bytes) -> bytes:
        body = re.sub(rb"<KeyCount>.*?</KeyCount>", b"", body)
        entry = rb"<Contents><Key>\1data</Key><Size>1</Size></Contents>"
        return re.sub(rb"<CommonPrefixes><Prefix>(.*?)</Prefix></CommonPrefixes>", entry, body)

    proxy.rule = lambda ask: Fault(edit=flat) if "delimiter" in ask.query else None
    with pytest.raises(DestinationError, match="ignores the delimiter"):
        list(copies.scan())


def test_a_page_that_comes_again_and_again_ends(
    copies: S3Destination, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "LIST_PAGES", 30)
    page = (
        "<ListBucketResult><IsTruncated>true</IsTruncated>"
        "<NextContinuationToken>{}</NextContinuationToken></ListBucketResult>"
    )
    for token in ("same", "{}"):
        proxy.rule = lambda ask, token=token: Fault(
            answer=(200, {}, page.format(token.format(ask.number)).encode())
        )
        with pytest.raises(DestinationError, match="has no end"):
            list(copies.scan())


def test_pages_are_read_to_the_last(copies: S3Destination, proxy: Proxy) -> None:
    wanted = [found.image for found in copies.scan()]
    client = copies._bucket._connection.client
    call = client.list_objects_v2
    client.list_objects_v2 = lambda **params: call(**params, MaxKeys=2)
    before = len(proxy.asked)
    assert [found.image for found in copies.scan()] == wanted
    pages = sum(1 for ask in proxy.asked[before:] if "list-type" in ask.query)
    assert pages == 3, "five images, two a page, each page asked for once"


def test_parts_and_uploads_cut_short_stop_the_put(
    seaweed: Seaweed, copies: S3Destination, proxy: Proxy
) -> None:
    big = PlainImage(named("i9"), bytes(11 * MIB))
    for query in ("uploads", "uploadId"):
        proxy.rule = lambda ask: (
            Fault(answer=(400, {}, b"")) if ask.is_part and ask.query["partNumber"] == ["2"] else None
        )
        key = copies._bucket.key(f"images/{named('i9')}/data")
        begun = seaweed.client().create_multipart_upload(Bucket=seaweed.bucket, Key=key)
        seaweed.client().upload_part(
            Bucket=seaweed.bucket, Key=key, UploadId=begun["UploadId"], PartNumber=1, Body=bytes(5 * MIB)
        )
        proxy.rule = lambda ask, query=query: (
            Fault(edit=cut) if ask.method == "GET" and query in ask.query else None
        )
        with pytest.raises(DestinationError, match="this listing is incomplete"):
            put(copies, big)
        assert seaweed.keys_below(copies._bucket.key(f"images/{named('i9')}")) == []


def test_the_catalogs_log_cut_short_is_no_shorter_log(seaweed: Seaweed, proxy: Proxy) -> None:
    with bucket_place(seaweed, seaweed.prefix(), endpoint=proxy.endpoint) as place:
        assert isinstance(place, BucketStorage)
        for number in range(3):
            place.create(f"events/{number}.json", b"{}")
        assert len(place.names("events")) == 3
        for edit in (cut, silent, of_version_1, short):
            proxy.rule = lambda ask, edit=edit: Fault(edit=edit) if is_listing(ask) else None
            with pytest.raises(CatalogError, match="this listing is incomplete"):
                place.names("events")
            with pytest.raises(CatalogError, match="this listing is incomplete"):
                place.contents()
