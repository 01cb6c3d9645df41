"""A tape drive over a SCSI transport.

Where the tape stands is counted here: many drives cannot be asked. What a drive says of its position is used
only after it was right at the beginning of the tape; else records are counted by reading them, since there are
drives that space over a filemark without a word. After anything that may have moved the tape unseen only
``rewind`` and ``unload`` are taken.
"""

from __future__ import annotations

from collections.abc import Callable

from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.destination.tape.drives.base import (
    LONGEST_RECORD,
    RECORD_BYTES,
    EndOfMedium,
    Mark,
    Position,
    Waiting,
    again,
    no_waiting,
)
from nightferry.destination.tape.drives.lease import Lease
from nightferry.destination.tape.drives.ready import UNLOAD_S, wait_to_unload, wait_until_ready
from nightferry.destination.tape.drives.scsi_device import QUICK_S, CommandRefused, Device
from nightferry.errors import DestinationError, MediumDamaged, NightferryError, PositionLost
from nightferry.scsi import cdb
from nightferry.scsi.cdb import Over
from nightferry.scsi.sense import BLANK_CHECK, Sense
from nightferry.scsi.transport import Transport

_REWIND_S, _MOVE_S = 1800.0, 3600.0
_WRITE_S, _READ_S = 1800.0, 1800.0
"""Longer than LTO drives ask for (1,560 s for a write, 2,940 s for LOCATE): whoever gives up early does not know
what became of the command."""

_END_OF_DATA = (0x00, 0x05)
_ALL = 1 << 62


class ScsiDrive:
    """See ``TapeDrive``.

    Args:
        number: Its number in the library.
        transport: The way to it.
        reserve_bytes: What surely can still be written after early warning.
        occupied: Whether the changer put a cartridge in.
        serial: Its serial number, for messages.
        clock: Time, for waiting until it is ready.
    """

    def __init__(
        self,
        number: int,
        transport: Transport,
        reserve_bytes: int,
        occupied: Callable[[], bool],
        *,
        serial: str = "",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._number = number
        self._reserve_bytes = reserve_bytes
        self._occupied = occupied
        self._clock = clock
        self._device = Device(transport, f"drive {number}" + (f" ({serial})" if serial else ""), clock)
        self._longest = min(LONGEST_RECORD, transport.most_bytes)
        self._usual = RECORD_BYTES
        self._is_loaded = False
        self._is_prevented = False
        self._is_lost = False
        self._heard = 0
        self._file = 0
        self._record: int | None = 0
        """None: behind the last record of a tape file that no filemark closes; how many it has is not known."""
        self._tells_position = False
        self._locates = False

    @property
    def number(self) -> int:
        return self._number

    @property
    def reserve_bytes(self) -> int:
        return self._reserve_bytes

    def is_loaded(self) -> bool:
        return self._is_loaded

    def guard(self, lease: Lease) -> None:
        """From now on the drive is used under a lease; see ``Device.guard``."""
        self._device.guard(lease)

    # -- loading ------------------------------------------------------------------------------

    def load(self, waiting: Waiting = no_waiting) -> None:
        if self._is_loaded:
            return
        if not wait_until_ready(self._device, self._number, self._occupied, waiting, self._clock):
            return
        again(self._make_ready)

    def _make_ready(self) -> None:
        self._set_mode()
        self._is_loaded, self._is_lost = True, False
        try:
            self.rewind()
            self._learn()
            if self._device.is_guarded:
                # A host that overslept its lease may still move the arm: the drive does not let the cartridge go.
                self._set_prevented(True)
        except BaseException:
            self._is_loaded = False
            raise

    def _set_prevented(self, on: bool) -> None:
        try:
            self._device.patiently(cdb.prevent_removal(on))
        except CommandRefused as refused:
            if not refused.is_unsupported:
                raise
        self._is_prevented = on

    def _set_mode(self) -> None:
        """Variable blocks, buffered; the density stays as the cartridge has it."""
        mode = cdb.parse_mode(self._device.patiently(cdb.mode_sense(0), data_in_len=252))
        if mode.block_bytes or not mode.buffered:
            parameters = cdb.render_mode(mode.density)
            self._device.run(cdb.mode_select(len(parameters)), data_out=parameters)
        _, longest = cdb.parse_block_limits(self._device.patiently(cdb.read_block_limits(), data_in_len=6))
        self._longest = min(longest or LONGEST_RECORD, LONGEST_RECORD, self._device.transport.most_bytes)
        if self._longest < RECORD_BYTES:
            raise DestinationError(
                f"{self._device.name} takes blocks of at most {self._longest} bytes; "
                f"a record has {RECORD_BYTES}",
                hint="raise the block size limit of the host adapter or the drive",
                subject=self._device.name,
            )

    def _learn(self) -> None:
        """At the beginning of the tape: whether the drive knows where it is."""
        here = self._ask_position()
        self._tells_position = here is not None and here.at_beginning and (here.block, here.file) == (0, 0)
        self._locates = self._tells_position

    def _ask_position(self) -> cdb.TapePosition | None:
        try:
            _, data, _ = self._device.run(cdb.read_position(), data_in_len=cdb.READ_POSITION_LENGTH)
        except CommandRefused:
            return None
        return cdb.parse_position(bytes(data))

    def unload(self) -> None:
        self._is_loaded, self._is_lost = False, False
        device = self._device
        if self._is_prevented:
            self._set_prevented(False)
        if not wait_to_unload(device, self._clock):
            return
        device.patiently(cdb.load_unload(load=False), timeout_s=UNLOAD_S)
        if device.not_ready() is None:
            device.patiently(cdb.load_unload(load=False, eject=True), timeout_s=UNLOAD_S)

    # -- moving -------------------------------------------------------------------------------

    def rewind(self) -> None:
        self._require_loaded()
        self._is_lost = True
        self._device.patiently(cdb.rewind(), timeout_s=_REWIND_S)
        self._file = self._record = 0
        self._heard = self._device.attentions
        self._is_lost = False

    def position(self) -> Position:
        self._require_position()
        self._moving(cdb.test_unit_ready(), QUICK_S)
        record = self._record
        if record is None:
            file = self._file
            self.rewind()
            self.space_filemarks(file)
            record = self.space_records(_ALL)
        return Position(self._file, record)

    def locate(self, target: Position) -> None:
        self._require_position()
        if (self._file, self._record) == (target.file, target.record):
            return
        behind = self._record is None or self._record > target.record
        far = behind or self._file != target.file
        if far and not (self._locates and self._locate_file(target.file)):
            self._go_to_file(target.file)
        ahead = target.record - (self._record or 0)
        if ahead:
            self._pass_known(target, ahead)

    def _locate_file(self, number: int) -> bool:
        """LOCATE to the beginning of a tape file; False: the drive cannot, nothing was moved."""
        try:
            sense, _, _ = self._moving(cdb.locate_file(number), _MOVE_S)
        except CommandRefused as refused:
            if not refused.is_unsupported:
                raise
            self._locates = False
            return False
        if sense is not None and (sense.key == BLANK_CHECK or sense.end_of_medium):
            self._is_lost = True
            raise self._ends_before(f"tape file {number}")
        self._file, self._record = number, 0
        return True

    def _go_to_file(self, number: int) -> None:
        if number <= self._file:
            self.rewind()
        self.space_filemarks(number - self._file)
        if self._file != number:
            raise self._ends_before(f"tape file {number}")

    def _pass_known(self, target: Position, count: int) -> None:
        """Passes records that are there; that they are not is noticed where the drive can notice it."""
        while count:
            step = min(count, cdb.MOST_SPACED)
            sense, _, _ = self._moving(cdb.space(Over.BLOCKS, step), _MOVE_S)
            if sense is not None:
                self._is_lost = True
                raise self._ends_before(f"record {target.record} of tape file {target.file}")
            count -= step
        self._file, self._record = target.file, target.record
        self._verify_file()

    def _verify_file(self) -> None:
        if not self._tells_position:
            return
        here = self._ask_position()
        if here is None or here.file != self._file:
            self._is_lost = True
            raise PositionLost(
                f"{self._device.name} is at tape file {here.file if here else '?'}, not {self._file}",
                subject=self._device.name,
            )

    def _ends_before(self, what: str) -> MediumDamaged:
        return MediumDamaged(f"the tape in {self._device.name} ends before {what}", subject=self._device.name)

    def space_filemarks(self, count: int) -> int:
        self._require_position()
        if not count:
            return 0
        start = self._file
        sense, _, _ = self._moving(cdb.space(Over.FILEMARKS, count), _MOVE_S)
        if sense is None:
            self._file, self._record = start + count, 0
            self._verify_file()
            return count
        if sense.information is not None:
            self._file += count - sense.information
        else:
            self._file = self._count_filemarks()
        self._record = None
        return self._file - start

    def _count_filemarks(self) -> int:
        """All the tape has, one by one; it stands at its end of data afterwards."""
        self.rewind()
        found = 0
        while self._moving(cdb.space(Over.FILEMARKS, 1), _MOVE_S)[0] is None:
            found += 1
        return found

    def space_records(self, count: int) -> int:
        self._require_position()
        return self._space_blocks(count) if self._tells_position else self._read_over(count)

    def _space_blocks(self, count: int) -> int:
        before, passed = self._record, 0
        while passed < count:
            step = min(count - passed, cdb.MOST_SPACED)
            sense, _, _ = self._moving(cdb.space(Over.BLOCKS, step), _MOVE_S)
            if sense is None:
                passed += step
                continue
            if sense.information is None:
                self._is_lost = True
                raise PositionLost(
                    f"{self._device.name} does not report how far it went: {sense}", subject=self._device.name
                )
            passed += step - sense.information
            if sense.filemark:
                self._step_back()
            break
        self._record = None if before is None else before + passed
        return passed

    def _read_over(self, count: int) -> int:
        before, passed = self._record, 0
        while passed < count:
            if isinstance(met := self.read_record(self._longest), Mark):
                if met is Mark.FILEMARK:
                    self._step_back()
                    self._file -= 1
                break
            passed += 1
        self._record = None if before is None else before + passed
        return passed

    def _step_back(self) -> None:
        """Before the filemark or block just passed. A count of blocks goes back over a filemark on every drive:
        it stops there, or takes it for a block."""
        self._moving(cdb.space(Over.BLOCKS, -1), _MOVE_S)

    # -- reading and writing ------------------------------------------------------------------

    def read_record(self, limit: int = RECORD_BYTES) -> bytes | Mark:
        self._require_position()
        limit = min(limit, self._longest)
        ask = min(max(self._usual, RECORD_BYTES), limit)
        sense, data, arrived = self._moving(cdb.read_block(ask), _READ_S, data_in_len=ask)
        if sense is not None and sense.filemark:
            self._file, self._record = self._file + 1, 0
            return Mark.FILEMARK
        if sense is not None and (sense.key == BLANK_CHECK or sense.code == _END_OF_DATA):
            return Mark.END_OF_DATA
        size = self._block_size(sense, ask)
        self._passed_one()
        if size > limit:
            raise MediumDamaged(
                f"{self._where(-1)} has {size} bytes, more than the {limit} asked for",
                subject=self._device.name,
            )
        if size <= arrived:
            return bytes(data[:size])
        # Longer than was asked for; or shorter, and the target sent less of it than it says.
        return self._read_again(size)

    def _read_again(self, size: int) -> bytes:
        self._usual = max(self._usual, size)
        self._step_back()
        self._record = None if self._record is None else self._record - 1
        sense, data, arrived = self._moving(cdb.read_block(size), _READ_S, data_in_len=size)
        self._passed_one()
        if sense is not None or arrived != size:
            self._is_lost = True
            raise PositionLost(
                f"{self._where(-1)} should have {size} bytes, {arrived} arrived: {sense or 'no sense'}",
                subject=self._device.name,
            )
        return bytes(data)

    def _block_size(self, sense: Sense | None, asked: int) -> int:
        if sense is None or not sense.wrong_length:
            return asked
        if sense.information is None:
            raise MediumDamaged(
                f"{self._where(0)}: the drive does not report its length", subject=self._device.name
            )
        return asked - sense.information

    def write_record(self, data: bytes | memoryview) -> bool:
        self._require_position()
        size = len(data)
        if not 0 < size <= LONGEST_RECORD:
            raise ValueError(f"a record has 1 to {LONGEST_RECORD} bytes, not {size}")
        if size > self._longest:
            raise DestinationError(
                f"{self._device.name} takes blocks of at most {self._longest} bytes, not {size}",
                subject=self._device.name,
            )
        sense, _, _ = self._moving(cdb.write_block(size), _WRITE_S, data_out=data)
        early = self._early(sense)
        self._passed_one()
        return early

    def write_filemarks(self, count: int, *, immediate: bool = False) -> bool:
        self._require_position()
        sense, _, _ = self._moving(cdb.write_filemarks(count, immediate=immediate and count > 0), _WRITE_S)
        early = self._early(sense)
        if count:
            self._file, self._record = self._file + count, 0
        return early

    def _early(self, sense: Sense | None) -> bool:
        if sense is None:
            return False
        if sense.end_of_medium and sense.information:
            # Early warning leaves nothing unwritten; this is the end itself.
            self._is_lost = True
            raise EndOfMedium(f"{self._where(0)} was not written: {sense}", subject=self._device.name)
        return sense.end_of_medium

    # -- care ---------------------------------------------------------------------------------

    def alerts(self) -> tuple[str, ...]:
        return self._device.alerts()

    def is_write_protected(self) -> bool:
        self._require_loaded()
        return cdb.parse_mode(self._device.patiently(cdb.mode_sense(0), data_in_len=252)).write_protected

    def close(self) -> None:
        """Lets the device go as it is."""
        self._device.close()

    # -- inside -------------------------------------------------------------------------------

    def _where(self, offset: int) -> str:
        record = "?" if self._record is None else self._record + offset
        return f"tape file {self._file}, record {record} in {self._device.name}"

    def _passed_one(self) -> None:
        self._record = None if self._record is None else self._record + 1

    def _require_loaded(self) -> None:
        if not self._is_loaded:
            raise DestinationError(f"{self._device.name} has no cartridge loaded", subject=self._device.name)

    def _require_position(self) -> None:
        self._require_loaded()
        if self._is_lost or self._heard != self._device.attentions:
            raise PositionLost(
                f"the tape position of {self._device.name} is unknown", subject=self._device.name
            )

    def _moving(
        self,
        command: bytes,
        timeout_s: float,
        *,
        data_out: bytes | memoryview | None = None,
        data_in_len: int = 0,
    ) -> tuple[Sense | None, bytes | memoryview, int]:
        """A command that moves the tape: whatever goes wrong, where it stands is not known afterwards."""
        try:
            return self._device.run(command, data_out=data_out, data_in_len=data_in_len, timeout_s=timeout_s)
        except CommandRefused:
            raise
        except NightferryError:
            self._is_lost = True
            raise
