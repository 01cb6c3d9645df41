"""Where a cartridge is, while another host moves it between the parts of an inventory."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nightferry.destination.tape.library.bays import Bays
from nightferry.destination.tape.library.changer import Address, Element, Library
from nightferry.errors import Unavailable

SLOT, DRIVE = Address("slot", 3), Address("drive", 1)


def bays(*inventories: Sequence[Element]) -> Bays:
    """Bays of a library that gives these inventories, the last one for ever."""
    left = list(inventories)

    def inventory() -> list[Element]:
        return list(left.pop(0) if len(left) > 1 else left[0])

    library = SimpleNamespace(name="l700", changer=SimpleNamespace(inventory=inventory), drives=[])
    return Bays(cast(Library, library), cast(Any, None), 0.0)


def test_a_cartridge_that_was_in_no_part_of_the_inventory_is_looked_for_again() -> None:
    assert bays([], [Element(SLOT, "A1")]).place_of("A1") == SLOT


def test_a_cartridge_that_was_in_two_parts_of_the_inventory_is_one() -> None:
    assert bays([Element(DRIVE, "A1"), Element(SLOT, "A1")], [Element(SLOT, "A1")]).place_of("A1") == SLOT


def test_a_cartridge_that_is_not_there_is_nowhere_and_two_of_one_barcode_are_two() -> None:
    assert bays([Element(SLOT, "B1")]).place_of("A1") is None
    with pytest.raises(Unavailable, match="2 cartridges have the barcode A1, in drive 1 and slot 3"):
        bays([Element(DRIVE, "A1"), Element(SLOT, "A1")]).place_of("A1")
