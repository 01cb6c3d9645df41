"""A real tape library: which devices belong to it, which drive stands where, and who may use which."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nightferry.destination.failure import os_errors
from nightferry.destination.tape.drives.base import TapeDrive
from nightferry.destination.tape.drives.lease import Lease, Leases
from nightferry.destination.tape.drives.lock import UNWRITABLE, FileLock, try_lock
from nightferry.destination.tape.library.changer import DriveLock, unreadable_barcodes
from nightferry.destination.tape.library.scsi_changer import ScsiChanger
from nightferry.errors import ConfigError
from nightferry.model.findings import Finding
from nightferry.scsi.cdb import ElementStatus
from nightferry.units import counted

_GENERATIONS: Mapping[str, int] = {
    "L1": 100 * 10**9,
    "L2": 200 * 10**9,
    "L3": 400 * 10**9,
    "L4": 800 * 10**9,
    "L5": 1500 * 10**9,
    "L6": 2500 * 10**9,
    "L7": 6000 * 10**9,
    "M8": 9000 * 10**9,
    "L8": 12000 * 10**9,
    "L9": 18000 * 10**9,
    "LA": 30000 * 10**9,
}
"""LTO's media identifiers, the last two characters of a barcode, and what such a cartridge holds."""
_SMALLEST_KNOWN = min(_GENERATIONS.values())

_log = logging.getLogger(__name__)


class RealDrive(TapeDrive, Protocol):
    """A drive that can let its device go."""

    def close(self) -> None: ...


class GuardedDrive(RealDrive, Protocol):
    """A drive that can be used under a lease."""

    def guard(self, lease: Lease) -> None: ...


@dataclass(frozen=True, slots=True)
class Leasing:
    """Drives that are leased between hosts, in the library's order, and where."""

    leases: Leases
    drives: Sequence[GuardedDrive]


@dataclass(frozen=True, slots=True)
class Places:
    """Where drives stand: the serial number of each and the address of its data transfer element."""

    serials: tuple[str, ...]
    elements: tuple[int, ...]


class ScsiLibrary:
    """See ``Library``.

    Args:
        name: How an operator knows it.
        changer: Its changer, which already knows where ``drives`` stand.
        drives: The drives this site uses.
        serials: Their serial numbers, which name the locks.
        locks: Folders in which a drive's lock is taken: one of this host, and one that all hosts share.
        cartridge_bytes: What a cartridge holds; None: as the barcodes say.
        leasing: Leases in the place of a shared folder; None: there are none.
        unlocked: Says why hosts of the site are not kept apart; empty: they are, or there is one only.
    """

    def __init__(
        self,
        name: str,
        changer: ScsiChanger,
        drives: Sequence[RealDrive],
        serials: Sequence[str],
        locks: Sequence[Path],
        cartridge_bytes: int | None = None,
        *,
        leasing: Leasing | None = None,
        unlocked: str = "",
    ) -> None:
        self._name = name
        self.changer = changer
        self.drives = drives
        self._serials = serials
        self._locks = locks
        self._cartridge_bytes = cartridge_bytes
        self._leasing = leasing
        self._unlocked = unlocked
        self._token = secrets.token_hex(8) if leasing is None else leasing.leases.token

    @property
    def name(self) -> str:
        return self._name

    @property
    def cartridge_bytes(self) -> int:
        if self._cartridge_bytes is None:
            self._cartridge_bytes = smallest_capacity([e.barcode for e in self.changer.inventory()])
        return self._cartridge_bytes

    def try_lock(self, number: int) -> DriveLock | None:
        taken: list[FileLock] = []
        for folder in self._locks:
            name = f"nightferry-drive-{_as_file_name(self._serials[number])}.lock"
            with os_errors(f"the lock of drive {number} of {self._name}"):
                try:
                    if not folder.is_dir():
                        # Only who uses a drive makes it: a look leaves nothing behind.
                        folder.mkdir(mode=0o700, exist_ok=True)
                    lock = try_lock(folder / name, self._token)
                except OSError as error:
                    if not taken or error.errno not in UNWRITABLE:
                        raise
                    # A restore needs the drive although the shared folder cannot be written.
                    _log.warning(
                        "drive %d is locked on this host only: %s: %s", number, folder, error.strerror
                    )
                    continue
            if lock is None:
                for earlier in taken:
                    earlier.release()
                return None
            taken.append(lock)
        lease = None
        if self._leasing is not None:
            try:
                # Whoever had the lock file of this host before does not use the drive any more.
                lease = self._leasing.leases.try_take(self._serials[number], taken[0].former)
            finally:
                if lease is None:
                    _Locks(taken).release()
            if lease is None:
                return None
            self._leasing.drives[number].guard(lease)
        return _Locks(taken, lease)

    def check(self) -> list[Finding]:
        elements = self.changer.inventory()
        full = [e for e in elements if e.barcode]
        drives = ", ".join(f"drive {n} is {serial}" for n, serial in enumerate(self._serials))
        findings = [
            Finding(
                "NF-TAPE-010",
                "note",
                f"{self._name} answers: {drives}; {counted(len(full), 'cartridge')}, "
                f"{counted(sum(e.address.kind == 'slot' for e in elements), 'slot')}",
            )
        ]
        findings += unreadable_barcodes(
            self._name, elements, "put a readable barcode label on it; until then it is not used"
        )
        if self._unlocked:
            findings.append(
                Finding(
                    "NF-TAPE-012",
                    "fail",
                    f"the drives of {self._name} are locked between processes of this host only: {self._unlocked}",
                    "name the drives' /dev/sg* nodes, or let the catalog lie in a folder that all hosts share "
                    "(docs/tape-library.md)",
                )
            )
        return findings

    def close(self) -> None:
        try:
            if self._leasing is not None:
                self._leasing.leases.close()
        finally:
            # What is loaded stays so: another process may have taken the drive over since.
            for drive in self.drives:
                drive.close()
            self.changer.close()


class _Locks:
    """Several locks, and a lease, held as one."""

    def __init__(self, locks: list[FileLock], lease: Lease | None = None) -> None:
        self._locks = locks
        self._lease = lease

    @property
    def untouched(self) -> bool:
        mine = self._lease is None or self._lease.untouched
        return mine and all(lock.untouched for lock in self._locks)

    def release(self) -> None:
        if self._lease is not None:
            self._lease.release()
        for lock in reversed(self._locks):
            lock.release()


def smallest_capacity(barcodes: Sequence[str]) -> int:
    """Of the generations that the barcodes name; LTO-1's when they name none."""
    return min(
        (_GENERATIONS[code[-2:]] for code in barcodes if code[-2:] in _GENERATIONS), default=_SMALLEST_KNOWN
    )


def match_drives(
    statuses: Sequence[ElementStatus],
    serials: Sequence[str],
    *,
    wanted: Sequence[str] = (),
    elements: Sequence[int] = (),
) -> Places:
    """Finds at which element each drive stands.

    Args:
        statuses: The changer's data transfer elements, with what it says of the drives there.
        serials: Serial numbers of the drives that were found; one seen twice is one drive.
        wanted: The drives to use, in this order; empty: every one that stands at an element, by its address.
        elements: Where the wanted drives stand, as configured; checked against what the changer says.

    Raises:
        ConfigError: a wanted drive is not there, or where the drives stand is unknown; the changer says otherwise
            than the site file, names one drive twice, or names one that does not answer.
    """
    serials = list(dict.fromkeys(serials))
    named = {status.address: serial for status in statuses if (serial := _named(status, serials))}
    for serial in wanted:
        if serial not in serials or wanted.count(serial) > 1:
            raise ConfigError(
                f"there is no drive {serial}" if serial not in serials else f"drive {serial} is named twice",
                hint=f"the drives that answer are {', '.join(serials) or 'none'}",
                subject=serial,
            )
    if elements:
        # What the changer names twice proves nothing.
        named = {at: serial for at, serial in named.items() if list(named.values()).count(serial) == 1}
        return _configured(
            named, [s.address for s in statuses], serials, tuple(wanted or serials), tuple(elements)
        )
    for element, serial in named.items():
        others = [other for other, same in named.items() if same == serial and other > element]
        if others:
            raise ConfigError(
                f"the changer names the drive {serial} at several elements, {_list([element, *others])}",
                hint="give `drives` and, in the same order, `elements` for the library in the site file, as the "
                "changer's own panel shows them",
                subject=serial,
            )
    unnamed = [status.address for status in statuses if status.address not in named]
    at = {serial: element for element, serial in named.items() if serial in serials}
    left = [serial for serial in serials if serial not in at]
    absent = {element: serial for element, serial in named.items() if serial not in serials}
    if absent and not (wanted and set(wanted) <= set(at)):
        said = ", ".join(f"drive {serial} at element {element}" for element, serial in absent.items())
        raise ConfigError(
            f"the changer names {said}, and no such drive answers",
            hint="bring the drive back, or name the drives to use with `drives` (and `elements`) in the site file: "
            f"those that answer are {_list(serials) or 'none'}",
        )
    if len(unnamed) == 1 and len(left) == 1:
        at[left[0]] = unnamed[0]
    elif left and unnamed and not (wanted and set(wanted) <= set(at)):
        raise ConfigError(
            f"the changer does not say at which of its elements {_list(unnamed)} the drives {_list(left)} stand",
            hint="give `drives` and, in the same order, `elements` for the library in the site file",
        )
    chosen = tuple(wanted) or tuple(sorted(at, key=lambda serial: at[serial]))
    for serial in chosen:
        if serial not in at:
            raise ConfigError(
                f"the changer has no element for drive {serial}",
                hint=f"name drives that do: {_list(list(at)) or 'none does'}",
                subject=serial,
            )
    if not chosen:
        raise ConfigError("the library has no drive that answers", hint="check the drives' power and cables")
    return Places(chosen, tuple(at[serial] for serial in chosen))


_T10_PREFIX = 24
"""Vendor (8) and product (16) before the serial number (SPC-5 §7.7.6.4, T10 vendor ID based)."""


def _named(status: ElementStatus, serials: Sequence[str]) -> str:
    """Serial number of the drive that the changer names at an element, whether or not it is one of ``serials``; empty
    when it names none."""
    text = status.identifier
    told = (text, text[_T10_PREFIX:].strip(), text.rpartition(" ")[2])
    return next((serial for serial in serials if serial in told), "" if status.is_cut else told[-1])


def _configured(
    named: Mapping[int, str],
    there: Sequence[int],
    known: Sequence[str],
    serials: tuple[str, ...],
    elements: tuple[int, ...],
) -> Places:
    if len(serials) != len(elements) or len(set(elements)) != len(elements):
        raise ConfigError(
            f"{len(serials)} drives and {len(elements)} elements are configured",
            hint="`elements` needs one address for each drive, in the same order",
        )
    for serial, element in zip(serials, elements, strict=True):
        if element not in there:
            raise ConfigError(
                f"the changer has no data transfer element {element}", hint=f"it has {_list(sorted(there))}"
            )
        # A serial number that no drive has may be the changer's own way to write one: it contradicts nothing.
        if named.get(element, serial) != serial and named[element] in known:
            raise ConfigError(
                f"the site file says that drive {serial} stands at element {element}, "
                f"the changer says {named[element]}",
                hint="correct `drives` or `elements`",
                subject=serial,
            )
    return Places(serials, elements)


def _list(things: Sequence[object]) -> str:
    return ", ".join(map(str, things))


def _as_file_name(serial: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", serial)
