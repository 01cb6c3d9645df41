"""A played ``/dev/nst*``: what the kernel's tape driver does, by its documentation, over blocks in memory."""

from __future__ import annotations

import errno
import os

from nightferry.destination.tape.drives.st_node import Op, Status
from tests.support.scripted_library import Tape

_ONLINE, _DOOR_OPEN, _WRITE_PROTECTED = 0x01000000, 0x00040000, 0x04000000
_END_OF_DATA, _BEHIND_FILEMARK = 0x08000000, 0x80000000


def _raise(code: int) -> None:
    raise OSError(code, os.strerror(code))


class PlayedTapeNode:
    """See ``TapeNode``. ``ready_after``: looks at the status until the cartridge is ready."""

    fd = 99

    def __init__(self, tape: Tape | None = None) -> None:
        self.tape = tape
        self.is_open = False
        self.at = 0
        self.bits = 0
        self.wrote_last = False
        self.early = False
        self.lost = False
        self.threaded = True
        self.ready_after = 0
        self.errors: dict[str, list[int]] = {}
        self.ops: list[Op] = []
        self.has_immediate = True
        self.block_bytes = 512

    def fail(self, call: str, *codes: int) -> None:
        """The next calls of this name answer these errors."""
        self.errors.setdefault(call, []).extend(codes)

    def _fault(self, call: str) -> None:
        if self.errors.get(call):
            _raise(self.errors[call].pop(0))

    def open(self) -> None:
        self._fault("open")
        self.is_open = True

    def close(self) -> None:
        if self.is_open and self.wrote_last:
            self._blocks[self.at :] = [None]  # the driver ends the tape file by itself
        self.is_open = self.wrote_last = False

    @property
    def _blocks(self) -> list[bytes | None]:
        assert self.tape is not None
        return self.tape.blocks

    @property
    def _online(self) -> bool:
        return self.tape is not None and self.threaded and self.ready_after <= 0

    def status(self) -> Status:
        self._fault("status")
        if self.ready_after > 0:
            self.ready_after -= 1
            return Status(0, 0, 0)
        if not self._online:
            return Status(0, 0, _DOOR_OPEN)
        assert self.tape is not None
        before = self._blocks[: self.at]
        file = before.count(None)
        record = len(before) - (max((i for i, b in enumerate(before) if b is None), default=-1) + 1)
        bits = _ONLINE | self.bits | (_WRITE_PROTECTED if self.tape.write_protected else 0)
        return Status(-1, -1, bits) if self.lost else Status(file, record, bits)

    def op(self, op: Op, count: int = 1) -> None:
        self._fault(op.name)
        self.ops.append(op)
        if op is Op.LOAD:
            self.threaded = True
            if self.tape is None:
                _raise(errno.EIO)
            return
        if not self._online:
            _raise(errno.ENOMEDIUM)
        self.bits = 0
        if op in (Op.WEOF, Op.WEOFI):
            self._write_filemarks(op, count)
            return
        self.wrote_last = False
        match op:
            case Op.REW:
                self.at, self.lost, self.early = 0, False, False
            case Op.OFFL:
                self.at, self.threaded = 0, False
            case Op.SETBLK:
                self.block_bytes = count
            case Op.FSF | Op.FSR | Op.BSF | Op.BSR:
                self._space(op, count)

    def _write_filemarks(self, op: Op, count: int) -> None:
        assert self.tape is not None
        if op is Op.WEOFI and not self.has_immediate:
            _raise(errno.EINVAL)
        if self.tape.write_protected:
            _raise(errno.EACCES)
        if count:
            self._blocks[self.at :] = [None] * count
            self.at += count
        self.wrote_last = False

    def _space(self, op: Op, count: int) -> None:
        forward, files = op in (Op.FSF, Op.FSR), op in (Op.FSF, Op.BSF)
        while count:
            at = self.at if forward else self.at - 1
            if at >= len(self._blocks):
                self.bits = _END_OF_DATA
                _raise(errno.EIO)
            if at < 0:
                _raise(errno.EIO)
            self.at += 1 if forward else -1
            is_filemark = self._blocks[at] is None
            if not files and is_filemark:
                self.bits = _BEHIND_FILEMARK
                _raise(errno.EIO)
            count -= not files or is_filemark

    def read(self, size: int) -> bytes:
        self._fault("read")
        self.wrote_last = False
        if self.at >= len(self._blocks):
            if self.bits & _END_OF_DATA:
                _raise(errno.EIO)
            self.bits = _END_OF_DATA
            return b""
        block = self._blocks[self.at]
        self.at += 1
        if block is None:
            self.bits = _BEHIND_FILEMARK
            return b""
        self.bits = 0
        if len(block) > size:
            _raise(errno.ENOMEM)
        return block

    def write(self, data: bytes | memoryview) -> int:
        self._fault("write")
        tape = self.tape
        assert tape is not None
        if tape.write_protected:
            _raise(errno.EACCES)
        self._blocks[self.at :] = []
        if tape.used + len(data) > tape.capacity:
            _raise(errno.ENOSPC)
        # The driver speaks of the early warning that the write before met.
        if tape.capacity - tape.used < tape.reserve + (2 << 20):
            self.early = not self.early
            if self.early:
                _raise(errno.ENOSPC)
        self._blocks.append(bytes(data))
        self.at += 1
        self.wrote_last = True
        return len(data)
