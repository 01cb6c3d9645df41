"""A small site, and the command line on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightferry.cli.app import main
from tests.support.small_site import Command, Ran, SmallSite, make_site


@pytest.fixture
def site(tmp_path: Path) -> SmallSite:
    """A site that was never backed up, for one test alone."""
    return make_site(tmp_path / "site")


@pytest.fixture(scope="session")
def kept_night(tmp_path_factory: pytest.TempPathFactory) -> SmallSite:
    """A site after one whole night, shared by the tests that only look."""
    site = make_site(tmp_path_factory.mktemp("kept") / "site")
    assert site.night().state == "ended"
    return site


@pytest.fixture
def nightferry(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs one command in this process: ``nightferry(site, "images", "--json")``."""
    monkeypatch.delenv("NIGHTFERRY_SITE", raising=False)
    monkeypatch.delenv("NIGHTFERRY_DEBUG", raising=False)

    def run(site: SmallSite | Path, *arguments: str | Path) -> Ran:
        capsys.readouterr()
        file = site.file if isinstance(site, SmallSite) else site
        code = main(["--site", str(file), *(str(a) for a in arguments)])
        shown = capsys.readouterr()
        return Ran(code, shown.out, shown.err)

    return run
