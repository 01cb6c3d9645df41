"""What the flow that reads copies back hands on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import flows.verify
from blocks.site import Site
from nightferry.copies import verify
from tests.support.command_site import build_site


@pytest.mark.parametrize("recall", [False, True])
def test_archived_copies_are_asked_for_only_when_the_run_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recall: bool
) -> None:
    site = build_site(tmp_path / "site")
    asked: list[Any] = []

    def verified(*_: object, **options: Any) -> list[Any]:
        asked.append((options["sample"], options["recalling"]))
        return []

    monkeypatch.setattr(verify, "verify_copies", verified)
    monkeypatch.setattr(flows.verify, "create_table_artifact", lambda *_, **__: None)
    block = Site(text=site.file.read_text())
    assert flows.verify.read_back.fn(block, None, 50.0, recall) == 0
    assert asked == [(0.5, recall)]
