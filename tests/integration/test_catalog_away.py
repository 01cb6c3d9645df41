"""A catalog that is not there: an empty one in its place is not taken for it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import pytest

from nightferry.errors import CatalogError, MoveFailed
from nightferry.health.check import check
from nightferry.model.load import load_site
from nightferry.night import move
from nightferry.progress import QUIET, Cancel
from tests.conftest import needs
from tests.support import night
from tests.support.disks import small_disk
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

MakeSite = Callable[..., SmallSite]
DAY = timedelta(days=1)


@pytest.fixture
def unmounted(make_site: MakeSite) -> tuple[SmallSite, HandClock]:
    """After two nights the catalog's disk is not mounted: its mount point is an empty folder."""
    site, clock = make_site(copies=("tape",)), HandClock()
    with site.open(clock) as opened:
        night.nights(opened, clock, 2)
    (site.home / "catalog").rename(site.home / "catalog.disk")
    (site.home / "catalog").mkdir()
    return site, clock


def ids(site: SmallSite) -> dict[str, str]:
    return {finding.id: finding.severity for finding in check(load_site(site.file))}


def test_no_night_begins_on_the_disk_of_another_catalog(unmounted: tuple[SmallSite, HandClock]) -> None:
    site, clock = unmounted
    staged = site.staged()
    assert ids(site)["NF-CAT-006"] == "fail"
    with (
        site.open(clock) as opened,
        pytest.raises(CatalogError, match="does not know run 20261111-TEX-BACK-1"),
    ):
        night.night(opened, BACK_GROUP)
    assert list((site.home / "catalog").rglob("*.json")) == []
    assert site.staged() == staged
    assert sorted(path.name for path in site.library.glob("cartridges/*/0001.tape")) == ["0001.tape"]


def test_the_true_catalog_goes_on_when_it_is_back(unmounted: tuple[SmallSite, HandClock]) -> None:
    site, clock = unmounted
    with site.open(clock) as opened, pytest.raises(CatalogError):
        night.night(opened, BACK_GROUP)
    (site.home / "catalog").rename(site.home / "mount.point")
    (site.home / "catalog.disk").rename(site.home / "catalog")
    assert "NF-CAT-006" not in ids(site)
    with site.open(clock) as opened:
        night.nights(opened, clock, 1)
        assert len(opened.catalog.runs()) == 3


def test_a_catalog_that_was_brought_back_from_yesterday_is_told_from_today_s(make_site: MakeSite) -> None:
    site, clock = make_site(copies=("folder",)), HandClock()
    with site.open(clock) as opened:
        night.nights(opened, clock, 1)
    shutil.copytree(site.home / "catalog", site.home / "yesterday")
    with site.open(clock) as opened:
        night.nights(opened, clock, 1)
    (site.home / "catalog").rename(site.home / "today")
    (site.home / "yesterday").rename(site.home / "catalog")
    assert ids(site)["NF-CAT-006"] == "fail"
    with site.open(clock) as opened, pytest.raises(CatalogError, match="or an older one"):
        night.night(opened, BACK_GROUP)


def test_an_operator_begins_anew_with_the_disk_by_word(unmounted: tuple[SmallSite, HandClock]) -> None:
    site, clock = unmounted
    with site.open(clock) as opened:
        with pytest.raises(CatalogError) as refused:
            night.night(opened, BACK_GROUP)
        assert "cluster move TEX-BACK-1 --to TEX-PASS-2 --ungated" in refused.value.hint
        move.move_ungated(opened, BACK_GROUP, "TEX-PASS-2", "a new site", progress=QUIET, cancel=Cancel())
        night.nights(opened, clock, 1)


@needs("mount", "mkfs.ext4")
def test_check_sees_that_a_catalog_has_no_room(make_site: MakeSite) -> None:
    site = make_site(copies=("folder",))
    with small_disk(site.home / "catalog", 24 << 20) as _:
        with site.open(HandClock()) as opened:
            night.night(opened, BACK_GROUP)
        assert "NF-CAT-005" not in ids(site)
        filler = site.home / "catalog" / "filler"
        filler.write_bytes(bytes(10 << 20))
        assert ids(site)["NF-CAT-005"] == "warn"
        with filler.open("ab") as out, suppress(OSError):
            while out.write(bytes(1 << 20)):
                out.flush()
        assert ids(site)["NF-CAT-005"] == "fail"


def test_a_disk_that_is_mounted_at_the_path_of_another_back_group_is_not_used(make_site: MakeSite) -> None:
    site, clock = make_site(copies=("folder",)), HandClock()
    with site.open(clock) as opened:
        night.nights(opened, clock, 1)
    (site.home / "other").mkdir()
    other = f'[[back_groups]]\nname = "TEX-BACK-2"\npath = "{site.home}/other"\n'
    site.write_file(more=other)
    token = max(site.disk.glob(".nightferry/owner.*"), key=lambda path: int(path.suffix[1:]))
    token.write_text(token.read_text().replace("-TEX-BACK-1", "-TEX-BACK-2"))
    assert ids(site)["NF-STAGE-006"] == "fail"
    staged = site.staged()
    with site.open(clock) as opened, pytest.raises(MoveFailed, match="the disk of TEX-BACK-2 is mounted at"):
        night.night(opened, BACK_GROUP)
    assert site.staged() == staged
    site.write_file(more="")  # the BACK group was renamed
    assert "NF-STAGE-006" not in ids(site)
