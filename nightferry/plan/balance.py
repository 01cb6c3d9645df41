"""How images spread over lanes, and when it all ends.

Lanes are leased, not filled beforehand: whichever is free takes the next image of one list. What can be planned is
the list's order, so that the lanes end together; what can be predicted is when.

Stores are tasks of stage one: each alone as long as they are few, of many the small ones together.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nightferry.errors import ConfigError
from nightferry.units import MIB

_TRIES = 20_000
"""Partial spreads looked at: all there are for about ten images, a few hundredths of a second at most."""

SMALL_BYTES = 64 * MIB
BATCH_STORES = 50
FEW_STORES = 16


@dataclass(frozen=True, slots=True)
class LaneSpeed:
    """What a destination's lanes can do. Only count and rate must be known; what is infinite does not limit.

    ``adapters`` names each lane's adapter, all of which carry ``adapter_rate`` together; ``source_rate`` is what all
    lanes together can be fed with. The one arm brings cartridges one after the other, ``arm_s`` each; then a drive
    loads for ``load_s``, and so again whenever ``cartridge_bytes`` are written.
    """

    count: int
    rate: float
    source_rate: float = math.inf
    adapters: tuple[int, ...] = ()
    adapter_rate: float = math.inf
    arm_s: float = 0.0
    load_s: float = 0.0
    cartridge_bytes: float = math.inf

    def __post_init__(self) -> None:
        rates = (self.rate, self.source_rate, self.adapter_rate, self.cartridge_bytes)
        if self.count < 1 or not all(rate > 0 for rate in rates):
            raise ConfigError(f"cannot predict with {self.count} lanes at {self.rate} bytes/s")
        if self.adapters and len(self.adapters) != self.count:
            raise ConfigError(f"{len(self.adapters)} adapters are named for {self.count} lanes")


@dataclass(frozen=True, slots=True)
class Forecast:
    """A predicted spread of work."""

    lanes: tuple[tuple[str, ...], ...]
    """What each lane does, in order."""
    finish_s: dict[str, float]
    """When each is done, seconds from the beginning."""

    @property
    def seconds(self) -> float:
        """When all is done, seconds from the beginning; 0 for nothing."""
        return max(self.finish_s.values(), default=0.0)


def longest_first(sizes: Mapping[str, int]) -> list[str]:
    """Names by size, the largest first, equal ones by name."""
    return sorted(sizes, key=lambda name: (-sizes[name], name))


def lane_order(sizes: Mapping[str, int], lanes: int) -> list[str]:
    """The order in which free lanes take the images so that the last one ends as early as can be.

    It begins as longest first does, never ends later than that, and for a handful of images is the best there is.
    """
    if lanes < 1:
        raise ConfigError(f"cannot spread over {lanes} lanes")
    begins: list[tuple[float, int, str]] = []
    for lane in _spread([(sizes[name], name) for name in longest_first(sizes)], lanes):
        since = 0
        for size, name in lane:
            begins.append((since, -size, name))
            since += size
    return [name for _, _, name in sorted(begins)]


def _spread(jobs: Sequence[tuple[int, str]], lanes: int) -> list[list[tuple[int, str]]]:
    """Jobs, the longest first, over lanes: a branch and bound whose first leaf is longest-first itself."""
    total = sum(size for size, _ in jobs)
    least = max(jobs[0][0] if jobs else 0, -(-total // lanes))
    best = [0] * len(jobs)
    best_end = math.inf
    ends = [0] * lanes
    chosen = [0] * len(jobs)
    tries = _TRIES

    # An explicit stack: there may be more images than Python has frames.
    stack: list[tuple[int, int]] = [(0, -1)]
    while stack:
        job, lane = stack.pop()
        if lane >= 0:
            if lane >= lanes:
                ends[lane - lanes] -= jobs[job][0]
                continue
            if ends[lane] + jobs[job][0] >= best_end or tries <= 0 or best_end <= least:
                continue
            tries -= 1
            ends[lane] += jobs[job][0]
            chosen[job] = lane
            stack.append((job, lane + lanes))
            job += 1
        if job == len(jobs):
            if max(ends, default=0) < best_end:
                best_end, best = max(ends, default=0), chosen.copy()
            continue
        seen: set[int] = set()
        options = []
        for number in sorted(range(lanes), key=lambda n: (ends[n], n)):
            if ends[number] not in seen:  # lanes that end alike are alike
                seen.add(ends[number])
                options.append((job, number))
        stack.extend(reversed(options))
    spread: list[list[tuple[int, str]]] = [[] for _ in range(lanes)]
    for job, lane in enumerate(best):
        spread[lane].append(jobs[job])
    return spread


def predict_finish(order: Sequence[str], sizes: Mapping[str, int], lanes: LaneSpeed) -> Forecast:
    """When each image is done when free lanes take them in this order.

    What the lanes share (the source, an adapter) is shared fairly: nobody gets more while another gets less than it
    could take.
    """
    waiting = list(reversed(order))
    left = [0.0] * lanes.count
    at: list[str] = [""] * lanes.count
    written = [0.0] * lanes.count
    ready: list[tuple[float, int]] = []
    done: list[list[str]] = [[] for _ in range(lanes.count)]
    finish: dict[str, float] = {}
    now = arm_free = 0.0

    def mount(lane: int) -> None:
        nonlocal arm_free
        arm_free = max(arm_free, now) + lanes.arm_s
        written[lane] = 0.0
        heapq.heappush(ready, (arm_free + lanes.load_s, lane))

    def take(lane: int) -> None:
        if waiting:
            at[lane] = waiting.pop()
            left[lane] = float(sizes[at[lane]])

    for lane in range(min(lanes.count, len(order))):
        take(lane)
        mount(lane)
    mounted: set[int] = set()
    while ready or mounted:
        rates = _shares(mounted, lanes)
        step = min(
            (min(left[n], lanes.cartridge_bytes - written[n]) / rates[n] for n in mounted), default=math.inf
        )
        if ready:
            step = min(step, max(ready[0][0] - now, 0.0))
        now += step
        for n in mounted:
            moved = rates[n] * step
            left[n] -= moved
            written[n] += moved
        while ready and ready[0][0] <= now + 1e-9:
            mounted.add(heapq.heappop(ready)[1])
        for n in sorted(mounted):
            if left[n] <= 1e-6 * max(1, sizes[at[n]]):
                finish[at[n]] = now
                done[n].append(at[n])
                at[n] = ""
                take(n)
                if not at[n]:
                    mounted.discard(n)
                    continue
            if written[n] >= lanes.cartridge_bytes - 1e-6:
                mounted.discard(n)
                mount(n)
    return Forecast(tuple(tuple(names) for names in done), finish)


def _shares(active: set[int], lanes: LaneSpeed) -> dict[int, float]:
    """Max-min fair rates of the active lanes under the limits of lane, adapter and source."""
    rates = dict.fromkeys(active, 0.0)
    growing = set(active)
    limits: list[tuple[set[int], float]] = [(set(active), lanes.source_rate)]
    if lanes.adapters:
        for adapter in sorted({lanes.adapters[n] for n in active}):
            limits.append(({n for n in active if lanes.adapters[n] == adapter}, lanes.adapter_rate))
    while growing:
        room = lanes.rate - rates[next(iter(growing))]
        for members, limit in limits:
            sharing = members & growing
            if sharing:
                room = min(room, (limit - sum(rates[n] for n in members)) / len(sharing))
        for n in growing:
            rates[n] += room
        full = {n for n in growing if rates[n] >= lanes.rate * (1 - 1e-12)}
        for members, limit in limits:
            if members & growing and sum(rates[n] for n in members) >= limit * (1 - 1e-12):
                full |= members & growing
        growing -= full
    return rates


def least_seconds(sizes: Mapping[str, int], lanes: LaneSpeed) -> float:
    """No spread ends earlier: neither the bytes through what is shared, nor the largest image in one lane."""
    if not sizes:
        return 0.0
    starts = [(n + 1) * lanes.arm_s + lanes.load_s for n in range(min(lanes.count, len(sizes)))]
    left, now = float(sum(sizes.values())), starts[0]
    for number, start in enumerate(starts, 1):
        rate = sum(_shares(set(range(number)), lanes).values())
        until = starts[number] if number < len(starts) else math.inf
        if left <= rate * (until - start):
            now = start + left / rate
            break
        left -= rate * (until - start)
    alone = _shares({0}, lanes)[0]
    return max(now, starts[0] + max(sizes.values()) / alone)


def batches(sizes: Mapping[str, int | None], *, few: int = FEW_STORES) -> list[tuple[str, ...]]:
    """Every store in exactly one task, in the order in which the tasks should begin.

    Stores of unknown size come first, alone, because they may be the largest; then the large ones, the
    largest first; then the small ones in batches of nearly equal number.

    Args:
        sizes: Store → bytes of its last image; None when there is none.
        few: Up to so many small stores are not batched at all.
    """
    unknown = sorted(name for name, size in sizes.items() if size is None)
    known = longest_first({name: size for name, size in sizes.items() if size is not None})
    large = [name for name in known if (sizes[name] or 0) >= SMALL_BYTES]
    small = known[len(large) :]
    count = len(small) if len(small) <= few else -(-len(small) // BATCH_STORES)
    # Dealt out like cards: every batch gets large and small ones, so all take about as long.
    return [(name,) for name in [*unknown, *large]] + [tuple(small[i::count]) for i in range(count)]
