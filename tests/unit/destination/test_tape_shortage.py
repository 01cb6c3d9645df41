"""How many cartridges a pool lacks, and since when."""

from __future__ import annotations

import pytest

from nightferry.destination.tape.library.shortage import Need, Shortage
from nightferry.progress import QUIET, Cancel

MIB = 1 << 20


def need(image: str, mib: int, trailer: int = 0) -> Need:
    return Need(image, mib * MIB, QUIET, Cancel(), 0, trailer_bytes=trailer)


@pytest.mark.parametrize(("mib", "cartridges"), [(0, 1), (1, 1), (10, 1), (11, 2), (100, 10), (101, 11)])
def test_an_image_needs_as_many_cartridges_as_its_bytes_fill(mib: int, cartridges: int) -> None:
    assert Shortage(10 * MIB).cartridges(need("a", mib)) == cartridges


def test_a_final_trailer_that_fits_behind_early_warning_needs_no_cartridge_of_its_own() -> None:
    shortage = Shortage(10 * MIB, MIB)
    assert shortage.cartridges(need("a", 10, MIB)) == 1
    assert shortage.cartridges(need("a", 10, MIB + 1)) == 2
    # Of images that follow each other only the last one's can lie there.
    assert shortage.cartridges(need("a", 5, MIB), need("b", 5, MIB)) == 2
    assert shortage.cartridges(need("a", 5, MIB), need("b", 4, MIB)) == 1


def test_what_waits_is_summed_over_the_lanes() -> None:
    shortage = Shortage(10 * MIB)
    shortage.lacks(0, need("large", 25), 0)
    shortage.lacks(1, need("other", 12), 0)
    assert shortage.all_cartridges() == (3 + 2, 2)
    # Images that follow each other in one lane share its cartridges.
    for number in range(6):
        shortage.lacks(2, need(f"small{number}", 1), 0)
    assert shortage.all_cartridges() == (3 + 2 + 1, 8)
    shortage.found(0, "large")
    assert shortage.all_cartridges() == (2 + 1, 7)
    # An image that asks again counts once, with what it lacks now.
    shortage.lacks(1, need("other", 2), 0)
    assert shortage.all_cartridges() == (1 + 1, 7)


def test_the_wait_is_the_pools_and_ends_with_a_cartridge() -> None:
    shortage = Shortage(10 * MIB)
    assert shortage.lacks(0, need("a", 1), 100) == 0
    assert shortage.lacks(1, need("b", 1), 130) == 30
    assert shortage.lacks(0, need("c", 1), 700) == 600
    shortage.found(1, "b")
    assert shortage.lacks(0, need("c", 1), 800) == 0
