"""A drive becoming ready after the changer put a cartridge in: minutes, with a new one hours, or being cleaned."""

from __future__ import annotations

import logging
from collections.abc import Callable

from nightferry.clock import Clock
from nightferry.destination.tape.drives.base import Waiting
from nightferry.destination.tape.drives.scsi_device import Device, lacks_medium, meaning
from nightferry.errors import DestinationError, Unavailable
from nightferry.scsi import cdb
from nightferry.scsi.sense import NOT_READY

_log = logging.getLogger(__name__)

UNLOAD_S = 1800.0
"""Loading and unloading."""
_READY_S = 2 * 3600.0
"""A new LTO-9 cartridge is measured by the drive when first loaded: up to two hours."""
_RESET_S = 120.0
"""How long a drive configures itself after a reset."""
_POLL_S = 1.0

_BECOMING_READY = ((0x04, 0x00), (0x04, 0x01))
_LOAD_NEEDED = (0x04, 0x02)
_CLEANING = (0x30, 0x03)


def wait_until_ready(
    device: Device, number: int, occupied: Callable[[], bool], waiting: Waiting, clock: Clock
) -> bool:
    """True: a cartridge is loaded. False: it was a cleaning cartridge, and the drive is done with it.

    Args:
        device: The drive.
        number: Its number in the library.
        occupied: Whether the changer put a cartridge in.
        waiting: Is told what is waited for.
        clock: Time.

    Raises:
        Unavailable: the drive is empty or does not become ready.
    """
    cleaning = False
    deadline = clock.monotonic() + _READY_S
    # A target that takes LOAD for START STOP UNIT does nothing without the second bit; with it one of them
    # makes an empty drive ready.
    asks = [cdb.load_unload(load=True), cdb.load_unload(load=True, eject=True)]
    while (sense := device.not_ready()) is not None:
        if sense.key != NOT_READY:
            raise meaning(sense, device.name) or Unavailable(
                f"{device.name} is not ready: {sense}", subject=device.name
            )
        cleaning |= sense.code == _CLEANING
        if lacks_medium(sense) or sense.code == _LOAD_NEEDED:
            if cleaning:
                return False
            if not asks or not occupied():
                raise Unavailable(f"drive {number} is empty: {sense}", subject=device.name)
            _ask(device, asks.pop(0))
            continue
        if sense.code != _CLEANING and not sense.passes:
            raise Unavailable(
                f"{device.name} does not become ready: {sense}",
                hint="check the drive's panel; a cleaning cartridge or an operator may be needed",
                subject=device.name,
            )
        if clock.monotonic() > deadline:
            raise Unavailable(
                f"{device.name} did not become ready in {_READY_S / 3600:.0f} hours: {sense}",
                subject=device.name,
            )
        if cleaning:
            waiting(f"{device.name} is being cleaned")
        elif sense.code in _BECOMING_READY:
            waiting(f"{device.name} is becoming ready")
        else:
            waiting(f"{device.name} is not ready yet: {sense}")
        clock.sleep(_POLL_S)
    return True


def wait_to_unload(device: Device, clock: Clock) -> bool:
    """Whether a cartridge is loaded that can be unloaded; a drive that was just reset is waited for.

    One that is becoming ready is not: that can take hours, and whoever unloads it is through with it.

    Raises:
        Unavailable: it does not answer.
    """
    deadline = clock.monotonic() + _RESET_S
    while (sense := device.not_ready()) is not None:
        if not sense.passes or sense.code in _BECOMING_READY or clock.monotonic() > deadline:
            return False
        clock.sleep(_POLL_S)
    return True


def _ask(device: Device, command: bytes) -> None:
    try:
        device.patiently(command, timeout_s=UNLOAD_S)
    except Unavailable:
        raise
    except DestinationError as error:
        # What it means is what TEST UNIT READY says next.
        _log.info("%s, on a load command: %s", device.name, error)
