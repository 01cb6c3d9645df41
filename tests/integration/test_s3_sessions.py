"""Sessions that expire in the middle of an upload, and endpoints that never say 100 Continue."""

from __future__ import annotations

import hashlib
import random
import threading
import traceback
from pathlib import Path

import pytest

from nightferry.destination.s3 import probe
from nightferry.destination.s3.backoff import Backoff
from nightferry.destination.s3.bucket import Bucket
from nightferry.destination.s3.client import connect
from nightferry.destination.s3.destination import open_s3
from nightferry.destination.s3.failure import is_passing
from nightferry.errors import DestinationError, Unavailable
from nightferry.model.destinations import S3Settings
from tests.servers.proxy import Ask, Fault, Proxy
from tests.servers.seaweed import KEYS, WRITER_KEYS, Seaweed
from tests.support.buckets import PART, open_bucket
from tests.support.outgoing import MIB, PlainImage, put
from tests.support.small_site import HandClock

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
    probe.forget_abilities()


def profile(keys: tuple[str, str]) -> str:
    """A file of keys, as the tools that log in write it."""
    return f"[night]\naws_access_key_id = {keys[0]}\naws_secret_access_key = {keys[1]}\n"


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
        file.write_text(profile(keys))

    log_in(KEYS)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    prefix, wanted = seaweed.prefix(), image()
    given = {"profile": "night", "access_key": None, "secret_key": None}
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint, **given)

    writing, logged_in = threading.Lock(), list[bool]()

    def first_keys_expire_after_two_parts(ask: Ask) -> Fault | None:
        if f"Credential={KEYS[0]}/" in ask.headers["Authorization"] and proxy.count(is_data_part) > 2:
            with writing:  # parts are sent side by side: whoever is told finds the newer keys
                if not logged_in:
                    log_in(WRITER_KEYS)
                    logged_in.append(True)
            return EXPIRED
        return None

    proxy.rule = first_keys_expire_after_two_parts
    assert put(destination, wanted).verified
    assert stored_sha256(seaweed, prefix) == hashlib.sha256(wanted.data).hexdigest()
    destination.close()


@pytest.mark.parametrize("half", [0, 8, 40, 60])
def test_keys_that_are_half_written_are_waited_for(
    seaweed: Seaweed, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: int
) -> None:
    file = tmp_path / "credentials"
    file.write_text(profile(KEYS))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    prefix, wanted = seaweed.prefix(), image(1)

    class WritesOn(HandClock):
        def sleep(self, seconds: float) -> None:
            file.write_text(profile(WRITER_KEYS))
            super().sleep(seconds)

    given = {"profile": "night", "access_key": None, "secret_key": None}
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint, clock=WritesOn(), **given)
    # The first keys are known; the file is being written from here on.
    file.write_text(profile(WRITER_KEYS)[:half])
    proxy.rule = lambda ask: EXPIRED if f"Credential={KEYS[0]}/" in ask.headers["Authorization"] else None
    assert put(destination, wanted).verified
    assert stored_sha256(seaweed, prefix) == hashlib.sha256(wanted.data).hexdigest()
    destination.close()


def test_keys_that_are_others_at_each_look_are_taken_when_they_come_whole(
    seaweed: Seaweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a role's do, or those of a program that gives a session each time."""
    program, looks, config = (tmp_path / name for name in ("keys", "looks", "config"))
    program.write_text(
        f"#!/bin/sh\necho >> {looks}\n"
        f"""echo '{{"Version": 1, "AccessKeyId": "'$(wc -l < {looks})'", "SecretAccessKey": "x"}}'\n"""
    )
    program.chmod(0o755)
    config.write_text(f"[profile night]\ncredential_process = {program}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    given = S3Settings(name="cloud", kind="s3", url="s3://b/x", endpoint=seaweed.endpoint, profile="night")
    clock = HandClock()
    used = connect(given)
    bucket = Bucket("cloud", used, Backoff(is_passing, clock=clock))
    assert bucket._renewed(used)
    assert len(looks.read_text().splitlines()) == 2
    assert clock.monotonic() == HandClock().monotonic()


def test_nobody_waits_for_100_continue(seaweed: Seaweed, proxy: Proxy) -> None:
    proxy.rule = lambda ask: Fault(deaf=True)
    prefix, wanted = seaweed.prefix(), image(2)
    destination = open_bucket(seaweed, prefix, endpoint=proxy.endpoint)
    assert put(destination, wanted).verified
    puts = [ask for ask in proxy.asked if ask.method in ("PUT", "POST")]
    assert len(puts) > 8
    assert [ask.path for ask in puts if "expect" in map(str.lower, ask.headers)] == []
    assert stored_sha256(seaweed, prefix) == hashlib.sha256(wanted.data).hexdigest()


def test_a_store_that_repeats_what_it_was_sent_has_our_secrets_shown_nowhere(
    seaweed: Seaweed, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a login too: the session token goes with every request, and an error may say it back."""
    token = "xyzzy-session-token-41"
    for name, value in (
        ("AWS_ACCESS_KEY_ID", KEYS[0]),
        ("AWS_SECRET_ACCESS_KEY", KEYS[1]),
        ("AWS_SESSION_TOKEN", token),
    ):
        monkeypatch.setenv(name, value)
    settings = S3Settings(
        name="cloud", kind="s3", url=f"s3://{seaweed.bucket}/{seaweed.prefix()}", endpoint=proxy.endpoint
    )

    def echoes(ask: Ask) -> Fault:
        said = next(
            (value for name, value in ask.headers.items() if name.lower() == "x-amz-security-token"), ""
        )
        words = f"<Error><Code>Odd</Code><Message>you sent {said} and {KEYS[1]}</Message></Error>"
        return Fault(answer=(400, {}, words.encode()))

    proxy.rule = echoes
    destination = open_s3(settings)
    with pytest.raises(DestinationError) as refused:
        destination.catalog_copies()
    shown = "".join(traceback.format_exception(refused.value))
    assert "you sent" in shown
    assert token in [value for ask in proxy.asked for value in ask.headers.values()]
    assert token not in shown
    assert KEYS[1] not in shown
