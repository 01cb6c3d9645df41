"""Images whose parts do not fit into the memory, scaled down: streamed four at a time, read again for a retry."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nightferry.copies.encode import EncodedOutgoing
from nightferry.destination.base import Outgoing, Source
from nightferry.destination.s3 import probe
from nightferry.destination.s3.destination import S3Destination
from nightferry.errors import DestinationError, IntegrityError, Unavailable
from nightferry.progress import Cancel
from nightferry.restore import restore
from nightferry.staging import staged
from nightferry.staging.images import files_of
from tests.conftest import needs
from tests.servers.proxy import Ask, Fault, Proxy
from tests.servers.seaweed import Seaweed
from tests.support import night, toml
from tests.support.buckets import PART, open_bucket
from tests.support.outgoing import MIB, PlainImage, at_chunk, put
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("seaweed")]

MOST_MIB = 240
"""Of 300 MiB in all; the libraries' own pages are about 60 of them."""
SMALL = {"memory_bytes": 6 * MIB}
"""Memory in which four parts of 5 MiB do not fit."""


@pytest.fixture(autouse=True)
def _ask_the_store_again() -> None:
    probe.forget_abilities()


def image(name: str = "i1", size: int = 8 * PART + MIB + 77) -> PlainImage:
    """Bytes that shrink to some three quarters."""
    digits = random.Random(name)
    return PlainImage(name, bytes(b & 0x3F for b in digits.randbytes(size)))


def plain(wanted: PlainImage) -> Outgoing:
    return wanted


def encoded(wanted: PlainImage) -> Outgoing:
    return EncodedOutgoing(wanted, 1)


def is_data_part(ask: Ask) -> bool:
    return ask.is_part and "/images/" in ask.path


def assert_stored(server: Seaweed, prefix: str, wanted: PlainImage, folder: Path) -> None:
    """Judged by sha256sum, and by zstd where it is compressed."""
    (key,) = [k for k in server.keys_below(prefix) if k.endswith(("/data", "/data.zst"))]
    path = folder / "stored"
    path.write_bytes(server.client().get_object(Bucket=server.bucket, Key=key)["Body"].read())
    command = ["zstd", "-dcq", str(path)] if key.endswith(".zst") else ["cat", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as reading:
        summed = subprocess.run(
            ["sha256sum"], stdin=reading.stdout, capture_output=True, text=True, check=True
        )
    assert reading.returncode == 0
    assert summed.stdout.split()[0] == hashlib.sha256(wanted.data).hexdigest()
    assert server.uploads_below(prefix) == []


@needs("zstd")
@pytest.mark.parametrize("prepared", [plain, encoded])
def test_four_parts_are_on_their_way_at_once(
    seaweed: Seaweed, proxy: Proxy, tmp_path: Path, prepared: Callable[[PlainImage], Outgoing]
) -> None:
    prefix, wanted = seaweed.prefix(), image()
    together = threading.Barrier(4)
    waits = iter(range(4))

    def rule(ask: Ask) -> Fault | None:
        if is_data_part(ask) and next(waits, None) is not None:
            together.wait(30)  # broken, and so an error, unless four come at once
        return None

    proxy.rule = rule
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint, uploader=SMALL)
    assert put(destination, prepared(wanted)).verified
    assert not together.broken
    assert next(waits, None) is None
    lengths = [ask.length for ask in proxy.asked if is_data_part(ask)]
    assert set(lengths) - {PART, min(lengths)} == set()
    assert all(
        "x-amz-checksum-crc64nvme" in map(str.lower, a.headers) for a in proxy.asked if is_data_part(a)
    )
    assert destination._uploader.memory.most_taken <= 6 * MIB
    assert_stored(seaweed, prefix, wanted, tmp_path)


@needs("zstd")
@pytest.mark.parametrize("prepared", [plain, encoded])
def test_cut_and_spoilt_parts_are_read_again_and_sent_again(
    seaweed: Seaweed, proxy: Proxy, tmp_path: Path, prepared: Callable[[PlainImage], Outgoing]
) -> None:
    prefix, wanted = seaweed.prefix(), image()
    faults = iter(
        [Fault(cut_request=2 * MIB), Fault(spoil=True), Fault(lose_answer=True), Fault(cut_request=0)]
    )
    proxy.rule = lambda ask: next(faults, None) if is_data_part(ask) else None
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint, uploader=SMALL)
    assert put(destination, prepared(wanted)).verified
    assert_stored(seaweed, prefix, wanted, tmp_path)


@needs("zstd")
@pytest.mark.parametrize("prepared", [plain, encoded])
def test_a_rerun_sends_the_parts_that_are_missing(
    seaweed: Seaweed, proxy: Proxy, tmp_path: Path, prepared: Callable[[PlainImage], Outgoing]
) -> None:
    prefix, wanted = seaweed.prefix(), image()
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint, attempts=1, uploader=SMALL)
    proxy.rule = lambda ask: (
        Fault(cut_request=0) if is_data_part(ask) and ask.query["partNumber"] == ["5"] else None
    )
    with pytest.raises(Unavailable):
        put(destination, prepared(wanted))
    (upload,) = seaweed.client().list_multipart_uploads(Bucket=seaweed.bucket, Prefix=prefix)["Uploads"]
    there = seaweed.client().list_parts(Bucket=seaweed.bucket, Key=upload["Key"], UploadId=upload["UploadId"])
    kept = {str(part["PartNumber"]) for part in there["Parts"]}
    assert kept
    proxy.rule = lambda ask: None
    before = len(proxy.asked)
    assert put(destination, prepared(wanted)).verified
    sent = {ask.query["partNumber"][0] for ask in proxy.asked[before:] if is_data_part(ask)}
    assert sent.isdisjoint(kept)
    assert_stored(seaweed, prefix, wanted, tmp_path)


def test_damage_that_is_met_while_a_part_is_sent_is_no_broken_connection(seaweed: Seaweed) -> None:
    reads = [0]

    def damaged() -> None:
        reads[0] += 1
        if reads[0] > 1:
            raise IntegrityError("chunk 7 is damaged")

    prefix, wanted = seaweed.prefix(), image()
    wanted.on_chunk = at_chunk(7, damaged)
    with pytest.raises(IntegrityError, match="chunk 7 is damaged"):
        put(open_bucket(seaweed, prefix, uploader=SMALL), wanted)
    assert [key for key in seaweed.keys_below(prefix) if key.endswith("/data")] == []
    assert seaweed.uploads_below(prefix) == []


def test_an_image_that_fits_into_no_object_is_refused_before_its_first_byte(
    seaweed: Seaweed, proxy: Proxy
) -> None:
    class Vast(PlainImage):
        @property
        def size_bytes(self) -> int:
            return 6 << 40

        @property
        def most_bytes(self) -> int:
            return 6 << 40

    def refused(destination: S3Destination, problem: str, hint: str) -> None:
        with pytest.raises(DestinationError, match=problem) as error:
            put(destination, Vast("i1", b""))
        assert hint in error.value.hint
        assert not error.value.retryable

    prefix = seaweed.prefix()
    refused(open_bucket(seaweed, prefix, endpoint=proxy.endpoint), "larger than", "max_object")
    few = open_bucket(
        seaweed, prefix, endpoint=proxy.endpoint, max_parts=1000, uploader={"object_bytes": 48 << 40}
    )
    refused(few, "1000 parts", "shard")
    assert seaweed.keys_below(f"{prefix}/images") == []


MEMORY = """
import json, random, sys
from tests.servers.seaweed import Seaweed
from tests.support import night, toml
from tests.support.buckets import open_bucket
from tests.support.outgoing import MIB, put
from tests.support.peak import peak_bytes
from nightferry.destination.copies import plain_spans
from nightferry.restore import restore
from nightferry.staging import staged
from nightferry.copies.encode import EncodedOutgoing
from nightferry.progress import Cancel
from nightferry.transfer.reading import FileReader

endpoint, bucket, prefix, path = sys.argv[1:5]

class OnDisk:
    image, digest, encoding = "i1", "d1", ""
    side_files = {"index": b"i", "chunks": b"c", "meta.json": b"{}"}
    def __init__(self):
        with FileReader(path) as reader:
            self.size_bytes = self.most_bytes = reader.size_bytes
    def chunks(self, first_chunk=0):
        with FileReader(path) as reader:
            for piece in reader.stream(first_chunk * MIB, self.size_bytes - first_chunk * MIB):
                for at in range(0, len(piece), MIB):
                    yield piece[at : at + MIB]
    def spans(self, span_bytes, measure):
        return plain_spans(self.chunks, span_bytes, measure)

to = open_bucket(Seaweed(endpoint, bucket), prefix, uploader={"part_bytes": 40 * MIB})
assert put(to, EncodedOutgoing(OnDisk(), 3)).verified
print(json.dumps({"mib": peak_bytes() // MIB}))
"""


def test_parts_larger_than_the_memory_stay_below_300_mib(seaweed: Seaweed, tmp_path: Path) -> None:
    block = random.Random(1).randbytes(4 * MIB)
    path = tmp_path / "image"
    with path.open("wb") as file:
        for _ in range(70):
            file.write(block)
    command = [sys.executable, "-c", MEMORY, seaweed.endpoint, seaweed.bucket, seaweed.prefix(), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert json.loads(done.stdout)["mib"] <= MOST_MIB, done.stdout


class WithLargeIndex(PlainImage):
    """Its index is streamed."""

    def large_side_file(self, name: str) -> Source | None:
        return PlainImage("index", self.index) if name == "index" else None


def test_an_index_larger_than_the_memory_is_streamed(seaweed: Seaweed, proxy: Proxy) -> None:
    index = random.Random(5).randbytes(4 * PART + 5)
    prefix, wanted = seaweed.prefix(), WithLargeIndex("i1", b"x" * MIB, index=index)
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint, attempts=1, uploader=SMALL)
    proxy.rule = lambda ask: (
        Fault(cut_request=0) if is_data_part(ask) and ask.query["partNumber"] == ["3"] else None
    )
    with pytest.raises(Unavailable):
        put(destination, EncodedOutgoing(wanted, 1))
    assert destination.find("i1", 1) is None
    proxy.rule = lambda ask: None
    receipt = put(destination, EncodedOutgoing(wanted, 1))
    body = seaweed.client().get_object(Bucket=seaweed.bucket, Key=f"{prefix}/images/i1/index")["Body"].read()
    assert hashlib.sha256(body).hexdigest() == hashlib.sha256(index).hexdigest()
    assert destination.side_file(receipt.location, "index") == index
    assert destination._uploader.memory.most_taken <= 6 * MIB
    assert seaweed.uploads_below(prefix) == []


@pytest.mark.usefixtures("bucket_keys")
def test_copies_with_streamed_indexes_are_those_with_held_ones(
    make_site: Callable[..., SmallSite], seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = seaweed.prefix()
    bucket = toml.bucket(
        f"s3://{seaweed.bucket}/{prefix}", seaweed.endpoint, 'encode = { compress = "zstd:1" }'
    )
    site = make_site(copies=("folder", "cloud"), more=bucket)
    monkeypatch.setattr(staged, "HELD_BYTES", 100)
    with site.open(HandClock()) as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
        image = restore.find_image(opened, "SG1", "a")
        wanted = hashlib.sha256(opened.catalog.index(image.image)).hexdigest()
        key = f"{prefix}/images/{image.image}/index"
        body = seaweed.client().get_object(Bucket=seaweed.bucket, Key=key)["Body"].read()
        (path,) = site.home.rglob(f"images/{image.image}/index")
        summed = subprocess.run(["sha256sum", str(path)], capture_output=True, text=True, check=True).stdout
        assert (hashlib.sha256(body).hexdigest(), summed.split()[0]) == (wanted, wanted)
        outgoing = staged.StagedOutgoing(image, files_of(opened, image), cancel=Cancel())
        assert hashlib.sha256(outgoing.side_files["index"]).hexdigest() == wanted


@needs("zstd")
@pytest.mark.parametrize("prepared", [plain, encoded])
def test_an_image_of_more_than_the_smallest_parts_hold_fits_by_larger_ones(
    seaweed: Seaweed, proxy: Proxy, tmp_path: Path, prepared: Callable[[PlainImage], Outgoing]
) -> None:
    """Twenty parts at most, of 5 MiB or more: 130 MiB are what 156 GiB and more are to 10,000 parts of 16 MiB."""
    data = bytearray(130 * MIB)  # sparse but for a noisy stretch
    data[3 * MIB : 40 * MIB] = random.Random(9).randbytes(37 * MIB)
    prefix, wanted = seaweed.prefix(), PlainImage("i1", bytes(data))
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint, uploader={"most_parts": 20, **SMALL})
    assert put(destination, prepared(wanted)).verified
    lengths = [ask.length for ask in proxy.asked if is_data_part(ask)]
    assert max(lengths) == 7 * MIB
    assert lengths.count(7 * MIB) >= len(lengths) - 1
    assert 5 < len(lengths) <= 20
    assert_stored(seaweed, prefix, wanted, tmp_path)
