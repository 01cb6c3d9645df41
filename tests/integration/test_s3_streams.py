"""Many streams to one bucket: bounded memory, one bandwidth, and one file for a few requests and MiB."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from nightferry.copies.encode import PacedOutgoing
from nightferry.progress import QUIET, Cancel
from nightferry.restore import restore
from nightferry.transfer.throttle import Throttle
from tests.servers.proxy import Proxy
from tests.servers.seaweed import Seaweed
from tests.support import night, toml
from tests.support.brought import bring_back
from tests.support.buckets import open_bucket
from tests.support.outgoing import MIB, PlainImage, read_all
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("seaweed")]

STREAMS = 8
MOST_MIB = 240
"""Of 300 MiB in all; the libraries' own pages are about 60 of them."""

EIGHT = """
import json, sys, threading
from tests.servers.seaweed import Seaweed
from tests.support.buckets import open_bucket
from tests.support.outgoing import MIB
from tests.support.peak import peak_bytes
from nightferry.destination.base import Receipt
from nightferry.progress import QUIET, Cancel

endpoint, bucket, prefix, way, streams, size = *sys.argv[1:5], int(sys.argv[5]), int(sys.argv[6])
part = memoryview(bytes(range(256)) * (MIB // 256))

class Long:
    digest, encoding = "d1", ""
    side_files = {"index": b"i", "chunks": b"c", "meta.json": b"{}"}
    size_bytes = most_bytes = size
    def __init__(self, number):
        self.image = f"i{number}"
    def chunks(self, first_chunk=0):
        for _ in range(first_chunk, size // MIB):
            yield part

to = open_bucket(Seaweed(endpoint, bucket), prefix, uploader={"part_bytes": 16 * MIB})

def up(number):
    image = Long(number)
    with to.lane(progress=QUIET, cancel=Cancel()) as lane:
        assert lane.put(image, 1, progress=QUIET, cancel=Cancel()).verified

def down(number):
    with to.open({"image": f"i{number}", "epoch": 1, "size_bytes": size}) as reader:
        for piece in reader.stream(0, size):
            for at in range(0, len(piece), MIB):
                assert piece[at : at + MIB] == part

failed = []
def guarded(number):
    try:
        {"up": up, "down": down}[way](number)
    except BaseException as error:
        failed.append(repr(error))
threads = [threading.Thread(target=guarded, args=(number,)) for number in range(streams)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps({"failed": failed, "mib": peak_bytes() // MIB}))
"""


def test_eight_streams_of_more_than_the_memory_stay_below_300_mib(seaweed: Seaweed) -> None:
    prefix, size = seaweed.prefix(), 40 * MIB
    assert STREAMS * size > MOST_MIB * MIB
    for way in ("up", "down"):
        command = [sys.executable, "-c", EIGHT, seaweed.endpoint, seaweed.bucket, prefix, way]
        done = subprocess.run(
            [*command, str(STREAMS), str(size)], capture_output=True, text=True, check=True, timeout=300
        )
        said = json.loads(done.stdout)
        assert said["failed"] == []
        assert said["mib"] <= MOST_MIB, way


def test_streams_beyond_the_read_ahead_still_get_every_byte(seaweed: Seaweed) -> None:
    destination = open_bucket(seaweed, seaweed.prefix())
    wanted = PlainImage("i1", random.Random(8).randbytes(33 * MIB + 5))
    receipt = destination.put(wanted, 1, "a", QUIET, Cancel())
    with destination.open(receipt.location) as reader:
        streams = [reader.stream(0, reader.size_bytes) for _ in range(STREAMS)]
        read = [bytearray() for _ in streams]
        left = list(zip(streams, read, strict=True))
        while left:
            stream, into = left.pop(0)
            piece = next(stream, None)
            if piece is not None:
                into += piece
                left.append((stream, into))
    assert all(into == wanted.data for into in read)
    assert destination._read_ahead.take_now(destination._read_ahead.size_bytes) is not None


class SharedClock(HandClock):
    """A hand clock whose waits several threads may make at once."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def advance(self, span: timedelta) -> None:
        with self.lock:
            super().advance(span)


def test_eight_streams_together_keep_to_the_bandwidth(seaweed: Seaweed) -> None:
    destination = open_bucket(seaweed, seaweed.prefix())
    clock = SharedClock()
    throttle = Throttle(MIB, clock=clock)
    began = clock.monotonic()
    images = [PlainImage(f"i{n}", random.Random(n).randbytes(2 * MIB)) for n in range(STREAMS)]
    arrived: dict[str, bytes] = {}

    def carry(one: PlainImage) -> None:
        paced = PacedOutgoing(one, throttle, Cancel())
        arrived[one.image] = read_all(destination, destination.put(paced, 1, one.image, QUIET, Cancel()))

    threads = [threading.Thread(target=carry, args=(one,)) for one in images]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert arrived == {one.image: one.data for one in images}
    assert clock.monotonic() - began >= STREAMS * 2 - 0.26


@pytest.mark.usefixtures("bucket_keys")
@pytest.mark.parametrize(("encode", "name"), [("", "data"), ('encode = { compress = "zstd:1" }', "data.zst")])
def test_one_mib_out_of_a_large_object_costs_three_requests_and_8_mib(
    make_site: Callable[..., SmallSite],
    seaweed: Seaweed,
    tmp_path: Path,
    proxy: Proxy,
    encode: str,
    name: str,
) -> None:
    bucket = toml.bucket(f"s3://{seaweed.bucket}/{seaweed.prefix()}", proxy.endpoint, encode)
    site = make_site(copies=("cloud",), more=bucket)
    store, digits = site.store("SG1/a"), random.Random(4)
    for number in range(6):
        (store / f"part{number}.hex").write_text(digits.randbytes(3 * MIB).hex())
    wanted = digits.randbytes(MIB // 2).hex()
    (store / "part3-wanted.hex").write_text(wanted)
    with site.open(HandClock()) as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
        image = restore.find_image(opened, "SG1", "a")
        assert image.size_bytes > 36 * MIB
        before = len(proxy.asked)
        bring_back(opened, tmp_path / "one", ("part3-wanted.hex",), copy="cloud")
    asked = proxy.asked[before:]
    assert (tmp_path / "one" / "part3-wanted.hex").read_text() == wanted
    assert 2 <= len(asked) <= 3
    ranges = [ask.headers["Range"].removeprefix("bytes=") for ask in asked if ask.method == "GET"]
    assert all(ask.path.endswith(f"/{name}") for ask in asked)
    assert sum(int(last) - int(first) + 1 for first, last in (r.split("-") for r in ranges)) <= 8 * MIB
