"""The kernel's tape driver: what its errors mean. Its node is played; the drives' suite runs over it too."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest

from nightferry.destination.tape.drives import st_node
from nightferry.destination.tape.drives.base import EndOfMedium, Position
from nightferry.destination.tape.drives.st import StDrive
from nightferry.destination.tape.drives.st_node import LinuxTapeNode, Op, is_tape_node
from nightferry.errors import (
    ConfigError,
    DestinationError,
    MediumDamaged,
    PositionLost,
    Unavailable,
    WriteProtected,
)
from tests.support.played_tape_node import PlayedTapeNode
from tests.support.scripted_library import Tape
from tests.unit.destination.test_scsi_drive import Hours

MIB = 1 << 20


@pytest.fixture
def node() -> PlayedTapeNode:
    return PlayedTapeNode(Tape("A00001L9"))


@pytest.fixture
def drive(node: PlayedTapeNode) -> StDrive:
    return StDrive(0, node, 256 << 10, serial="HU1", clock=Hours())


def test_the_node_is_open_while_a_cartridge_is_loaded_and_no_longer(
    drive: StDrive, node: PlayedTapeNode
) -> None:
    drive.load()
    assert node.is_open
    assert node.block_bytes == 0
    assert Op.LOCK in node.ops
    drive.unload()
    assert not node.is_open
    assert node.ops[-2:] == [Op.UNLOCK, Op.OFFL]


def test_a_drive_is_waited_for(node: PlayedTapeNode) -> None:
    node.ready_after = 600
    clock = Hours()
    told: list[str] = []
    StDrive(0, node, 1 << 20, clock=clock).load(told.append)
    assert 500 < clock.passed < 700
    assert set(told) == {"drive 0 is becoming ready"}


def test_an_empty_drive_is_named() -> None:
    with pytest.raises(Unavailable, match="drive 0 is empty"):
        StDrive(0, PlayedTapeNode(), 1 << 20, clock=Hours()).load()


def test_a_device_that_somebody_has_open_is_away(drive: StDrive, node: PlayedTapeNode) -> None:
    node.fail("open", errno.EBUSY)
    with pytest.raises(Unavailable, match="busy"):
        drive.load()


def test_the_driver_refuses_one_write_at_early_warning_and_the_record_is_written_once(
    drive: StDrive, node: PlayedTapeNode
) -> None:
    drive.load()
    records = 0
    while not drive.write_record(b"%07d" % records + bytes(MIB - 7)):
        records += 1
    assert node.tape is not None
    assert [block[:7] for block in node.tape.blocks if block] == [b"%07d" % n for n in range(records + 1)]


@pytest.mark.parametrize(
    ("call", "code", "error"),
    [
        ("write", errno.EIO, MediumDamaged),
        ("write", errno.EACCES, WriteProtected),
        ("write", errno.ENXIO, Unavailable),
        ("write", errno.EBADF, PositionLost),
        ("write", errno.ENOMEDIUM, DestinationError),
    ],
)
def test_a_write_that_fails_loses_the_position(
    drive: StDrive, node: PlayedTapeNode, call: str, code: int, error: type[Exception]
) -> None:
    drive.load()
    node.fail(call, code)
    with pytest.raises(error, match="drive 0"):
        drive.write_record(b"one")
    with pytest.raises(PositionLost):
        drive.position()
    drive.rewind()
    assert drive.position() == Position(0, 0)


def test_a_write_cut_short_is_the_end_of_the_medium(
    drive: StDrive, node: PlayedTapeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive.load()
    monkeypatch.setattr(node, "write", lambda data: len(data) // 2)
    with pytest.raises(EndOfMedium, match="5 of 10"):
        drive.write_record(b"0123456789")


def test_where_the_driver_lost_count_nothing_is_written(drive: StDrive, node: PlayedTapeNode) -> None:
    drive.load()
    node.lost = True
    with pytest.raises(PositionLost):
        drive.write_record(b"one")
    assert node.tape is not None
    assert node.tape.blocks == []


def test_a_block_longer_than_usual_is_read_again_with_more_room(drive: StDrive, node: PlayedTapeNode) -> None:
    drive.load()
    drive.write_record(b"l" * (5 * MIB))
    drive.write_record(b"next")
    drive.write_filemarks(1)
    drive.rewind()
    assert drive.read_record(8 * MIB) == b"l" * (5 * MIB)
    assert drive.read_record(8 * MIB) == b"next"


def test_an_old_kernel_without_immediate_filemarks_writes_plain_ones(
    drive: StDrive, node: PlayedTapeNode
) -> None:
    node.has_immediate = False
    drive.load()
    drive.write_record(b"one")
    drive.write_filemarks(1, immediate=True)
    drive.write_filemarks(1, immediate=True)
    assert node.tape is not None
    assert node.tape.blocks == [b"one", None, None]


def test_alerts_are_asked_of_the_drive_itself_on_the_open_node(node: PlayedTapeNode) -> None:
    from tests.support.scripted_library import ScriptedDrive

    device = ScriptedDrive("HU1")
    device.alerts = {20}
    asked: list[int] = []
    drive = StDrive(0, node, 1 << 20, ask=lambda fd: (asked.append(fd), device)[1], clock=Hours())
    assert drive.alerts() == ("clean now",)
    assert asked == [node.fd]
    assert not node.is_open


def test_the_calls_are_laid_out_as_the_kernel_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, bytes]] = []

    def ioctl(fd: int, request: int, argument: bytes) -> bytes:
        calls.append((request, argument))
        # struct mtget on a 64-bit machine: type, residue, density, status, error, file, record.
        return struct.pack("=qqqqqii", 0x72, 0, 0x58000000, 0x41010000, 0, 3, 7)

    monkeypatch.setattr(st_node.fcntl, "ioctl", ioctl)
    node = LinuxTapeNode(Path("/dev/null"))
    node.op(Op.FSF, 5)
    assert calls == [(0x40086D01, bytes.fromhex("0100000005000000"))]
    status = node.status()
    assert calls[1] == (0x80306D02, bytes(48))
    assert (status.file, status.record, status.online, status.write_protected) == (3, 7, True, False)


def test_only_nodes_that_do_not_rewind_are_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not is_tape_node(Path("/dev/null"))
    if os.geteuid() != 0:
        pytest.skip("only root makes device nodes")
    no_rewind, rewinds = tmp_path / "nst0", tmp_path / "st0"
    os.mknod(no_rewind, 0o600 | 0o020000, os.makedev(9, 128))
    os.mknod(rewinds, 0o600 | 0o020000, os.makedev(9, 0))
    assert is_tape_node(no_rewind)
    with pytest.raises(ConfigError, match="rewinds"):
        is_tape_node(rewinds)
