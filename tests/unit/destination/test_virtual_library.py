"""What only the virtual library has: a hand at its ports, switches, cleaning cartridges."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nightferry.destination.tape.drives.base import TapeDrive
from nightferry.destination.tape.library.changer import UNREADABLE, Address, Element
from nightferry.destination.tape.library.virtual import VirtualLibrary, open_virtual
from nightferry.errors import DestinationError, MediumDamaged, WriteProtected

MIB = 1 << 20
SLOT, DRIVE, PORT = Address("slot", 0), Address("drive", 0), Address("port", 0)


@pytest.fixture
def library(tmp_path: Path) -> VirtualLibrary:
    return open_virtual(tmp_path / "library", 1, 2, 8 * MIB, ports=1)


def where(library: VirtualLibrary, barcode: str) -> list[Address]:
    return [e.address for e in library.changer.inventory() if e.barcode == barcode]


def loaded(library: VirtualLibrary) -> TapeDrive:
    library.changer.move(SLOT, DRIVE)
    library.drives[0].load()
    return library.drives[0]


def test_a_cartridge_goes_through_a_port_out_and_in_with_what_is_on_it(
    library: VirtualLibrary, tmp_path: Path
) -> None:
    drive = loaded(library)
    drive.write_record(b"kept")
    drive.write_filemarks(1)
    drive.unload()
    library.changer.move(DRIVE, PORT)
    assert where(library, "A00001L9") == [PORT]
    lying = tmp_path / "library/ports/0/A00001L9"
    lying.rename(tmp_path / "A00001L9")
    assert Element(PORT) in library.changer.inventory()
    assert where(library, "A00001L9") == []
    (tmp_path / "A00001L9").rename(lying)
    library.changer.move(PORT, SLOT)
    assert where(library, "A00001L9") == [SLOT]
    assert loaded(library).read_record() == b"kept"


def test_what_is_no_cartridge_in_the_ports_is_not_taken_for_one(
    library: VirtualLibrary, tmp_path: Path
) -> None:
    ports = tmp_path / "library/ports"
    (ports / "not a number").mkdir()
    (ports / "0/B00001L9").symlink_to("/etc")
    assert Element(PORT) in library.changer.inventory()
    assert library.check() == []
    (ports / "0/no barcode").mkdir()
    assert Element(PORT, UNREADABLE) in library.changer.inventory()
    (finding,) = library.check()
    assert (finding.id, "port 0" in finding.text) == ("NF-TAPE-011", True)


def test_a_second_cartridge_of_the_same_barcode_hides_no_first_one(
    library: VirtualLibrary, tmp_path: Path
) -> None:
    shutil.copytree(tmp_path / "library/cartridges/A00001L9", tmp_path / "library/ports/0/A00001L9")
    assert where(library, "A00001L9") == [SLOT, PORT]
    library.changer.move(Address("slot", 1), DRIVE)  # writes down what is where
    shutil.rmtree(tmp_path / "library/ports/0/A00001L9")
    assert where(library, "A00001L9") == [SLOT]


def other_kind(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def too_large(path: Path) -> None:
    os.truncate(path, 12 << 30)


def written(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


@pytest.mark.parametrize("name", ["elements.json", "library.json"])
@pytest.mark.parametrize(
    "damage",
    [
        other_kind,
        too_large,
        written(""),
        written("[]"),
        written("{}"),
        written("[" * 50_000),
        written('{"elements": {"slot x": ""}, "drives": "2"}'),
        written('{"elements": {"slot 0": "../../etc"}, "drives": 1e999}'),
        written('{"elements": {"slot 0": 7}, "drives": -1}'),
    ],
)
def test_a_file_of_the_library_that_is_not_what_it_should_be_is_named(
    tmp_path: Path, name: str, damage: Callable[[Path], object]
) -> None:
    path = tmp_path / "library"
    open_virtual(path, 1, 2, 8 * MIB).close()
    damage(path / name)
    with pytest.raises(DestinationError, match=rf"{name} is not what a virtual library has there"):
        open_virtual(path, 1, 2, 8 * MIB).changer.inventory()


def test_nothing_is_written_through_a_link_in_the_place_of_the_drives_folder(tmp_path: Path) -> None:
    path = tmp_path / "library"
    open_virtual(path, 1, 2, 8 * MIB).close()
    precious = tmp_path / "elsewhere" / "0.lock"
    (path / "drives").rename(precious.parent)
    precious.write_text("precious")
    (path / "drives").symlink_to(precious.parent)
    library = open_virtual(path, 1, 2, 8 * MIB)
    for attempt in (lambda: library.try_lock(0), library.drives[0].alerts):
        with pytest.raises(DestinationError, match="symbolic link"):
            attempt()
    assert [file.name for file in precious.parent.iterdir()] == ["0.lock"]
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("name", ["0.alerts", "0.lock"])
def test_a_fifo_in_the_place_of_a_drives_file_holds_nobody_up(tmp_path: Path, name: str) -> None:
    path = tmp_path / "library"
    library = open_virtual(path, 1, 2, 8 * MIB)
    os.mkfifo(path / "drives" / name)
    with pytest.raises(DestinationError, match="FIFO"):
        library.drives[0].alerts() if name == "0.alerts" else library.try_lock(0)


@pytest.mark.parametrize("damage", ["fifo", "link", "sparse"])
def test_what_is_no_file_of_ours_on_a_cartridge_is_the_cartridges_damage(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "library"
    library = open_virtual(path, 1, 2, 8 * MIB)
    loaded(library).write_record(b"kept")
    library.drives[0].write_filemarks(1)
    library.drives[0].unload()
    folder = path / "cartridges/A00001L9"
    if damage == "link":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    elif damage == "fifo":
        (folder / "marks").unlink()
        os.mkfifo(folder / "marks")
    else:
        os.truncate(folder / "marks", 12 << 30)
    with pytest.raises(MediumDamaged) as refused:
        library.drives[0].load()
    assert refused.value.subject == "A00001L9"


def test_a_full_port_and_one_that_is_not_there_are_refused(library: VirtualLibrary) -> None:
    library.changer.move(SLOT, PORT)
    for target in (PORT, Address("port", 7)):
        with pytest.raises(DestinationError):
            library.changer.move(Address("slot", 1), target)
    assert where(library, "A00002L9") == [Address("slot", 1)]


@pytest.mark.parametrize("wrote_elements", [False, True])
def test_a_move_through_a_port_cut_off_anywhere_leaves_the_cartridge_in_one_place(
    library: VirtualLibrary, tmp_path: Path, wrote_elements: bool
) -> None:
    root = tmp_path / "library"
    before = (root / "elements.json").read_text()
    library.changer.move(SLOT, PORT)
    if not wrote_elements:  # out: renamed, and elements.json still says the slot; in: the other way round
        (root / "elements.json").write_text(before)
    assert where(library, "A00001L9") == [PORT]
    library.changer.move(PORT, SLOT)
    assert where(library, "A00001L9") == [SLOT]
    assert json.loads((root / "elements.json").read_text()) == json.loads(before)


def test_a_library_made_before_there_were_ports_gets_them(tmp_path: Path) -> None:
    path = tmp_path / "library"
    open_virtual(path, 1, 1, 8 * MIB, ports=1)
    (path / "ports/0").rmdir()
    (path / "ports").rmdir()
    assert [e.address.kind for e in VirtualLibrary(path).changer.inventory()] == ["slot", "drive"]
    again = open_virtual(path, 1, 1, 8 * MIB, ports=1)
    assert [e.address.kind for e in again.changer.inventory()] == ["slot", "drive", "port"]


def test_the_switch_of_a_cartridge_refuses_every_write(library: VirtualLibrary, tmp_path: Path) -> None:
    (tmp_path / "library/cartridges/A00001L9/write-protected").touch()
    drive = loaded(library)
    assert drive.is_write_protected()
    for write in (lambda: drive.write_record(b"x"), lambda: drive.write_filemarks(1)):
        with pytest.raises(WriteProtected, match="A00001L9"):
            write()
    drive.write_filemarks(0)


def test_a_worm_cartridge_is_appended_to_and_never_written_over(
    library: VirtualLibrary, tmp_path: Path
) -> None:
    (tmp_path / "library/cartridges/A00001L9/worm").touch()
    drive = loaded(library)
    assert not drive.is_write_protected()
    drive.write_record(b"one")
    drive.write_filemarks(1)
    drive.rewind()
    with pytest.raises(WriteProtected, match="WORM"):
        drive.write_record(b"two")
    assert drive.read_record() == b"one"
    drive.space_filemarks(1)
    drive.write_record(b"two")


def test_a_drive_asks_for_cleaning_until_a_cleaning_cartridge_was_in_it(
    library: VirtualLibrary, tmp_path: Path
) -> None:
    asking = tmp_path / "library/drives/0.alerts"
    asking.write_text("clean now\n")
    drive = library.drives[0]
    assert drive.alerts() == ("clean now",)
    library.changer.move(Address("slot", 0), PORT)
    library.changer.add("CLN001L1")
    drive = loaded(library)
    assert not drive.is_loaded()
    assert drive.alerts() == ()
    library.changer.move(DRIVE, SLOT)
