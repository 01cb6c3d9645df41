"""A real S3 server behind a proxy that cuts, stalls, refuses and forgets to answer."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable

import pytest

from nightferry.destination.base import DATA_NAMES, Encoding
from nightferry.destination.s3.destination import S3Destination
from nightferry.errors import NotOurs, Unavailable
from nightferry.progress import QUIET as _QUIET
from nightferry.progress import Cancel
from tests.servers.proxy import Ask, Fault, Proxy
from tests.servers.seaweed import Seaweed
from tests.support.buckets import PART, open_bucket
from tests.support.outgoing import MIB, PlainImage, at_chunk, put, read_all
from tests.support.tapes import named

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("seaweed")]
IMAGE = named("i1")

_NEVER = Cancel()
THREE_PARTS = 2 * PART + MIB + 77


def image(name: str = IMAGE, size: int = THREE_PARTS) -> PlainImage:
    return PlainImage(name, random.Random(name).randbytes(size))


def is_data(ask: Ask) -> bool:
    return ask.path.endswith(("/data", "/data.zst"))


def once(wanted: Callable[[Ask], bool], fault: Fault, times: int = 1) -> Callable[[Ask], Fault | None]:
    """Hurts the first few requests of a kind."""
    left = [times]
    lock = threading.Lock()

    def rule(ask: Ask) -> Fault | None:
        with lock:
            if left[0] and wanted(ask):
                left[0] -= 1
                return fault
        return None

    return rule


def assert_one_whole_copy(
    server: Seaweed, prefix: str, destination: S3Destination, wanted: PlainImage
) -> None:
    """As the server itself sees it: six objects, the right bytes, nothing unfinished."""
    names = sorted(key.rpartition("/")[2] for key in server.keys_below(f"{prefix}/images/"))
    data = DATA_NAMES[wanted.encoding]
    assert names == ["chunks", "copy.json", data, "index", "meta.json", "origin.json"]
    assert server.uploads_below(prefix) == []
    key = f"{prefix}/images/{wanted.image}/{data}"
    assert server.client().get_object(Bucket=server.bucket, Key=key)["Body"].read() == wanted.data
    assert [found.image for found in destination.scan()] == [wanted.image]


class Tenths:
    """Cuts once at every tenth of all the bytes of a kind, as they pass."""

    def __init__(self, total: int, fault: Callable[[int], Fault]) -> None:
        self.left = [total * tenth // 10 for tenth in range(10)]
        self.passed = 0
        self.fault = fault
        self.lock = threading.Lock()

    def next(self, length: int) -> Fault | None:
        with self.lock:
            if self.left and self.left[0] < self.passed + length:
                at = max(0, self.left.pop(0) - self.passed)
                self.passed += at
                return self.fault(at)
            self.passed += length
            return None


@pytest.mark.parametrize("encoding", ["", "zstd"])
def test_an_upload_cut_at_every_tenth_arrives(seaweed: Seaweed, proxy: Proxy, encoding: Encoding) -> None:
    prefix, wanted = seaweed.prefix(), image()
    wanted.encoding = encoding  # its length is then not known before its end
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint)
    tenths = Tenths(len(wanted.data), lambda at: Fault(cut_request=at))
    proxy.rule = lambda ask: tenths.next(ask.length) if ask.is_part else None
    receipt = put(destination, wanted)
    assert tenths.left == []
    assert receipt.verified
    assert_one_whole_copy(seaweed, prefix, destination, wanted)


def test_an_upload_cut_for_good_at_every_tenth_goes_on_from_its_parts(seaweed: Seaweed, proxy: Proxy) -> None:
    prefix, wanted = seaweed.prefix(), image()
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint, attempts=1)
    for tenth in range(10):
        at = len(wanted.data) * tenth // 10
        number, within = str(at // PART + 1), at % PART
        proxy.rule = lambda ask, number=number, within=within: (
            Fault(cut_request=within) if ask.is_part and ask.query["partNumber"] == [number] else None
        )
        with pytest.raises(Unavailable):
            put(destination, wanted)
        assert destination.find(IMAGE, 1) is None
    proxy.rule = lambda ask: None
    sent = proxy.count(lambda ask: ask.is_part)
    assert put(destination, wanted).verified
    assert proxy.count(lambda ask: ask.is_part) - sent <= 1
    assert_one_whole_copy(seaweed, prefix, destination, wanted)


def test_a_download_cut_at_every_tenth_gives_every_byte(seaweed: Seaweed, proxy: Proxy) -> None:
    wanted = image(size=33 * MIB + 5)  # three ranges: a reset may take with it what had come
    destination = open_bucket(seaweed, seaweed.prefix(), endpoint=proxy.endpoint)
    receipt = put(destination, wanted)
    tenths = Tenths(len(wanted.data), lambda at: Fault(cut_answer=at))

    def rule(ask: Ask) -> Fault | None:
        if ask.method != "GET" or not is_data(ask):
            return None
        first, last = ask.headers["Range"].removeprefix("bytes=").split("-")
        return tenths.next(int(last) - int(first) + 1)

    proxy.rule = rule
    assert read_all(destination, receipt) == wanted.data
    assert tenths.left == []


def test_a_download_that_makes_no_way_is_given_up(seaweed: Seaweed, proxy: Proxy) -> None:
    wanted = image(size=3 * MIB)
    destination = open_bucket(seaweed, seaweed.prefix(), endpoint=proxy.endpoint, attempts=3)
    receipt = put(destination, wanted)
    before = len(proxy.asked)
    proxy.rule = lambda ask: Fault(cut_answer=0) if ask.method == "GET" else None
    with destination.open(receipt.location) as reader, pytest.raises(Unavailable):
        reader.read(0, 2 * MIB)
    assert len([ask for ask in proxy.asked[before:] if ask.method == "GET"]) == 3


def test_a_stalled_socket_is_given_up_and_the_request_made_again(seaweed: Seaweed, proxy: Proxy) -> None:
    prefix, wanted = seaweed.prefix(), image()
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint, read_timeout_s=3)
    proxy.rule = once(lambda ask: ask.is_part, Fault(stall=True))
    receipt = put(destination, wanted)
    proxy.rule = once(lambda ask: ask.method == "GET" and is_data(ask), Fault(stall=True))
    assert read_all(destination, receipt) == wanted.data
    assert_one_whole_copy(seaweed, prefix, destination, wanted)


def test_eight_streams_refused_on_every_third_request_all_arrive(seaweed: Seaweed, proxy: Proxy) -> None:
    slow_down = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
    refusal = Fault(answer=(503, {"Content-Type": "application/xml"}, slow_down))
    chance, lock = random.Random(30), threading.Lock()

    def rule(_: Ask) -> Fault | None:
        with lock:
            return refusal if chance.random() < 0.3 else None

    proxy.rule = rule
    prefix = seaweed.prefix()
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint, attempts=14)
    images = [image(named(f"i{number}"), size=MIB + number) for number in range(8)]
    arrived: dict[str, bytes] = {}

    def carry(one: PlainImage) -> None:
        receipt = destination.put(one, 1, one.image, _QUIET, _NEVER)
        arrived[one.image] = read_all(destination, receipt)

    threads = [threading.Thread(target=carry, args=(one,)) for one in images]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert arrived == {one.image: one.data for one in images}


def test_an_answer_lost_after_complete_is_found_to_have_been_a_yes(seaweed: Seaweed, proxy: Proxy) -> None:
    prefix, wanted = seaweed.prefix(), image()
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint)
    proxy.rule = once(lambda ask: ask.is_complete and is_data(ask), Fault(lose_answer=True))
    assert put(destination, wanted).verified
    assert_one_whole_copy(seaweed, prefix, destination, wanted)


@pytest.mark.parametrize(
    ("status", "code"),
    [(412, "PreconditionFailed"), (409, "ConditionalRequestConflict"), (404, "NoSuchUpload")],
)
def test_whatever_the_second_complete_is_told_the_object_speaks(
    seaweed: Seaweed, proxy: Proxy, status: int, code: str
) -> None:
    prefix, wanted = seaweed.prefix(), image()
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint)
    told = Fault(answer=(status, {}, f"<Error><Code>{code}</Code></Error>".encode()))
    faults = iter([Fault(lose_answer=True), told])
    proxy.rule = lambda ask: next(faults, None) if ask.is_complete and is_data(ask) else None
    assert put(destination, wanted).verified
    assert_one_whole_copy(seaweed, prefix, destination, wanted)


def test_an_answer_lost_after_a_small_object_is_found_to_have_been_a_yes(
    seaweed: Seaweed, proxy: Proxy
) -> None:
    prefix, wanted = seaweed.prefix(), image(size=MIB)
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint)
    proxy.rule = once(lambda ask: ask.method == "PUT" and is_data(ask), Fault(lose_answer=True))
    assert put(destination, wanted).verified
    assert_one_whole_copy(seaweed, prefix, destination, wanted)


def test_an_upload_that_somebody_aborted_is_made_anew_by_the_next_try(seaweed: Seaweed, proxy: Proxy) -> None:
    prefix, wanted = seaweed.prefix(), image()
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint)
    gone = Fault(answer=(404, {}, b"<Error><Code>NoSuchUpload</Code></Error>"))
    proxy.rule = lambda ask: gone if ask.is_complete and is_data(ask) else None
    with pytest.raises(Unavailable):
        put(destination, wanted)
    proxy.rule = lambda ask: None
    assert put(destination, wanted).verified
    assert_one_whole_copy(seaweed, prefix, destination, wanted)


def test_bytes_hurt_on_the_way_are_refused_there_and_sent_again(seaweed: Seaweed, proxy: Proxy) -> None:
    prefix, wanted = seaweed.prefix(), image()
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint)
    proxy.rule = once(lambda ask: ask.is_part and is_data(ask), Fault(spoil=True), times=2)
    assert put(destination, wanted).verified
    assert_one_whole_copy(seaweed, prefix, destination, wanted)


def test_a_kill_with_two_parts_up_then_a_rerun_leaves_one_object(seaweed: Seaweed, proxy: Proxy) -> None:
    prefix, wanted = seaweed.prefix(), image()
    client = seaweed.client()

    def die_when_two_parts_are_up() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for upload in client.list_multipart_uploads(Bucket=seaweed.bucket, Prefix=prefix).get(
                "Uploads", ()
            ):
                parts = client.list_parts(
                    Bucket=seaweed.bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                )
                if len(parts.get("Parts", ())) >= 2:
                    os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.05)
        os._exit(7)

    child = os.fork()
    if child == 0:
        dying = PlainImage(
            IMAGE, wanted.data, on_chunk=at_chunk(2 * PART // MIB + 1, die_when_two_parts_are_up)
        )
        try:
            put(open_bucket(seaweed, prefix), dying)
        finally:
            os._exit(8)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint)
    assert destination.find(IMAGE, 1) is None
    assert put(destination, wanted, epoch=2).verified
    assert proxy.count(lambda ask: ask.is_part and is_data(ask)) == 1
    assert_one_whole_copy(seaweed, prefix, destination, wanted)


def test_a_kill_between_data_and_side_files_sends_the_data_once(seaweed: Seaweed, proxy: Proxy) -> None:
    prefix, wanted = seaweed.prefix(), image()
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint, attempts=1)
    proxy.rule = lambda ask: Fault(cut_request=0) if ask.path.endswith("/index") else None
    with pytest.raises(Unavailable):
        put(destination, wanted)
    assert destination.find(IMAGE, 1) is None
    proxy.rule = lambda ask: None
    sent = proxy.count(lambda ask: ask.is_part and is_data(ask))
    assert put(destination, wanted, epoch=2).verified
    assert proxy.count(lambda ask: ask.is_part and is_data(ask)) == sent
    assert_one_whole_copy(seaweed, prefix, destination, wanted)


def test_data_of_an_earlier_try_that_is_not_ours_is_replaced(seaweed: Seaweed) -> None:
    prefix, wanted = seaweed.prefix(), image()
    destination = open_bucket(seaweed, prefix)
    key = f"{prefix}/images/{IMAGE}/data"
    seaweed.client().put_object(
        Bucket=seaweed.bucket, Key=key, Body=b"x" * len(wanted.data), Metadata={"nightferry-digest": "d1"}
    )
    with pytest.raises(NotOurs, match="without proof that they are this site's"):
        put(destination, wanted)
    assert put(destination, wanted, epoch=2).verified
    assert_one_whole_copy(seaweed, prefix, destination, wanted)


def test_parts_larger_than_the_memory_are_sent_from_the_source(seaweed: Seaweed, proxy: Proxy) -> None:
    prefix, wanted = seaweed.prefix(), image()
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint, uploader={"memory_bytes": MIB})
    proxy.rule = once(lambda ask: ask.is_part and is_data(ask), Fault(cut_request=2 * MIB), times=2)
    assert put(destination, wanted).verified
    assert proxy.count(lambda ask: ask.is_part and is_data(ask)) == 5
    assert_one_whole_copy(seaweed, prefix, destination, wanted)
