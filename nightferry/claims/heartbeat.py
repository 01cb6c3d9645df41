"""Whether a holder lives: it changes a small file of its own, and whoever wants what it holds watches that file.

A holder whose file has not changed for ``LEASE_S``, by the watcher's own monotonic clock, counts as dead. No node's
time of day is compared with another's. A holder that lives may look dead: stopped, cut off from the bucket, starved.
That it then does no harm is not the heartbeat's doing, but the log's: ``claims/log.py``.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

LEASE_S = 60.0
"""How long a holder must have been watched without a heartbeat before it is overtaken."""
HEARTBEATS = 6
"""Heartbeats in that time."""

Life = Literal["met", "alive", "quiet", "silent"]
"""``met``: watched from now on; ``alive``: it sent a heartbeat; ``quiet``: none since; ``silent``: none for all its
time.
"""


class _Seen(NamedTuple):
    """Of which claim, what the heartbeat said, when it was seen first."""

    sequence: int
    heartbeat: bytes | None
    at: float


class HolderWatch:
    """What one watcher saw of the holders of one thing.

    Args:
        lease_s: See ``LEASE_S``.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._seen: _Seen | None = None

    def see(self, sequence: int, heartbeat: bytes | None, now: float) -> Life:
        """What a look at the heartbeat says.

        Args:
            sequence: The event of the claim: another one is another holder's.
            heartbeat: What its file holds; None when it has none.
            now: Monotonic time from before the look: what is seen was so until then at least.
        """
        seen = self._seen
        if seen is None or (seen.sequence, seen.heartbeat) != (sequence, heartbeat):
            self._seen = _Seen(sequence, heartbeat, now)
            return "alive" if seen is not None and seen.sequence == sequence else "met"
        return "silent" if now - seen.at >= self._lease_s else "quiet"
