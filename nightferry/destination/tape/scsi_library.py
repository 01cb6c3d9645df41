"""A real tape library: which devices belong to it, which drive stands where, and who may use which."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nightferry.destination.failure import os_errors
from nightferry.destination.tape.changer import UNREADABLE, DriveLock
from nightferry.destination.tape.drive import TapeDrive
from nightferry.destination.tape.lease import Lease, Leases
from nightferry.destination.tape.lock import FileLock, try_lock
from nightferry.destination.tape.scsi_changer import ScsiChanger
from nightferry.errors import ConfigError
from nightferry.model.findings import Finding
from nightferry.scsi.cdb import ElementStatus

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
                lock = try_lock(folder / name, self._token)
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
                f"{self._name} answers: {drives}; {len(full)} cartridges, "
                f"{sum(e.address.kind == 'slot' for e in elements)} slots",
            )
        ]
        unreadable = [str(e.address) for e in full if e.barcode == UNREADABLE]
        if unreadable:
            findings.append(
                Finding(
                    "NF-TAPE-011",
                    "warn",
                    f"the barcode of the cartridge in {', '.join(unreadable)} of {self._name} cannot be read",
                    "put a readable barcode label on it; until then it is left alone",
                )
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
        ConfigError: a wanted drive is not there, or where the drives stand cannot be told, or is told
            otherwise by the changer.
    """
    serials = list(dict.fromkeys(serials))
    said = _said(statuses, serials)
    for serial in wanted:
        if serial not in serials:
            raise ConfigError(
                f"there is no drive {serial}",
                hint=f"the drives that answer are {', '.join(serials) or 'none'}",
                subject=serial,
            )
    if elements:
        return _configured(statuses, said, tuple(wanted or serials), tuple(elements))
    left_elements = [status.address for status in statuses if status.address not in said]
    left = [serial for serial in serials if serial not in said.values()]
    if len(left_elements) == 1 and len(left) == 1:
        said[left_elements[0]] = left[0]
    elif left and left_elements:
        raise ConfigError(
            f"the changer does not tell at which of its elements {_list(left_elements)} "
            f"the drives {_list(left)} stand",
            hint="give `drives` and, in the same order, `elements` for the library in the site file",
        )
    at = {serial: element for element, serial in said.items()}
    chosen = tuple(wanted) or tuple(said[element] for element in sorted(said))
    for serial in chosen:
        if serial not in at:
            raise ConfigError(f"the drive {serial} stands at no element of the changer", subject=serial)
    if not chosen:
        raise ConfigError("the library has no drive that answers")
    return Places(chosen, tuple(at[serial] for serial in chosen))


def _said(statuses: Sequence[ElementStatus], serials: Sequence[str]) -> dict[int, str]:
    """Element → serial number of the drive that the changer says stands there."""
    found: dict[int, str] = {}
    for status in statuses:
        named = [serial for serial in serials if serial and status.identifier.endswith(serial)]
        if named:
            found[status.address] = max(named, key=len)
    return found


def _configured(
    statuses: Sequence[ElementStatus],
    said: Mapping[int, str],
    serials: tuple[str, ...],
    elements: tuple[int, ...],
) -> Places:
    if len(serials) != len(elements) or len(set(elements)) != len(elements):
        raise ConfigError(
            f"{len(serials)} drives and {len(elements)} elements are configured",
            hint="`elements` needs one address for each drive, in the same order",
        )
    there = {status.address for status in statuses}
    for serial, element in zip(serials, elements, strict=True):
        if element not in there:
            raise ConfigError(
                f"the changer has no data transfer element {element}", hint=f"it has {_list(sorted(there))}"
            )
        if said.get(element, serial) != serial:
            raise ConfigError(
                f"the site file says that drive {serial} stands at element {element}, "
                f"the changer says {said[element]}",
                hint="correct `drives` or `elements`",
                subject=serial,
            )
    return Places(serials, elements)


def _list(things: Sequence[object]) -> str:
    return ", ".join(map(str, things))


def _as_file_name(serial: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", serial)
