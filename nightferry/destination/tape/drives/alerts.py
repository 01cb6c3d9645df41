"""TapeAlert: what a drive says of itself and of its cartridge, by name (SSC-5 §4.2.20, table 9; LTO's
TapeAlert guide)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

FLAGS: Mapping[int, str] = {
    1: "read warning",
    2: "write warning",
    3: "hard error",
    4: "medium",
    5: "read failure",
    6: "write failure",
    7: "medium life",
    8: "not data grade",
    9: "write protect",
    10: "medium removal prevented",
    11: "cleaning medium",
    12: "unsupported format",
    13: "recoverable mechanical cartridge failure",
    14: "unrecoverable mechanical cartridge failure",
    15: "memory chip in cartridge failure",
    16: "forced eject",
    17: "read only format",
    18: "tape directory corrupted on load",
    19: "nearing medium life",
    20: "clean now",
    21: "clean periodic",
    22: "expired cleaning medium",
    23: "invalid cleaning medium",
    25: "host channel failure",
    26: "cooling fan failure",
    27: "power supply failure",
    28: "power consumption",
    29: "drive preventive maintenance",
    30: "hardware a",
    31: "hardware b",
    32: "primary interface",
    33: "eject medium",
    34: "microcode update failure",
    35: "drive humidity",
    36: "drive temperature",
    37: "drive voltage",
    38: "predictive failure",
    39: "diagnostics required",
    51: "tape directory invalid at unload",
    52: "tape system area write failure",
    53: "tape system area read failure",
    54: "no start of data",
    55: "loading or threading failure",
    56: "unrecoverable unload failure",
    57: "automation interface failure",
    58: "microcode failure",
    59: "worm medium integrity check failed",
    60: "worm medium overwrite attempted",
}
"""Flag number → the name that ``TapeDrive.alerts`` gives it."""

CLEANING_WANTED = frozenset({"clean now", "clean periodic"})
CLEANING_FAILED = frozenset({"expired cleaning medium", "invalid cleaning medium"})


def wants_cleaning(alerts: Iterable[str]) -> bool:
    """Whether the drive asks for a cleaning cartridge."""
    return not CLEANING_WANTED.isdisjoint(alerts)
