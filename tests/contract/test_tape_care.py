"""Drives that fail, ask for cleaning or hold cartridges that refuse: what the lanes make of it."""

from __future__ import annotations

import json
import os
import threading

import pytest

from nightferry.destination.tape.drives.base import Waiting, no_waiting
from nightferry.destination.tape.library.changer import Address
from nightferry.errors import (
    DestinationError,
    MediumDamaged,
    NoScratch,
    PositionLost,
    Unavailable,
    WriteProtected,
)
from nightferry.progress import QUIET, Cancel
from tests.support.faulty_drive import Fault, FaultyDrive
from tests.support.outgoing import MIB, put
from tests.support.outgoing import PlainImage as Image
from tests.support.tape_rig import Rig
from tests.support.tapes import Said, barcodes, named, read_all


def faults(rig: Rig, *faults: Fault) -> None:
    rig.wrap = lambda drive: FaultyDrive(drive, list(faults))


def whole_copies(rig: Rig, image: str) -> int:
    """Final trailers of the image on all cartridges, read with nothing of the product's."""
    found = 0
    for tape in sorted(rig.path.glob("cartridges/*/*.tape")):
        data = tape.read_bytes()
        if data.startswith(b".nightferry/trailer.json\0"):
            size = int(data[124:135], 8)
            trailer = json.loads(data[512 : 512 + size])
            found += trailer["image"] == image and trailer["location"] is not None
    return found


FAILING = [
    Fault("write_record", 3, on=0, stays=True),
    Fault("write_record", 3, PositionLost, on=0, stays=True),
    Fault("write_record", 3, DestinationError, on=0, stays=True, applied=True),
    Fault("write_filemarks", 2, on=0, stays=True),
    Fault("load", 1, on=0, stays=True),
]


@pytest.mark.parametrize("fault", FAILING, ids=lambda f: f"{f.verb} {f.error.__name__}")
def test_a_drive_that_fails_mid_image_is_disabled_and_the_image_goes_to_another(
    rig: Rig, fault: Fault
) -> None:
    rig.make()
    faults(rig, fault)
    tape, said = rig.tape(), Said()
    image = Image(named("i1"), os.urandom(3 * MIB + 7))
    receipt = put(tape, image, progress=said)
    assert receipt.lane == "drive 1"
    assert read_all(tape, receipt) == image.data
    assert whole_copies(rig, named("i1")) == 1
    assert any("drive 0 failed and is disabled" in line for line in said.lines)
    assert [(d.drive, d.state) for d in rig.register.drives] == [(0, "set aside")]
    # The next image does not come back to it, and a later process finds nothing left to look at.
    assert put(tape, Image(named("i2"), os.urandom(MIB))).lane == "drive 1"
    tape.close()
    assert all(not r.note.startswith("being written") for r in rig.register.kept.values())
    assert sorted(f.image for f in rig.tape().scan()) == [named("i1"), named("i2")]


def test_the_part_that_a_failed_drive_wrote_is_dead_space_on_record(rig: Rig) -> None:
    rig.make(cartridges=1)
    faults(rig, Fault("write_record", 4, on=0, stays=True))
    tape = rig.tape()
    receipt = put(tape, Image(named("i1"), os.urandom(5 * MIB)))
    # The same cartridge, in the other drive, behind the dead part.
    assert [(p["barcode"], p["file"]) for p in receipt.location["parts"]] == [("A00001L9", 2)]
    assert "dead space in tape files 1" in rig.register.kept["A00001L9"].note
    assert rig.register.kept["A00001L9"].errors == 1


def test_a_cartridge_that_no_drive_loads_does_not_cost_the_drives(rig: Rig) -> None:
    rig.make()

    class Broken(FaultyDrive):
        def load(self, waiting: Waiting = no_waiting) -> None:
            held = json.loads((rig.path / "elements.json").read_text())["elements"][f"drive {self.number}"]
            if held == "A00001L9":
                raise self.error
            super().load(waiting)

        @property
        def error(self) -> Unavailable:
            return Unavailable(f"drive {self.number} does not become ready")

    rig.wrap = Broken
    tape = rig.tape()
    assert barcodes(put(tape, Image(named("i1"), os.urandom(MIB)))) == ["A00002L9"]
    assert rig.register.kept["A00001L9"].state == "full"
    assert [(d.drive, d.state) for d in rig.register.drives] == [(0, "set aside"), (0, "ready")]
    with tape.lane(progress=QUIET, cancel=Cancel()), tape.lane(progress=QUIET, cancel=Cancel()):
        pass


def test_the_others_never_notice_a_drive_that_fails(rig: Rig) -> None:
    rig.make(drives=3, cartridge_bytes=64 * MIB)
    faults(rig, Fault("write_record", 6, on=1, stays=True))
    tape = rig.tape(wait_s=30)
    images = [Image(named(f"i{n}"), os.urandom(4 * MIB)) for n in range(9)]
    lanes: dict[str, str] = {}
    left = list(images)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not left:
                    return
                image = left.pop()
            lanes[image.image] = put(tape, image).lane

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(lanes) == {image.image for image in images}
    assert [whole_copies(rig, image.image) for image in images] == [1] * 9


def test_when_every_drive_failed_the_error_names_them_and_the_next_lane_tries_again(rig: Rig) -> None:
    rig.make()
    away = [Fault("write_record", 2, on=n, stays=True) for n in (0, 1)]
    faults(rig, *away)
    tape = rig.tape()
    image = Image(named("i1"), os.urandom(2 * MIB))
    with pytest.raises(
        Unavailable, match=r"all drives .* disabled after errors \(drive 0: .*; drive 1: .*\)"
    ):
        put(tape, image)
    for fault in away:
        fault.stays = False
    receipt = put(tape, image)
    assert read_all(tape, receipt) == image.data
    assert whole_copies(rig, named("i1")) == 1


def test_an_unknown_outcome_on_a_cartridge_that_is_stuck_is_not_guessed(rig: Rig) -> None:
    rig.make()
    # The last filemark arrives, its acknowledgement does not, and the cartridge does not come out.
    stuck = Fault("unload", 3, on=0, stays=True)
    lost = Fault("write_filemarks", 3, on=0, applied=True)
    faults(rig, lost, stuck)
    tape = rig.tape()
    image = Image(named("i1"), os.urandom(MIB))
    with pytest.raises(Unavailable, match=rf"unknown whether {named('i1')} is whole on A00001L9"):
        put(tape, image)
    stuck.stays = False
    assert whole_copies(rig, named("i1")) == 1
    tape.bays._bays[0].stuck = ""
    found = tape.find(named("i1"), 1)
    assert found is not None
    assert read_all(tape, found) == image.data


def test_a_cartridge_that_cannot_be_written_is_left_for_another_in_the_same_drive(rig: Rig) -> None:
    rig.make(drives=1)
    faults(rig, Fault("write_record", 3, MediumDamaged))
    receipt = put(rig.tape(), Image(named("i1"), os.urandom(3 * MIB)))
    assert (receipt.lane, barcodes(receipt)) == ("drive 0", ["A00002L9"])
    record = rig.register.kept["A00001L9"]
    assert (record.state, record.errors) == ("full", 1)
    assert "cannot be written to" in record.note


def test_a_drive_that_spoils_one_cartridge_after_the_other_is_disabled(rig: Rig) -> None:
    rig.make()
    faults(rig, Fault("write_record", 2, MediumDamaged, on=0, stays=True))
    receipt = put(rig.tape(), Image(named("i1"), os.urandom(3 * MIB)))
    assert receipt.lane == "drive 1"
    assert [d.state for d in rig.register.drives] == ["set aside"]
    # What only the drive was to blame for can be written again.
    assert {r.state for r in rig.register.kept.values()} <= {"appendable", "blank"}


def test_a_drive_that_fails_while_reading_is_disabled_and_another_reads_on(rig: Rig) -> None:
    rig.make()
    image = Image(named("i1"), os.urandom(4 * MIB))
    receipt = put(rig.tape(), image)
    rig.opened[-1].close()
    faults(rig, Fault("read_record", 4, on=0, stays=True))
    assert read_all(rig.tape(), receipt) == image.data
    assert [(d.drive, d.state) for d in rig.register.drives] == [(0, "set aside")]
    assert any("drive 0 failed" in line for line in rig.said)


def test_a_drive_that_asks_for_cleaning_is_drained_cleaned_and_used_again(rig: Rig) -> None:
    rig.make(drives=1, slots=5)
    tape, said = rig.tape(), Said()
    first = put(tape, Image(named("i1"), os.urandom(MIB)))
    tape._library.changer.add("CLN001L1")  # type: ignore[attr-defined] # of a virtual library
    (rig.path / "drives/0.alerts").write_text("clean now\n")
    second = put(tape, Image(named("i2"), os.urandom(MIB)), progress=said)
    assert barcodes(first) == barcodes(second) == ["A00001L9"]
    assert [d.state for d in rig.register.drives] == ["wants cleaning", "cleaned", "ready"][:2]
    assert rig.register.kept["CLN001L1"].state == "cleaning"
    assert rig.register.kept["CLN001L1"].mounts == 1
    assert rig.register.kept["A00001L9"].mounts == 1
    assert any(
        "drive 0 requests cleaning: loading cleaning cartridge CLN001L1" in line for line in said.lines
    )
    assert [str(v.element) for v in tape.media.inventory() if v.barcode == "CLN001L1"] == ["slot 0"]


def test_without_a_cleaning_cartridge_the_drive_goes_on_and_that_is_said_once(rig: Rig) -> None:
    rig.make(drives=1)
    (rig.path / "drives").mkdir(exist_ok=True)
    (rig.path / "drives/0.alerts").write_text("clean periodic\n")
    tape, said = rig.tape(), Said()
    for n in range(2):
        put(tape, Image(named(f"i{n}"), os.urandom(MIB)), progress=said)
    assert sum("no usable cleaning cartridge" in line for line in said.lines) == 1
    assert [d.state for d in rig.register.drives] == ["wants cleaning"]


def test_a_cleaning_cartridge_is_never_written_to(rig: Rig) -> None:
    rig.make(cartridges=0, slots=2)
    tape = rig.tape()
    tape._library.changer.add("CLN001L1")  # type: ignore[attr-defined] # of a virtual library
    with pytest.raises(NoScratch):
        put(tape, Image(named("i1"), b"x"))
    with pytest.raises(DestinationError, match="cleaning"):
        tape.label("CLN001L1", "daily")


def test_what_a_drive_says_when_a_cartridge_leaves_it_is_kept_with_the_cartridge(rig: Rig) -> None:
    rig.make(drives=1)
    tape = rig.tape()
    put(tape, Image(named("i1"), os.urandom(MIB)))
    (rig.path / "drives/0.alerts").write_text("media life\n")
    tape.close()
    assert rig.register.kept["A00001L9"].alerts == ("media life",)
    assert [(d.state, d.alerts, d.barcode) for d in rig.register.drives] == [
        ("ready", ("media life",), "A00001L9")
    ]


def test_a_write_protected_cartridge_is_passed_over_and_taken_when_its_switch_was_set(rig: Rig) -> None:
    rig.make(cartridges=1)
    switch = rig.path / "cartridges/A00001L9/write-protected"
    switch.touch()
    tape, said = rig.tape(), Said()
    with pytest.raises(NoScratch, match="1 missing"):
        put(tape, Image(named("i1"), os.urandom(MIB)), progress=said)
    assert any("A00001L9 is write-protected" in line for line in said.lines)
    switch.unlink()
    changer = rig.opened[-1]._library.changer
    rig.opened[-1].close()
    (rig.path / "ports/0").mkdir(parents=True)
    changer.move(Address("slot", 0), Address("port", 0))
    with pytest.raises(NoScratch):
        put(tape, Image(named("i1"), os.urandom(MIB)))
    changer.move(Address("port", 0), Address("slot", 0))
    assert barcodes(put(tape, Image(named("i1"), os.urandom(MIB)))) == ["A00001L9"]


def test_a_worm_cartridge_is_appended_to_and_not_taken_again_when_it_expired(rig: Rig) -> None:
    rig.make(cartridges=2)
    (rig.path / "cartridges/A00001L9/worm").touch()
    tape = rig.tape()
    assert [barcodes(put(tape, Image(named(f"i{n}"), os.urandom(MIB)))) for n in range(2)] == [
        ["A00001L9"]
    ] * 2
    tape.close()
    rig.register.kept["A00001L9"] = rig.register.kept["A00001L9"].model_copy(update={"state": "expired"})
    before = rig.files("A00001L9")
    again = rig.tape(barcodes=("A00001L9",))
    with pytest.raises(NoScratch):
        put(again, Image(named("i3"), os.urandom(MIB)))
    assert rig.files("A00001L9") == before
    record = rig.register.kept["A00001L9"]
    assert (record.state, record.worm) == ("full", True)
    assert "WORM" in record.note
    # It is not even mounted again, whatever the retention says of it.
    mounts = record.mounts
    with pytest.raises(NoScratch):
        put(rig.tape(barcodes=("A00001L9",)), Image(named("i4"), os.urandom(MIB)))
    assert rig.register.kept["A00001L9"].mounts == mounts


def test_worm_cartridges_that_expired_cost_no_drive_however_many_there_are(rig: Rig) -> None:
    rig.make(drives=1, cartridges=3)
    for barcode in ("A00001L9", "A00002L9", "A00003L9"):
        (rig.path / "cartridges" / barcode / "worm").touch()
        put(rig.tape(barcodes=(barcode,)), Image(barcode, os.urandom(MIB)))
        rig.opened[-1].close()
        rig.register.kept[barcode] = rig.register.kept[barcode].model_copy(update={"state": "expired"})
    with pytest.raises(NoScratch):
        put(rig.tape(), Image(named("i3"), os.urandom(MIB)))
    assert {(r.state, r.worm) for r in rig.register.kept.values()} == {("full", True)}
    assert not rig.register.drives


def test_a_worm_cartridge_is_not_erased(rig: Rig) -> None:
    rig.make()
    (rig.path / "cartridges/A00001L9/worm").touch()
    tape = rig.tape()
    put(tape, Image(named("i1"), os.urandom(MIB)))
    tape.close()
    before = rig.files("A00001L9")
    known = rig.register.kept["A00001L9"]
    tape = rig.tape()
    with pytest.raises(WriteProtected, match="is WORM"):
        tape.handling.erase("A00001L9", "test")
    assert rig.files("A00001L9") == before
    same = {"at", "mounts", "note"}
    assert rig.register.kept["A00001L9"].model_dump(exclude=same) == known.model_copy(
        update={"worm": True}
    ).model_dump(exclude=same)


def test_a_drive_that_says_write_protected_in_mid_image_loses_only_the_cartridge(rig: Rig) -> None:
    rig.make(drives=1)
    faults(rig, Fault("write_record", 3, WriteProtected))
    assert barcodes(put(rig.tape(), Image(named("i1"), os.urandom(3 * MIB)))) == ["A00002L9"]


def test_a_cartridge_that_is_elsewhere_is_waited_for_by_name_until_it_comes(rig: Rig) -> None:
    rig.make()
    receipt = put(rig.tape(), Image(named("i1"), b"wanted"))
    rig.opened[-1].close()
    elements = rig.path / "elements.json"
    here = elements.read_text()
    elements.write_text(here.replace("A00001L9", ""))
    tape = rig.tape(wait_s=30)
    tell = rig.said.append

    def comes(text: str) -> None:
        tell(text)
        elements.write_text(here)

    tape._watch._tell = comes
    assert read_all(tape, receipt) == b"wanted"
    assert rig.said == [
        "waiting for cartridge A00001L9 (appendable), up to 30.0 s more: "
        "put it into a port, then `nightferry media import`"
    ]


def test_a_wait_for_a_cartridge_ends_at_its_deadline_and_when_it_is_stopped(rig: Rig) -> None:
    rig.make()
    receipt = put(rig.tape(), Image(named("i1"), b"wanted"))
    rig.opened[-1].close()
    elements = rig.path / "elements.json"
    elements.write_text(elements.read_text().replace("A00001L9", ""))
    with pytest.raises(Unavailable, match="A00001L9 is not in the library"):
        read_all(rig.tape(wait_s=0.1), receipt)


def test_streaming_figures_come_with_the_receipt(rig: Rig) -> None:
    rig.make()
    streamed = put(rig.tape(), Image(named("i1"), os.urandom(3 * MIB))).streamed
    assert streamed is not None
    assert streamed.size_bytes == 3 * MIB
    assert streamed.seconds > 0
    assert (streamed.waits, streamed.repositions) == (0, 0)


def test_every_cartridge_explains_itself(rig: Rig) -> None:
    rig.make()
    tape = rig.tape()
    tape._stock.pages = {"recovery.md": b"# how\n", "site.toml": b"[site]\n" * 200_000}
    put(tape, Image(named("i1"), os.urandom(MIB)))
    tape.put_catalog("catalog-1.parquet", b"events")
    tape.close()
    label = rig.files("A00001L9")["0000.tape"]
    assert label.startswith(b"NIGHTFERRY TAPE LABEL 1\n")
    assert label.endswith(b"# how\n" + b"[site]\n" * 200_000)
    assert b"site.toml" in rig.files("A00001L9")["0004.tape"]
    assert put(rig.tape(), Image(named("i2"), os.urandom(MIB))).location["parts"][0]["file"] == 5
