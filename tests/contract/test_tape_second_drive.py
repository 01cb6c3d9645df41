"""What one drive cannot read of a cartridge is tried once in another: then it is known which of them is to blame."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nightferry.destination.tape.drives.base import MOST_LOST, TapeDrive
from nightferry.destination.tape.drives.scsi import ScsiDrive
from nightferry.destination.tape.library.destination import TapeDestination
from nightferry.destination.tape.library.pool import Pool
from nightferry.destination.tape.library.scsi_changer import ScsiChanger
from nightferry.destination.tape.library.scsi_library import ScsiLibrary
from nightferry.errors import MediumDamaged, PositionLost, Unavailable
from nightferry.progress import QUIET, Cancel
from tests.support import scripted_library as play
from tests.support.faulty_drive import Fault, FaultyDrive
from tests.support.outgoing import MIB, put, read_all
from tests.support.outgoing import PlainImage as Image
from tests.support.scripted_library import ScriptedChanger, ScriptedDrive, Tape, check
from tests.support.tape_rig import FakeClock, Rig
from tests.support.tapes import MemoryRegister, barcodes, named


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "library", MemoryRegister(), FakeClock())
    yield rig
    for tape in rig.opened:
        tape.close()


def written(rig: Rig, image: Image) -> dict[str, object]:
    """The image's location, written by a process that is gone."""
    tape = rig.tape()
    receipt = put(tape, image)
    tape.close()
    return receipt.location


def faulty(rig: Rig, *faults: Fault) -> list[FaultyDrive]:
    """The drives that are opened from now on, with these faults."""
    drives: list[FaultyDrive] = []

    def wrap(drive: TapeDrive) -> FaultyDrive:
        drives.append(FaultyDrive(drive, list(faults)))
        return drives[-1]

    rig.wrap = wrap
    return drives


def drives_on_record(rig: Rig) -> list[tuple[int, str]]:
    return [(record.drive, record.state) for record in rig.register.drives]


LABEL = 1
"""Records of a label that are read when a cartridge is mounted."""


@pytest.mark.parametrize("error", [MediumDamaged, Unavailable, PositionLost], ids=lambda e: e.__name__)
@pytest.mark.parametrize("at", [1, 2, 4], ids=["the label", "the first record", "the third record"])
def test_another_drive_reads_on_where_the_first_could_not(
    rig: Rig, error: type[MediumDamaged], at: int
) -> None:
    rig.make(drives=3)
    image = Image(named("i1"), os.urandom(5 * MIB + 7))
    location = written(rig, image)
    fault = Fault("read_record", at, error, on=0, stays=True)
    drives = faulty(rig, fault)
    tape = rig.tape()
    with tape.open(location) as reader:
        pieces = [bytes(piece) for piece in reader.stream(0, reader.size_bytes)]
    assert b"".join(pieces) == image.data
    assert fault.raised == (MOST_LOST if error is PositionLost else 1)
    # The records that the first drive gave are not read again.
    assert drives[1].calls["read_record"] == LABEL + 6 - max(at - LABEL - 1, 0)
    assert drives_on_record(rig) == [(0, "set aside")]
    assert "injected" in rig.register.drives[0].note
    assert any("drive 0" in line and "disabled" in line for line in rig.said)
    assert rig.register.kept["A00001L9"].errors == 0
    # From now on it is read in the drive that can.
    assert read_all_from(tape, location) == image.data
    assert not drives[2].calls["load"]


def read_all_from(tape: TapeDestination, location: dict[str, object]) -> bytes:
    with tape.open(location) as reader:
        return reader.read(0, reader.size_bytes)


def test_what_the_first_drive_says_is_told_before_the_second_is_tried(rig: Rig) -> None:
    rig.make()
    location = written(rig, Image(named("i1"), os.urandom(3 * MIB)))
    faulty(rig, Fault("read_record", 3, MediumDamaged, on=0, stays=True))
    read_all_from(rig.tape(), location)
    assert [line for line in rig.said if "trying another drive" in line]
    assert "drive 1 reads what drive 0 cannot: drive 0: injected" in rig.register.drives[0].note


@pytest.mark.parametrize("later", [0, 2], ids=["the same record", "a later record"])
@pytest.mark.parametrize("error", [MediumDamaged, Unavailable], ids=lambda e: e.__name__)
def test_when_two_drives_cannot_read_it_is_the_cartridge_and_no_third_is_tried(
    rig: Rig, error: type[MediumDamaged], later: int
) -> None:
    rig.make(drives=3)
    image = Image(named("i1"), os.urandom(5 * MIB))
    location = written(rig, image)
    faults = [Fault("read_record", at, error, on=n, stays=True) for n, at in ((0, 4), (1, 2 + later))]
    drives = faulty(rig, *faults)
    tape = rig.tape()
    with tape.open(location) as reader:
        pieces = reader.stream(0, reader.size_bytes)
        got = b"".join(bytes(next(pieces)) for _ in range(2 + later))
        with pytest.raises(MediumDamaged, match=r"neither drive 0 nor drive 1 can read A00001L9: .*injected"):
            next(pieces)
    assert got == image.data[: len(got)]
    assert [fault.raised for fault in faults] == [1, 1]
    assert not drives[2].calls["load"]
    assert rig.register.kept["A00001L9"].errors == 1
    # Neither drive pays for it, whatever was thought of the first meanwhile.
    assert all(not bay.aside for bay in tape.bays._bays)
    blamed = error is Unavailable or later
    assert drives_on_record(rig) == ([(0, "set aside"), (0, "ready")] if blamed else [])


def test_a_cartridge_that_cannot_be_read_in_the_only_drive_is_damaged(rig: Rig) -> None:
    rig.make(drives=1)
    location = written(rig, Image(named("i1"), os.urandom(2 * MIB)))
    faulty(rig, Fault("read_record", 3, MediumDamaged, stays=True))
    with pytest.raises(MediumDamaged, match=r"^drive 0: injected"):
        read_all_from(rig.tape(), location)
    assert rig.register.kept["A00001L9"].errors == 1
    assert not drives_on_record(rig)


def test_while_every_other_drive_is_busy_nothing_is_proved_and_nobody_waits(rig: Rig) -> None:
    rig.make()
    location = written(rig, Image(named("i1"), os.urandom(2 * MIB)))
    faulty(rig, Fault("read_record", 3, MediumDamaged, on=1, stays=True))
    tape = rig.tape(wait_s=3600)
    with tape.lane(progress=QUIET, cancel=Cancel()) as lane:
        assert lane.name == "drive 0"
        with pytest.raises(Unavailable, match=r"no other drive .* is free to read what drive 1 cannot"):
            read_by_another(tape, location)
    assert rig.clock.passed == 0
    assert not drives_on_record(rig)


def read_by_another(tape: TapeDestination, location: dict[str, object]) -> bytes:
    """Read by another thread than the one that has a drive."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(read_all_from, tape, location).result(60)


def test_a_second_drive_that_does_not_answer_proves_nothing_of_the_cartridge(rig: Rig) -> None:
    rig.make()
    location = written(rig, Image(named("i1"), os.urandom(2 * MIB)))
    drives = faulty(rig, Fault("read_record", 3, MediumDamaged, on=0, stays=True))
    with rig.tape().open(location) as reader:
        reader.read(0, MIB)
        dead = [Fault(verb, error=Unavailable, stays=True) for verb in ("read_record", "alerts")]
        stuck = Fault("unload", drives[1].calls["unload"] + 3, Unavailable, stays=True)
        drives[1].faults += [*dead, stuck]
        with pytest.raises(Unavailable, match="drive 1: injected at call 1 of read_record"):
            reader.read(MIB, MIB)
    assert drives_on_record(rig) == [(1, "set aside")]


def test_a_cartridge_that_does_not_come_out_of_its_drive_proves_nothing(rig: Rig) -> None:
    rig.make()
    location = written(rig, Image(named("i1"), os.urandom(2 * MIB)))
    drives = faulty(rig, Fault("read_record", 3, MediumDamaged, on=0, stays=True))
    with rig.tape().open(location) as reader:
        reader.read(0, MIB)
        drives[0].faults.append(Fault("unload", error=Unavailable, stays=True))
        with pytest.raises(Unavailable, match=r"drive 0: injected at call . of unload"):
            reader.read(MIB, MIB)
    assert drives_on_record(rig) == [(0, "set aside")]


def test_a_pass_over_a_cartridge_goes_on_in_the_drive_that_can_read_it(rig: Rig) -> None:
    rig.make()
    images = [Image(named(f"i{n}"), os.urandom(2 * MIB)) for n in range(3)]
    tape = rig.tape()
    locations = [put(tape, image).location for image in images]
    tape.close()
    fault = Fault("read_record", 3, MediumDamaged, on=0, stays=True)
    drives = faulty(rig, fault)
    tape = rig.tape()
    with tape.kept_in_drive("A00001L9"):
        for image, location in zip(images, locations, strict=True):
            assert read_all_from(tape, location) == image.data
    assert fault.raised == 1
    assert drives_on_record(rig) == [(0, "set aside")]
    assert drives[0].calls["read_record"] == 3


def test_the_parts_behind_are_mounted_in_the_drive_that_took_over(rig: Rig) -> None:
    rig.make(cartridge_bytes=4 * MIB)
    image = Image(named("i1"), os.urandom(7 * MIB))
    location = written(rig, image)
    fault = Fault("read_record", 6, MediumDamaged, on=0, stays=True)
    faulty(rig, fault)
    assert read_all_from(rig.tape(), location) == image.data
    assert fault.raised == 1
    assert drives_on_record(rig) == [(0, "set aside")]


def test_a_side_file_is_read_in_another_drive(rig: Rig) -> None:
    rig.make()
    location = written(rig, Image(named("i1"), os.urandom(MIB)))
    faulty(rig, Fault("read_record", 2, MediumDamaged, on=0, stays=True))
    assert rig.tape().side_file(location, "index") == b"index"
    assert drives_on_record(rig) == [(0, "set aside")]


def test_a_record_that_is_no_record_of_ours_is_mounted_once(rig: Rig) -> None:
    """What is wrong on the medium is read the same in every drive."""
    rig.make()
    location = written(rig, Image(named("i1"), os.urandom(3 * MIB)))
    marks = rig.path / "cartridges/A00001L9/marks"
    marks.write_text(marks.read_text().replace("1048576x3", "1048575x3 3x1"))
    drives = faulty(rig)
    with pytest.raises(MediumDamaged, match="1048575 bytes, not 1048576"):
        read_all_from(rig.tape(), location)
    assert not drives[1].calls["load"]
    assert not rig.said


def unreadable(
    drive: ScriptedDrive, block: bytes, code: tuple[int, int, int]
) -> Callable[[int], play.Answer]:
    """A drive that answers this instead of one block."""
    read = drive._read

    def answer(room: int) -> play.Answer:
        assert drive.tape is not None
        at = drive.at
        if at < len(drive.tape.blocks) and drive.tape.blocks[at] == block:
            return check(code)
        return read(room)

    return answer


READ_ERROR, HARDWARE = (0x3, 0x11, 0x00), (0x4, 0x44, 0x00)


@pytest.mark.parametrize("code", [READ_ERROR, HARDWARE], ids=["unrecovered read error", "hardware error"])
@pytest.mark.parametrize("both", [False, True], ids=["one drive", "both drives"])
def test_what_a_scsi_drive_says_of_a_record_is_heard_in_two_drives(
    tmp_path: Path, code: tuple[int, int, int], both: bool
) -> None:
    transports = [ScriptedDrive("HU0"), ScriptedDrive("HU1")]
    changer = ScriptedChanger(transports, [Tape("A00001L9", 16 * MIB)], slots=5)
    register, said = MemoryRegister(), []

    def opened() -> TapeDestination:
        over = ScsiChanger(changer)
        devices = [
            ScsiDrive(n, d, 256 << 10, lambda d=d: d.tape is not None)  # type: ignore[misc]
            for n, d in enumerate(transports)
        ]
        over.watch(devices, [500, 501])
        library = ScsiLibrary("scripted", over, devices, ["HU0", "HU1"], (tmp_path,))
        return TapeDestination("tape", library, Pool("daily", wait_for_media_s=0), register, tell=said.append)

    image = Image(named("i1"), os.urandom(5 * MIB - 3))
    tape = opened()
    receipt = put(tape, image)
    assert barcodes(receipt) == ["A00001L9"]
    tape.close()
    for drive in transports[: 1 + both]:
        drive._read = unreadable(drive, image.data[2 * MIB : 3 * MIB], code)  # type: ignore[method-assign]
    tape = opened()
    if both:
        with pytest.raises(MediumDamaged, match="neither drive 0 nor drive 1 can read A00001L9: drive 1: "):
            read_all(tape, receipt)
    else:
        assert read_all(tape, receipt) == image.data
        assert [(r.drive, r.state) for r in register.drives] == [(0, "set aside")]
    tape.close()
