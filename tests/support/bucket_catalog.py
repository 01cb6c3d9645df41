"""Catalogs in a bucket of a real S3 server, for tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nightferry.clock import Clock
from nightferry.destination.s3.backoff import ATTEMPTS, Backoff
from nightferry.destination.s3.bucket import Bucket
from nightferry.destination.s3.client import connect
from nightferry.destination.s3.failure import is_passing
from nightferry.model.destinations import S3Settings
from nightferry.site.catalog_bucket import BucketStorage
from tests.servers.seaweed import KEYS, Seaweed
from tests.support.small_site import HandClock

SITE = """\
[site.catalog_s3]
endpoint = "{endpoint}"
access_key = "env:NF_TEST_ACCESS"
secret_key = "env:NF_TEST_SECRET"
"""


@contextmanager
def bucket_place(
    server: Seaweed,
    prefix: str,
    *,
    endpoint: str = "",
    keys: tuple[str, str] = KEYS,
    attempts: int = ATTEMPTS,
    clock: Clock | None = None,
    read_timeout_s: float = 20,
) -> Iterator[BucketStorage]:
    """A place for a catalog as a site file would open it, but for a back-off of its own that takes no time."""
    os.environ["NF_TEST_ACCESS"], os.environ["NF_TEST_SECRET"] = keys
    url = f"s3://{server.bucket}/{prefix}"
    settings = S3Settings(
        name="catalog",
        kind="s3",
        url=url,
        endpoint=endpoint or server.endpoint,
        access_key="env:NF_TEST_ACCESS",
        secret_key="env:NF_TEST_SECRET",
    )
    connection = connect(settings, who="the catalog", read_timeout_s=read_timeout_s)
    backoff = Backoff(is_passing, clock=clock or HandClock(), attempts=attempts)
    storage = BucketStorage(Bucket("the catalog", connection, backoff), url)
    try:
        yield storage
    finally:
        storage.close()


def move_catalog(file: Path, server: Seaweed, endpoint: str = "") -> str:
    """Lets a site's file, which lies in the site's folder, name a catalog in a bucket; returns its prefix there."""
    os.environ["NF_TEST_ACCESS"], os.environ["NF_TEST_SECRET"] = KEYS
    prefix = server.prefix()
    text, home = file.read_text(), file.parent
    for old, new in (
        (f'catalog = "{home}/catalog"', f'catalog = "s3://{server.bucket}/{prefix}"'),
        ('kind = "local"\n', f'kind = "local"\nstate_path = "{home}/cluster.json"\n'),
        ("[cluster]\n", SITE.format(endpoint=endpoint or server.endpoint) + "\n[cluster]\n"),
    ):
        assert old in text
        text = text.replace(old, new, 1)
    file.write_text(text)
    return prefix
