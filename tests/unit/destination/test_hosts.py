"""No proxy stands between this machine and itself, whichever library asks."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
import requests
from botocore.utils import get_environ_proxies

from nightferry.cli.app import main
from nightferry.destination.fsspec import FsspecDestination
from nightferry.destination.hosts import is_loopback, keep_direct
from nightferry.destination.s3 import client as s3_client
from nightferry.model.destinations import S3Settings
from nightferry.site.prefect_api import answers
from tests.servers.proxy import Fault, Proxy, proxied

PROXIES = ("http_proxy", "HTTP_PROXY", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


@contextmanager
def trap() -> Iterator[Proxy]:
    """What answers whatever it is asked: as a server, or as the proxy that nobody should ask."""
    with proxied("http://127.0.0.1:9") as proxy:
        proxy.rule = lambda ask: Fault(answer=(200, {}, b"ok"))
        yield proxy


@pytest.fixture
def wrong_way(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The proxy that every variable of the environment names."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "")  # so that it is put back as it was
    with trap() as proxy:
        for name in PROXIES:
            monkeypatch.setenv(name, proxy.endpoint)
        yield proxy


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_no_library_takes_a_proxy_to_this_machine(wrong_way: Proxy, host: str) -> None:
    with trap() as server:
        url = server.endpoint.replace("127.0.0.1", host)
        assert main(["--version"]) == 0  # whatever the command line does
        assert requests.get(url, timeout=10).text == "ok"
        assert httpx.get(url, timeout=10).text == "ok"
        # (``urlopen`` would keep its opener, with these proxies, for the tests after this one.)
        assert urllib.request.build_opener().open(url, timeout=10).read() == b"ok"
        assert answers(url)
        assert get_environ_proxies(url) == {}
        assert server.count(lambda ask: True) == 4
    assert wrong_way.asked == []


def test_a_bucket_on_this_machine_is_asked_itself(wrong_way: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NF_TEST_ACCESS", "a")
    monkeypatch.setenv("NF_TEST_SECRET", "s")
    # As if nothing else in the process had seen to it.
    monkeypatch.setattr(s3_client, "keep_direct", lambda: None)
    with trap() as server:
        settings = S3Settings(
            name="cloud", kind="s3", url="s3://b", endpoint=server.endpoint,
            access_key="env:NF_TEST_ACCESS", secret_key="env:NF_TEST_SECRET",
        )  # fmt: skip
        connection = s3_client.connect(settings)
        connection.client.head_bucket(Bucket="b")
        connection.session.close()
        assert server.count(lambda ask: True) == 1
    assert wrong_way.asked == []


def test_proxies_to_other_hosts_stay(wrong_way: Proxy) -> None:
    keep_direct()
    assert get_environ_proxies("http://store.example.org/")["http"] == wrong_way.endpoint
    assert requests.get("http://store.example.org/", timeout=10).text == "ok"
    assert len(wrong_way.asked) == 1


def test_what_was_spared_already_stays_so() -> None:
    without: dict[str, str] = {}
    keep_direct(without)
    assert without == {}
    given = {"https_proxy": "http://p:1", "NO_PROXY": "store.example.org, localhost"}
    keep_direct(given)
    hosts = "store.example.org,localhost,127.0.0.1,::1,169.254.169.254,fd00:ec2::254"
    assert (given["NO_PROXY"], given["no_proxy"]) == (hosts, hosts)
    keep_direct(given)
    assert given["NO_PROXY"] == hosts
    everything = {"http_proxy": "http://p:1", "no_proxy": "*"}
    keep_direct(everything)
    assert everything["no_proxy"] == "*"


def test_opening_an_fsspec_destination_spares_this_machine(wrong_way: Proxy) -> None:
    FsspecDestination("m", "memory:///x")
    with trap() as server:
        assert httpx.get(server.endpoint, timeout=10).text == "ok"
    assert wrong_way.asked == []


def test_loopback_is_known_by_address() -> None:
    wanted = {
        "http://127.0.0.1:1": True, "http://127.8.9.1": True, "http://[::1]:1": True,
        "http://[::ffff:127.0.0.1]": True, "http://localhost": True,
        "http://10.0.0.1": False, "http://127.0.0.1.example.org": False, "http://localhost.example.org": False,
    }  # fmt: skip
    assert {url: is_loopback(url) for url in wanted} == wanted
