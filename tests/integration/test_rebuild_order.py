"""A catalog that is made from copies has the order in which their images were made, whatever the clocks said."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from nightferry.catalog.query import Catalog
from nightferry.copies import delivery
from nightferry.copies.rebuild import rebuild
from nightferry.model.load import load_site
from nightferry.progress import QUIET, Cancel
from tests.support import night
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

MakeSite = Callable[..., SmallSite]
DAY = timedelta(days=1)


def after_a_wrong_clock(make_site: MakeSite) -> tuple[SmallSite, HandClock, list[str]]:
    """Three nights by a clock a month ahead, then four true ones; their runs in the order in which they were."""
    site, clock = make_site(stores={"SG1": ("a",)}), HandClock()
    runs = []
    with site.open(clock) as opened:
        clock.advance(30 * DAY)
        for number in range(7):
            if number == 3:
                clock.advance(-33 * DAY)
            reason = "checked by phone" if number == 3 else ""
            runs.append(night.night(opened, BACK_GROUP, clock_is_right=reason).run)
            for name in ("folder", "tape"):
                delivery.deliver_catalog(opened, name, clock.now())
            clock.advance(DAY)
    return site, clock, runs


def rebuilt(site: SmallSite, clock: HandClock, copy: str, to: Path) -> Catalog:
    rebuild(load_site(site.file), copy, str(to), clock=clock, progress=QUIET, cancel=Cancel())
    return Catalog(to, node="n")


@pytest.mark.parametrize("copy", ["folder", "tape"])
def test_the_newest_copy_of_the_catalog_is_the_one_written_last(
    make_site: MakeSite, copy: str, tmp_path: Path
) -> None:
    site, clock, runs = after_a_wrong_clock(make_site)
    catalog = rebuilt(site, clock, copy, tmp_path / "again")
    assert [image.run for image in catalog.images("SG1", "a")] == runs[::-1]
    assert catalog.holds() == []
    # The approvals, failures and states of all nights came with it: nothing is only known from its copies.
    assert not [run for run in catalog.runs() if "copies at" in run.note]


def test_without_any_copy_of_the_catalog_the_order_stands_beside_the_copies(
    make_site: MakeSite, tmp_path: Path
) -> None:
    site, clock, runs = after_a_wrong_clock(make_site)
    shutil.rmtree(site.objects / "catalog")
    catalog = rebuilt(site, clock, "folder", tmp_path / "again")
    assert [image.run for image in catalog.images("SG1", "a")] == runs[::-1]
    assert [run.run for run in catalog.runs()] == runs[::-1]
    newest = catalog.image_as_of("SG1", "a", None)
    assert newest is not None
    assert newest.run == runs[-1]
    # What is made by the new catalog comes after all of them, also in the next one that is made from copies.
    assert catalog.order > max(image.order for image in catalog.images())


def gone(meta: Path) -> None:
    meta.unlink()


def garbled(meta: Path) -> None:
    meta.write_text("{")


@pytest.mark.parametrize("damage", [gone, garbled])
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_an_image_whose_record_was_made_again_keeps_its_place(
    make_site: MakeSite, tmp_path: Path, lost: int, damage: Callable[[Path], None]
) -> None:
    site, clock = make_site(stores={"SG1": ("a",)}), HandClock()
    runs = []
    with site.open(clock) as opened:
        for _ in range(3):
            runs.append(night.night(opened, BACK_GROUP, new=True).run)
            clock.advance(DAY / 2)  # two of them are of one window
    damage(site.objects / f"images/{runs[lost]}.SG1.a.L0/meta.json")
    catalog = rebuilt(site, clock, "folder", tmp_path / "again")
    assert [image.run for image in catalog.images("SG1", "a")] == runs[::-1]
    orders = [catalog.order_of(f"{run}.SG1.a.L0") for run in runs]
    assert orders == sorted(orders)


def test_three_copies_of_the_catalog_are_kept_and_those_of_a_clock_ahead_outlive_none(
    make_site: MakeSite,
) -> None:
    site, _, _ = after_a_wrong_clock(make_site)
    names = sorted(path.name for path in (site.objects / "catalog").glob("catalog-*.parquet"))
    assert len(names) == 3
    records = sorted(path.name for path in (site.objects / "records").iterdir())
    assert len(records) == 3
    days = {name.split("-")[2][:8] for name in (*names, *records)}
    assert all(day < "20261201" for day in days), days
