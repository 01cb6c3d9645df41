"""Tape libraries of every kind for the contracts: virtual, scripted in memory, and behind tgtd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from nightferry.clock import SYSTEM_CLOCK
from nightferry.destination.tape.drives.scsi import ScsiDrive
from nightferry.destination.tape.library.changer import Library
from nightferry.destination.tape.library.scsi_changer import ScsiChanger
from nightferry.destination.tape.library.scsi_library import ScsiLibrary
from nightferry.destination.tape.library.scsi_open import Options, open_iscsi
from nightferry.destination.tape.library.virtual import create, open_virtual
from nightferry.scsi.iscsi import Portal
from tests.servers.tgtd import TARGET, Tgtd
from tests.support.outgoing import MIB
from tests.support.scripted_library import ScriptedChanger, ScriptedDrive, Tape

CARTRIDGE = 8 * MIB
BARCODES = [f"RIG{number:03d}L5" for number in range(1, 13)]
DRIVES = 4
SLOTS = 20


@dataclass
class Shop:
    """A library of four drives, twelve cartridges and twenty slots; ``open`` is what one process does."""

    open: Callable[[], Library]
    portal: str = ""
    """Where it answers; empty: a virtual one, in ``library`` below the test's folder, or none outside this process."""


def virtual(tmp: Path, _: pytest.FixtureRequest) -> Shop:
    path = tmp / "library"
    create(path, DRIVES, SLOTS, CARTRIDGE, BARCODES)
    return Shop(lambda: open_library(tmp, ""))


def scripted(tmp: Path, _: pytest.FixtureRequest) -> Shop:
    transports = [ScriptedDrive(f"SERIAL{n}") for n in range(DRIVES)]
    changer_transport = ScriptedChanger(transports, [Tape(b, CARTRIDGE) for b in BARCODES], SLOTS, ports=4)

    def opened() -> Library:
        changer = ScsiChanger(changer_transport)
        drives = [
            ScsiDrive(n, t, 256 << 10, lambda t=t: t.tape is not None, serial=t.serial)  # type: ignore[misc]
            for n, t in enumerate(transports)
        ]
        changer.watch(drives, [500 + n for n in range(DRIVES)])
        return ScsiLibrary("scripted", changer, drives, [t.serial for t in transports], (tmp,), CARTRIDGE)

    return Shop(opened)


def behind_iscsi(tmp: Path, request: pytest.FixtureRequest) -> Shop:
    server: Tgtd = request.getfixturevalue("tgtd")
    server.reset(CARTRIDGE // MIB)
    return Shop(lambda: open_library(tmp, server.portal), server.portal)


def open_library(tmp: Path, portal: str) -> Library:
    """The library of a shop, as one process opens it."""
    if not portal:
        return open_virtual(tmp / "library", DRIVES, SLOTS, CARTRIDGE, ports=4)
    options = Options(locks=(tmp,), reserve_bytes=256 << 10, cartridge_bytes=CARTRIDGE)
    return open_iscsi(Portal(portal, TARGET), (), options, SYSTEM_CLOCK)


KINDS = {"virtual": virtual, "scripted": scripted, "tgtd": behind_iscsi}
ON_SERVER = [pytest.mark.server, pytest.mark.xdist_group("tgtd")]
