"""What a real drive does and tgtd does not, played by a scripted one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from nightferry.destination.tape.drives.base import EndOfMedium, Mark, Position
from nightferry.destination.tape.drives.scsi import ScsiDrive
from nightferry.errors import (
    Cancelled,
    DestinationError,
    MediumDamaged,
    NightferryError,
    PositionLost,
    Unavailable,
    WriteProtected,
)
from nightferry.scsi.transport import BUSY, GOOD, RESERVATION_CONFLICT, Answer, Indeterminate
from tests.support import scripted_library as play
from tests.support.scripted_library import ScriptedDrive, Tape, check

MIB = 1 << 20
MEDIUM_ERROR, WRITE_ERROR = (0x3, 0x11, 0x00), (0x3, 0x0C, 0x00)


class Hours:
    """A clock that only sleeps move."""

    def __init__(self) -> None:
        self.passed = 0.0

    def now(self) -> datetime:
        return datetime(2026, 11, 30, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.passed

    def sleep(self, seconds: float) -> None:
        self.passed += seconds


@pytest.fixture
def clock() -> Hours:
    return Hours()


@pytest.fixture
def device() -> ScriptedDrive:
    device = ScriptedDrive("HU1")
    device.put_in(Tape("A00001L9"))
    return device


@pytest.fixture
def drive(device: ScriptedDrive, clock: Hours) -> ScsiDrive:
    return ScsiDrive(0, device, 256 << 10, lambda: device.tape is not None, serial=device.serial, clock=clock)


def loaded(drive: ScsiDrive, *files: list[bytes]) -> ScsiDrive:
    drive.load()
    for records in files:
        for record in records:
            drive.write_record(record)
        drive.write_filemarks(1)
    drive.rewind()
    return drive


# -- loading ----------------------------------------------------------------------------------


def test_a_new_cartridge_becomes_ready_after_an_hour_and_the_wait_is_told(
    drive: ScsiDrive, device: ScriptedDrive, clock: Hours
) -> None:
    device.script.instead(play.TEST_UNIT_READY, *[check(play.BECOMING_READY)] * 3600)
    told: list[str] = []
    drive.load(told.append)
    assert drive.is_loaded()
    assert clock.passed == pytest.approx(3600, abs=2)
    assert set(told) == {"drive 0 (HU1) is becoming ready"}


def test_a_drive_that_never_becomes_ready_is_given_up_after_two_hours(
    drive: ScsiDrive, device: ScriptedDrive, clock: Hours
) -> None:
    device.script.instead(play.TEST_UNIT_READY, *[check(play.BECOMING_READY)] * 9000)
    with pytest.raises(Unavailable, match="2 hours"):
        drive.load()
    assert clock.passed == pytest.approx(7200, abs=3)


def test_who_waits_for_a_drive_can_give_up(drive: ScsiDrive, device: ScriptedDrive) -> None:
    device.script.instead(play.TEST_UNIT_READY, *[check(play.BECOMING_READY)] * 10)

    def stop(what: str) -> None:
        raise Cancelled(what)

    with pytest.raises(Cancelled):
        drive.load(stop)
    assert not drive.is_loaded()


def test_a_drive_that_wants_to_be_asked_is_asked_to_load(drive: ScsiDrive, device: ScriptedDrive) -> None:
    device.threaded, device.attentions = False, []
    device.script.instead(play.TEST_UNIT_READY, check((0x2, 0x04, 0x02)))
    drive.load()
    assert drive.is_loaded()
    assert device.script.count(play.LOAD) == 1


@pytest.mark.parametrize("code", [(0x2, 0x04, 0x03), (0x2, 0x30, 0x07), (0x2, 0x3E, 0x01), (0x4, 0x44, 0x00)])
def test_a_drive_that_needs_a_hand_is_not_waited_for(
    drive: ScsiDrive, device: ScriptedDrive, clock: Hours, code: tuple[int, int, int]
) -> None:
    device.script.instead(play.TEST_UNIT_READY, check(play.RESET), check(code))
    with pytest.raises(DestinationError, match="drive 0"):
        drive.load()
    assert clock.passed < 5


@pytest.mark.parametrize(
    "code",
    [
        *(
            (0x2, 0x04, q)
            for q in (0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0A, 0x0B, 0x0C, 0x0E, 0x10, 0x11, 0x13)
        ),
        *((0x2, 0x04, q) for q in (0x14, 0x18, 0x1A, 0x1B, 0x1C, 0x1D, 0x24, 0x25)),
        (0x2, 0x3E, 0x00),
    ],
    ids=lambda code: "/".join(f"{part:02x}" for part in code),
)
def test_what_passes_by_itself_is_waited_for_and_said(
    drive: ScsiDrive, device: ScriptedDrive, clock: Hours, code: tuple[int, int, int]
) -> None:
    device.script.instead(play.TEST_UNIT_READY, check(play.RESET), *[check(code)] * 60)
    told: list[str] = []
    drive.load(told.append)
    assert drive.is_loaded()
    assert clock.passed == 60
    assert all(line.startswith("drive 0 (HU1) is not ready yet: not ready, ") for line in told)


def test_a_drive_that_was_just_reset_is_waited_for_before_its_cartridge_is_unloaded(
    drive: ScsiDrive, device: ScriptedDrive, clock: Hours
) -> None:
    drive.load()
    device.script.instead(play.TEST_UNIT_READY, check(play.RESET), *[check((0x2, 0x3E, 0x00))] * 30)
    drive.unload()
    assert not device.threaded
    assert clock.passed == 30


def test_a_cartridge_that_is_becoming_ready_is_not_waited_for_to_be_unloaded(
    drive: ScsiDrive, device: ScriptedDrive, clock: Hours
) -> None:
    device.script.instead(play.TEST_UNIT_READY, check(play.RESET), check(play.BECOMING_READY))
    drive.unload()
    assert clock.passed == 0


def test_a_cleaning_cartridge_cleans_and_leaves_the_drive_empty(
    drive: ScsiDrive, device: ScriptedDrive
) -> None:
    assert device.tape is not None
    device.tape.cleaning = True
    told: list[str] = []
    drive.load(told.append)
    assert not drive.is_loaded()
    assert told == ["drive 0 (HU1) is being cleaned"]


def test_fixed_blocks_are_switched_off(drive: ScsiDrive, device: ScriptedDrive) -> None:
    device.block_bytes = 512
    drive.load()
    assert device.block_bytes == 0
    assert device.script.count(play.MODE_SELECT) == 1


def test_every_unit_attention_that_waits_is_heard_before_the_cartridge_counts_as_loaded(
    drive: ScsiDrive, device: ScriptedDrive
) -> None:
    device.attentions = [play.RESET, play.CHANGED, (0x6, 0x2A, 0x01)]
    drive.load()
    assert drive.position() == Position(0, 0)


# -- the position -----------------------------------------------------------------------------


def test_a_medium_that_may_have_changed_loses_the_position_until_the_next_rewind(
    drive: ScsiDrive, device: ScriptedDrive
) -> None:
    loaded(drive, [b"label"], [b"one"])
    device.attentions = [play.CHANGED]
    with pytest.raises(PositionLost, match="may have changed"):
        drive.write_record(b"never")
    for verb in (drive.position, drive.read_record, lambda: drive.write_record(b"x")):
        with pytest.raises(PositionLost, match=r"position .* is unknown"):
            verb()
    assert device.tape is not None
    assert b"never" not in device.tape.blocks
    drive.rewind()
    assert drive.read_record() == b"label"


@pytest.mark.parametrize("tells", [True, False])
def test_a_file_is_located_where_the_drive_can_and_spaced_to_where_it_cannot(
    clock: Hours, tells: bool
) -> None:
    device = ScriptedDrive("HU1", tells_position=tells)
    device.put_in(Tape("A00001L9"))
    drive = loaded(
        ScsiDrive(0, device, 1 << 20, lambda: True, clock=clock), [b"label"], [b"a", b"b", b"c"], [b"d"]
    )
    drive.locate(Position(2, 0))
    drive.locate(Position(1, 2))
    assert drive.read_record() == b"c"
    assert bool(device.script.count(play.LOCATE)) == tells


def test_a_drive_that_says_it_stands_elsewhere_is_not_trusted(
    drive: ScsiDrive, device: ScriptedDrive
) -> None:
    loaded(drive, [b"label"], [b"a"], [b"b"])
    elsewhere = Answer(GOOD, b"", bytes(16) + (5).to_bytes(8, "big") + bytes(8))
    device.script.instead(play.READ_POSITION, elsewhere)
    with pytest.raises(PositionLost, match="tape file 5, not 2"):
        drive.space_filemarks(2)


def test_a_drive_that_no_longer_locates_is_spaced(drive: ScsiDrive, device: ScriptedDrive) -> None:
    loaded(drive, [b"label"], [b"a"], [b"b"])
    device.script.instead(play.LOCATE, check(play.UNSUPPORTED))
    drive.locate(Position(2, 0))
    assert drive.read_record() == b"b"


def test_a_block_longer_than_usual_is_read_again_with_room_for_it(
    drive: ScsiDrive, device: ScriptedDrive
) -> None:
    loaded(drive, [b"l" * (3 * MIB), b"next"])
    assert drive.read_record(4 * MIB) == b"l" * (3 * MIB)
    assert drive.read_record(4 * MIB) == b"next"


@pytest.mark.parametrize("verb", ["alerts", "is_write_protected"])
def test_a_reset_heard_by_a_question_is_not_forgotten(
    drive: ScsiDrive, device: ScriptedDrive, verb: str
) -> None:
    loaded(drive, [b"label"])
    device.attentions = [play.RESET]
    getattr(drive, verb)()
    with pytest.raises(PositionLost):
        drive.write_record(b"over the label")
    assert device.tape is not None
    assert device.tape.blocks == [b"label", None]


def test_where_it_stands_is_asked_of_the_drive(drive: ScsiDrive, device: ScriptedDrive) -> None:
    loaded(drive, [b"label"])
    device.attentions = [play.RESET]
    with pytest.raises(PositionLost):
        drive.position()


# -- writing ----------------------------------------------------------------------------------


def test_early_warning_is_the_bit_whatever_the_code_and_the_block_counts(
    drive: ScsiDrive, device: ScriptedDrive
) -> None:
    drive.load()
    device.script.afterwards(play.WRITE, check((0x0, 0x00, 0x00), eom=True))
    assert drive.write_record(b"one")
    assert drive.position() == Position(0, 1)


@pytest.mark.parametrize(
    "answer",
    [
        check((0xD, 0x00, 0x02), eom=True, information=3),
        check((0x0, 0x00, 0x02), eom=True, information=3),
        check((0xD, 0x00, 0x00), descriptor=True, eom=True),
    ],
)
def test_volume_overflow_and_a_short_write_are_the_end_of_the_medium(
    drive: ScsiDrive, device: ScriptedDrive, answer: Answer
) -> None:
    drive.load()
    device.script.instead(play.WRITE, answer)
    with pytest.raises(EndOfMedium):
        drive.write_record(b"one")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (check(WRITE_ERROR, deferred=True), MediumDamaged),
        (check((0x4, 0x44, 0x00), deferred=True), PositionLost),
        (check(WRITE_ERROR), MediumDamaged),
        (check((0x4, 0x44, 0x00)), Unavailable),
        (check((0xB, 0x4B, 0x00)), PositionLost),
        (check(play.PROTECTED), WriteProtected),
        (check(play.WORM_OVERWRITE), WriteProtected),
        (check(play.EMPTY), DestinationError),
        (Answer(RESERVATION_CONFLICT), Unavailable),
        (Answer(0x40), Indeterminate),
        (Indeterminate("cut off"), Indeterminate),
        (Unavailable("gone"), Unavailable),
    ],
)
def test_a_write_that_fails_is_named_and_leaves_the_position_unknown(
    drive: ScsiDrive, device: ScriptedDrive, answer: Answer | NightferryError, error: type[Exception]
) -> None:
    drive.load()
    device.script.instead(play.WRITE, answer)
    with pytest.raises(error):
        drive.write_record(b"one")
    assert device.script.count(play.WRITE) == 1
    with pytest.raises(PositionLost):
        drive.position()


def test_a_drive_that_is_busy_is_asked_again_since_it_took_nothing(
    drive: ScsiDrive, device: ScriptedDrive
) -> None:
    drive.load()
    device.script.instead(play.WRITE, Answer(BUSY), Answer(BUSY))
    drive.write_record(b"one")
    assert device.tape is not None
    assert device.tape.blocks == [b"one"]


def test_a_write_that_was_done_and_not_acknowledged_is_not_sent_again(
    drive: ScsiDrive, device: ScriptedDrive
) -> None:
    drive.load()
    device.script.afterwards(play.WRITE, Indeterminate("cut off"))
    with pytest.raises(Indeterminate):
        drive.write_record(b"one")
    drive.unload()
    drive.load()
    assert drive.space_records(9) == 1
    assert device.script.count(play.WRITE) == 1


def test_worm_takes_more_at_its_end_and_nothing_before(drive: ScsiDrive, device: ScriptedDrive) -> None:
    assert device.tape is not None
    device.tape.worm = True
    loaded(drive, [b"label"])
    assert not drive.is_write_protected()
    with pytest.raises(WriteProtected, match="WORM"):
        drive.write_record(b"other")
    drive.rewind()
    drive.space_filemarks(1)
    drive.write_record(b"more")
    assert device.tape.blocks == [b"label", None, b"more"]


# -- reading ----------------------------------------------------------------------------------


def test_descriptor_sense_is_understood_like_the_fixed_form(drive: ScsiDrive, device: ScriptedDrive) -> None:
    device.descriptor = True
    loaded(drive, [b"label"], [b"1", b"22"])
    assert [drive.read_record() for _ in range(2)] == [b"label", Mark.FILEMARK]
    assert drive.space_records(9) == 2
    assert drive.read_record() is Mark.FILEMARK
    assert drive.read_record() is Mark.END_OF_DATA


def test_an_unreadable_block_is_damage_and_the_position_is_not_relied_on(
    drive: ScsiDrive, device: ScriptedDrive
) -> None:
    loaded(drive, [b"label"])
    device.script.instead(play.READ, check(MEDIUM_ERROR, eom=False))
    with pytest.raises(MediumDamaged, match="unrecovered read error"):
        drive.read_record()
    with pytest.raises(PositionLost):
        drive.read_record()


def test_a_recovered_error_is_no_error(drive: ScsiDrive, device: ScriptedDrive) -> None:
    drive.load()
    device.script.afterwards(play.WRITE, check((0x1, 0x00, 0x17)))
    assert not drive.write_record(b"one")
    assert drive.position() == Position(0, 1)


# -- care -------------------------------------------------------------------------------------


def test_alerts_have_their_names_with_and_without_a_cartridge(
    drive: ScsiDrive, device: ScriptedDrive
) -> None:
    device.alerts = {20, 5, 63}
    assert drive.alerts() == ("read failure", "clean now", "flag 63")
    drive.load()
    assert drive.alerts() == ("read failure", "clean now", "flag 63")


def test_a_set_switch_is_seen(drive: ScsiDrive, device: ScriptedDrive) -> None:
    assert device.tape is not None
    device.tape.write_protected = True
    drive.load()
    assert drive.is_write_protected()


@pytest.mark.parametrize(
    ("ask", "verb"), [(play.LOG_SENSE, "alerts"), (play.MODE_SENSE, "is_write_protected")]
)
def test_a_unit_attention_does_not_stop_a_question_that_moves_nothing(
    drive: ScsiDrive, device: ScriptedDrive, ask: int, verb: str
) -> None:
    drive.load()
    device.script.instead(ask, check(play.RESET))
    question: Callable[[], object] = getattr(drive, verb)
    assert not question()
