"""The virtual tape library: a changer, drives and cartridges in one folder (docs/tape-layout.md)."""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from nightferry.destination.failure import as_destination_error, os_errors
from nightferry.destination.tape.drives.base import RECORD_BYTES
from nightferry.destination.tape.drives.lock import FileLock, locked, try_lock
from nightferry.destination.tape.drives.virtual import VirtualDrive
from nightferry.destination.tape.format.layout import CHUNK_DIGEST_BYTES, HEAD_BYTES
from nightferry.destination.tape.library.changer import (
    SEE_LIST,
    UNREADABLE,
    Address,
    Element,
    unreadable_barcodes,
)
from nightferry.errors import ConfigError, DestinationError, Unavailable
from nightferry.model.findings import Finding
from nightferry.model.names import BARCODE
from nightferry.transfer.below import folder_below, open_folder
from nightferry.transfer.durable import (
    DRAFT_PREFIX,
    durable_rename,
    remove_dead_drafts,
    replace_file,
    sync_folder,
)
from nightferry.transfer.regular import NO_FILE, read_regular
from nightferry.units import format_size

SMALLEST_CARTRIDGE = 4 * RECORD_BYTES
_LARGEST_BYTES = 4 << 20
"""``library.json`` and ``elements.json`` are no longer."""


_Model = TypeVar("_Model", bound=BaseModel)
_AddressText = Annotated[str, Field(pattern=r"^(slot|drive) [0-9]{1,5}$")]
_Occupant = Annotated[str, Field(pattern=rf"^({BARCODE})?$")]


class _About(BaseModel):
    """``library.json``."""

    model_config = ConfigDict(frozen=True, strict=True)
    format: Literal["nightferry-virtual-library"] = "nightferry-virtual-library"
    version: Literal[1] = 1
    drives: PositiveInt
    slots: PositiveInt
    cartridge_bytes: PositiveInt


class _Elements(BaseModel):
    """``elements.json``: what is in each slot and drive, and which slot a cartridge in a drive came from."""

    model_config = ConfigDict(frozen=True, strict=True)
    elements: dict[_AddressText, _Occupant]
    homes: dict[_AddressText, _AddressText] = {}


def reserve_bytes(cartridge_bytes: int) -> int:
    """What is kept for the last trailer: the digests of all records a cartridge can hold, and the trailer's
    head."""
    return HEAD_BYTES + CHUNK_DIGEST_BYTES * -(-cartridge_bytes // RECORD_BYTES)


class VirtualChanger:
    """See ``Changer``. What stands where is in ``elements.json``, changed under a lock and replaced whole.

    Port *n* is the folder ``ports/<n>``: the cartridge in it is the folder that lies there, so that a hand can
    take it out and put another in. A cartridge that lies in a port is there, whatever ``elements.json`` says;
    the rename between ``cartridges`` and the port is what commits a move into it or out of it.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._drives: Sequence[VirtualDrive] = ()

    def watch(self, drives: Sequence[VirtualDrive]) -> None:
        """From now on a cartridge that one of ``drives`` has loaded is not taken out."""
        self._drives = drives

    def inventory(self) -> list[Element]:
        elements = _as_elements(_read(_Elements, self._root / "elements.json"))
        ports = self._ports()
        # One that has no folder inside any more was carried out. Where both are there, two cartridges bear one barcode.
        outside = {port.barcode for port in ports if port.barcode and not self._is_inside(port.barcode)}
        return [Element(e.address) if e.barcode in outside else e for e in elements] + ports

    def _is_inside(self, barcode: str) -> bool:
        return (self._root / "cartridges" / barcode).is_dir()

    def _ports(self) -> list[Element]:
        folders = self._root / "ports"
        with os_errors(str(self._root)):
            names = _folders_in(folders) if folders.is_dir() else []
            found = []
            for number in sorted(int(name) for name in names if re.fullmatch("0|[1-9][0-9]{0,4}", name)):
                lying = next(iter(_folders_in(folders / str(number))), "")
                known = not lying or re.fullmatch(BARCODE, lying) is not None
                found.append(Element(Address("port", number), lying if known else UNREADABLE))
        return found

    def _port_folder(self, address: Address, barcode: str) -> Path:
        return self._root / "ports" / str(address.number) / barcode

    def occupant(self, address: Address) -> str:
        """The barcode there; empty when none."""
        return next((e.barcode for e in self.inventory() if e.address == address), "")

    def move(self, source: Address, target: Address) -> None:
        if any(Address("drive", d.number) == source and d.is_loaded() for d in self._drives):
            raise DestinationError(
                f"{source} has not been unloaded", subject=str(source), hint="wait for the run to end"
            )
        with os_errors(str(self._root)), locked(self._root / "changer.lock"):
            found = {e.address: e for e in self.inventory()}
            for address in (source, target):
                if address not in found:
                    raise DestinationError(
                        f"there is no {address} in {self._root}", subject=str(address), hint=SEE_LIST
                    )
            if not found[source].barcode:
                raise DestinationError(f"{source} is empty", subject=str(source), hint=SEE_LIST)
            if found[target].barcode:
                raise DestinationError(
                    f"{target} holds {found[target].barcode}", subject=str(target), hint=SEE_LIST
                )
            barcode = found[source].barcode
            home = source if source.kind == "slot" else found[source].home
            found[target] = Element(target, barcode, home if target.kind == "drive" else None)
            found[source] = Element(source)
            kept = self._root / "cartridges" / barcode
            if target.kind == "port":
                self._carry(self._port_of(source, barcode) or kept, self._port_folder(target, barcode))
            _write_elements(self._root, list(found.values()))
            if source.kind == "port" and target.kind != "port":
                self._carry(self._port_folder(source, barcode), kept)

    def _port_of(self, source: Address, barcode: str) -> Path | None:
        return self._port_folder(source, barcode) if source.kind == "port" else None

    def _carry(self, source: Path, target: Path) -> None:
        if target.exists():
            raise DestinationError(f"{target} is there already", subject=target.name)
        durable_rename(source, target)

    def add(self, barcode: str) -> Address:
        """Puts a new blank cartridge into the first empty slot.

        Raises:
            DestinationError: no slot is empty, or the barcode is there already.
        """
        _check_barcode(barcode)
        with os_errors(str(self._root)), locked(self._root / "changer.lock"):
            elements = self.inventory()
            if any(e.barcode == barcode for e in elements):
                raise DestinationError(f"{barcode} is in the library already", subject=barcode)
            for at, element in enumerate(elements):
                if element.address.kind == "slot" and not element.barcode:
                    _make_folder(self._root, "cartridges", barcode)
                    elements[at] = Element(element.address, barcode)
                    _write_elements(self._root, elements)
                    return element.address
        raise DestinationError(f"no slot of {self._root} is empty", subject=barcode)


class VirtualLibrary:
    """See ``Library``. Opens a library folder that is there; made by ``open_virtual``."""

    def __init__(self, path: Path) -> None:
        about = _read(_About, path / "library.json")
        self._path = path
        self._token = secrets.token_hex(8)
        self._cartridge_bytes = about.cartridge_bytes
        self.changer = VirtualChanger(path)
        self.drives = [self._drive(number) for number in range(about.drives)]
        self.changer.watch(self.drives)

    def _drive(self, number: int) -> VirtualDrive:
        return VirtualDrive(
            number,
            self._path / "cartridges",
            self._cartridge_bytes,
            reserve_bytes(self._cartridge_bytes),
            lambda: self.changer.occupant(Address("drive", number)),
            self._path / "drives" / f"{number}.alerts",
        )

    @property
    def name(self) -> str:
        return str(self._path)

    @property
    def cartridge_bytes(self) -> int:
        return self._cartridge_bytes

    def try_lock(self, number: int) -> FileLock | None:
        with os_errors(f"drive {number} of {self._path}"), folder_below(self._path, ["drives"]) as drives:
            return try_lock(drives / f"{number}.lock", self._token)

    def check(self) -> list[Finding]:
        return unreadable_barcodes(self.name, self.changer.inventory(), "rename the folder to its barcode")

    def close(self) -> None:
        for drive in self.drives:
            drive.unload()


def create(
    path: Path, drives: int, slots: int, cartridge_bytes: int, barcodes: Sequence[str] | None = None
) -> None:
    """Builds a fresh library with blank cartridges, one a slot; ``library.json`` comes last and makes it
    one.

    Args:
        path: The folder; it must not exist, its parent must.
        drives: How many drives.
        slots: How many storage slots.
        cartridge_bytes: What a cartridge holds.
        barcodes: The cartridges; ``A00001L9`` and so on by default.

    Raises:
        ConfigError: a number or barcode makes no sense.
        Unavailable: the parent is not there.
    """
    if barcodes is None:
        barcodes = [_barcode(slot) for slot in range(slots)]
    if drives < 1 or slots < 1 or len(barcodes) > slots or len(set(barcodes)) != len(barcodes):
        raise ConfigError(
            f"a library needs a drive and a slot for each cartridge: {drives=}, {slots=}, {len(barcodes)=}"
        )
    if cartridge_bytes < SMALLEST_CARTRIDGE:
        raise ConfigError(
            f"cartridge_bytes = {cartridge_bytes} is too small for the library {path}",
            hint=f"give at least {format_size(SMALLEST_CARTRIDGE)}",
        )
    for barcode in barcodes:
        _check_barcode(barcode)
    with os_errors(f"library {path}"):
        if not path.exists():
            path.mkdir(mode=0o700)
            sync_folder(path.parent)
        for names in (["drives"], ["cartridges"], *(["cartridges", barcode] for barcode in barcodes)):
            _make_folder(path, *names)
        places = [
            Element(Address("slot", n), b) for n, b in enumerate([*barcodes, *[""] * (slots - len(barcodes))])
        ]
        _write_elements(path, places + [Element(Address("drive", n)) for n in range(drives)])
        _write_about(path, drives, slots, cartridge_bytes)


def open_virtual(path: Path, drives: int, slots: int, cartridge_bytes: int, ports: int = 2) -> VirtualLibrary:
    """Opens the library the site names; builds it when its folder does not exist and the parent does.

    Drives, ports and slots may grow, each new slot with a blank cartridge; nothing else changes behind an
    operator's back.

    Raises:
        ConfigError: the library that is there has other numbers, or the folder is something else.
        Unavailable: the parent is not there (a disk that is not mounted).
    """
    about_path = path / "library.json"
    with os_errors(f"library {path}"):
        if not path.parent.is_dir():
            raise Unavailable(
                f"the folder {path.parent} of the library {path.name} is not there", subject=str(path)
            )
        if not about_path.exists():
            strange = (
                [
                    e.name
                    for e in path.iterdir()
                    if e.name not in _OURS and not e.name.startswith(DRAFT_PREFIX)
                ]
                if path.exists()
                else []
            )
            if strange:
                raise ConfigError(f"{path} holds {strange[0]!r} and is not a tape library", subject=str(path))
            create(path, drives, slots, cartridge_bytes)
        if os.access(path, os.W_OK):  # who only looks may not write there
            remove_dead_drafts(path)
    about = _read(_About, about_path)
    if about.cartridge_bytes != cartridge_bytes:
        raise ConfigError(
            f"the library {path} has cartridge_bytes = {about.cartridge_bytes}, the site file says "
            f"{cartridge_bytes}",
            subject=str(path),
        )
    for what, there, wanted in (("drives", about.drives, drives), ("slots", about.slots, slots)):
        if there > wanted:
            raise ConfigError(
                f"the library {path} has {there} {what}, the site file says {wanted}", subject=str(path)
            )
    if (about.drives, about.slots) != (drives, slots):
        with os_errors(f"library {path}"), locked(path / "changer.lock"):
            _grow(path, drives, slots)
            _write_about(path, drives, slots, cartridge_bytes)
    with os_errors(f"library {path}"):
        for number in range(ports):
            _make_folder(path, "ports", str(number))
    return VirtualLibrary(path)


def _grow(path: Path, drives: int, slots: int) -> None:
    """Adds the drives and slots that are not there yet; in a new slot lies the cartridge with its number, unless that
    is in the library already."""
    elements = {e.address: e for e in VirtualChanger(path).inventory()}
    known = {e.barcode for e in elements.values()}
    for number in range(slots):
        barcode = _barcode(number)
        if Address("slot", number) not in elements:
            elements[Address("slot", number)] = Element(
                Address("slot", number), "" if barcode in known else barcode
            )
            _make_folder(path, "cartridges", barcode)
    for number in range(drives):
        elements.setdefault(Address("drive", number), Element(Address("drive", number)))
    _write_elements(
        path, sorted(elements.values(), key=lambda e: (e.address.kind != "slot", e.address.number))
    )


def _barcode(slot: int) -> str:
    """The cartridge that lies in a slot from the first."""
    return f"A{slot + 1:05d}L9"


_OURS = {"drives", "cartridges", "ports", "elements.json", "changer.lock"}
"""What an interrupted ``create`` may have left."""


def _check_barcode(barcode: str) -> None:
    if not re.fullmatch(BARCODE, barcode):
        raise ConfigError(f"not a barcode: {barcode!r}", subject=barcode)


def _make_folder(root: Path, *names: str) -> None:
    """Makes a folder below the library durably, through no symbolic link; one that is there is fine."""
    os.close(open_folder(root, names, mode=0o700))


def _folders_in(path: Path) -> list[str]:
    """Names of folders, sorted; what is reached through a symbolic link is not in it."""
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))


def _read(kind: type[_Model], path: Path) -> _Model:
    """Raises:
    Unavailable: the file is not there.
    DestinationError: it is not what it should be.
    """
    try:
        return kind.model_validate_json(read_regular(path, _LARGEST_BYTES))
    except ValidationError as error:
        raise _not_ours(path) from error
    except OSError as error:
        if error.errno in (errno.EFBIG, NO_FILE):
            raise _not_ours(path) from error
        raise as_destination_error(error, f"library {path.parent}") from error


def _not_ours(path: Path) -> DestinationError:
    return DestinationError(
        f"{path} is not what a virtual library has there",
        hint="put back the file that was there; docs/tape-layout.md shows what it holds",
        subject=str(path),
    )


def _write_about(path: Path, drives: int, slots: int, cartridge_bytes: int) -> None:
    about = _About(drives=drives, slots=slots, cartridge_bytes=cartridge_bytes)
    replace_file(path / "library.json", about.model_dump_json(indent=1).encode())


def _address(text: str) -> Address:
    kind, number = text.split(" ")
    return Address("slot" if kind == "slot" else "drive", int(number))


def _as_elements(places: _Elements) -> list[Element]:
    return [
        Element(_address(key), barcode, _address(places.homes[key]) if key in places.homes else None)
        for key, barcode in places.elements.items()
    ]


def _write_elements(root: Path, elements: Sequence[Element]) -> None:
    places = _Elements(
        elements={str(e.address): e.barcode for e in elements if e.address.kind != "port"},
        homes={str(e.address): str(e.home) for e in elements if e.home},
    )
    remove_dead_drafts(root)
    replace_file(root / "elements.json", places.model_dump_json(indent=1).encode())
