"""Cartridges that are not ours to write are never written to: every byte of them is compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from nightferry.destination.tape.library.destination import TapeDestination
from nightferry.errors import ConfigError, DestinationError, NoScratch, WrongCartridge
from nightferry.model.records import CartridgeRecord
from nightferry.night.report import night_result
from nightferry.site.destinations import destination_of
from nightferry.site.opened import OpenSite
from tests.support import night
from tests.support.outside import tape_copies
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

MakeSite = Callable[..., SmallSite]

FIRST = "A00001L9"
SECOND = "A00002L9"


def cartridge(site: SmallSite, barcode: str) -> Path:
    return site.library / "cartridges" / barcode


def bytes_of(folder: Path) -> dict[str, str]:
    """Every file of a cartridge and its SHA-256."""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def record_of(opened: OpenSite, barcode: str) -> CartridgeRecord:
    opened.catalog.refresh()
    found = opened.catalog.latest(CartridgeRecord, f"tape/{barcode}")
    assert found is not None
    return found


def label_only(opened: OpenSite) -> None:
    """Makes the library and labels nothing."""
    assert isinstance(destination_of(opened, "tape"), TapeDestination)
    opened.close()


def foreign_text(folder: Path) -> None:
    """Somebody's own tar on it, without a label."""
    (folder / "0000.tape").write_bytes(b"these are not the backups you look for" * 300)
    (folder / "marks").write_text("11400x1\n")


def foreign_zeros(folder: Path) -> None:
    """Begins with a filemark: not blank, and no label either."""
    (folder / "0000.tape").touch()
    (folder / "marks").write_text("-\n")


def cut_off_label(folder: Path) -> None:
    """The beginning of a label and nothing behind."""
    (folder / "0000.tape").write_bytes(b"NIGHTFERRY TAPE LABEL 1\nbarcode: ")


@pytest.mark.parametrize("what", [foreign_text, foreign_zeros, cut_off_label])
def test_a_foreign_cartridge_is_passed_over(make_site: MakeSite, what: Callable[[Path], None]) -> None:
    site = make_site(copies=("tape",))
    with site.open(HandClock()) as opened:
        label_only(opened)
        what(cartridge(site, FIRST))
        before = bytes_of(cartridge(site, FIRST))
        assert night.night(opened, BACK_GROUP).result == "whole"
        assert record_of(opened, FIRST).state == "foreign"
    assert bytes_of(cartridge(site, FIRST)) == before
    assert {copy.data.parent.name for copy in tape_copies(site.library)} == {SECOND}


def exchange_labels(site: SmallSite) -> None:
    """The content of one cartridge in the shell of another: barcode and label do not agree."""
    first, second = cartridge(site, FIRST), cartridge(site, SECOND)
    aside = first.with_name("aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)


def other_label(site: SmallSite) -> None:
    """The right barcode, another label: a cartridge that was labelled elsewhere under the same barcode."""
    path = cartridge(site, FIRST) / "0000.tape"
    text = path.read_bytes()
    at = text.index(b"label: ") + 7
    path.write_bytes(text[:at] + bytes(b ^ 1 for b in text[at : at + 1]) + text[at + 1 :])


def blanked(site: SmallSite) -> None:
    """Erased behind our back: blank, where the catalog knows images."""
    for path in cartridge(site, FIRST).iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("wrong", "barcodes"), [(exchange_labels, (FIRST, SECOND)), (other_label, (FIRST,)), (blanked, (FIRST,))]
)
def test_a_cartridge_whose_label_is_not_the_catalogs_is_not_written_to(
    make_site: MakeSite, wrong: Callable[[SmallSite], None], barcodes: tuple[str, ...]
) -> None:
    site, clock = make_site(copies=("tape",)), HandClock()
    with site.open(clock) as opened:
        night.night(opened, BACK_GROUP)
    wrong(site)
    before = {barcode: bytes_of(cartridge(site, barcode)) for barcode in barcodes}
    clock.advance(timedelta(days=1))
    with site.open(clock) as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
        assert record_of(opened, FIRST).state == "foreign"
    assert {barcode: bytes_of(cartridge(site, barcode)) for barcode in barcodes} == before
    new = [c for c in tape_copies(site.library) if c.image.startswith("20261111")]
    assert len(new) == 2
    assert not {copy.data.parent.name for copy in new} & set(barcodes)


def test_cartridges_with_live_images_are_never_written_over(make_site: MakeSite) -> None:
    """A pool without scratch: what is full stays full, also when its record says that it has expired."""
    site, clock = make_site(copies=("tape",), cartridge="4 MiB"), HandClock()
    with site.open(clock) as opened:
        label_only(opened)
        # Only two cartridges are in the library.
        elements = json.loads((site.library / "elements.json").read_text())
        for place in ("slot 2", "slot 3", "slot 4", "slot 5"):
            elements["elements"][place] = ""
        (site.library / "elements.json").write_text(json.dumps(elements))
        night.night(opened, BACK_GROUP)
    while True:
        clock.advance(timedelta(days=1))
        with site.open(clock) as opened:
            record = night.stage_one(opened, BACK_GROUP)
            try:
                night.stage_two(opened, record)
            except NoScratch:
                break
    whole = {copy.image: copy.data for copy in tape_copies(site.library)}
    assert len(whole) >= 4
    before = {barcode: bytes_of(cartridge(site, barcode)) for barcode in (FIRST, SECOND)}
    clock.advance(timedelta(days=1))
    with site.open(clock) as opened:
        for barcode in (FIRST, SECOND):
            expired = record_of(opened, barcode).model_copy(update={"state": "expired"})
            opened.catalog.append(expired)
        record = night.stage_one(opened, BACK_GROUP)
        with pytest.raises(DestinationError):
            night.stage_two(opened, record)
        assert night_result(opened, record).outcome == "CopyMissing"
        destination = destination_of(opened, "tape")
        assert isinstance(destination, TapeDestination)
        for pool in ("daily", "monthly"):
            with pytest.raises(
                (WrongCartridge, ConfigError), match=r"live image|labelled for pool daily already"
            ):
                destination.label(FIRST, pool)
    assert {barcode: bytes_of(cartridge(site, barcode)) for barcode in (FIRST, SECOND)} == before
