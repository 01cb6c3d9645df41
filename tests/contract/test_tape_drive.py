"""What every tape drive must do: virtual, behind a real target (tgtd), and behind a scripted one that knows what
that target does not; a new kind of drive joins KINDS."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nightferry.clock import SYSTEM_CLOCK
from nightferry.destination.tape.drives.base import EndOfMedium, Mark, Position, TapeDrive
from nightferry.destination.tape.drives.scsi import ScsiDrive
from nightferry.destination.tape.drives.st import StDrive
from nightferry.destination.tape.drives.watched import WatchedDrive
from nightferry.destination.tape.library.changer import Address
from nightferry.destination.tape.library.scsi_open import Options, open_iscsi
from nightferry.destination.tape.library.virtual import VirtualLibrary, create
from nightferry.errors import DestinationError, MediumDamaged, Unavailable
from nightferry.scsi.iscsi import Portal
from tests.servers.tgtd import TARGET, Tgtd
from tests.support.faulty_drive import FaultyDrive
from tests.support.played_tape_node import PlayedTapeNode
from tests.support.scripted_library import ScriptedDrive, Tape

MIB = 1 << 20
CARTRIDGE = 8 * MIB


@dataclass
class Bench:
    """A loaded drive, and the one beside it, which is empty. ``has_hard_end``: the medium's end is a wall."""

    drive: TapeDrive
    empty: TapeDrive
    has_hard_end: bool = True


def virtual(tmp: Path, _: pytest.FixtureRequest) -> Iterator[Bench]:
    create(tmp / "library", 2, 1, CARTRIDGE, ["A00001L9"])
    library = VirtualLibrary(tmp / "library")
    library.changer.move(Address("slot", 0), Address("drive", 0))
    library.drives[0].load()
    yield Bench(*library.drives)


def scripted(tmp: Path, _: pytest.FixtureRequest, tells_position: bool = True) -> Iterator[Bench]:
    transports = [ScriptedDrive(f"SERIAL{n}", tells_position=tells_position) for n in range(2)]
    transports[0].put_in(Tape("A00001L9", CARTRIDGE))
    drives = [
        ScsiDrive(n, t, 256 << 10, lambda t=t: t.tape is not None, serial=t.serial)  # type: ignore[misc]
        for n, t in enumerate(transports)
    ]
    drives[0].load()
    yield Bench(*drives)


def scripted_plain(tmp: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    yield from scripted(tmp, request, tells_position=False)


def behind_iscsi(tmp: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    server: Tgtd = request.getfixturevalue("tgtd")
    server.make_blank(server.barcodes[0], CARTRIDGE // MIB)
    options = Options(locks=(tmp,), reserve_bytes=256 << 10)
    library = open_iscsi(Portal(server.portal, TARGET), (), options, SYSTEM_CLOCK)
    library.changer.move(Address("slot", 0), Address("drive", 0))
    try:
        library.drives[0].load()
        yield Bench(library.drives[0], library.drives[1], has_hard_end=False)
    finally:
        library.drives[0].unload()
        library.changer.move(Address("drive", 0), Address("slot", 0))
        library.close()


def watched(tmp: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    for bench in virtual(tmp, request):
        yield Bench(WatchedDrive(bench.drive), WatchedDrive(bench.empty))


def faulty(tmp: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    for bench in virtual(tmp, request):
        yield Bench(FaultyDrive(bench.drive), FaultyDrive(bench.empty))


def behind_st(tmp: Path, _: pytest.FixtureRequest) -> Iterator[Bench]:
    nodes = [PlayedTapeNode(Tape("A00001L9", CARTRIDGE)), PlayedTapeNode()]
    drives = [StDrive(n, node, 256 << 10) for n, node in enumerate(nodes)]
    drives[0].load()
    yield Bench(*drives)


KINDS = {
    "virtual": virtual,
    "watched": watched,
    "faulty": faulty,
    "scripted": scripted,
    "scripted-plain": scripted_plain,
    "played-st": behind_st,
    "tgtd": behind_iscsi,
}
ON_SERVER = [pytest.mark.server, pytest.mark.xdist_group("tgtd")]


@pytest.fixture(params=[pytest.param(kind, marks=ON_SERVER if kind == "tgtd" else []) for kind in KINDS])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    yield from KINDS[request.param](tmp_path, request)


@pytest.fixture
def drive(bench: Bench) -> TapeDrive:
    return bench.drive


def write(drive: TapeDrive, *files: list[bytes]) -> None:
    for records in files:
        for record in records:
            drive.write_record(record)
        drive.write_filemarks(1)


def read_on(drive: TapeDrive) -> list[bytes | Mark]:
    found: list[bytes | Mark] = []
    while not found or found[-1] is not Mark.END_OF_DATA:
        found.append(drive.read_record())
    return found


def again(drive: TapeDrive) -> None:
    drive.unload()
    drive.load()


def test_a_blank_cartridge_is_at_its_end_of_data(drive: TapeDrive) -> None:
    assert drive.position() == Position(0, 0)
    assert drive.read_record() is Mark.END_OF_DATA
    assert drive.space_filemarks(1) == 0
    assert drive.space_records(1) == 0


def test_records_come_back_with_their_sizes_and_marks(drive: TapeDrive) -> None:
    write(drive, [b"label"], [b"a" * MIB, b"b" * MIB, b"c"], [], [b"d"])
    again(drive)
    mark, end = Mark.FILEMARK, Mark.END_OF_DATA
    assert read_on(drive) == [b"label", mark, b"a" * MIB, b"b" * MIB, b"c", mark, mark, b"d", mark, end]
    assert drive.position() == Position(4, 0)


def test_spacing_counts_what_it_passed_and_stops_at_marks_and_the_end(drive: TapeDrive) -> None:
    write(drive, [b"1"], [b"2", b"3", b"4"])
    again(drive)
    assert drive.space_filemarks(1) == 1
    assert drive.space_records(2) == 2
    assert drive.read_record() == b"4"
    drive.rewind()
    assert drive.space_records(9) == 1
    assert drive.read_record() is Mark.FILEMARK
    assert drive.space_filemarks(9) == 1
    assert drive.position() == Position(2, 0)
    assert drive.read_record() is Mark.END_OF_DATA


def test_writing_drops_what_lay_behind(drive: TapeDrive) -> None:
    write(drive, [b"1", b"2", b"3"], [b"4"], [b"5"])
    drive.rewind()
    drive.space_records(1)
    drive.write_record(b"new")
    drive.write_filemarks(1)
    again(drive)
    assert read_on(drive) == [b"1", b"new", Mark.FILEMARK, Mark.END_OF_DATA]
    drive.rewind()
    write(drive, [b"first"])
    again(drive)
    assert read_on(drive) == [b"first", Mark.FILEMARK, Mark.END_OF_DATA]


def test_a_tape_file_that_was_cut_off_can_be_closed_and_written_after(drive: TapeDrive) -> None:
    write(drive, [b"label"])
    drive.write_record(b"x" * MIB)
    drive.write_record(b"y" * MIB)
    again(drive)
    assert drive.space_filemarks(9) == 1
    drive.write_filemarks(1)
    assert drive.position() == Position(2, 0)
    write(drive, [b"after"])
    again(drive)
    drive.space_filemarks(2)
    assert drive.read_record() == b"after"


def test_early_warning_leaves_the_reserve_and_then_comes_the_hard_end(bench: Bench) -> None:
    drive = bench.drive
    while not drive.write_record(b"z" * MIB):
        pass
    piece = b"r" * 4096
    for _ in range(drive.reserve_bytes // len(piece)):
        drive.write_record(piece)
    if bench.has_hard_end:
        with pytest.raises(EndOfMedium):
            write(drive, [piece] * (MIB // len(piece)))
        drive.rewind()
        last = drive.space_records(1 << 30)
    else:
        last = drive.position().record
        drive.write_filemarks(1)
        drive.rewind()
    assert drive.space_records(last + 1) == (0 if bench.has_hard_end else last)


def test_a_record_longer_than_asked_for_is_said_and_passed(drive: TapeDrive) -> None:
    write(drive, [b"l" * 5000, b"next"])
    drive.rewind()
    with pytest.raises(MediumDamaged, match="4096"):
        drive.read_record(4096)
    assert drive.read_record(4096) == b"next"


def test_records_of_any_length_come_back_whole(drive: TapeDrive) -> None:
    sizes = [1, 1000, MIB // 2, MIB // 2 + 1, 700_001, MIB - 1, MIB, 5]
    records = [random.Random(size).randbytes(size) for size in sizes]
    write(drive, records)
    again(drive)
    assert [drive.read_record() for _ in sizes] == records


def test_a_known_place_is_gone_to_from_anywhere(drive: TapeDrive) -> None:
    write(drive, [b"label"], [b"1.0", b"1.1", b"1.2"], [b"2.0", b"2.1"])
    for file, record in ((1, 2), (1, 0), (2, 1), (0, 0), (2, 0), (1, 1), (1, 2)):
        drive.locate(Position(file, record))
        assert drive.position() == Position(file, record)
        assert drive.read_record() == (b"label" if file == 0 else b"%d.%d" % (file, record))
    with pytest.raises(MediumDamaged, match="ends"):
        drive.locate(Position(7, 0))


def test_what_was_written_immediately_is_there_after_the_commit(drive: TapeDrive) -> None:
    for number in range(40):
        drive.write_record(b"%d" % number)
        drive.write_filemarks(1, immediate=True)
    drive.write_filemarks(0)
    again(drive)
    assert drive.space_filemarks(99) == 40


def test_an_empty_drive_says_so(drive: TapeDrive) -> None:
    assert drive.is_loaded()
    drive.unload()
    drive.unload()
    assert not drive.is_loaded()
    for verb in (drive.rewind, drive.read_record, drive.position, lambda: drive.write_record(b"x")):
        with pytest.raises(DestinationError):
            verb()


def test_loading_where_no_cartridge_is_fails(bench: Bench) -> None:
    with pytest.raises(Unavailable, match="drive 1"):
        bench.empty.load()
    assert not bench.empty.is_loaded()


@pytest.mark.parametrize("size", [0, 16 * MIB])
def test_records_of_impossible_sizes_are_refused(drive: TapeDrive, size: int) -> None:
    with pytest.raises(ValueError, match="record"):
        drive.write_record(bytes(size))


def test_a_drive_without_complaint_has_no_alerts_with_and_without_a_cartridge(drive: TapeDrive) -> None:
    assert drive.alerts() == ()
    drive.unload()
    assert drive.alerts() == ()


def test_an_ordinary_cartridge_is_not_write_protected(drive: TapeDrive) -> None:
    assert not drive.is_write_protected()
