from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nightferry.catalog.folder import FolderStorage
from nightferry.claims.drain import clear_drain, drain_requested, request_drain
from nightferry.errors import CatalogError

AT = datetime(2026, 3, 8, 2, 0, tzinfo=UTC)


def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    for name in ("../x", "", ".hidden", "a/b"):
        with pytest.raises(CatalogError, match="not a name"):
            request_drain(FolderStorage(tmp_path), name, "me", AT)


def test_a_drain_counts_for_the_run_that_was_there_when_it_was_asked_for(tmp_path: Path) -> None:
    place = FolderStorage(tmp_path)
    assert drain_requested(place, "A", AT) is None
    clear_drain(place, "A")
    request_drain(place, "A", "20260309-A on TEX-ACTV-1", AT)
    request = drain_requested(place, "A", AT)
    assert request is not None
    assert request.by == "20260309-A on TEX-ACTV-1"
    for another_run in (AT - timedelta(seconds=1), AT + timedelta(seconds=1)):
        assert drain_requested(place, "A", another_run) is None
    assert drain_requested(place, "B", AT) is None
    clear_drain(place, "A")
    assert drain_requested(place, "A", AT) is None


def test_a_garbled_drain_request_is_an_error(tmp_path: Path) -> None:
    place = FolderStorage(tmp_path)
    request_drain(place, "A", "me", AT)
    (tmp_path / "locks" / "A.drain").write_bytes(b"{")
    with pytest.raises(CatalogError, match="garbled"):
        drain_requested(place, "A", AT)
