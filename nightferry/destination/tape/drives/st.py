"""A tape drive behind the Linux kernel's own tape driver, ``st``.

The driver counts tape files and records itself; where it has lost count, only ``rewind`` and ``unload`` are
taken. It adds a filemark when its node is closed after a write: the node stays open while a cartridge is loaded.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.destination.tape.drives.base import (
    LONGEST_RECORD,
    RECORD_BYTES,
    EndOfMedium,
    Mark,
    Position,
    Waiting,
    no_waiting,
)
from nightferry.destination.tape.drives.scsi_device import Device
from nightferry.destination.tape.drives.st_node import Op, Status, TapeNode
from nightferry.errors import DestinationError, MediumDamaged, PositionLost, Unavailable, WriteProtected
from nightferry.scsi.transport import Transport

_READY_S = 2 * 3600.0
_POLL_S = 1.0
_PROTECTED = {errno.EROFS, errno.EACCES, errno.EPERM}
_AWAY = {errno.ENXIO, errno.ENODEV, errno.ENOENT, errno.EBUSY}


class StDrive:
    """See ``TapeDrive``.

    Args:
        number: Its number in the library.
        node: The driver's node.
        reserve_bytes: What surely can still be written after early warning.
        serial: Its serial number, for messages.
        ask: Makes a way to the drive itself of the node's descriptor, for what the driver does not tell.
        clock: Time, for waiting until it is ready.
    """

    def __init__(
        self,
        number: int,
        node: TapeNode,
        reserve_bytes: int,
        *,
        serial: str = "",
        ask: Callable[[int], Transport] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._number = number
        self._node = node
        self._reserve_bytes = reserve_bytes
        self._clock = clock
        self._way_to = ask
        self._name = f"drive {number}" + (f" ({serial})" if serial else "")
        self._is_loaded = False
        self._is_lost = False
        self._usual = RECORD_BYTES
        self._has_immediate = True

    @property
    def number(self) -> int:
        return self._number

    @property
    def reserve_bytes(self) -> int:
        return self._reserve_bytes

    def is_loaded(self) -> bool:
        return self._is_loaded

    # -- loading ------------------------------------------------------------------------------

    def load(self, waiting: Waiting = no_waiting) -> None:
        if self._is_loaded:
            return
        with self._meaning("load"):
            self._node.open()
            deadline = self._clock.monotonic() + _READY_S
            if not self._node.status().online:
                self._ask_to_load()
            while not (status := self._node.status()).online:
                if status.door_open:
                    raise Unavailable(f"drive {self._number} is empty", subject=self._name)
                if self._clock.monotonic() > deadline:
                    raise Unavailable(f"{self._name} does not become ready", subject=self._name)
                waiting(f"{self._name} is becoming ready")
                self._clock.sleep(_POLL_S)
                # The driver notices a cartridge that became ready when it is opened again.
                self._node.close()
                self._node.open()
            self._node.op(Op.SETBLK, 0)
            self._node.op(Op.REW)
            self._node.op(Op.LOCK)
        self._is_loaded, self._is_lost = True, False

    def _ask_to_load(self) -> None:
        try:
            self._node.op(Op.LOAD)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.ENOMEDIUM):
                raise
            # An empty drive says this too; the status that is asked next tells them apart.

    def unload(self) -> None:
        self._is_loaded = self._is_lost = False
        with self._meaning("unload"):
            self._node.open()
            try:
                if self._node.status().online:
                    self._node.op(Op.UNLOCK)
                    self._node.op(Op.OFFL)
            finally:
                self._node.close()

    # -- moving -------------------------------------------------------------------------------

    def rewind(self) -> None:
        self._require_loaded()
        with self._meaning("rewind"):
            self._node.op(Op.REW)
        self._is_lost = False

    def position(self) -> Position:
        status = self._status()
        if status.record >= 0:
            return Position(status.file, status.record)
        file = status.file
        self.locate(Position(file, 0))
        return Position(file, self.space_records(1 << 62))

    def locate(self, target: Position) -> None:
        here = self._status()
        if (here.file, here.record) == (target.file, target.record):
            return
        if target.file != here.file or not 0 <= here.record <= target.record:
            if target.file <= here.file:
                self.rewind()
                here = self._status()
            if self.space_filemarks(target.file - here.file) != target.file - here.file:
                raise self._ends_before(target)
            here = self._status()
        if target.record > here.record:
            try:
                self._node.op(Op.FSR, target.record - here.record)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise self._error(error, "locate") from error
                raise self._ends_before(target) from error
            if (now := self._status()).file != target.file or now.record not in (-1, target.record):
                raise self._ends_before(target)

    def _ends_before(self, target: Position) -> MediumDamaged:
        self._is_lost = True
        return MediumDamaged(
            f"the tape in {self._name} ends before record {target.record} of tape file {target.file}",
            subject=self._name,
        )

    def space_filemarks(self, count: int) -> int:
        start = self._status().file
        if not count:
            return 0
        try:
            self._node.op(Op.FSF, count)
        except OSError as error:
            if error.errno != errno.EIO or not self._node.status().end_of_data:
                raise self._error(error, "space") from error
        return self._status().file - start

    def space_records(self, count: int) -> int:
        """By reading: the driver does not say how far it came when a filemark stops it."""
        passed = 0
        while passed < count:
            met = self.read_record(LONGEST_RECORD)
            if met is Mark.FILEMARK:
                with self._meaning("space"):
                    self._node.op(Op.BSF, 1)
            if isinstance(met, Mark):
                break
            passed += 1
        return passed

    # -- reading and writing ------------------------------------------------------------------

    def read_record(self, limit: int = RECORD_BYTES) -> bytes | Mark:
        before = self._status()
        ask = min(max(self._usual, RECORD_BYTES), limit)
        while True:
            try:
                data = self._node.read(ask)
                break
            except OSError as error:
                if error.errno == errno.ENOMEM:
                    ask = self._ask_for_more(ask, limit)
                elif error.errno == errno.EIO and self._node.status().end_of_data:
                    return Mark.END_OF_DATA
                else:
                    raise self._error(error, "read") from error
        if data:
            return data
        after = self._node.status()
        if after.end_of_data or (after.file == before.file and not after.behind_filemark):
            return Mark.END_OF_DATA
        return Mark.FILEMARK

    def _ask_for_more(self, asked: int, limit: int) -> int:
        """The block is longer than was asked for, and was passed."""
        if asked >= limit:
            raise MediumDamaged(
                f"a record in {self._name} is longer than the {limit} bytes asked for", subject=self._name
            )
        with self._meaning("read"):
            self._node.op(Op.BSR, 1)
        self._usual = min(asked * 2, limit)
        return self._usual

    def write_record(self, data: bytes | memoryview) -> bool:
        self._status()
        if not 0 < len(data) <= LONGEST_RECORD:
            raise ValueError(f"a record has 1 to {LONGEST_RECORD} bytes, not {len(data)}")
        try:
            return self._write(data)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise self._error(error, "write") from error
        # Early warning: the driver refuses one write without trying it, and takes the next.
        try:
            self._write(data)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise EndOfMedium(f"the tape in {self._name} is at its end", subject=self._name) from error
            raise self._error(error, "write") from error
        return True

    def _write(self, data: bytes | memoryview) -> bool:
        written = self._node.write(data)
        if written != len(data):
            self._is_lost = True
            raise EndOfMedium(
                f"{self._name} took {written} of {len(data)} bytes of a record", subject=self._name
            )
        return False

    def write_filemarks(self, count: int, *, immediate: bool = False) -> bool:
        self._status()
        op = Op.WEOFI if immediate and count and self._has_immediate else Op.WEOF
        for _ in range(3):
            try:
                self._node.op(op, count)
                return False
            except OSError as error:
                if op is Op.WEOFI and error.errno in (errno.EINVAL, errno.ENOSYS):
                    self._has_immediate = False
                    op = Op.WEOF
                elif error.errno == errno.ENOSPC:
                    # At early warning the filemark was written; the driver only says where it is.
                    return True
                else:
                    raise self._error(error, "write filemarks") from error
        raise PositionLost(f"{self._name} cannot write a filemark", subject=self._name)

    # -- care ---------------------------------------------------------------------------------

    def alerts(self) -> tuple[str, ...]:
        if self._way_to is None:
            return ()
        with self._meaning("look"):
            self._node.open()
            try:
                return Device(self._way_to(self._node.fd), self._name, self._clock).alerts()
            finally:
                if not self._is_loaded:
                    self._node.close()

    def is_write_protected(self) -> bool:
        self._require_loaded()
        with self._meaning("look"):
            return self._node.status().write_protected

    def close(self) -> None:
        """Lets the node go; the tape stays where it is."""
        self._node.close()

    # -- inside -------------------------------------------------------------------------------

    def _require_loaded(self) -> None:
        if not self._is_loaded:
            raise DestinationError(f"{self._name} has no cartridge loaded", subject=self._name)

    def _status(self) -> Status:
        """Where the tape stands.

        Raises:
            PositionLost: the driver does not know.
        """
        self._require_loaded()
        with self._meaning("look"):
            status = self._node.status()
        if self._is_lost or status.file < 0:
            self._is_lost = True
            raise PositionLost(f"the tape position of {self._name} is unknown", subject=self._name)
        return status

    @contextmanager
    def _meaning(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._error(error, doing) from error

    def _error(self, error: OSError, doing: str) -> DestinationError:
        """What the driver's error means; where the tape stands is not relied on any more."""
        self._is_lost = True
        said = f"{self._name}: {doing}: {error.strerror}"
        if error.errno in _AWAY:
            return Unavailable(
                said, hint="check the device and that nobody else has it open", subject=self._name
            )
        if error.errno == errno.ENOMEDIUM:
            return DestinationError(f"{self._name} has no cartridge loaded", subject=self._name)
        if error.errno in _PROTECTED and doing.startswith("write"):
            return WriteProtected(said, subject=self._name)
        if error.errno == errno.ENOSPC:
            return EndOfMedium(said, subject=self._name)
        if error.errno == errno.EIO and doing in ("read", "write", "write filemarks", "space"):
            return MediumDamaged(said, subject=self._name)
        return PositionLost(said, subject=self._name)
