"""What several of the contracts' suites ask for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tape_rig import FakeClock, Rig
from tests.support.tape_shops import KINDS, ON_SERVER, Shop
from tests.support.tapes import MemoryRegister


@pytest.fixture
def no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill loses nothing that was written: waiting for the disk would only cost time here."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


@pytest.fixture
def rig(tmp_path: Path, no_power_cuts: None) -> Iterator[Rig]:
    """A virtual library in a folder."""
    rig = Rig(tmp_path / "library", MemoryRegister(), FakeClock())
    yield rig
    for tape in rig.opened:
        tape.close()


@pytest.fixture(params=[pytest.param(kind, marks=ON_SERVER if kind == "tgtd" else []) for kind in KINDS])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    """A library of four drives, twelve cartridges of 8 MiB and twenty slots, of every kind."""
    return KINDS[request.param](tmp_path, request)
