"""Which drive stands where, and what a changer says and does."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightferry.destination.tape.changer import UNREADABLE, Address
from nightferry.destination.tape.scsi_changer import ScsiChanger
from nightferry.destination.tape.scsi_library import ScsiLibrary, match_drives, smallest_capacity
from nightferry.errors import ConfigError, DestinationError, Unavailable
from nightferry.scsi.cdb import ElementStatus, ElementType
from nightferry.scsi.transport import Indeterminate
from tests.support import scripted_library as play
from tests.support.scripted_library import ScriptedChanger, ScriptedDrive, Tape, check


def elements(*identifiers: str) -> list[ElementStatus]:
    return [
        ElementStatus(ElementType.DRIVE, 500 + n, False, identifier=identifier)
        for n, identifier in enumerate(identifiers)
    ]


def test_drives_are_matched_by_the_serial_numbers_that_the_changer_tells() -> None:
    places = match_drives(elements("HP  Ultrium  HU2", "HP  Ultrium  HU1"), ["HU1", "HU2"])
    assert places.serials == ("HU2", "HU1")
    assert places.elements == (500, 501)


def test_one_drive_left_over_on_both_sides_is_matched() -> None:
    assert match_drives(elements("HU1", "HP  Ultr"), ["HU2", "HU1"]).serials == ("HU1", "HU2")


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
    assert match_drives(elements("HU1", "HU2", "HU3"), ["HU1", "HU1", "HU2"]).serials == ("HU1", "HU2")
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


def test_a_move_of_unknown_outcome_is_not_sent_again(
    changer: ScsiChanger, transport: ScriptedChanger
) -> None:
    transport.script.afterwards(play.MOVE, Indeterminate("cut off"))
    with pytest.raises(Indeterminate):
        changer.move(Address("slot", 0), Address("drive", 0))
    assert transport.script.count(play.MOVE) == 1
    inside = next(e.barcode for e in changer.inventory() if e.address == Address("drive", 0))
    assert inside == "A00001L9"


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
