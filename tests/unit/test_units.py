"""Sizes and durations as people write them, and what no disk and no life holds."""

from __future__ import annotations

import pytest

from nightferry.units import LARGEST_SIZE, LONGEST_S, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("2 GiB", 2 << 30), ("1.5MB", 1_500_000), ("8388607 TiB", 8388607 << 40), (LARGEST_SIZE, LARGEST_SIZE)],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["9" * 400, "9" * 400 + " TiB", "8388609 TiB", 10**30, LARGEST_SIZE + 1])
def test_a_size_that_no_disk_has_is_refused(text: str | int) -> None:
    with pytest.raises(ValueError, match="larger than any disk"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90 s", 90), ("8h", 28_800), (0.5, 0.5), ("100 d", 8_640_000)]
)
def test_durations(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["9" * 400 + " s", "6000 w", float("inf"), float("nan"), 10**400, -2 * LONGEST_S]
)
def test_a_duration_that_nobody_lives_to_see_is_refused(text: str | float) -> None:
    with pytest.raises(ValueError, match="longer than a century"):
        parse_duration(text)
