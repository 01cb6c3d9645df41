"""Each decoder under mutated input for a while; ten minutes or an hour by hand: CONTRIBUTING.md."""

from __future__ import annotations

import os
import time

import pytest

from fuzz import engine
from fuzz.targets import TARGETS

SECONDS = float(os.environ.get("NIGHTFERRY_FUZZ_S", "20"))


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_but_our_own_errors_comes_of_mutated_input(target: str) -> None:
    seed = int(time.time())
    result = engine.fuzz(target, SECONDS, seed)
    assert result.cases > 0
    assert [why for why, _ in result.faults] == [], f"python -m fuzz {target} --seed {seed}"
