"""A changer: what stands in which slot and drive, and the arm that moves it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from nightferry.destination.tape.drives.base import TapeDrive
from nightferry.model.findings import Finding

ElementKind = Literal["slot", "drive", "port"]

UNREADABLE = "?"
"""Stands for a barcode that cannot be read, or that cannot be the name of a cartridge."""

SEE_LIST = "`nightferry media list` shows what is where"
"""The hint of a move that cannot be."""


@dataclass(frozen=True, slots=True)
class Address:
    """One place for a cartridge: a storage slot, a drive, or an import/export port; numbered from 0."""

    kind: ElementKind
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"


@dataclass(frozen=True, slots=True)
class Element:
    """A place and what is in it. ``barcode`` is empty when nothing is, ``UNREADABLE`` when it
    cannot be read.

    ``home`` is the slot the cartridge came from, where the changer remembers it.
    """

    address: Address
    barcode: str = ""
    home: Address | None = None


def doubled(elements: Sequence[Element]) -> dict[str, tuple[Address, ...]]:
    """Barcodes that several cartridges bear, and where these are: nobody knows which of them is meant."""
    places: dict[str, tuple[Address, ...]] = {}
    for element in elements:
        if element.barcode not in ("", UNREADABLE):
            places[element.barcode] = (*places.get(element.barcode, ()), element.address)
    return {barcode: found for barcode, found in places.items() if len(found) > 1}


def unreadable_barcodes(library: str, elements: Sequence[Element], fix: str) -> list[Finding]:
    """Names the cartridges that cannot be told from each other."""
    places = [str(element.address) for element in elements if element.barcode == UNREADABLE]
    if not places:
        return []
    text = f"the barcode of the cartridge in {', '.join(places)} of {library} cannot be read"
    return [Finding("NF-TAPE-011", "warn", text, fix)]


class Changer(Protocol):
    """The arm. Its verbs may be called from several threads and processes."""

    def inventory(self) -> list[Element]:
        """Every element, slots first.

        Raises:
            Unavailable: the changer does not answer.
        """

    def move(self, source: Address, target: Address) -> None:
        """Moves a cartridge; a drive must have been unloaded first. On return it is there.

        Raises:
            DestinationError: the source is empty, the target full, removal is prevented, or there is no
            such element. Unavailable: the changer does not answer.
        """


class DriveLock(Protocol):
    """The operating system's lock on one drive, held; gone with the process, however that ends."""

    @property
    def untouched(self) -> bool:
        """True when the last holder before was this same library object: the drive is as it left it."""

    def release(self) -> None: ...


class Library(Protocol):
    """A changer and its drives: what stands under a ``TapeDestination``."""

    @property
    def name(self) -> str: ...
    @property
    def changer(self) -> Changer: ...
    @property
    def drives(self) -> Sequence[TapeDrive]: ...
    @property
    def cartridge_bytes(self) -> int:
        """What one cartridge holds, for planning."""

    def try_lock(self, number: int) -> DriveLock | None:
        """Takes the lock of a drive; None while another process (or library object) holds it."""

    def check(self) -> list[Finding]:
        """What an operator should know of the library itself.

        Raises:
            DestinationError: it does not answer.
        """

    def close(self) -> None: ...
