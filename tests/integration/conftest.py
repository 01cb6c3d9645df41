"""Small sites for every test that asks for one, and the command line on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nightferry.cli.app import main
from tests.servers.proxy import Proxy, proxied
from tests.servers.seaweed import KEYS, Seaweed
from tests.support.command_site import Command, CommandSite, Ran, build_site
from tests.support.small_site import SmallSite


@pytest.fixture
def make_site(tmp_path: Path) -> Callable[..., SmallSite]:
    """Builds one below ``tmp_path``; keywords are ``SmallSite``'s."""

    def make(**options: Any) -> SmallSite:
        home = tmp_path / "site"
        home.mkdir()
        return SmallSite(home, **options).build()

    return make


@pytest.fixture
def site(tmp_path: Path) -> CommandSite:
    """A site that was never backed up, for one test alone."""
    return build_site(tmp_path / "site")


@pytest.fixture(scope="session")
def kept_night(tmp_path_factory: pytest.TempPathFactory) -> CommandSite:
    """A site after one whole night, shared by the tests that only look."""
    site = build_site(tmp_path_factory.mktemp("kept") / "site")
    assert site.night().state == "ended"
    return site


@pytest.fixture
def proxy(seaweed: Seaweed) -> Iterator[Proxy]:
    """A way to the S3 server that a test may disturb."""
    with proxied(seaweed.endpoint) as proxy:
        yield proxy


@pytest.fixture
def bucket_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The S3 server's keys are where site files name them, and nothing is known of the server yet."""
    from nightferry.destination.s3 import probe

    monkeypatch.setenv("NF_TEST_ACCESS", KEYS[0])
    monkeypatch.setenv("NF_TEST_SECRET", KEYS[1])
    probe.forget_abilities()


@pytest.fixture
def nightferry(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs one command in this process: ``nightferry(site, "images", "--json")``."""
    monkeypatch.delenv("NIGHTFERRY_SITE", raising=False)
    monkeypatch.delenv("NIGHTFERRY_DEBUG", raising=False)

    def run(site: CommandSite | Path, *arguments: str | Path) -> Ran:
        capsys.readouterr()
        file = site.file if isinstance(site, CommandSite) else site
        code = main(["--site", str(file), *(str(a) for a in arguments)])
        shown = capsys.readouterr()
        return Ran(code, shown.out, shown.err)

    return run
