"""Each decoder under mutated input for a while; ten minutes or an hour by hand: CONTRIBUTING.md."""

from __future__ import annotations

import os

import pytest

from fuzz import engine
from fuzz.targets import TARGETS
from nightferry.errors import NightferryError
from nightferry.scsi import libiscsi

SEED = int(os.environ.get("NIGHTFERRY_FUZZ_SEED", "20261201"))
"""Of every run here; by hand each run takes another."""
SECONDS = float(os.environ.get("NIGHTFERRY_FUZZ_S", "20"))


def require_libiscsi() -> None:
    """Without the library the test is skipped at a desk and fails in CI."""
    try:
        libiscsi.library()
    except NightferryError as error:
        if os.environ.get("NIGHTFERRY_REQUIRE_SERVERS") == "1":
            raise
        pytest.skip(error.message)


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_but_our_own_errors_comes_of_mutated_input(target: str) -> None:
    if target == "iscsi":
        require_libiscsi()
    result = engine.fuzz(target, SECONDS, SEED)
    assert result.cases > 0
    assert [why for why, _ in result.faults] == [], f"python -m fuzz {target} --seed {SEED}"
