"""A hundred images of mixed sizes on 24 simulated drives, against the least time that any spread could take.

The drives are simulated, the order is the product's: four adapters that carry less than their drives, a source that
feeds less than the adapters, one arm that brings the cartridges, a load each.

Claims: the last image ends within 5 % of the lower bound, and for small cases within 5 % of trying everything.

    python -m bench.balance [--rounds 20]

Left out of the claim, and printed: nights in which one image is so large that it alone would take as long as all others
together. There the bound is that image at a drive's full rate, and sharing an adapter costs it.
"""

from __future__ import annotations

import itertools
import random
import statistics

from bench.common import Claim, arguments, report
from nightferry.plan.balance import LaneSpeed, lane_order, least_seconds, longest_first, predict_finish

LANES = LaneSpeed(
    24,
    rate=400e6,
    source_rate=6e9,
    adapters=tuple(number // 6 for number in range(24)),
    adapter_rate=1.8e9,
    arm_s=10.0,
    load_s=16.0,
)


def mixed(seed: int, spread: float) -> dict[str, int]:
    """A hundred images around 45 GB; ``spread`` is the standard deviation of their sizes' logarithm."""
    draw = random.Random(seed)
    return {f"image {n}": int(draw.lognormvariate(24.5, spread)) for n in range(100)}


def over_bound(sizes: dict[str, int]) -> float:
    """When the last one ends, by the lower bound."""
    return predict_finish(lane_order(sizes, LANES.count), sizes, LANES).seconds / least_seconds(sizes, LANES)


def over_best(seed: int) -> float:
    """A small case by the best of all its spreads."""
    draw = random.Random(seed)
    count, lanes = draw.randint(2, 8), draw.randint(2, 3)
    sizes = {f"image {n}": draw.randint(1, 100) for n in range(count)}
    best = min(
        max(sum(s for s, lane in zip(sizes.values(), chosen, strict=True) if lane == n) for n in range(lanes))
        for chosen in itertools.product(range(lanes), repeat=count)
    )
    return predict_finish(lane_order(sizes, lanes), sizes, LaneSpeed(lanes, 1.0)).seconds / best


def main() -> int:
    options = arguments(__doc__ or "", size="1 MiB", rounds=20).parse_args()
    nights = {spread: [over_bound(mixed(n, spread)) for n in range(options.rounds)] for spread in (0.5, 1.0)}
    plain = []
    for n in range(options.rounds):
        sizes = mixed(n, 0.5)
        plain.append(predict_finish(longest_first(sizes), sizes, LANES).seconds / least_seconds(sizes, LANES))
    small = [over_best(n) for n in range(10 * options.rounds)]
    claims = [
        Claim("end of 100 images on 24 drives, of the lower bound; the worst night", max(nights[0.5]), 1.05),
        Claim("end of small cases, of the best there is; the worst case", max(small), 1.05),
    ]
    shown = "\n".join(
        [
            "| sizes | median | worst | longest first: worst |",
            "|---|---|---|---|",
            f"| mixed | {statistics.median(nights[0.5]):.3f} | {max(nights[0.5]):.3f} | {max(plain):.3f} |",
            f"| with giants | {statistics.median(nights[1.0]):.3f} | {max(nights[1.0]):.3f} | |",
        ]
    )
    report("balance", options.results, claims, shown, {"nights": nights, "small": small})
    return 0 if all(claim.holds for claim in claims) else 1


if __name__ == "__main__":
    raise SystemExit(main())
