"""What several of the contracts' suites ask for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tape_rig import FakeClock, Rig
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
