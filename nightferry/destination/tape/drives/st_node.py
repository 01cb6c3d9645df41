"""The Linux tape driver's own calls (``st``; Linux ``include/uapi/linux/mtio.h``): one no-rewind node."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Protocol

from nightferry.errors import ConfigError

MTIOCTOP = 0x40086D01
MTIOCGET = 0x80306D02
_MTOP = struct.Struct("@hi")
_MTGET = struct.Struct("@lllllii")
TAPE_MAJOR = 9
"""The character devices of ``st`` (Linux ``admin-guide/devices.txt``); minor bit 7: no rewind on close."""
_NO_REWIND = 0x80


class Op(IntEnum):
    """``mt_op`` of MTIOCTOP."""

    BSF = 2
    FSR = 3
    BSR = 4
    WEOF = 5
    REW = 6
    OFFL = 7
    FSF = 1
    SETBLK = 20
    LOAD = 30
    LOCK = 28
    UNLOCK = 29
    WEOFI = 35


@dataclass(frozen=True, slots=True)
class Status:
    """MTIOCGET. ``file`` and ``record`` are -1 where the driver does not know."""

    file: int
    record: int
    bits: int

    @property
    def online(self) -> bool:
        return bool(self.bits & 0x01000000)

    @property
    def door_open(self) -> bool:
        return bool(self.bits & 0x00040000)

    @property
    def write_protected(self) -> bool:
        return bool(self.bits & 0x04000000)

    @property
    def end_of_data(self) -> bool:
        return bool(self.bits & 0x08000000)

    @property
    def behind_filemark(self) -> bool:
        return bool(self.bits & 0x80000000)


class TapeNode(Protocol):
    """What the driver offers, and what a test can play. Every call may raise ``OSError``."""

    def open(self) -> None: ...
    def close(self) -> None: ...
    @property
    def fd(self) -> int: ...
    def op(self, op: Op, count: int = 1) -> None: ...
    def status(self) -> Status: ...
    def read(self, size: int) -> bytes: ...
    def write(self, data: bytes | memoryview) -> int: ...


class LinuxTapeNode:
    """See ``TapeNode``: ``/dev/nst*``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    @property
    def fd(self) -> int:
        return self._fd

    def open(self) -> None:
        if self._fd >= 0:
            return
        flags = os.O_NONBLOCK | os.O_CLOEXEC  # non-blocking: it can be opened while it is not ready
        try:
            self._fd = os.open(self._path, os.O_RDWR | flags)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES):
                raise
            # A write-protected cartridge; what is on it can still be read.
            self._fd = os.open(self._path, os.O_RDONLY | flags)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def op(self, op: Op, count: int = 1) -> None:
        fcntl.ioctl(self._fd, MTIOCTOP, _MTOP.pack(op, count))

    def status(self) -> Status:
        answer = fcntl.ioctl(self._fd, MTIOCGET, bytes(_MTGET.size))
        _, _, _, bits, _, file, record = _MTGET.unpack(answer)
        return Status(file, record, bits & 0xFFFFFFFF)

    def read(self, size: int) -> bytes:
        return os.read(self._fd, size)

    def write(self, data: bytes | memoryview) -> int:
        return os.write(self._fd, data)


def is_tape_node(path: Path) -> bool:
    """Whether a path is a no-rewind node of the tape driver.

    Raises:
        ConfigError: it is a node that rewinds when it is closed.
        OSError: it is not there.
    """
    device = path.stat().st_rdev
    if os.major(device) != TAPE_MAJOR:
        return False
    if not os.minor(device) & _NO_REWIND:
        raise ConfigError(
            f"{path} rewinds the tape when it is closed",
            hint=f"name its twin that does not, {path.with_name('n' + path.name)}",
            subject=str(path),
        )
    return True
