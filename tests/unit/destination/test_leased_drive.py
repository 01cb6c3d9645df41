"""A drive under a lease: reset when somebody else had it, and used only while the lease is confirmed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nightferry.clock import SYSTEM_CLOCK
from nightferry.destination.tape.drives.scsi import ScsiDrive
from nightferry.destination.tape.library.scsi_changer import ScsiChanger
from nightferry.destination.tape.library.scsi_library import Leasing, ScsiLibrary
from nightferry.errors import DestinationError, DriveTaken, PositionLost
from tests.support import scripted_library as play
from tests.support.scripted_library import RESET, ScriptedChanger, ScriptedDrive, Tape


class HandLease:
    """A lease that a test gives and takes."""

    def __init__(self, *, untouched: bool) -> None:
        self.untouched = untouched
        self.is_lost = False
        self.is_known = False
        self.asked = 0
        self.released = 0

    def require(self) -> None:
        if self.is_known:
            raise DriveTaken("the drive was taken over")

    def confirm(self) -> None:
        self.asked += 1
        self.is_known |= self.is_lost
        self.require()

    def release(self) -> None:
        self.released += 1


@pytest.fixture
def device() -> ScriptedDrive:
    made = ScriptedDrive("HU1")
    made.put_in(Tape("A00001L9"))
    return made


@pytest.fixture
def drive(device: ScriptedDrive) -> ScsiDrive:
    return ScsiDrive(0, device, 256 << 10, lambda: device.tape is not None, serial="HU1")


def test_a_drive_that_somebody_else_had_is_reset_before_anything_is_sent(
    device: ScriptedDrive, drive: ScsiDrive
) -> None:
    drive.guard(HandLease(untouched=False))
    assert device.resets == 0
    drive.load()
    assert device.resets == 1
    assert device.prevented
    drive.guard(HandLease(untouched=True))
    drive.write_record(b"one")
    assert device.resets == 1
    drive.unload()
    assert not device.prevented


def test_a_lease_is_asked_for_after_each_unit_attention_and_not_at_each_record(
    device: ScriptedDrive, drive: ScsiDrive
) -> None:
    lease = HandLease(untouched=True)
    drive.guard(lease)
    drive.load()
    asked = lease.asked
    assert asked
    for _ in range(20):
        drive.write_record(b"record")
    assert lease.asked == asked
    device.attentions.append(RESET)
    with pytest.raises(PositionLost):
        drive.write_record(b"record")
    assert lease.asked == asked + 1
    drive.rewind()
    assert lease.asked == asked + 1


VERBS: dict[str, Callable[[ScsiDrive], object]] = {
    "write": lambda drive: drive.write_record(b"late"),
    "filemark": lambda drive: drive.write_filemarks(1),
    "rewind": lambda drive: drive.rewind(),
    "unload": lambda drive: drive.unload(),
    "position": lambda drive: drive.position(),
    "alerts": lambda drive: drive.alerts(),
}


@pytest.mark.parametrize("verb", VERBS)
def test_whoever_lost_the_drive_does_nothing_more_with_it(
    device: ScriptedDrive, drive: ScsiDrive, verb: str
) -> None:
    lease = HandLease(untouched=True)
    drive.guard(lease)
    drive.load()
    drive.write_record(b"ours")
    lease.is_lost = True  # he who has it now resets it
    device.reset(1)
    before = len(device.script.sent)
    tape = device.tape
    assert tape is not None
    with pytest.raises(DriveTaken):
        VERBS[verb](drive)
    assert len(device.script.sent) == before + 1, "the one that the unit attention answered"
    for again in VERBS.values():
        with pytest.raises(DestinationError):
            again(drive)
    assert len(device.script.sent) == before + 1
    assert tape.blocks == [b"ours"]
    assert device.threaded


def test_a_library_leases_its_drives_and_names_a_dead_holder_of_its_own_host(
    device: ScriptedDrive, drive: ScsiDrive, tmp_path: Path
) -> None:
    given: list[HandLease | None] = [HandLease(untouched=True), None, HandLease(untouched=True)]
    dead: list[str] = []

    class Given:
        token = "ours"

        def try_take(self, serial: str, former: str) -> HandLease | None:
            dead.append(former)
            return given[len(dead) - 1]

        def close(self) -> None:
            dead.append("closed")

    changer = ScsiChanger(ScriptedChanger([device], [], 4), clock=SYSTEM_CLOCK)
    (tmp_path / "nightferry-drive-HU1.lock").write_text("77 theirs\n")
    library = ScsiLibrary("leased", changer, [drive], ["HU1"], (tmp_path,), leasing=Leasing(Given(), [drive]))
    first = library.try_lock(0)
    assert first is not None
    assert not first.untouched, "another process of this host had it"
    assert library.try_lock(0) is None, "the lock file comes first"
    first.release()
    assert given[0] is not None
    assert given[0].released == 1
    assert library.try_lock(0) is None, "another host has it"
    again = library.try_lock(0)
    assert again is not None
    assert again.untouched
    again.release()
    library.close()
    assert dead == ["theirs", "ours", "ours", "closed"]


def test_a_reset_that_the_drive_refuses_keeps_it_from_being_used(
    device: ScriptedDrive, drive: ScsiDrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(timeout_s: float) -> None:
        raise DestinationError("it refuses to be reset")

    monkeypatch.setattr(device, "reset", refuses)
    drive.guard(HandLease(untouched=False))
    for _ in range(2):
        with pytest.raises(DestinationError, match="refuses to be reset"):
            drive.unload()
    assert device.script.count(play.LOAD) == 0
