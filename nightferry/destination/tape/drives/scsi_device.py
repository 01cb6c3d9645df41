"""One SCSI device of a tape library: commands with their time limits, answers turned into nightferry's errors."""

from __future__ import annotations

import logging

from nightferry.clock import Clock
from nightferry.destination.tape.drives.alerts import FLAGS
from nightferry.destination.tape.drives.base import Attention, EndOfMedium
from nightferry.destination.tape.drives.lease import Lease
from nightferry.errors import (
    DestinationError,
    MediumDamaged,
    NightferryError,
    PositionLost,
    Unavailable,
    WriteProtected,
)
from nightferry.scsi import cdb
from nightferry.scsi.sense import (
    ABORTED_COMMAND,
    BLANK_CHECK,
    DATA_PROTECT,
    HARDWARE_ERROR,
    ILLEGAL_REQUEST,
    MEDIUM_ERROR,
    NO_SENSE,
    NOT_READY,
    RECOVERED,
    UNIT_ATTENTION,
    VOLUME_OVERFLOW,
    Sense,
    parse_sense,
)
from nightferry.scsi.transport import (
    BUSY,
    CHECK_CONDITION,
    CONDITION_MET,
    GOOD,
    RESERVATION_CONFLICT,
    TASK_SET_FULL,
    Answer,
    Indeterminate,
    Transport,
)

_log = logging.getLogger(__name__)

QUICK_S = 60.0
_RESET_S = 120.0
_BUSY_PAUSE_S = 0.5
_READY_PAUSE_S = 1.0
_MOST_ATTENTIONS = 32
_ALERT_BYTES = 4096
_NO_MEDIUM = 0x3A
_PANEL = "check {name} and its panel or log"
_UNSUPPORTED = {(0x20, 0x00), (0x24, 0x00), (0x26, 0x00)}


class CommandRefused(DestinationError):
    """The device does not take the command as it was sent; nothing was done."""

    def __init__(self, message: str, sense: Sense, subject: str) -> None:
        super().__init__(message, subject=subject)
        self.sense = sense

    @property
    def is_unsupported(self) -> bool:
        """Whether it does not know the command, or not with these fields."""
        return self.sense.code in _UNSUPPORTED


class NotReady(Unavailable):
    """The device is not ready; the command was not done."""

    def __init__(self, message: str, sense: Sense, *, hint: str, subject: str) -> None:
        super().__init__(message, hint=hint, subject=subject)
        self.sense = sense


class Device:
    """A logical unit with a name.

    Args:
        transport: The way to it.
        name: What messages call it (``drive 2``).
        clock: For short waits while it is busy.
    """

    def __init__(self, transport: Transport, name: str, clock: Clock) -> None:
        self.transport = transport
        self.name = name
        self.attentions = 0
        """Unit attentions heard so far: each may mean that the medium moved or was exchanged."""
        self._clock = clock
        self._lease: Lease | None = None
        self._confirmed = -1
        """The attentions after which the lease was confirmed."""
        self._wants_reset = False

    def guard(self, lease: Lease) -> None:
        """From now on the device is used under a lease.

        If somebody else had it before, it is reset first: what he sent and was not done must not be done any
        more, and he is told so by a unit attention. We are told so by ours, and then ask whether the device is
        ours still, before the next command goes out.
        """
        self._lease, self._confirmed = lease, -1
        self._wants_reset |= not lease.untouched

    @property
    def is_guarded(self) -> bool:
        """Whether it is used under a lease."""
        return self._lease is not None

    def _execute(
        self,
        command: bytes,
        *,
        data_out: bytes | memoryview | None = None,
        data_in_len: int = 0,
        timeout_s: float = QUICK_S,
    ) -> Answer:
        """Sends a command, unless the device is another's by now."""
        if self._lease is not None:
            self._lease.require()
            if self._wants_reset:
                self.transport.reset(_RESET_S)
                self._wants_reset = False
            self._confirm(self._lease)
        answer = self.transport.execute(
            command, data_out=data_out, data_in_len=data_in_len, timeout_s=timeout_s
        )
        if answer.status == CHECK_CONDITION:
            self.attentions += parse_sense(answer.sense).key == UNIT_ATTENTION
            if self._lease is not None:
                self._confirm(self._lease)
        return answer

    def _confirm(self, lease: Lease) -> None:
        """Asks whose the device is, when somebody may have taken it since that was last asked."""
        if self._confirmed != self.attentions:
            lease.confirm()
            self._confirmed = self.attentions

    def run(
        self,
        command: bytes,
        *,
        data_out: bytes | memoryview | None = None,
        data_in_len: int = 0,
        timeout_s: float = QUICK_S,
    ) -> tuple[Sense | None, bytes | memoryview, int]:
        """Sends a command; returns the sense that is not an error by itself (no sense, recovered, blank check), the
        data, and how much of it arrived.

        Raises:
            NightferryError: what every other sense and status means; see ``meaning``.
        """
        deadline = self._clock.monotonic() + timeout_s
        while True:
            answer = self._execute(command, data_out=data_out, data_in_len=data_in_len, timeout_s=timeout_s)
            if answer.status not in (BUSY, TASK_SET_FULL) or self._clock.monotonic() > deadline:
                return self._sense(command, answer), answer.data, answer.arrived
            # It was not taken (SAM-5 §5.3.1): sending it again is not a repetition.
            self._clock.sleep(_BUSY_PAUSE_S)

    def _sense(self, command: bytes, answer: Answer) -> Sense | None:
        match answer.status:
            case _ if answer.status in (GOOD, CONDITION_MET):
                return None
            case _ if answer.status == CHECK_CONDITION:
                sense = parse_sense(answer.sense)
                error = meaning(sense, self.name)
                if error is not None:
                    raise error
                return sense
            case _ if answer.status in (BUSY, TASK_SET_FULL):
                raise Unavailable(f"{self.name} stays busy", subject=self.name)
            case _ if answer.status == RESERVATION_CONFLICT:
                raise Unavailable(
                    f"{self.name} is reserved by another host",
                    hint="find out which host, or leave the drive out of this host's site file",
                    subject=self.name,
                )
            case _:
                raise Indeterminate(
                    f"{self.name}: command {command[0]:02x}h ended with status {answer.status:02x}h",
                    subject=self.name,
                )

    def patiently(
        self, command: bytes, *, data_in_len: int = 0, timeout_s: float = QUICK_S, patience_s: float = 0.0
    ) -> bytes:
        """Sends a command that may be repeated, past the unit attentions that wait for us.

        Args:
            command: The command.
            data_in_len: How many bytes it may answer.
            timeout_s: How long the device has.
            patience_s: How long a device is waited for that will be ready by itself.

        Raises:
            NightferryError: as ``run``.
        """
        deadline = self._clock.monotonic() + patience_s
        attentions = 0
        while attentions < _MOST_ATTENTIONS:
            try:
                return bytes(self.run(command, data_in_len=data_in_len, timeout_s=timeout_s)[1])
            except Attention:
                attentions += 1
            except NotReady as error:
                if not error.sense.passes or self._clock.monotonic() >= deadline:
                    raise
                _log.info("waiting for %s: %s", self.name, error.sense)
                self._clock.sleep(_READY_PAUSE_S)
        raise Unavailable(f"{self.name} answers nothing but unit attentions", subject=self.name)

    def not_ready(self) -> Sense | None:
        """What keeps the device from being ready; None when nothing does.

        Raises:
            Unavailable: it does not answer.
        """
        for _ in range(_MOST_ATTENTIONS):
            answer = self._execute(cdb.test_unit_ready())
            if answer.status != CHECK_CONDITION:
                self._sense(cdb.test_unit_ready(), answer)
                return None
            sense = parse_sense(answer.sense)
            if sense.key != UNIT_ATTENTION:
                return sense
        raise Unavailable(f"{self.name} answers nothing but unit attentions", subject=self.name)

    def alerts(self) -> tuple[str, ...]:
        """The TapeAlert flags that are set; empty when none is, or the device has no such page."""
        try:
            page = self.patiently(cdb.log_sense(cdb.TAPE_ALERT_PAGE), data_in_len=_ALERT_BYTES)
        except CommandRefused as refused:
            if refused.is_unsupported:
                return ()
            raise
        return tuple(FLAGS.get(number, f"flag {number}") for number in cdb.parse_alerts(page))

    def close(self) -> None:
        self.transport.close()


def lacks_medium(sense: Sense) -> bool:
    """Whether a device is not ready because nothing is in it."""
    return sense.key == NOT_READY and sense.asc == _NO_MEDIUM


def meaning(sense: Sense, name: str) -> NightferryError | None:
    """The error that a sense stands for; None when the verb that sent the command must look at it."""
    said = f"{name}: {sense}"
    if sense.deferred:
        # An earlier command, acknowledged long since, did fail: what is on the medium is not known.
        kind = MediumDamaged if sense.key == MEDIUM_ERROR else PositionLost
        return kind(said, subject=name)
    match sense.key:
        case _ if sense.key in (NO_SENSE, RECOVERED, BLANK_CHECK):
            return None
        case _ if sense.key == UNIT_ATTENTION:
            return Attention(said, subject=name)
        case _ if lacks_medium(sense):
            return DestinationError(f"{name} has no cartridge loaded", subject=name)
        case _ if sense.key == MEDIUM_ERROR:
            return MediumDamaged(said, subject=name)
        case _ if sense.key == NOT_READY:
            return NotReady(said, sense, hint=_PANEL.format(name=name), subject=name)
        case _ if sense.key == HARDWARE_ERROR:
            return Unavailable(said, hint=_PANEL.format(name=name), subject=name)
        case _ if sense.key == ILLEGAL_REQUEST:
            return CommandRefused(said, sense, name)
        case _ if sense.key == DATA_PROTECT:
            return WriteProtected(said, subject=name)
        case _ if sense.key == VOLUME_OVERFLOW:
            return EndOfMedium(said, subject=name)
        case _ if sense.key == ABORTED_COMMAND:
            return PositionLost(said, subject=name)
        case _:
            return DestinationError(said, subject=name)
