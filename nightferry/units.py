"""Sizes, rates, percentages and durations as people write them."""

from __future__ import annotations

import re
from typing import TypeVar

N = TypeVar("N", int, float)

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40

_SIZE_UNITS = {
    "": 1, "b": 1,
    "k": KIB, "kib": KIB, "kb": 1000,
    "m": MIB, "mib": MIB, "mb": 1000**2,
    "g": GIB, "gib": GIB, "gb": 1000**3,
    "t": TIB, "tib": TIB, "tb": 1000**4,
}  # fmt: skip
LARGEST_SIZE = (1 << 63) - 1
"""More bytes than that no system counts."""
LONGEST_S = 100 * 366 * 86400.0
"""A duration is at most a century."""
_DURATION_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def parse_size(text: str | int) -> int:
    """``"2 GiB"`` → bytes. Binary units end in iB (or are one letter), decimal ones in B.

    Raises:
        ValueError: not a size, negative, or more than ``LARGEST_SIZE``.
    """
    if isinstance(text, int):
        if text < 0:
            raise ValueError(f"a size cannot be negative: {text}")
        return _bounded_size(text)
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].lower() not in _SIZE_UNITS:
        raise ValueError(f"not a size: {text!r}; write for example '2 GiB'")
    return int(_bounded_size(float(match[1]) * _SIZE_UNITS[match[2].lower()]))


def _bounded_size(size: N) -> N:
    if not size <= LARGEST_SIZE:
        raise ValueError("larger than any disk: at most 8388608 TiB")
    return size


def parse_duration(text: str | int | float) -> float:
    """``"8h"`` → seconds.

    Raises:
        ValueError: not a duration, or more than ``LONGEST_S``.
    """
    if isinstance(text, int | float):
        return _bounded_duration(text)
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*", text)
    if match is None or match[2] not in _DURATION_UNITS:
        raise ValueError(f"not a duration: {text!r}; write for example '8h', '30 min' or '90 s'")
    return _bounded_duration(float(match[1]) * _DURATION_UNITS[match[2]])


def _bounded_duration(seconds: float) -> float:
    if not abs(seconds) <= LONGEST_S:
        raise ValueError("longer than a century")
    return float(seconds)


def parse_percent(text: str, *, limit: float = 100) -> float:
    """``"5 %"`` → 0.05.

    Raises:
        ValueError: not a percentage between 0 and ``limit``.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*", text)
    if match is None or float(match[1]) > limit:
        raise ValueError(f"not a percentage: {text!r}; write for example '5 %'")
    return float(match[1]) / 100


def parse_rate(text: str) -> float:
    """``"50 MiB/s"`` → bytes a second.

    Raises:
        ValueError: not a rate.
    """
    if not text.rstrip().endswith("/s"):
        raise ValueError(f"not a rate: {text!r}; write for example '50 MiB/s'")
    return float(parse_size(text.rstrip()[:-2]))


def format_size(size_bytes: float) -> str:
    """Bytes → ``"1.9 GiB"``; exact below 1 KiB."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def format_duration(seconds: float) -> str:
    """Seconds → ``"2 h 27 min"``, ``"3 min 5 s"``, ``"4.2 s"``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 file``, ``3 files``, ``2 entries`` (with its plural given)."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
