"""Many copies read from tape: each cartridge mounted once, read forward, the drives in parallel."""

from __future__ import annotations

import filecmp
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightferry.copies.verify import verify_copies
from nightferry.destination.tape.drives.base import Mark, Waiting, no_waiting
from nightferry.destination.tape.drives.virtual import VirtualDrive
from nightferry.progress import QUIET, Cancel
from nightferry.restore import restore
from nightferry.restore.restore_group import plan_group, restore_group
from nightferry.site.opened import OpenSite
from tests.support.night import night
from tests.support.small_site import BACK_GROUP, SmallSite

STORES = ("a", "b", "c", "d", "e", "f")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> SmallSite:
    """Four nights of six stores on small cartridges: several of them full."""
    made = SmallSite(
        tmp_path_factory.mktemp("order"), stores={"SG1": STORES}, copies=("tape",), cartridge="6 MiB"
    ).build()
    for store in STORES:
        (made.store(f"SG1/{store}") / "more.bin").write_bytes(os.urandom(700_000))
    for number in range(3):
        with made.open() as opened:
            night(opened, BACK_GROUP, **({"new": True} if number else {}))
    return made


@pytest.fixture
def opened(site: SmallSite) -> Iterator[OpenSite]:
    with site.open() as here:
        yield here


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each cartridge is loaded, and how often one is wound back, by barcode."""
    seen: Counter[str] = Counter()
    real = VirtualDrive.load

    def load(drive: VirtualDrive, waiting: Waiting = no_waiting) -> None:
        fresh = not drive.is_loaded()
        real(drive, waiting)
        if fresh:
            seen[drive._barcode] += 1

    monkeypatch.setattr(VirtualDrive, "load", load)
    return seen


def test_verify_mounts_each_cartridge_once(opened: OpenSite, loads: Counter[str]) -> None:
    used = {r.barcode for r in opened.catalog.cartridges("tape") if r.images}
    spanned = sum(
        len(c.location["parts"]) - 1 for i in opened.catalog.images() for c in opened.catalog.copies(i.image)
    )
    checked = list(verify_copies(opened, progress=QUIET, cancel=Cancel()))
    assert len(checked) == 3 * len(STORES)
    assert [c.error for c in checked if c.error] == []
    assert len(used) > 1
    # A spanned copy takes its next cartridge before that one's own turn, and the one after needs its own again.
    assert sum(loads.values()) <= len(used) + 2 * spanned


def test_a_group_comes_back_from_tape_in_one_pass(
    opened: OpenSite, loads: Counter[str], tmp_path: Path, site: SmallSite
) -> None:
    plans = plan_group(opened, "SG1", tmp_path / "back", copy="tape")
    cartridges = {part["barcode"] for p in plans for part in p.sources[0].copy.location["parts"]}  # type: ignore[union-attr] # tape only
    done = restore_group(opened, plans, progress=QUIET, cancel=Cancel())
    assert [one.exit_code for one in done] == [0] * len(STORES)
    for store in STORES:
        same = filecmp.dircmp(site.store(f"SG1/{store}"), tmp_path / "back" / store)
        assert (same.left_only, same.right_only, same.diff_files) == ([], [], [])
    assert sum(loads.values()) <= len(cartridges) + 2


def test_a_store_that_cannot_be_read_stops_no_other_one(
    opened: OpenSite, tmp_path: Path, site: SmallSite
) -> None:
    plans = plan_group(opened, "SG1", tmp_path / "back", copy="tape")
    part = plans[2].sources[0].copy.location["parts"][0]  # type: ignore[union-attr] # tape only
    tape = site.library / "cartridges" / part["barcode"] / f"{part['file']:04d}.tape"
    good = tape.read_bytes()
    tape.write_bytes(good[: len(good) // 2] + bytes(len(good) - len(good) // 2))
    try:
        done = restore_group(opened, plans, progress=QUIET, cancel=Cancel())
    finally:
        tape.write_bytes(good)
    assert [one.exit_code for one in done] == [0, 0, 30, 0, 0, 0]


def test_one_file_of_a_full_cartridge_costs_three_records(
    opened: OpenSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[object] = []
    real = VirtualDrive.read_record

    def read(drive: VirtualDrive, limit: int = 1 << 20) -> bytes | Mark:
        found = real(drive, limit)
        reads.append(found)
        return found

    monkeypatch.setattr(VirtualDrive, "read_record", read)
    full = {r.barcode for r in opened.catalog.cartridges("tape") if r.state == "full"}
    image = next(
        i
        for i in opened.catalog.images("SG1", "a")
        if opened.catalog.copies(i.image)[0].location["parts"][0]["barcode"] in full
    )
    plan = restore.plan_restore(opened, image, ["deep/letter.txt"], tmp_path / "one", copy="tape")
    said: list[str] = []

    class Said(type(QUIET)):  # type: ignore[misc] # one sink of many
        def say(self, text: str, subject: str = "") -> None:
            said.append(text)

    done = restore.restore(opened, plan, progress=Said(), cancel=Cancel())
    assert done.is_complete
    assert len(reads) <= 3
    assert said[0] == "from tape, about 2 min 0 s"
