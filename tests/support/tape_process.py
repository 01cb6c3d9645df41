"""What one process of the product opens of a tape library, and a catalog of cartridges that outlives it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nightferry.destination.tape.library.changer import Address, Library
from nightferry.destination.tape.library.destination import TapeDestination
from nightferry.destination.tape.library.pool import Pool
from nightferry.model.records import CartridgeRecord
from tests.support.outgoing import MIB
from tests.support.tapes import MemoryRegister


class LastingRegister(MemoryRegister):
    """A catalog that outlives the process that writes to it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def record(self, cartridge: CartridgeRecord, phase: str = "result") -> None:
        super().record(cartridge, phase)
        with self._path.open("a") as file:
            file.write(cartridge.model_dump_json() + "\n")

    def reload(self) -> None:
        for line in self._path.read_text().splitlines():
            cartridge = CartridgeRecord.model_validate_json(line)
            self.kept[cartridge.barcode] = cartridge


class Process:
    """What one process of the product opens, and what it mounts."""

    def __init__(
        self, library: Library, register: MemoryRegister, pool: list[str], wait_s: float = 0
    ) -> None:
        self.mounted: list[str] = []
        self.library = library
        move = library.changer.move

        def counted(source: Address, target: Address) -> None:
            if target.kind == "drive":
                self.mounted += [e.barcode for e in library.changer.inventory() if e.address == source]
            move(source, target)

        library.changer.move = counted  # type: ignore[method-assign]
        self.tape = TapeDestination(
            "tape",
            library,
            Pool("daily", tuple(pool), wait_for_media_s=wait_s),
            register,
            buffer_bytes=2 * MIB,
        )

    def fails(
        self, verb: str, barcode: str, error: Exception, when: Callable[..., bool] = lambda *args: True
    ) -> None:
        """From now on a verb of every drive raises this with that cartridge in it, if its arguments are so."""
        for drive in self.library.drives:
            setattr(drive, verb, self._failing(drive.number, getattr(drive, verb), barcode, error, when))

    def _failing(
        self,
        number: int,
        do: Callable[..., object],
        barcode: str,
        error: Exception,
        when: Callable[..., bool],
    ) -> Callable[..., object]:
        here = Address("drive", number)

        def verb(*args: object, **more: object) -> object:
            if when(*args) and any(
                e.address == here and e.barcode == barcode for e in self.library.changer.inventory()
            ):
                raise error
            return do(*args, **more)

        return verb
