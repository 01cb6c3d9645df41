"""Stores as tasks: each alone as long as they are few; of many, the small ones together.

A thousand stores are not a thousand tasks, and a dozen are not one line that nobody can read.
"""

from __future__ import annotations

from collections.abc import Mapping

from nightferry.plan.balance import longest_first
from nightferry.units import MIB

SMALL_BYTES = 64 * MIB
BATCH_STORES = 50
FEW_STORES = 16


def batches(
    sizes: Mapping[str, int | None],
    *,
    small_bytes: int = SMALL_BYTES,
    most: int = BATCH_STORES,
    few: int = FEW_STORES,
) -> list[tuple[str, ...]]:
    """Every store in exactly one task, in the order in which the tasks should begin.

    Stores of unknown size come first, alone, because they may be the largest; then the large ones, the
    largest first; then the small ones in batches of nearly equal number.

    Args:
        sizes: Store → bytes of its last image; None when there is none.
        small_bytes: Stores below this are small.
        most: Stores in one batch.
        few: Up to so many small stores are not batched at all.
    """
    unknown = sorted(name for name, size in sizes.items() if size is None)
    known = longest_first({name: size for name, size in sizes.items() if size is not None})
    large = [name for name in known if (sizes[name] or 0) >= small_bytes]
    small = known[len(large) :]
    count = len(small) if len(small) <= few else -(-len(small) // most)
    # Dealt out like cards: every batch gets large and small ones, so all take about as long.
    return [(name,) for name in [*unknown, *large]] + [tuple(small[i::count]) for i in range(count)]
