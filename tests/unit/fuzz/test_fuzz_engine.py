"""The fuzzer sees what it is there to see, and what it once found is refused today."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fuzz import engine

BAD = """
import os, sys
from fuzz import __main__, targets
from nightferry.errors import ConfigError
def decode(data):
    if data != b"sound":
        {fault}
targets.TARGETS["bad"] = targets.Target("bad", lambda: (b"sound",), decode)
sys.exit(__main__.main())
"""


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("os.abort()", "exit -6"),
        ("raise KeyError('x')", "KeyError"),
        ("raise MemoryError", "MemoryError"),
        ("sys.exit(0)", "SystemExit"),
        ("globals().setdefault('kept', []).append(b'x' * (400 << 20))", "MiB"),
    ],
)
def test_an_abort_a_foreign_error_and_a_case_that_is_too_large_are_faults_with_their_case(
    monkeypatch: pytest.MonkeyPatch, fault: str, why: str
) -> None:
    monkeypatch.setattr(engine, "PROGRAM", (sys.executable, "-c", BAD.format(fault=fault)))
    result = engine.fuzz("bad", 0.3, seed=1)
    assert result.faults
    assert why in result.faults[0][0]
    assert result.faults[0][1] != b"sound"


def test_our_own_errors_are_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    program = BAD.format(fault="raise ConfigError('no')")
    monkeypatch.setattr(engine, "PROGRAM", (sys.executable, "-c", program))
    result = engine.fuzz("bad", 0.3, seed=1)
    assert not result.faults
    assert result.refused > 0


def test_no_file_of_the_corpus_does_harm() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "fuzz", "all", "--replay"], cwd=engine.ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert all(" 0 wrong" in line for line in ran.stdout.splitlines())
