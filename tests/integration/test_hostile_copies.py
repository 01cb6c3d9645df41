"""Copies that somebody else wrote to: whatever they say, nothing outside the site's own places is touched."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from nightferry.model.records import CopyRecord, ImageRecord
from nightferry.ops import expire
from nightferry.ops.room import remove_staged
from nightferry.ops.verify import verify_copies
from nightferry.progress import QUIET, Cancel
from tests.support import night
from tests.support.command_site import Command
from tests.support.outside import compare_tree
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

MakeSite = Callable[..., SmallSite]

FORGED: dict[str, Callable[[dict[str, Any], Path], dict[str, Any]]] = {
    "path": lambda meta, canary: meta | {"path": str(canary)},
    "path upwards": lambda meta, canary: meta | {"path": f"../../../../../../../../..{canary}"},
    "group": lambda meta, canary: meta | {"group": "../../x"},
    "store": lambda meta, canary: meta | {"store": str(canary)},
    "run": lambda meta, canary: meta | {"run": "20261110-../../x"},
    "node": lambda meta, canary: meta | {"node": "a/../../b"},
    "size": lambda meta, canary: meta | {"size_bytes": -1},
}


def lose(site: SmallSite) -> None:
    """Catalog and staging are gone, with all that the cluster knew."""
    shutil.rmtree(site.home / "catalog")
    (site.home / "catalog-cluster.json").unlink()
    shutil.rmtree(site.disk)
    site.disk.mkdir()


def metas(site: SmallSite) -> list[Path]:
    return sorted((site.objects / "images").glob("*/meta.json"))


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A file that is nobody's business."""
    path = tmp_path / "canary.tar"
    path.write_bytes(b"sings")
    return path


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_record_is_left_out_and_leads_nowhere(
    make_site: MakeSite, nightferry: Command, canary: Path, forged: str
) -> None:
    site = make_site(copies=("folder",))
    clock = HandClock()
    with site.open(clock) as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
    first, second = metas(site)
    first.write_text(json.dumps(FORGED[forged](json.loads(first.read_bytes()), canary)))
    lose(site)
    ran = nightferry(
        site.file, "catalog", "rebuild", "--copy", "folder", "--to", site.home / "catalog", "--json"
    )
    assert ran.code == 3, ran.out + ran.err
    assert first.parent.name in ran.out + ran.err
    assert ran.document["added"] == [second.parent.name]
    assert nightferry(site.file, "catalog", "accept", "--yes").code == 0
    moved = ("--to", "TEX-ACTV-1", "--ungated", "--reason", "the disk was lost")
    assert nightferry(site.file, "cluster", "move", BACK_GROUP, *moved).code == 0
    for _ in range(3):
        clock.advance(timedelta(days=1))
        with site.open(clock) as opened:
            assert night.night(opened, BACK_GROUP).result == "whole"
            expire.expire(opened, reason="a test", progress=QUIET, cancel=Cancel())
            list(verify_copies(opened, progress=QUIET, cancel=Cancel()))
    assert canary.read_bytes() == b"sings"
    back = site.home / "returned"
    assert nightferry(site.file, "restore", "store", "SG1/b", "--to", back).code == 0
    assert compare_tree(site.store("SG1/b"), back) == ""


def test_a_record_of_another_image_of_that_name_removes_nothing_from_staging(make_site: MakeSite) -> None:
    site = make_site(copies=("folder",))
    with site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
        image = opened.catalog.images("SG1", "a")[0]
        staged = opened.staged_path(image)
        before = staged.stat()
        remove_staged(opened, image.model_copy(update={"digest": "0" * 64}))
        assert staged.stat() == before
        remove_staged(opened, image)
        assert not list(staged.parent.iterdir())


@pytest.mark.parametrize("where", ["group", "store", "tar"])
def test_staging_is_not_left_through_a_symbolic_link(make_site: MakeSite, tmp_path: Path, where: str) -> None:
    """Root owns staging; a disk that was in other hands may come back with links on it."""
    site = make_site(copies=("folder",))
    elsewhere = tmp_path / "elsewhere"
    with site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
        image = opened.catalog.images("SG1", "a")[0]
        tar = opened.staged_path(image)
        moved = {"group": tar.parent.parent, "store": tar.parent, "tar": tar}[where]
        moved.rename(elsewhere)
        moved.symlink_to(elsewhere)
        there = sorted((path, os.lstat(path)) for path in [elsewhere, *elsewhere.rglob("*")])
        assert not opened.is_staged(image)
        remove_staged(opened, image)
        after = sorted((path, os.lstat(path)) for path in [elsewhere, *elsewhere.rglob("*")])
        assert [path for path, _ in after] == [path for path, _ in there]
        assert {copy.state for copy in opened.catalog.all(CopyRecord)} == {"verified"}
        assert opened.catalog.all(ImageRecord)
