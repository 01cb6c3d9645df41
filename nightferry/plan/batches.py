"""Stores as tasks: large ones alone, small ones together. A thousand stores are not a thousand tasks."""

from __future__ import annotations

from collections.abc import Mapping

from nightferry.plan.balance import longest_first
from nightferry.units import MIB

SMALL_BYTES = 64 * MIB
BATCH_STORES = 50


def batches(
    sizes: Mapping[str, int | None], *, small_bytes: int = SMALL_BYTES, most: int = BATCH_STORES
) -> list[tuple[str, ...]]:
    """Every store in exactly one task, in the order in which the tasks should begin.

    Stores of unknown size come first, alone, because they may be the largest; then the large ones, the
    largest first; then the small ones in batches of nearly equal number.

    Args:
        sizes: Store → bytes of its last image; None when there is none.
        small_bytes: Stores below this are small.
        most: Stores in one batch.
    """
    unknown = sorted(name for name, size in sizes.items() if size is None)
    known = longest_first({name: size for name, size in sizes.items() if size is not None})
    large = [name for name in known if (sizes[name] or 0) >= small_bytes]
    small = known[len(large) :]
    count = -(-len(small) // most)
    # Dealt out like cards: every batch gets large and small ones, so all take about as long.
    return [(name,) for name in [*unknown, *large]] + [tuple(small[i::count]) for i in range(count)]
