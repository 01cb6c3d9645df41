"""Sessions that expire in the middle of an upload, and endpoints that never say 100 Continue."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from nightferry.destination.s3 import probe
from nightferry.errors import Unavailable
from tests.servers.proxy import Ask, Fault, Proxy
from tests.servers.seaweed import KEYS, WRITER_KEYS, Seaweed
from tests.support.buckets import PART, open_bucket
from tests.support.outgoing import MIB, PlainImage, put

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("seaweed")]

EXPIRED = Fault(
    answer=(
        400,
        {},
        b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>",
    )
)


@pytest.fixture(autouse=True)
def _ask_the_store_again() -> None:
    probe.forget()


def image(parts: int = 4) -> PlainImage:
    return PlainImage("i1", random.Random(parts).randbytes(parts * PART + MIB))


def is_data_part(ask: Ask) -> bool:
    return ask.is_part and ask.path.endswith("/data")


def stored_sha256(server: Seaweed, prefix: str) -> str:
    body = server.client().get_object(Bucket=server.bucket, Key=f"{prefix}/images/i1/data")["Body"].read()
    return hashlib.sha256(body).hexdigest()


def test_a_session_that_expires_is_named_and_a_rerun_sends_what_is_missing(
    seaweed: Seaweed, proxy: Proxy
) -> None:
    prefix, wanted = seaweed.prefix(), image()
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint, uploader={"threads": 1})

    def expires_after_two_parts(ask: Ask) -> Fault | None:
        return EXPIRED if proxy.count(is_data_part) > 2 else None

    proxy.rule = expires_after_two_parts
    with pytest.raises(Unavailable, match="ExpiredToken") as refused:
        put(destination, wanted)
    assert refused.value.retryable
    assert "log in again" in refused.value.hint
    with pytest.raises(Unavailable, match="ExpiredToken"):  # a HEAD has no words of its own
        destination.find("i1", 1)
    proxy.rule = lambda ask: None
    sent = proxy.count(is_data_part)
    assert put(open_bucket(seaweed, prefix, endpoint=proxy.endpoint), wanted).verified
    assert proxy.count(is_data_part) - sent == 3
    assert stored_sha256(seaweed, prefix) == hashlib.sha256(wanted.data).hexdigest()
    assert seaweed.uploads_below(prefix) == []


def test_newer_keys_are_taken_in_the_middle_of_an_upload(
    seaweed: Seaweed, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"

    def log_in(keys: tuple[str, str]) -> None:
        file.write_text(f"[night]\naws_access_key_id = {keys[0]}\naws_secret_access_key = {keys[1]}\n")

    log_in(KEYS)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    prefix, wanted = seaweed.prefix(), image()
    given = {"profile": "night", "access_key": None, "secret_key": None}
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint, **given)

    def first_keys_expire_after_two_parts(ask: Ask) -> Fault | None:
        if f"Credential={KEYS[0]}/" in ask.headers["Authorization"] and proxy.count(is_data_part) > 2:
            log_in(WRITER_KEYS)
            return EXPIRED
        return None

    proxy.rule = first_keys_expire_after_two_parts
    assert put(destination, wanted).verified
    assert stored_sha256(seaweed, prefix) == hashlib.sha256(wanted.data).hexdigest()
    destination.close()


def test_nobody_waits_for_100_continue(seaweed: Seaweed, proxy: Proxy) -> None:
    proxy.rule = lambda ask: Fault(deaf=True)
    prefix, wanted = seaweed.prefix(), image(2)
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint)
    assert put(destination, wanted).verified
    puts = [ask for ask in proxy.asked if ask.method in ("PUT", "POST")]
    assert len(puts) > 8
    assert [ask.path for ask in puts if "expect" in map(str.lower, ask.headers)] == []
    assert stored_sha256(seaweed, prefix) == hashlib.sha256(wanted.data).hexdigest()
