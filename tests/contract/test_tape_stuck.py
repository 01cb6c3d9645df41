"""No night stands still on one cartridge: on a virtual library, behind tgtd, and on a scripted one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nightferry.destination.tape.drives.base import EndOfMedium
from nightferry.destination.tape.library.changer import Address, Element
from nightferry.errors import DestinationError, NoScratch, PositionLost, Unavailable
from tests.support.outgoing import MIB, at_chunk, put
from tests.support.outgoing import PlainImage as Image
from tests.support.tape_process import LastingRegister, Process
from tests.support.tape_shops import BARCODES, Shop
from tests.support.tapes import barcodes, read_all

pytestmark = pytest.mark.usefixtures("no_power_cuts")
FIRST, SECOND = BARCODES[:2]
Open = Callable[..., Process]


@pytest.fixture
def register(tmp_path: Path) -> LastingRegister:
    return LastingRegister(tmp_path / "register")


@pytest.fixture
def process(shop: Shop, register: LastingRegister) -> Iterator[Open]:
    opened: list[Process] = []

    def one(pool: list[str] = BARCODES) -> Process:
        for before in opened:
            before.tape.close()
        opened.append(Process(shop.open(), register, pool))
        return opened[-1]

    yield one
    for each in opened:
        each.tape.close()


def image(name: str = "20261130-TEX-BACK-1.SG1.a.L0", mib: int = 3) -> Image:
    return Image(name, os.urandom(mib * MIB - 99))


def numbered(wanted: int) -> Callable[..., bool]:
    """The n-th call that writes a filemark; WRITE FILEMARKS of none only asks for early warning."""
    seen = 0

    def when(count: int) -> bool:
        nonlocal seen
        seen += count > 0
        return count > 0 and seen == wanted

    return when


def begins(text: bytes) -> Callable[..., bool]:
    return lambda data: bytes(data[: len(text)]) == text


@pytest.mark.parametrize(
    ("verb", "when"),
    [
        ("write_record", lambda: begins(b"NIGHTFERRY TAPE LABEL")),
        ("write_filemarks", lambda: numbered(1)),
        ("write_filemarks", lambda: numbered(2)),
        ("write_record", lambda: begins(b".nightferry/trailer.json")),
        ("write_filemarks", lambda: numbered(3)),
    ],
    ids=["the label", "its filemark", "the image's filemark", "the trailer", "the trailer's filemark"],
)
def test_the_end_of_the_medium_costs_a_cartridge_its_turn_and_no_night(
    process: Open, register: LastingRegister, verb: str, when: Callable[[], Callable[..., bool]]
) -> None:
    data = image()
    at_work = process()
    at_work.fails(verb, FIRST, EndOfMedium("at its end"), when())
    receipt = put(at_work.tape, data)
    assert barcodes(receipt) == [SECOND]
    assert read_all(at_work.tape, receipt) == data.data
    assert register.kept[FIRST].state == "full"
    assert "at its end" in register.kept[FIRST].note
    # The next night does not meet it again.
    later = process()
    put(later.tape, image("20261130-TEX-BACK-1.SG1.b.L0"))
    assert FIRST not in later.mounted
    assert [(f.image, f.location) for f in later.tape.scan() if f.image == data.image] == [
        (data.image, receipt.location)
    ]


def stopped(process: Open, register: LastingRegister) -> Image:
    """What a process leaves that was stopped while it wrote an image behind another: a tape file without its end."""
    at_work = process()
    first = image("20261130-TEX-BACK-1.SG1.first.L0")
    put(at_work.tape, first)
    with pytest.raises(RuntimeError):
        put(
            at_work.tape,
            Image("20261130-TEX-BACK-1.SG1.cut.L0", os.urandom(3 * MIB), on_chunk=at_chunk(2, cut)),
        )
    return first


def cut() -> None:
    raise RuntimeError


def test_the_end_of_the_medium_in_recovery_makes_the_cartridge_full(
    process: Open, register: LastingRegister
) -> None:
    stopped(process, register)
    at_work = process()
    at_work.fails("write_filemarks", FIRST, EndOfMedium("at its end"), lambda count: count > 0)
    data = image()
    receipt = put(at_work.tape, data)
    assert barcodes(receipt) == [SECOND]
    assert register.kept[FIRST].state == "full"
    assert not register.kept[FIRST].note.startswith("being written")
    assert {f.image for f in at_work.tape.scan()} == {"20261130-TEX-BACK-1.SG1.first.L0", data.image}


@pytest.mark.parametrize("error", [Unavailable, PositionLost], ids=lambda e: e.__name__)
def test_a_cartridge_at_which_two_drives_fail_is_to_blame_itself(
    process: Open, register: LastingRegister, error: type[DestinationError]
) -> None:
    put(process().tape, image("20261130-TEX-BACK-1.SG1.first.L0"))
    at_work = process()
    at_work.fails("read_record", FIRST, error("no answer"))
    data = image()
    receipt = put(at_work.tape, data)
    assert barcodes(receipt) == [SECOND]
    assert register.kept[FIRST].state == "full"
    assert "neither drive" in register.kept[FIRST].note
    assert not at_work.tape.bays.have_failed


@pytest.mark.parametrize("error", [Unavailable, PositionLost], ids=lambda e: e.__name__)
def test_a_cartridge_that_cannot_be_looked_at_after_a_kill_stops_nothing(
    process: Open, register: LastingRegister, error: type[DestinationError]
) -> None:
    stopped(process, register)
    known = register.kept[FIRST]
    register.record(known.model_copy(update={"note": "being written"}))
    at_work = process()
    at_work.fails("read_record", FIRST, error("no answer"))
    assert barcodes(put(at_work.tape, image())) == [SECOND]
    later = process()
    later.fails("read_record", FIRST, error("no answer"))
    assert barcodes(put(later.tape, image("20261130-TEX-BACK-1.SG1.b.L0"))) == [SECOND]


def test_two_cartridges_with_one_barcode_are_both_left_alone_and_named(
    process: Open, register: LastingRegister
) -> None:
    put(process().tape, image("20261130-TEX-BACK-1.SG1.first.L0"))
    at_work = process()
    tape, changer = at_work.tape, at_work.library.changer
    real, moved = tape.bays.inventory, changer.move

    def twice() -> list[Element]:
        found = real()
        return [Element(e.address, FIRST, e.home) if e.address == Address("slot", 5) else e for e in found]

    touched: list[Address] = []
    tape.bays.inventory = twice  # type: ignore[method-assign]
    changer.move = lambda source, target: (touched.append(source), moved(source, target))[1]  # type: ignore[method-assign,func-returns-value]
    assert barcodes(put(tape, image())) == [SECOND]
    places = {Address("slot", 0), Address("slot", 5)}
    assert not places & set(touched)
    [finding] = [f for f in tape.check() if f.id == "NF-TAPE-004"]
    assert (finding.severity, "slot 0 and slot 5" in finding.text, FIRST in finding.text) == (
        "warn",
        True,
        True,
    )
    views = {v.element: v for v in tape.inventory() if v.barcode == FIRST}
    assert {element: "slot 0 and slot 5" in view.note for element, view in views.items()} == {
        "slot 0": True,
        "slot 5": True,
    }
    for verb in (
        lambda: tape.show(FIRST),
        lambda: tape.label(FIRST, "daily"),
        lambda: tape.handling.erase(FIRST, "me"),
        lambda: tape.handling.export(FIRST, "me"),
        lambda: tape.handling.retire(FIRST, "me"),
        lambda: tape.handling.move(FIRST, 9, "me"),
    ):
        with pytest.raises(Unavailable, match="in slot 0 and slot 5; none of them is used") as refused:
            verb()
        assert "barcode label" in refused.value.hint
    assert not places & set(touched)
    # One of them is taken out, and the other is as good as before.
    tape.bays.inventory = real  # type: ignore[method-assign]
    assert tape.show(FIRST).on_medium is not None


def test_a_never_used_cartridge_goes_out_and_comes_in_as_it_was(
    process: Open, register: LastingRegister
) -> None:
    tape = process().tape
    tape.handling.export(FIRST, "me: to the vault")
    assert register.kept[FIRST].state == "offsite"
    taken = tape.handling.take_in("me")
    assert [(v.barcode, v.state) for v in taken] == [(FIRST, "unknown")]
    register.record(register.kept[FIRST].model_copy(update={"state": "blank"}))
    tape.handling.export(FIRST, "me")
    assert [(v.barcode, v.state) for v in tape.handling.take_in("me")] == [(FIRST, "blank")]
    # It is written as any new one.
    assert barcodes(put(process([FIRST]).tape, image())) == [FIRST]


def test_images_that_find_the_pool_empty_do_not_wait_one_after_the_other(
    process: Open, register: LastingRegister
) -> None:
    at_work = process([])
    for number in range(5):
        with pytest.raises(NoScratch, match="1 missing"):
            put(at_work.tape, image(f"20261130-TEX-BACK-1.SG1.s{number}.L0"))
    assert at_work.mounted == []
