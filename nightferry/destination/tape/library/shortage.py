"""What a pool lacks: how many cartridges all that waits for it needs, and since when it has had none to give."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from nightferry.destination.tape.drives.base import RECORD_BYTES
from nightferry.progress import Cancel, Progress


@dataclass(slots=True)
class Need:
    """What a lane asks a cartridge for: so many bytes of an image, and of its final trailer; whom to tell, what stops
    it, how long it waits.

    ``besides`` is the cartridge at hand, when the next one is asked for. A need is used up by one cartridge: ``taken``
    are the cartridges that others had, or that proved unusable; ``said`` is when the wait was last spoken of.
    """

    image: str
    bytes_left: int
    progress: Progress
    cancel: Cancel
    wait_s: float
    besides: str = ""
    trailer_bytes: int = 0
    said: float | None = None
    taken: set[str] = field(default_factory=set)


class Shortage:
    """What the lanes of one pool could not get. May be used from several threads.

    The wait for media is the pool's: an image that finds it empty does not wait as long again as those before it.

    Args:
        usable_bytes: What an empty cartridge surely takes of images, up to early warning.
        reserve_bytes: What it surely takes behind that: a final trailer that fits there needs no other cartridge.
    """

    def __init__(self, usable_bytes: int, reserve_bytes: int = 0) -> None:
        self._usable_bytes = max(usable_bytes, RECORD_BYTES)
        self._reserve_bytes = reserve_bytes
        self._lock = threading.Lock()
        self._lanes: dict[int, dict[str, Need]] = {}
        self._since: float | None = None

    def found(self, lane: int, image: str) -> None:
        """A lane got a cartridge for an image: the pool is not empty."""
        with self._lock:
            self._since = None
            self._lanes.get(lane, {}).pop(image, None)

    def lacks(self, lane: int, need: Need, now: float) -> float:
        """A lane got none; returns for how many seconds the pool has been empty."""
        with self._lock:
            self._lanes.setdefault(lane, {})[need.image] = need
            self._since = now if self._since is None else self._since
            return now - self._since

    def cartridges(self, *needs: Need) -> int:
        """How many empty cartridges images need that follow each other, each with its final trailer: the last one's
        may lie behind early warning."""
        size = sum(need.bytes_left + need.trailer_bytes for need in needs)
        if needs[-1].trailer_bytes <= self._reserve_bytes:
            size -= needs[-1].trailer_bytes
        return max(1, -(-size // self._usable_bytes))

    def all_cartridges(self) -> tuple[int, int]:
        """How many cartridges all that waits needs, summed over the lanes, and how many images wait."""
        with self._lock:
            lanes = [tuple(images.values()) for images in self._lanes.values() if images]
            return sum(self.cartridges(*needs) for needs in lanes), sum(map(len, lanes))
