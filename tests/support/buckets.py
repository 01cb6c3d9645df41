"""S3 destinations for tests: small parts, short patience, waits that take no time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from nightferry.clock import Clock
from nightferry.destination.s3.backoff import ATTEMPTS, Backoff
from nightferry.destination.s3.bucket import Bucket
from nightferry.destination.s3.client import connect
from nightferry.destination.s3.destination import S3Destination
from nightferry.destination.s3.failure import is_passing
from nightferry.destination.s3.upload import Uploader
from nightferry.model.destinations import S3Settings
from tests.servers.seaweed import KEYS, Seaweed
from tests.support.outgoing import MIB, mark
from tests.support.small_site import HandClock

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
    parts = {"part_bytes": PART, "most_parts": parsed.max_parts, **(uploader or {})}
    return S3Destination(
        bucket,
        Uploader(bucket, **parts),
        lock=parsed.lock,
        storage_class=parsed.storage_class,
        clock=clock,
        mark=mark,
    )
