"""How images spread over lanes, and when it all ends."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from nightferry.errors import ConfigError


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
    """Names by size, the largest first, equal ones by name: the order in which lanes end closest together."""
    return sorted(sizes, key=lambda name: (-sizes[name], name))


def predict_finish(sizes: Mapping[str, int], lanes: int, rate: float) -> Forecast:
    """The spread when each free lane takes the largest that is left, and when each is done.

    No spread is better by more than a third (Graham's bound for longest-first: 4/3 - 1/(3 lanes)).

    Args:
        sizes: Name → bytes.
        lanes: How many work at once.
        rate: Bytes a second of each lane.

    Raises:
        ConfigError: no lane, or a rate that is not above 0.
    """
    if lanes < 1 or not rate > 0:
        raise ConfigError(f"cannot predict with {lanes} lanes at {rate} bytes/s")
    free = [(0.0, lane) for lane in range(lanes)]
    order: list[list[str]] = [[] for _ in range(lanes)]
    finish: dict[str, float] = {}
    for name in longest_first(sizes):
        since, lane = heapq.heappop(free)
        finish[name] = since + sizes[name] / rate
        order[lane].append(name)
        heapq.heappush(free, (finish[name], lane))
    return Forecast(tuple(tuple(names) for names in order), finish)
