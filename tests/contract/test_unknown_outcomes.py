"""A write whose outcome is not known: the medium is read, and nothing is written twice or lost."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from nightferry.destination.base import Receipt
from nightferry.destination.tape.drives.scsi import ScsiDrive
from nightferry.destination.tape.library.destination import TapeDestination
from nightferry.destination.tape.library.pool import Pool
from nightferry.destination.tape.library.scsi_changer import ScsiChanger
from nightferry.destination.tape.library.scsi_library import ScsiLibrary
from nightferry.errors import DestinationError
from nightferry.scsi.transport import Indeterminate
from tests.support import scripted_library as play
from tests.support.outgoing import MIB, PlainImage, put
from tests.support.scripted_library import ScriptedChanger, ScriptedDrive, Tape, check
from tests.support.tapes import MemoryRegister, Said, barcodes, read_all

CUT = Indeterminate("the session was cut")
DATA = random.Random(7).randbytes(6 * MIB - 321)


class Shop:
    """A scripted library; its first drive is the one that writes."""

    def __init__(self, folder: Path, *, tells_position: bool, drives: int, capacity: int = 16 * MIB) -> None:
        self.drives = [ScriptedDrive(f"HU{n}", tells_position=tells_position) for n in range(drives)]
        self.tapes = [Tape(f"A0000{n}L9", capacity) for n in range(1, 4)]
        changer = ScriptedChanger(self.drives, self.tapes, slots=5)
        self.register = MemoryRegister()
        self.said = Said()

        def opened() -> TapeDestination:
            over = ScsiChanger(changer)
            devices = [
                ScsiDrive(n, d, 256 << 10, lambda d=d: d.tape is not None)  # type: ignore[misc]
                for n, d in enumerate(self.drives)
            ]
            over.watch(devices, [500 + n for n in range(drives)])
            library = ScsiLibrary("scripted", over, devices, [d.serial for d in self.drives], (folder,))
            return TapeDestination("tape", library, Pool("daily", wait_for_media_s=0), self.register)

        self.open = opened

    def put(self, on_chunk: Callable[[int], None], index: bytes = b"index") -> Receipt:
        tape = self.open()
        try:
            image = PlainImage("20261130-TEX-BACK-1.SG1.a.L0", DATA, index, on_chunk=on_chunk)
            return put(tape, image, progress=self.said)
        finally:
            tape.close()

    def read(self, receipt: Receipt) -> bytes:
        tape = self.open()
        try:
            return read_all(tape, receipt)
        finally:
            tape.close()

    def copies(self) -> int:
        """How often the image's first chunk is anywhere."""
        return sum(block == DATA[:MIB] for tape in self.tapes for block in tape.blocks)

    def layout(self) -> list[list[int | None]]:
        """Every cartridge's blocks by their length, None for a filemark."""
        return [[None if b is None else len(b) for b in tape.blocks] for tape in self.tapes]

    def writing(self) -> ScriptedDrive:
        return next(drive for drive in self.drives if drive.tape is not None)


@pytest.fixture(params=[True, False], ids=["position told", "position counted"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    return Shop(tmp_path, tells_position=request.param, drives=1)


def nth_write(shop: Shop, number: int, what: Callable[[ScriptedDrive], None]) -> Callable[[int], None]:
    """Something happens to the ``number``-th write of a chunk, whenever the chunks are read ahead."""
    seen = 0

    def play_out(chunk: int) -> None:
        nonlocal seen
        if seen:
            return
        seen = 1
        drive = shop.writing() if shop.drives[0].tape else shop.drives[0]
        do = drive._write

        def counted(data: bytes) -> play.Answer:
            nonlocal seen
            if len(data) >= MIB - 321:
                seen += 1
            return do(data)

        drive._write = counted  # type: ignore[method-assign]
        execute = drive.execute

        def watched(cdb: bytes, **rest: object) -> play.Answer:
            if cdb[0] == play.WRITE and int.from_bytes(cdb[2:5], "big") >= MIB - 321 and seen == number + 1:
                drive.execute = execute  # type: ignore[method-assign]
                what(drive)
            return execute(cdb, **rest)  # type: ignore[arg-type]

        drive.execute = watched  # type: ignore[method-assign, assignment]

    return play_out


@pytest.mark.parametrize("number", [0, 3, 5])
@pytest.mark.parametrize("applied", [True, False], ids=["done", "not done"])
def test_a_cut_session_goes_on_behind_the_last_record_that_is_there(
    shop: Shop, number: int, applied: bool
) -> None:
    def cut(drive: ScriptedDrive) -> None:
        (drive.script.afterwards if applied else drive.script.instead)(play.WRITE, CUT)

    receipt = shop.put(nth_write(shop, number, cut))
    assert [
        line for line in shop.said.lines if f"record {number} was {'' if applied else 'not '}written" in line
    ]
    assert shop.read(receipt) == DATA
    assert shop.copies() == 1
    assert receipt.location["parts"][0]["file"] == 1
    assert len(receipt.location["parts"]) == 1


def cut_at(drive: ScriptedDrive, number: int, *, applied: bool) -> Callable[[], int]:
    """Cuts the session at the drive's ``number``-th WRITE or WRITE FILEMARKS; returns how many there were."""
    execute, seen = drive.execute, 0

    def watched(cdb: bytes, **rest: object) -> play.Answer:
        nonlocal seen
        if cdb[0] == play.WRITE or (cdb[0] == play.FILEMARKS and any(cdb[2:5])):
            seen += 1
            if seen == number:
                (drive.script.afterwards if applied else drive.script.instead)(cdb[0], CUT)
        return execute(cdb, **rest)  # type: ignore[arg-type]

    drive.execute = watched  # type: ignore[method-assign, assignment]
    return lambda: seen


@pytest.mark.parametrize("applied", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize("tells_position", [True, False], ids=["position told", "position counted"])
@pytest.mark.parametrize(
    ("capacity", "index"),
    [(16 * MIB, bytes(5 * MIB // 2)), (4 * MIB, b"index"), (4 * MIB, bytes(3 * MIB // 2))],
    ids=["a trailer of three records", "spanned", "a final trailer that is given up"],
)
def test_a_cut_at_any_write_leaves_the_tapes_as_if_there_had_been_none(
    tmp_path: Path, applied: bool, tells_position: bool, capacity: int, index: bytes
) -> None:
    """Labels, records, filemarks, trailers: nothing twice, nothing dead, in the one drive there is."""

    def shop() -> Shop:
        return Shop(tmp_path, tells_position=tells_position, drives=1, capacity=capacity)

    undisturbed = shop()
    writes = cut_at(undisturbed.drives[0], 0, applied=applied)
    undisturbed.put(lambda chunk: None, index)
    for number in range(1, writes() + 1):
        cut = shop()
        cut_at(cut.drives[0], number, applied=applied)
        receipt = cut.put(lambda chunk: None, index)
        assert cut.layout() == undisturbed.layout()
        assert cut.read(receipt) == DATA
        assert not cut.register.drives
        assert all("dead space" not in record.note for record in cut.register.kept.values())


@pytest.mark.parametrize("applied", [True, False], ids=["done", "not done"])
def test_a_cut_while_what_a_stopped_process_left_is_closed_costs_neither_drive_nor_cartridge(
    tmp_path: Path, applied: bool
) -> None:
    shop = Shop(tmp_path, tells_position=True, drives=1)

    def stop(chunk: int) -> None:
        if chunk == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shop.put(stop)
    cut_at(shop.drives[0], 1, applied=applied)
    receipt = shop.put(lambda chunk: None)
    assert shop.read(receipt) == DATA
    assert [(p["barcode"], p["file"]) for p in receipt.location["parts"]] == [("A00001L9", 2)]
    assert not shop.register.drives


def test_what_somebody_else_wrote_behind_a_write_in_doubt_is_not_written_over(tmp_path: Path) -> None:
    shop = Shop(tmp_path, tells_position=True, drives=2)
    theirs = b"another host's" * 1000

    def meddle(drive: ScriptedDrive) -> None:
        assert drive.tape is not None
        drive.tape.blocks += [theirs, None]
        drive.script.instead(play.WRITE, CUT)

    receipt = shop.put(nth_write(shop, 3, meddle))
    assert shop.read(receipt) == DATA
    assert sum(theirs in tape.blocks for tape in shop.tapes) == 1


def test_a_reset_of_the_drive_is_no_reason_to_begin_anew(shop: Shop) -> None:
    receipt = shop.put(nth_write(shop, 4, lambda drive: drive.attentions.append(play.RESET)))
    assert shop.read(receipt) == DATA
    assert shop.copies() == 1


def test_records_that_were_acknowledged_and_did_not_reach_the_medium_are_written_elsewhere(
    tmp_path: Path,
) -> None:
    """A drive that lost its buffer: what it has of the image is dead space, the image is whole in another."""
    shop = Shop(tmp_path, tells_position=True, drives=2)

    def lose(drive: ScriptedDrive) -> None:
        assert drive.tape is not None
        del drive.tape.blocks[-2:]
        drive.script.instead(play.WRITE, CUT)

    receipt = shop.put(nth_write(shop, 4, lose))
    assert shop.read(receipt) == DATA


def test_a_cartridge_that_was_exchanged_meanwhile_is_not_written_to(tmp_path: Path) -> None:
    shop = Shop(tmp_path, tells_position=True, drives=1)
    stranger = Tape("A00001L9", 16 * MIB, blocks=[b"not ours", None])

    def exchange(drive: ScriptedDrive) -> None:
        drive.tape = stranger
        drive.attentions.append(play.CHANGED)

    with pytest.raises(DestinationError):
        shop.put(nth_write(shop, 3, exchange))
    assert stranger.blocks == [b"not ours", None]


def test_a_deferred_error_is_a_failure_of_the_medium_and_the_image_goes_elsewhere(tmp_path: Path) -> None:
    shop = Shop(tmp_path, tells_position=True, drives=2)

    def fail(drive: ScriptedDrive) -> None:
        drive.script.instead(play.WRITE, check((0x3, 0x0C, 0x00), deferred=True))

    receipt = shop.put(nth_write(shop, 3, fail))
    assert shop.read(receipt) == DATA
    assert len(set(barcodes(receipt))) == 1


@pytest.mark.parametrize("then", ["write", "read"])
def test_a_session_that_ended_while_nobody_used_the_drive_costs_a_look_at_the_label_and_no_drive(
    shop: Shop, then: str
) -> None:
    tape = shop.open()
    first = put(tape, PlainImage("20261130-TEX-BACK-1.SG1.a.L0", DATA))
    for drive in shop.drives:
        drive.close()
    if then == "write":
        second = put(tape, PlainImage("20261130-TEX-BACK-1.SG1.b.L0", DATA[::-1]), progress=shop.said)
        assert read_all(tape, second) == DATA[::-1]
        assert barcodes(second) == barcodes(first)
    assert read_all(tape, first) == DATA
    tape.close()
    assert not shop.said.lines
    assert not shop.register.drives


def test_a_session_that_ends_in_the_middle_of_a_read_costs_a_look_at_the_label(shop: Shop) -> None:
    receipt = shop.put(lambda chunk: None)
    tape = shop.open()
    with tape.open(receipt.location) as reader:
        assert reader.read(0, MIB) == DATA[:MIB]
        shop.drives[0].close()
        assert reader.read(3 * MIB, MIB) == DATA[3 * MIB : 4 * MIB]
    tape.close()
    assert not shop.register.drives
