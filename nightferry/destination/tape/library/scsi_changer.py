"""A media changer over a SCSI transport."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping, Sequence

from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.destination.tape.drives.base import TapeDrive
from nightferry.destination.tape.drives.scsi_device import CommandRefused, Device
from nightferry.destination.tape.library.changer import SEE_LIST, UNREADABLE, Address, Element, ElementKind
from nightferry.errors import DestinationError, PositionLost
from nightferry.model.names import BARCODE
from nightferry.scsi import cdb
from nightferry.scsi.cdb import ElementStatus, ElementType
from nightferry.scsi.transport import Transport

_log = logging.getLogger(__name__)

_MOVE_S = 1200.0
_STATUS_S = 600.0
_READY_S = 900.0
"""How long a changer is waited for that takes stock of its slots, or whose door is open."""
_LOOK_AGAIN_S = 1.0
_FIRST_ASK = 64 << 10
_DEFAULT_ARM = 0
_KINDS: Mapping[ElementType, ElementKind] = {
    ElementType.STORAGE: "slot",
    ElementType.PORT: "port",
    ElementType.DRIVE: "drive",
}
_REASONS = {
    (0x3B, 0x0E): "{source} is empty",
    (0x3B, 0x0D): "{target} is full",
    (0x53, 0x02): "the cartridge in {source} is held there by another host or the drive",
    (0x21, 0x01): "there is no {source} or no {target}",
    (0x24, 0x00): "there is no {source} or no {target}",
}


class ScsiChanger:
    """See ``Changer``. Slots and ports are numbered from 0 in the order of their element addresses.

    Args:
        transport: The way to it.
        clock: For short waits while it is busy.
    """

    def __init__(self, transport: Transport, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._device = Device(transport, "changer", clock)
        self._clock = clock
        self._turn = threading.Lock()
        self._drive_elements: list[int] = []
        self._drives: Sequence[TapeDrive] = ()

    def watch(self, drives: Sequence[TapeDrive], elements: Sequence[int]) -> None:
        """Says which drive stands at which element: drive *n* at ``elements[n]``.

        Drives at other elements are numbered behind them; they are others' drives. From now on a cartridge that
        one of ``drives`` has loaded is not taken out.
        """
        self._drives, self._drive_elements = drives, list(elements)

    def drive_elements(self) -> list[ElementStatus]:
        """The data transfer elements in order of address, with the identifiers of what stands there."""
        with self._turn:
            return self._elements(ElementType.DRIVE, identifiers=True)

    def inventory(self) -> list[Element]:
        with self._turn:
            found = self._look()
        places = {element.address: address for address, element in found.items()}
        return [
            Element(
                address,
                _barcode(status),
                places.get(status.source) if status.full and status.source is not None else None,
            )
            for address, status in found.items()
        ]

    def move(self, source: Address, target: Address) -> None:
        if any(Address("drive", d.number) == source and d.is_loaded() for d in self._drives):
            raise DestinationError(
                f"{source} has not been unloaded", subject=str(source), hint="wait for the run to end"
            )
        with self._turn:
            found = self._look()
            for address in (source, target):
                if address not in found:
                    raise DestinationError(
                        f"there is no {address} in the library", subject=str(address), hint=SEE_LIST
                    )
            try:
                self._move(found[source], found[target])
            except CommandRefused as refused:
                reason = _REASONS.get(refused.sense.code, str(refused))
                raise DestinationError(
                    f"{source} to {target}: {reason.format(source=source, target=target)}",
                    subject=str(source),
                    hint=SEE_LIST,
                ) from refused

    def _move(self, source: ElementStatus, target: ElementStatus) -> None:
        """Sends a move; when its outcome is unknown, by what the elements hold then, again if it was not done."""
        command = cdb.move_medium(_DEFAULT_ARM, source.address, target.address)
        for last in (False, False, True):
            try:
                # A unit attention, or not being ready, means that the command was not done: it may be sent again.
                self._device.patiently(command, timeout_s=_MOVE_S, patience_s=_READY_S)
                return
            except PositionLost as lost:
                _log.warning("%s; checking where the cartridge is now", lost)
                if self._has_arrived(source, target, lost):
                    return
                if last:
                    raise

    def _has_arrived(self, source: ElementStatus, target: ElementStatus, lost: PositionLost) -> bool:
        """Whether a move was done; while the arm has the cartridge, it is waited for.

        Raises:
            PositionLost: ``lost`` itself: the cartridge is neither at one element nor at the other.
        """
        deadline = self._clock.monotonic() + _MOVE_S
        while True:
            now = {status.address: status for kind in _KINDS for status in self._elements(kind)}
            holds = {
                at: at in now and now[at].full and now[at].barcode == source.barcode
                for at in (source.address, target.address)
            }
            if holds[source.address] != holds[target.address]:
                return holds[target.address]
            if any(holds.values()) or self._clock.monotonic() >= deadline:
                lost.add_note(f"{source.barcode or 'the cartridge'} is at neither of the two elements")
                raise lost
            self._clock.sleep(_LOOK_AGAIN_S)

    def close(self) -> None:
        """Lets the device go."""
        self._device.close()

    def _look(self) -> dict[Address, ElementStatus]:
        """Every place, slots first."""
        found: dict[Address, ElementStatus] = {}
        for kind in _KINDS:
            statuses = self._elements(kind)
            if kind is ElementType.DRIVE:
                order = {element: number for number, element in enumerate(self._drive_elements)}
                statuses.sort(key=lambda status: order.get(status.address, len(order)))
            for number, status in enumerate(statuses):
                found[Address(_KINDS[kind], number)] = status
        return found

    def _elements(self, kind: ElementType, *, identifiers: bool = False) -> list[ElementStatus]:
        """All elements of a kind, by address. Asked a type at a time: not every changer can do all at once."""
        length = _FIRST_ASK
        while True:
            command = cdb.read_element_status(kind, length, identifiers=identifiers)
            try:
                data = self._device.patiently(
                    command, data_in_len=length, timeout_s=_STATUS_S, patience_s=_READY_S
                )
            except CommandRefused as refused:
                if identifiers and refused.is_unsupported:
                    return self._elements(kind)
                if kind is ElementType.PORT and refused.is_unsupported:
                    return []
                raise
            if (whole := cdb.bytes_reported(data)) <= length:
                return sorted(cdb.parse_elements(data), key=lambda element: element.address)
            length = whole


def _barcode(status: ElementStatus) -> str:
    if not status.full:
        return ""
    return status.barcode if re.fullmatch(BARCODE, status.barcode) else UNREADABLE
