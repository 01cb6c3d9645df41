"""Opening a real library: who answers where, and what that makes of changer and drives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nightferry.clock import Clock
from nightferry.destination.tape.drives.lease import Leases
from nightferry.destination.tape.drives.scsi import ScsiDrive
from nightferry.destination.tape.drives.scsi_device import CommandRefused, Device
from nightferry.destination.tape.drives.st import StDrive
from nightferry.destination.tape.drives.st_node import LinuxTapeNode, is_tape_node
from nightferry.destination.tape.library.changer import Address
from nightferry.destination.tape.library.scsi_changer import ScsiChanger
from nightferry.destination.tape.library.scsi_library import (
    Leasing,
    Places,
    RealDrive,
    ScsiLibrary,
    match_drives,
)
from nightferry.errors import ConfigError
from nightferry.scsi import cdb
from nightferry.scsi.iscsi import IscsiTransport, Portal
from nightferry.scsi.sgio import SgTransport
from nightferry.scsi.transport import Transport

_INQUIRY_BYTES, _SERIAL_BYTES, _LUNS_BYTES = 96, 252, 4096


@dataclass(frozen=True, slots=True)
class Options:
    """What the site file says beside where the library is; see ``IscsiLibrarySettings`` and ``ScsiLibrarySettings``."""

    locks: tuple[Path, ...]
    elements: tuple[int, ...] = ()
    cartridge_bytes: int | None = None
    reserve_bytes: int = 160 << 20
    leases: Leases | None = None
    """Where drives are leased, if no folder of ``locks`` is shared by the hosts."""
    one_host: bool = True
    """Nobody on another host uses the library."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A device that answered."""

    transport: Transport
    inquiry: cdb.Inquiry
    serial: str


def identify(transport: Transport, clock: Clock) -> Unit | None:
    """Asks a device who it is; None when nothing is there."""
    device = Device(transport, transport.name, clock)
    inquiry = cdb.parse_inquiry(device.patiently(cdb.inquiry(_INQUIRY_BYTES), data_in_len=_INQUIRY_BYTES))
    if not inquiry.is_there:
        return None
    try:
        page = device.patiently(cdb.inquiry(_SERIAL_BYTES, cdb.SERIAL_PAGE), data_in_len=_SERIAL_BYTES)
    except CommandRefused:
        return Unit(transport, inquiry, "")
    return Unit(transport, inquiry, cdb.parse_serial(page))


def open_iscsi(portal: Portal, wanted: Sequence[str], options: Options, clock: Clock) -> ScsiLibrary:
    """Opens the library behind an iSCSI target: its one changer, and its drives or those of them wanted.

    Raises:
        Unavailable: the target does not answer.
        DestinationError: it refuses the login.
        ConfigError: it has no changer or several, or where the drives stand is unknown.
    """
    with ExitStack() as opened:
        units = list(_units(portal, opened, clock))
        changers = [unit for unit in units if unit.inquiry.kind == cdb.CHANGER]
        if len(changers) != 1:
            raise ConfigError(
                f"{portal.name} has {len(changers)} changers; a library has one",
                hint="name another target in the site file",
                subject=portal.target,
            )
        found: dict[str, Transport] = {}
        for unit in units:
            if unit.inquiry.kind == cdb.TAPE:
                _require_serial(unit)
                # A drive seen by two paths is one drive; the first path is taken.
                found.setdefault(unit.serial, unit.transport)
        changer = ScsiChanger(changers[0].transport, clock=clock)
        places = match_drives(changer.drive_elements(), list(found), wanted=wanted, elements=options.elements)
        drives = [
            ScsiDrive(
                number,
                found[serial],
                options.reserve_bytes,
                partial(_occupied, changer, number),
                serial=serial,
                clock=clock,
            )
            for number, serial in enumerate(places.serials)
        ]
        library = _library(portal.name, changer, drives, places, options)
        for transport in found.values():
            # Discovery took a session each; a drive that is not used needs none.
            transport.close()
        opened.pop_all()
    return library


def _units(portal: Portal, opened: ExitStack, clock: Clock) -> Iterator[Unit]:
    first = IscsiTransport(portal, 0)
    opened.callback(first.close)
    luns = cdb.parse_luns(
        Device(first, first.name, clock).patiently(cdb.report_luns(_LUNS_BYTES), data_in_len=_LUNS_BYTES)
    )
    first.close()
    for lun in luns:
        transport = IscsiTransport(portal, lun)
        opened.callback(transport.close)
        unit = identify(transport, clock)
        if unit is not None and unit.inquiry.kind in (cdb.TAPE, cdb.CHANGER):
            yield unit
        else:
            transport.close()


def open_scsi(changer_path: Path, paths: Sequence[Path], options: Options, clock: Clock) -> ScsiLibrary:
    """Opens the library behind devices of the kernel: a changer and drives, each generic or of the tape driver.

    Raises:
        Unavailable: a device is not there or does not answer.
        ConfigError: a device is something else, or where the drives stand is unknown.
    """
    with ExitStack() as opened:
        changer_unit = _device(changer_path, cdb.CHANGER, opened, clock)
        units: dict[str, tuple[Path, Transport]] = {}
        for path in paths:
            unit = _device(path, cdb.TAPE, opened, clock)
            _require_serial(unit)
            if unit.serial in units:
                raise ConfigError(
                    f"{path} and {units[unit.serial][0]} are one drive, {unit.serial}", subject=str(path)
                )
            units[unit.serial] = path, unit.transport
        changer = ScsiChanger(changer_unit.transport, clock=clock)
        places = match_drives(
            changer.drive_elements(), list(units), wanted=tuple(units), elements=options.elements
        )
        drives: list[RealDrive] = []
        for number, serial in enumerate(places.serials):
            path, transport = units[serial]
            if is_tape_node(path):
                transport.close()  # the tape driver lets only one in
                drives.append(
                    StDrive(
                        number,
                        LinuxTapeNode(path),
                        options.reserve_bytes,
                        serial=serial,
                        ask=partial(_behind, path),
                        clock=clock,
                    )
                )
            else:
                drives.append(
                    ScsiDrive(
                        number,
                        transport,
                        options.reserve_bytes,
                        partial(_occupied, changer, number),
                        serial=serial,
                        clock=clock,
                    )
                )
        library = _library(str(changer_path), changer, drives, places, options)
        opened.pop_all()
    return library


def _occupied(changer: ScsiChanger, number: int) -> bool:
    here = Address("drive", number)
    return any(element.barcode for element in changer.inventory() if element.address == here)


def _behind(path: Path, fd: int) -> Transport:
    return SgTransport(path, fd=fd)


def _device(path: Path, kind: int, opened: ExitStack, clock: Clock) -> Unit:
    transport = SgTransport(path)
    opened.callback(transport.close)
    unit = identify(transport, clock)
    if unit is None or unit.inquiry.kind != kind:
        what = {cdb.CHANGER: "changer", cdb.TAPE: "tape drive"}[kind]
        raise ConfigError(
            f"{path} is not a {what}", hint="`lsscsi -g` shows what is where", subject=str(path)
        )
    return unit


def _require_serial(unit: Unit) -> None:
    if not unit.serial:
        raise ConfigError(
            f"{unit.transport.name} ({unit.inquiry.vendor} {unit.inquiry.product}) does not report its serial number",
            hint="a drive's lock and its place in the library go by its serial number",
            subject=unit.transport.name,
        )


def _library(
    name: str, changer: ScsiChanger, drives: Sequence[RealDrive], places: Places, options: Options
) -> ScsiLibrary:
    changer.watch(drives, places.elements)
    leasing, unlocked = None, ""
    if options.leases is not None:
        guarded = [drive for drive in drives if isinstance(drive, ScsiDrive)]
        if len(guarded) == len(drives):
            leasing = Leasing(options.leases, guarded)
        elif not options.one_host:
            unlocked = (
                "the catalog is in a bucket, and the kernel's tape driver does not let a drive be reset "
                "that a host which lost it may still write to"
            )
    return ScsiLibrary(
        name,
        changer,
        drives,
        places.serials,
        options.locks,
        options.cartridge_bytes,
        leasing=leasing,
        unlocked=unlocked,
    )
