"""What the TapeAlert flags that ``TapeDrive.alerts`` names ask for (SSC-5 annex A)."""

from __future__ import annotations

from collections.abc import Iterable

CLEANING_WANTED = frozenset({"clean now", "clean periodic"})
CLEANING_FAILED = frozenset({"expired cleaning media", "invalid cleaning tape"})


def wants_cleaning(alerts: Iterable[str]) -> bool:
    """Whether the drive asks for a cleaning cartridge."""
    return not CLEANING_WANTED.isdisjoint(alerts)
