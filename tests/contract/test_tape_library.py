"""What every tape library must do, and what nightferry does on it: virtual, behind tgtd, and scripted."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nightferry.destination.base import Receipt
from nightferry.destination.tape.library.changer import Address, Library
from nightferry.destination.tape.library.destination import TapeDestination
from nightferry.destination.tape.library.pool import Pool
from nightferry.errors import DestinationError, Unavailable
from nightferry.progress import QUIET, Cancel
from tests.support.outgoing import MIB, PlainImage, put
from tests.support.tape_shops import BARCODES, DRIVES, Shop
from tests.support.tapes import MemoryRegister, barcodes, read_all


@pytest.fixture
def library(shop: Shop) -> Iterator[Library]:
    library = shop.open()
    yield library
    library.close()


@pytest.fixture
def register() -> MemoryRegister:
    return MemoryRegister()


@pytest.fixture
def tapes(shop: Shop, register: MemoryRegister) -> Iterator[Callable[[], TapeDestination]]:
    """Opens the library as a destination, as a process of its own would."""
    opened: list[TapeDestination] = []

    def tape() -> TapeDestination:
        pool = Pool("daily", tuple(BARCODES), wait_for_media_s=0)
        opened.append(TapeDestination("tape", shop.open(), pool, register))
        return opened[-1]

    yield tape
    for destination in opened:
        destination.close()


def content(mib: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(mib * MIB - 12_345)


def where(library: Library, barcode: str) -> Address:
    return next(e.address for e in library.changer.inventory() if e.barcode == barcode)


def test_the_inventory_names_every_slot_port_and_drive_with_what_is_there(library: Library) -> None:
    elements = library.changer.inventory()
    assert [e.barcode for e in elements if e.address.kind == "slot"][:12] == BARCODES
    for kind in ("slot", "drive", "port"):
        numbers = [e.address.number for e in elements if e.address.kind == kind]
        assert numbers == list(range(len(numbers)))
        assert numbers
    assert [drive.number for drive in library.drives] == list(range(DRIVES))
    assert all(not e.barcode for e in elements if e.address.kind != "slot")


def test_a_cartridge_goes_into_a_drive_and_its_home_is_known(library: Library) -> None:
    slot, drive = Address("slot", 2), Address("drive", 1)
    library.changer.move(slot, drive)
    found = {e.address: e for e in library.changer.inventory()}
    assert found[drive].barcode == BARCODES[2]
    assert not found[slot].barcode
    assert found[drive].home == slot
    library.drives[1].load()
    assert library.drives[1].is_loaded()
    library.drives[1].unload()
    library.changer.move(drive, slot)
    assert where(library, BARCODES[2]) == slot


def test_a_cartridge_goes_out_and_in_through_a_port(library: Library) -> None:
    library.changer.move(Address("slot", 0), Address("port", 1))
    assert where(library, BARCODES[0]) == Address("port", 1)
    library.changer.move(Address("port", 1), Address("slot", 19))
    assert where(library, BARCODES[0]) == Address("slot", 19)


@pytest.mark.parametrize(
    ("source", "target", "why"),
    [
        (Address("slot", 19), Address("drive", 0), "slot 19 is empty"),
        (Address("slot", 0), Address("slot", 1), "slot 1"),
        (Address("slot", 0), Address("slot", 999), "no slot 999"),
        (Address("drive", 9), Address("slot", 19), "no drive 9"),
    ],
)
def test_a_move_that_cannot_be_is_refused_and_changes_nothing(
    library: Library, source: Address, target: Address, why: str
) -> None:
    before = library.changer.inventory()
    with pytest.raises(DestinationError, match=why):
        library.changer.move(source, target)
    assert library.changer.inventory() == before


def test_a_loaded_cartridge_is_not_taken_out_of_its_drive(library: Library) -> None:
    library.changer.move(Address("slot", 0), Address("drive", 0))
    library.drives[0].load()
    with pytest.raises(DestinationError, match="unloaded"):
        library.changer.move(Address("drive", 0), Address("slot", 0))
    library.drives[0].unload()
    library.changer.move(Address("drive", 0), Address("slot", 0))


def test_a_drive_is_locked_by_one_and_the_next_knows_whether_another_was_there(shop: Shop) -> None:
    first, second = shop.open(), shop.open()
    lock = first.try_lock(0)
    assert lock is not None
    assert second.try_lock(0) is None
    assert first.try_lock(0) is None
    other = second.try_lock(1)
    assert other is not None
    other.release()
    lock.release()
    again = first.try_lock(0)
    assert again is not None
    assert again.untouched
    again.release()
    taken = second.try_lock(0)
    assert taken is not None
    assert not taken.untouched
    taken.release()
    first.close()
    second.close()


def test_an_image_spans_cartridges_and_another_process_reads_it_back(
    tapes: Callable[[], TapeDestination],
) -> None:
    data = content(19)
    receipt = put(tapes(), PlainImage("20261130-TEX-BACK-1.SG1.a.L0", data))
    assert len(set(barcodes(receipt))) >= 3
    other = tapes()
    assert read_all(other, receipt) == data
    assert other.side_file(receipt.location, "index") == b"index"


def test_four_drives_write_at_once_and_the_cartridges_are_read_in_other_drives(
    shop: Shop, tapes: Callable[[], TapeDestination]
) -> None:
    images = [PlainImage(f"20261130-TEX-BACK-1.SG1.s{n}.L0", content(3, seed=n)) for n in range(DRIVES)]
    together = threading.Barrier(DRIVES, timeout=30)
    receipts: dict[int, Receipt] = {}
    tape = tapes()

    def write(number: int) -> None:
        with tape.lane(progress=QUIET, cancel=Cancel()) as lane:
            together.wait()
            receipts[number] = lane.put(images[number], 1, progress=QUIET, cancel=Cancel())

    threads = [threading.Thread(target=write, args=(n,)) for n in range(DRIVES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(receipts) == list(range(DRIVES))
    assert len({receipt.lane for receipt in receipts.values()}) == DRIVES
    tape.close()

    # Each cartridge by hand into the drive after the one it was written in. A quick drive may hand its cartridge on
    # to another, and an image then spans two.
    library = shop.open()
    for number, receipt in receipts.items():
        other = (int(str(receipt.lane).split()[-1]) + 1) % DRIVES
        drive, found = library.drives[other], b""
        for place in receipt.location["parts"]:
            slot = where(library, place["barcode"])
            library.changer.move(slot, Address("drive", other))
            drive.load()
            drive.space_filemarks(place["file"])
            while isinstance(record := drive.read_record(), bytes):
                found += record
            drive.unload()
            library.changer.move(Address("drive", other), slot)
        assert found == images[number].data
    library.close()
    for number, receipt in receipts.items():
        assert read_all(tapes(), receipt) == images[number].data


def test_one_record_out_of_an_image_is_found_without_reading_those_before_it(
    library: Library, register: MemoryRegister, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape = TapeDestination("tape", library, Pool("daily", tuple(BARCODES), wait_for_media_s=0), register)
    data = content(6)
    receipt = put(tape, PlainImage("20261130-TEX-BACK-1.SG1.a.L0", data))
    with tape.open(receipt.location) as reader:
        reads: list[int] = []
        for drive in library.drives:
            read = drive.read_record
            monkeypatch.setattr(drive, "read_record", lambda *a, read=read: (reads.append(1), read(*a))[1])
        assert reader.read(4 * MIB + 77, 1000) == data[4 * MIB + 77 :][:1000]
    assert len(reads) <= 3
    tape.close()


def test_the_library_is_left_with_every_cartridge_in_a_slot(
    shop: Shop, tapes: Callable[[], TapeDestination]
) -> None:
    tape = tapes()
    put(tape, PlainImage("20261130-TEX-BACK-1.SG1.a.L0", content(2)))
    tape.close()
    library = shop.open()
    assert {where(library, barcode).kind for barcode in BARCODES} == {"slot"}
    library.close()


_HOLD = """
import sys, time
from pathlib import Path
from nightferry.destination.tape.drives.lock import try_lock
lock = try_lock(Path(sys.argv[1]), "other")
print("held" if lock else "refused", flush=True)
sys.stdin.read()
"""


def test_another_process_holds_a_drive_until_it_dies(shop: Shop, tmp_path: Path) -> None:
    library = shop.open()
    lock = library.try_lock(0)
    assert lock is not None
    lock.release()
    file = next(tmp_path.rglob("*drive-*.lock"), None) or tmp_path / "library" / "drives" / "0.lock"
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    assert library.try_lock(0) is None
    process.kill()
    process.wait()
    process.stdout.close()
    lock = library.try_lock(0)
    assert lock is not None
    assert not lock.untouched
    lock.release()
    library.close()


def test_a_cartridge_that_is_not_in_the_library_is_named(tapes: Callable[[], TapeDestination]) -> None:
    tape = tapes()
    receipt = put(tape, PlainImage("20261130-TEX-BACK-1.SG1.a.L0", content(2)))
    location = receipt.location | {"parts": [receipt.location["parts"][0] | {"barcode": "GONE01L5"}]}
    with pytest.raises(Unavailable, match="GONE01L5"), tape.open(location):
        pass
