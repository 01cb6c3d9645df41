"""The media flows' tasks on a real small library, without a Prefect server: what they do and what they report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows import media
from nightferry.site.destinations import offsite
from nightferry.site.opened import OpenSite
from tests.support.small_site import SmallSite


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenSite:
    made = SmallSite(tmp_path, copies=("tape",)).build().open()
    monkeypatch.setattr(media, "opened", lambda site: made)
    monkeypatch.setattr(media, "create_table_artifact", lambda rows, **said: tables.append(rows))
    tables.clear()
    return made


tables: list[list[dict[str, Any]]] = []


def test_the_inventory_lists_every_cartridge(here: OpenSite) -> None:
    assert media.list_cartridges.fn(None, None) == 6  # type: ignore[arg-type] # the site is not looked at
    (rows,) = tables
    assert {row["destination"] for row in rows} == {"tape"}
    assert {row["element"] for row in rows} == {f"slot {n}" for n in range(6)}


def test_cartridges_go_out_and_come_in(here: OpenSite) -> None:
    assert media.export_cartridge.fn(None, "A00002L9", "vault", None)  # type: ignore[arg-type] # the site is not looked at
    assert offsite(here) == {"tape": {"A00002L9"}}
    assert media.import_cartridges.fn(None, None, "back") == ["A00002L9"]  # type: ignore[arg-type] # as above
    assert offsite(here) == {}


def test_a_cartridge_that_cannot_be_exported_is_said_and_not_raised(here: OpenSite) -> None:
    assert not media.export_cartridge.fn(None, "Z99999L9", "vault", None)  # type: ignore[arg-type] # as above
