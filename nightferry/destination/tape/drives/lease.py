"""The right to use a drive that several hosts reach, as the drive sees it; who keeps it is not its business."""

from __future__ import annotations

from typing import Protocol


class Lease(Protocol):
    """A drive leased to this process."""

    @property
    def untouched(self) -> bool:
        """Whether nobody else had the drive since this process had it last."""

    def require(self) -> None:
        """Asks nobody, so it may be asked before every command.

        Raises:
            DriveTaken: the lease is known to be lost.
        """

    def confirm(self) -> None:
        """Asks whoever keeps the leases.

        Raises:
            DriveTaken: another host has the drive.
            Unavailable: that is unknown.
        """

    def release(self) -> None:
        """Gives the drive back."""


class Leases(Protocol):
    """Where drives are leased."""

    @property
    def token(self) -> str:
        """Names this process to the others."""

    def try_take(self, serial: str, dead: str) -> Lease | None:
        """Takes a drive; None while another has it.

        Args:
            serial: The drive's serial number.
            dead: The token of a holder that does not use the drive any more for certain; empty: none is known.
        """

    def close(self) -> None:
        """Gives every drive back."""
