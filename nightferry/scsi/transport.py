"""The one narrow seam to a SCSI device: a command descriptor block in, status, sense and data out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nightferry.errors import PositionLost

GOOD = 0x00
CHECK_CONDITION = 0x02
CONDITION_MET = 0x04
BUSY = 0x08
RESERVATION_CONFLICT = 0x18
TASK_SET_FULL = 0x28
"""Status codes (SAM-5 §5.3.1)."""


CLEARED_BYTES = 64 << 10
"""A short answer; longer ones are tape blocks, whose length is told."""


class Indeterminate(PositionLost):
    """A command was sent and its outcome is not known: it may have been done.

    It must not be sent again: who asked looks at the medium first.
    """

    default_hint = "what became of the last command is read back from the medium; nothing is sent twice"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a device said: the status byte, raw sense data (empty unless CHECK CONDITION), data it sent.

    ``data`` is as long as what was asked for, with zeros behind what came if it is short; it may be the
    transport's own buffer, good until the next command. ``arrived`` is how much of it came, as the transport counts:
    not every target counts right, so that an answer which says its own length is believed before it.
    """

    status: int
    sense: bytes = b""
    data: bytes | memoryview = b""
    arrived: int = 0


class Transport(Protocol):
    """A way to one logical unit. One thread at a time."""

    @property
    def name(self) -> str:
        """How an operator knows the device."""

    @property
    def most_bytes(self) -> int:
        """The most bytes that one command can carry."""

    def execute(
        self,
        cdb: bytes,
        *,
        data_out: bytes | memoryview | None = None,
        data_in_len: int = 0,
        timeout_s: float,
    ) -> Answer:
        """Sends a command and waits for its end.

        Args:
            cdb: The command.
            data_out: What it sends along.
            data_in_len: How many bytes it may answer; never together with ``data_out``.
            timeout_s: How long the device has.

        Raises:
            Indeterminate: the time was up, or the connection broke, after the command had been sent.
            Unavailable: the device could not be reached; nothing was sent.
        """

    def reset(self, timeout_s: float) -> None:
        """Resets the logical unit (LOGICAL UNIT RESET, SAM-5 §7.6): what it was asked by anybody and has not done
        is not done any more, and everybody's next command is answered with a unit attention.

        Raises:
            DestinationError: it was refused.
            Indeterminate, Unavailable: as ``execute``.
        """

    def close(self) -> None:
        """Lets the device go; the next command reaches for it again."""
