"""Whatever happened, what a restore gives back is right, and the documented verbs lead back to green."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nightferry.cli.app import main
from nightferry.clock import SystemClock
from tests.support.small_site import HandClock, SmallSite
from tests.support.year import RETENTION, Year


@pytest.mark.parametrize("seed", range(6))
def test_a_year_of_anything_ends_green(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is done and what must hold: ``tests/support/year.py``. Right values are the stores as they stood."""
    clock = HandClock()
    monkeypatch.setattr(SystemClock, "now", lambda _: clock.now())
    monkeypatch.setattr(SystemClock, "monotonic", lambda _: clock.monotonic())
    monkeypatch.setattr(SystemClock, "sleep", lambda _, seconds: clock.sleep(seconds))
    stores = {"SG1": ("a", "b"), "SG2": ("c",)}
    site = SmallSite(tmp_path, stores=stores, cartridge="12 MiB", more=RETENTION).build()

    def say(*arguments: str) -> tuple[int, dict[str, object]]:
        capfd.readouterr()
        code = main(["--site", str(site.file), *arguments, "--json"])
        return code, json.loads(capfd.readouterr().out)

    Year(site, clock, say, seed).live(80)
