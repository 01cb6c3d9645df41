"""Buckets behind TLS: certificates are verified, by whom the machine trusts or by ``ca_file`` alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nightferry.destination.s3 import probe
from nightferry.errors import DestinationError
from tests.conftest import needs
from tests.servers.seaweed import KEYS, Seaweed
from tests.servers.tls import Authority, behind_tls
from tests.support.buckets import PART, open_bucket
from tests.support.outgoing import MIB, PlainImage, put, read_all

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("seaweed"), needs("openssl")]


@pytest.fixture(autouse=True)
def _ask_the_store_anew() -> None:
    probe.forget_abilities()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def endpoint(seaweed: Seaweed, authority: Authority) -> Iterator[str]:
    with behind_tls(seaweed.endpoint, authority.issue("IP:127.0.0.1")) as url:
        yield url


@pytest.mark.parametrize("size", [1000, 2 * PART + 3])
def test_a_copy_goes_there_and_back_with_the_authoritys_certificate(
    seaweed: Seaweed, endpoint: str, authority: Authority, size: int
) -> None:
    prefix, image = seaweed.prefix(), PlainImage("i1", random.Random(size).randbytes(size))
    destination = open_bucket(seaweed, prefix, endpoint=endpoint, ca_file=str(authority.certificate))
    assert [f for f in destination.check() if f.severity == "fail"] == []
    receipt = put(destination, image)
    assert receipt.verified
    stored = seaweed.client().get_object(Bucket=seaweed.bucket, Key=f"{prefix}/images/i1/data")
    assert stored["Body"].read() == image.data == read_all(destination, receipt)


def test_parts_larger_than_the_memory_go_through_tls(
    seaweed: Seaweed, endpoint: str, authority: Authority
) -> None:
    image = PlainImage("i1", random.Random(5).randbytes(11 * MIB))
    destination = open_bucket(
        seaweed,
        seaweed.prefix(),
        endpoint=endpoint,
        ca_file=str(authority.certificate),
        uploader={"memory_bytes": MIB},
    )
    receipt = put(destination, image)
    assert receipt.verified
    assert read_all(destination, receipt) == image.data


@pytest.mark.parametrize("why", ["nobody knows who signed it", "it is another host's"])
def test_a_certificate_that_does_not_prove_the_endpoint_gets_nothing(
    seaweed: Seaweed, authority: Authority, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    prefix = seaweed.prefix()
    unknown = why.startswith("nobody")
    trusting: dict[str, Any] = {} if unknown else {"ca_file": str(authority.certificate)}
    certificate = authority.issue("IP:127.0.0.1" if unknown else "DNS:other.example.org")
    with behind_tls(seaweed.endpoint, certificate) as endpoint:
        destination = open_bucket(seaweed, prefix, endpoint=endpoint, **trusting)
        with pytest.raises(DestinationError, match=r"certificate verify failed|doesn't match") as refused:
            put(destination, PlainImage("i1", b"a store's secrets"))
        (finding,) = destination.check()
    assert not refused.value.retryable
    assert (finding.id, finding.severity) == ("NF-S3-001", "fail")
    assert "ca_file" in refused.value.hint
    assert seaweed.keys_below(prefix) == []
    assert KEYS[1] not in f"{refused.value} {refused.value.hint} {finding} {caplog.text}"


def test_a_profile_is_enough_to_log_in(
    seaweed: Seaweed, endpoint: str, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"[backup]\naws_access_key_id = {KEYS[0]}\naws_secret_access_key = {KEYS[1]}\n"
    (tmp_path / "credentials").write_text(text)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    destination = open_bucket(
        seaweed,
        seaweed.prefix(),
        endpoint=endpoint,
        ca_file=str(authority.certificate),
        access_key=None,
        secret_key=None,
        profile="backup",
    )
    assert put(destination, PlainImage("i1", b"x" * 1000)).verified
