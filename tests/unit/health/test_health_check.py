"""Clock, packages and Prefect API: what `check` looks at around the site."""

from __future__ import annotations

from datetime import timedelta
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from nightferry.cli.app import main
from nightferry.health import check
from tests.support import night
from tests.support.command_site import BACK, build_site


def test_our_own_packages_are_ours() -> None:
    assert list(check.packages()) == []


@pytest.mark.parametrize("origin", ["/srv/other/flows/__init__.py", None], ids=["another's", "none"])
def test_a_foreign_package_in_the_place_of_ours_is_a_failure(origin: str | None) -> None:
    def find(name: str) -> ModuleSpec | None:
        return ModuleSpec(name, None, origin=origin) if origin and name == "flows" else None

    (found, *_) = [f for f in check.packages(find) if "flows" in f.text]
    assert (found.id, found.severity) == ("NF-SITE-002", "fail")
    assert (origin is None) == ("not there" in found.text)


@pytest.mark.parametrize(("behind", "fails"), [(timedelta(minutes=1), False), (timedelta(hours=2), True)])
def test_a_clock_behind_the_catalog_is_a_failure(tmp_path: Path, behind: timedelta, fails: bool) -> None:
    site = build_site(tmp_path / "site")
    with site.opened() as here:
        assert list(check.clock(here)) == []
        begun = night.stage_one(here, BACK)
        here.catalog.append(begun.model_copy(update={"started": here.clock.now() + behind}))
        found = list(check.clock(here))
    assert [f.id for f in found] == ["NF-CLOCK-001"] * fails


def test_check_looks_at_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = build_site(tmp_path / "site")
    monkeypatch.setenv("PREFECT_API_URL", "http://backup.example.org:4200/api")
    monkeypatch.delenv("PREFECT_API_KEY", raising=False)
    monkeypatch.delenv("PREFECT_API_AUTH_STRING", raising=False)
    assert main(["--site", str(site.file), "check"]) == 2
    assert "NF-PREFECT-001" in capsys.readouterr().out
