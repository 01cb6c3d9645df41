"""A virtual tape library in a folder with a register in memory: what a process of the product would open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from nightferry.destination.tape.drives.base import TapeDrive
from nightferry.destination.tape.library.changer import Address
from nightferry.destination.tape.library.destination import TapeDestination
from nightferry.destination.tape.library.pool import Pool
from nightferry.destination.tape.library.virtual import VirtualLibrary, create
from tests.support.outgoing import MIB
from tests.support.tapes import MemoryRegister


class FakeClock:
    """A clock that only sleeps move; ``on_sleep`` sees the seconds passed so far."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.on_sleep: Callable[[float], None] = lambda passed: None

    def now(self) -> datetime:
        return datetime(2026, 11, 30, 20, 0, tzinfo=UTC) + timedelta(seconds=self.passed)

    def monotonic(self) -> float:
        return self.passed

    def sleep(self, seconds: float) -> None:
        self.passed += seconds
        self.on_sleep(self.passed)


@dataclass
class Rig:
    """A library folder and its register; ``tape`` opens a destination over them as one process would."""

    path: Path
    register: MemoryRegister
    clock: FakeClock
    opened: list[TapeDestination] = field(default_factory=list)
    wrap: Callable[[TapeDrive], TapeDrive] = lambda drive: drive
    """What stands between each drive and the destinations that are opened from now on."""
    said: list[str] = field(default_factory=list)
    """What readers were told that they wait for."""

    def make(
        self, drives: int = 2, slots: int = 4, cartridge_bytes: int = 16 * MIB, cartridges: int = 4
    ) -> None:
        barcodes = [f"A{n:05d}L9" for n in range(1, cartridges + 1)]
        create(self.path, drives, slots, cartridge_bytes, barcodes)

    def tape(self, wait_s: float = 0, **pool: object) -> TapeDestination:
        pool_ = Pool("daily", wait_for_media_s=wait_s, **pool)  # type: ignore[arg-type] # keywords of one test each
        library = VirtualLibrary(self.path)
        drives: list[TapeDrive] = [self.wrap(drive) for drive in library.drives]
        library.drives = drives  # type: ignore[assignment] # any drive does
        tape = TapeDestination("tape", library, pool_, self.register, clock=self.clock, tell=self.said.append)
        self.opened.append(tape)
        return tape

    def files(self, barcode: str) -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in sorted((self.path / "cartridges" / barcode).iterdir())}


def write_on(rig: Rig, barcode: str, record: bytes) -> None:
    """Puts a record on a cartridge behind nightferry's back."""
    library = VirtualLibrary(rig.path)
    slot = next(e.address for e in library.changer.inventory() if e.barcode == barcode)
    library.changer.move(slot, Address("drive", 0))
    drive = library.drives[0]
    drive.load()
    drive.write_record(record)
    drive.write_filemarks(1)
    drive.unload()
    library.changer.move(Address("drive", 0), slot)
