"""S3 destinations for tests: small parts, short patience, waits that take no time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import xxhash

from nightferry.clock import Clock
from nightferry.destination.base import Encoding, Outgoing, Receipt
from nightferry.destination.s3.backoff import ATTEMPTS, Backoff
from nightferry.destination.s3.bucket import Bucket
from nightferry.destination.s3.client import connect
from nightferry.destination.s3.destination import S3Destination
from nightferry.destination.s3.failure import is_passing
from nightferry.destination.s3.upload import Uploader
from nightferry.model.destinations import S3Settings
from nightferry.progress import QUIET, Cancel
from tests.servers.seaweed import KEYS, Seaweed
from tests.support.small_site import HandClock

MIB = 1 << 20
PART = 5 * MIB


def open_bucket(
    server: Seaweed,
    prefix: str,
    *,
    endpoint: str = "",
    keys: tuple[str, str] = KEYS,
    attempts: int = ATTEMPTS,
    read_timeout_s: float = 20,
    clock: Clock | None = None,
    uploader: Mapping[str, Any] | None = None,
    **settings: Any,
) -> S3Destination:
    """The destination as a site file would open it, but for parts of 5 MiB and a clock of its own."""
    os.environ["NF_TEST_ACCESS"], os.environ["NF_TEST_SECRET"] = keys
    given = {
        "name": "cloud",
        "kind": "s3",
        "url": f"s3://{server.bucket}/{prefix}",
        "endpoint": endpoint or server.endpoint,
        "access_key": "env:NF_TEST_ACCESS",
        "secret_key": "env:NF_TEST_SECRET",
        **settings,
    }
    parsed = S3Settings(**given)
    clock = clock or HandClock()
    connection = connect(parsed, read_timeout_s=read_timeout_s)
    bucket = Bucket("cloud", connection, Backoff(is_passing, clock=clock, attempts=attempts))
    parts = {"part_bytes": PART, **(uploader or {})}
    return S3Destination(
        bucket,
        Uploader(bucket, most_parts=parsed.max_parts, **parts),
        lock=parsed.lock,
        storage_class=parsed.storage_class,
        clock=clock,
    )


@dataclass
class Image:
    """An image of given bytes."""

    data: bytes = field(repr=False)
    image: str = "i1"
    digest: str = "d1"
    encoding: Encoding = ""
    before: Mapping[int, Any] = field(default_factory=dict)
    """Chunk number → what is called before it is handed out."""

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    @property
    def side_files(self) -> dict[str, bytes]:
        pieces = [self.data[at : at + MIB] for at in range(0, len(self.data), MIB)]
        table = b"".join(xxhash.xxh3_64(piece).digest() for piece in pieces)
        return {"index": b"index", "chunks": table, "meta.json": b'{"image": "%s"}' % self.image.encode()}

    def chunks(self, first_chunk: int = 0) -> Iterator[memoryview]:
        for number, at in enumerate(range(first_chunk * MIB, len(self.data), MIB), first_chunk):
            if number in self.before:
                self.before[number]()
            yield memoryview(self.data)[at : at + MIB]


def put(destination: S3Destination, image: Outgoing, epoch: int = 1, cancel: Cancel | None = None) -> Receipt:
    with destination.lane(progress=QUIET, cancel=Cancel()) as lane:
        return lane.put(image, epoch, progress=QUIET, cancel=cancel or Cancel())


def read_all(destination: S3Destination, receipt: Receipt) -> bytes:
    with destination.open(receipt.location) as reader:
        return b"".join(bytes(piece) for piece in reader.stream(0, reader.size_bytes))
