"""Which drive stands where, and what a changer says and does."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightferry.destination.tape.library.changer import UNREADABLE, Address
from nightferry.destination.tape.library.scsi_changer import ScsiChanger
from nightferry.destination.tape.library.scsi_library import ScsiLibrary, match_drives, smallest_capacity
from nightferry.errors import ConfigError, DestinationError, PositionLost, Unavailable
from nightferry.scsi.cdb import ElementStatus, ElementType
from nightferry.scsi.transport import Indeterminate
from tests.support import scripted_library as play
from tests.support.scripted_library import ScriptedChanger, ScriptedDrive, Tape, check
from tests.support.tape_rig import FakeClock


def elements(*identifiers: str) -> list[ElementStatus]:
    return [
        ElementStatus(ElementType.DRIVE, 500 + n, False, identifier=identifier)
        for n, identifier in enumerate(identifiers)
    ]


def test_drives_are_matched_by_the_serial_numbers_that_the_changer_tells() -> None:
    places = match_drives(elements("HP  Ultrium  HU2", "HP  Ultrium  HU1"), ["HU1", "HU2"])
    assert places.serials == ("HU2", "HU1")
    assert places.elements == (500, 501)


def test_one_drive_left_over_on_both_sides_is_matched_where_the_changer_names_none() -> None:
    assert match_drives(elements("HU1", ""), ["HU2", "HU1"]).serials == ("HU1", "HU2")
    cut = [*elements("HU1"), ElementStatus(ElementType.DRIVE, 501, False, identifier="HP  Ultr", is_cut=True)]
    assert match_drives(cut, ["HU2", "HU1"]).serials == ("HU1", "HU2")


@pytest.mark.parametrize(
    "drives", [["HU1", "HU2"], ["HU1"]], ids=["another is left over", "nobody is left over"]
)
def test_a_serial_that_the_changer_names_and_nobody_has_is_an_error(drives: list[str]) -> None:
    with pytest.raises(ConfigError, match="drive HU9 at element 501, and no such drive answers") as refused:
        match_drives(elements("HU1", "HU9"), drives)
    # The hint leads out: the drives that are there are used, and the other one is left alone.
    assert "`drives`" in refused.value.hint
    assert "HU1" in refused.value.hint
    assert match_drives(elements("HU1", "HU9"), drives, wanted=["HU1"]).elements == (500,)
    with pytest.raises(ConfigError, match="no such drive answers"):
        match_drives(elements("HU1", "HU9"), ["HU1", "HU2"], wanted=["HU2"])
    assert match_drives(elements("HU9"), ["HU2"], wanted=["HU2"], elements=[500]).serials == ("HU2",)


def test_a_serial_that_the_changer_names_twice_is_an_error_until_the_site_file_says_more() -> None:
    twice = elements("HP  Ultrium  HU1", "HU1")
    with pytest.raises(ConfigError, match="HU1 at several elements, 500, 501") as refused:
        match_drives(twice, ["HU1", "HU2"])
    assert "`elements`" in refused.value.hint
    places = match_drives(twice, ["HU1", "HU2"], wanted=["HU1", "HU2"], elements=[501, 500])
    assert places.elements == (501, 500)


def test_serials_match_exactly() -> None:
    with pytest.raises(ConfigError, match="drive XHU1 at element 500"):
        match_drives(elements("XHU1"), ["HU1"])
    t10 = f"{'HP':8}{'Ultrium 5-SCSI-X':16}HU1"
    assert match_drives(elements(t10, "HU11"), ["HU11", "HU1"]).serials == ("HU1", "HU11")


def test_two_left_over_are_not_guessed() -> None:
    with pytest.raises(ConfigError, match="500, 501 the drives HU1, HU2") as refused:
        match_drives(elements("", ""), ["HU1", "HU2"])
    assert "elements" in refused.value.hint


def test_the_site_file_says_what_the_changer_does_not() -> None:
    places = match_drives(elements("", ""), ["HU1", "HU2"], wanted=["HU2", "HU1"], elements=[500, 501])
    assert (places.serials, places.elements) == (("HU2", "HU1"), (500, 501))


@pytest.mark.parametrize(
    ("wanted", "places", "why"),
    [
        (["HU2", "HU1"], [500, 501], "HU2 stands at element 500, the changer says HU1"),
        (["HU1"], [500, 501], "1 drives and 2 elements"),
        (["HU1", "HU2"], [500, 500], "2 drives and 2 elements"),
        (["HU1", "HU2"], [500, 7], "no data transfer element 7"),
        (["HU9"], [], "no drive HU9"),
    ],
)
def test_a_site_file_that_does_not_fit_is_refused(wanted: list[str], places: list[int], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        match_drives(elements("HU1", "HU2"), ["HU1", "HU2"], wanted=wanted, elements=places)


def test_a_drive_seen_twice_is_one_drive_and_others_drives_are_left_alone() -> None:
    assert match_drives(elements("HU1", "HU2"), ["HU1", "HU1", "HU2"]).serials == ("HU1", "HU2")
    assert match_drives(elements("HU1", "HU2"), ["HU1", "HU2"], wanted=["HU2"]).elements == (501,)


def test_a_cartridge_holds_what_its_barcode_says() -> None:
    assert smallest_capacity(["A00001L9", "A00002L8", "CLN001CU"]) == 12_000_000_000_000
    assert smallest_capacity([]) == 100_000_000_000


@pytest.fixture
def transport() -> ScriptedChanger:
    drives = [ScriptedDrive("HU1"), ScriptedDrive("HU2")]
    tapes = [Tape("A00001L9"), Tape("../../etc"), Tape("")]
    return ScriptedChanger(drives, tapes, slots=5)


@pytest.fixture
def changer(transport: ScriptedChanger) -> ScsiChanger:
    changer = ScsiChanger(transport)
    changer.watch([], [501])
    return changer


def test_a_barcode_that_cannot_be_a_name_is_unreadable(changer: ScsiChanger) -> None:
    slots = [e.barcode for e in changer.inventory() if e.address.kind == "slot"]
    assert slots == ["A00001L9", UNREADABLE, UNREADABLE, "", ""]


def test_drives_of_others_are_numbered_behind_ours(changer: ScsiChanger, transport: ScriptedChanger) -> None:
    changer.move(Address("slot", 0), Address("drive", 0))
    assert transport.drives[1].tape is not None
    changer.move(Address("slot", 1), Address("drive", 1))
    assert transport.drives[0].tape is not None


def test_a_library_larger_than_the_first_answer_is_asked_again(transport: ScriptedChanger) -> None:
    transport.slots += [Tape(f"B{n:05d}L9") for n in range(2000)]
    slots = [e for e in ScsiChanger(transport).inventory() if e.address.kind == "slot"]
    assert len(slots) == 2005
    assert slots[-1].barcode == "B01999L9"


def test_a_changer_without_ports_has_none(changer: ScsiChanger, transport: ScriptedChanger) -> None:
    changer.inventory()
    real = transport._do
    transport._do = lambda cdb, data, room: (  # type: ignore[method-assign]
        check(play.BAD_FIELD)
        if cdb[0] == play.READ_ELEMENTS and cdb[1] & 0x0F == 3
        else real(cdb, data, room)
    )
    assert not [e for e in changer.inventory() if e.address.kind == "port"]


def test_a_move_past_a_unit_attention_is_sent_again_since_nothing_was_done(
    changer: ScsiChanger, transport: ScriptedChanger
) -> None:
    transport.script.instead(play.MOVE, check(play.CHANGED))
    changer.move(Address("slot", 0), Address("drive", 0))
    assert transport.script.count(play.MOVE) == 2


def inside(changer: ScsiChanger, number: int) -> str:
    return next(e.barcode for e in changer.inventory() if e.address == Address("drive", number))


@pytest.mark.parametrize("lost", [Indeterminate("cut off"), check((0xB, 0x4B, 0x00))], ids=["cut", "aborted"])
def test_a_move_of_unknown_outcome_that_was_done_is_not_sent_again(
    changer: ScsiChanger, transport: ScriptedChanger, lost: play.Said
) -> None:
    transport.script.afterwards(play.MOVE, lost)
    changer.move(Address("slot", 0), Address("drive", 0))
    assert transport.script.count(play.MOVE) == 1
    assert inside(changer, 0) == "A00001L9"


@pytest.mark.parametrize("lost", [Indeterminate("cut off"), check((0xB, 0x4B, 0x00))], ids=["cut", "aborted"])
def test_a_move_of_unknown_outcome_that_was_not_done_is_sent_again(
    changer: ScsiChanger, transport: ScriptedChanger, lost: play.Said
) -> None:
    transport.script.instead(play.MOVE, lost)
    changer.move(Address("slot", 0), Address("drive", 0))
    assert transport.script.count(play.MOVE) == 2
    assert inside(changer, 0) == "A00001L9"


def test_a_move_that_is_lost_three_times_is_given_up(
    changer: ScsiChanger, transport: ScriptedChanger
) -> None:
    transport.script.instead(play.MOVE, *[Indeterminate("cut off")] * 3)
    with pytest.raises(Indeterminate):
        changer.move(Address("slot", 0), Address("drive", 0))
    assert transport.script.count(play.MOVE) == 3
    assert inside(changer, 0) == ""


def test_a_cartridge_that_the_arm_holds_is_waited_for_and_never_sent_twice(
    transport: ScriptedChanger,
) -> None:
    clock = FakeClock()
    changer = ScsiChanger(transport, clock=clock)
    changer.watch([], [501])
    tape = transport.slots[0]

    def taken_up(source: int, target: int) -> play.Answer:
        transport.slots[0] = None
        return play.check((0xB, 0x4B, 0x00))

    def arrives(passed: float) -> None:
        if passed == 20 and tape is not None:
            transport.drives[1].put_in(tape)

    clock.on_sleep = arrives
    transport._move = taken_up  # type: ignore[method-assign]
    changer.move(Address("slot", 0), Address("drive", 0))
    assert (clock.passed, transport.script.count(play.MOVE)) == (20, 1)
    # One that comes to neither place is not looked for with another move.
    transport._move = lambda source, target: (transport.drives[1].take_out(), taken_up(source, target))[1]  # type: ignore[method-assign]
    with pytest.raises(PositionLost):
        changer.move(Address("drive", 0), Address("slot", 4))
    assert transport.script.count(play.MOVE) == 2


PASSES = [
    *(
        (0x2, 0x04, q)
        for q in (0x00, 0x01, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0A, 0x0B, 0x0C, 0x0E, 0x10, 0x11)
    ),
    *((0x2, 0x04, q) for q in (0x13, 0x14, 0x18, 0x1A, 0x1B, 0x1C, 0x1D, 0x24, 0x25)),
    (0x2, 0x3E, 0x00),
]


@pytest.mark.parametrize("code", PASSES, ids=lambda code: "/".join(f"{part:02x}" for part in code))
def test_a_changer_that_is_not_ready_yet_is_waited_for(
    transport: ScriptedChanger, code: tuple[int, int, int]
) -> None:
    clock = FakeClock()
    changer = ScsiChanger(transport, clock=clock)
    changer.watch([], [500])
    transport.script.instead(play.READ_ELEMENTS, *[check(code)] * 40)
    transport.script.instead(play.MOVE, *[check(code)] * 40)
    changer.move(Address("slot", 0), Address("drive", 0))
    assert clock.passed == 80
    assert inside(changer, 0) == "A00001L9"


def test_a_changer_that_needs_a_hand_or_never_becomes_ready_is_away(transport: ScriptedChanger) -> None:
    clock = FakeClock()
    changer = ScsiChanger(transport, clock=clock)
    transport.script.instead(play.READ_ELEMENTS, check((0x2, 0x04, 0x03)))
    with pytest.raises(Unavailable, match="manual intervention"):
        changer.inventory()
    assert clock.passed == 0
    transport.script.instead(play.READ_ELEMENTS, *[check((0x2, 0x04, 0x01))] * 5000)
    with pytest.raises(Unavailable, match="becoming ready"):
        changer.inventory()
    assert clock.passed == 900


def test_a_held_cartridge_is_named(changer: ScsiChanger, transport: ScriptedChanger) -> None:
    changer.move(Address("slot", 0), Address("drive", 0))
    with pytest.raises(DestinationError, match="held there"):
        changer.move(Address("drive", 0), Address("slot", 4))


def test_a_changer_that_does_not_answer_is_away(changer: ScsiChanger, transport: ScriptedChanger) -> None:
    transport.script.instead(play.READ_ELEMENTS, Unavailable("no route"))
    with pytest.raises(Unavailable):
        changer.inventory()


def test_a_lock_that_cannot_be_taken_gives_back_those_before_it(changer: ScsiChanger, tmp_path: Path) -> None:
    host, shared = tmp_path / "host", tmp_path / "shared"
    host.mkdir()
    shared.mkdir()
    ours = ScsiLibrary("ours", changer, [], ["HU 1/x"], (host, shared))
    another_host = ScsiLibrary("theirs", changer, [], ["HU 1/x"], (shared,))
    taken = another_host.try_lock(0)
    assert taken is not None
    assert ours.try_lock(0) is None
    taken.release()
    mine = ours.try_lock(0)
    assert mine is not None
    assert not mine.untouched
    assert another_host.try_lock(0) is None
    mine.release()
    assert sorted(p.name for p in host.iterdir()) == ["nightferry-drive-HU-1-x.lock"]
