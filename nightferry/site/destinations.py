"""Opening a site's destinations and tape libraries, each of its kind; what a restore can expect of each."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Literal, assert_never

from nightferry.catalog.query import Catalog
from nightferry.claims.drives import DriveLeases
from nightferry.clock import Clock
from nightferry.destination.base import Destination
from nightferry.destination.tape.drives.lease import Leases
from nightferry.destination.tape.library.changer import Library
from nightferry.errors import BusyError, NotInThisRelease, Unavailable
from nightferry.model.destinations import (
    DestinationSettings,
    FsspecSettings,
    IscsiLibrarySettings,
    LibrarySettings,
    NdmpLibrarySettings,
    S3Settings,
    ScsiLibrarySettings,
    TapeSettings,
    VirtualLibrarySettings,
)
from nightferry.model.records import CartridgeRecord, CopyRecord, DriveRecord
from nightferry.model.redact import redacted
from nightferry.model.secrets import resolve_secret
from nightferry.plan.restore_order import ARCHIVE_SPEED, FOLDER_SPEED, OBJECT_SPEED, TAPE_SPEED, Speed
from nightferry.site.opened import OpenSite
from nightferry.site.state import make_private_folder, state_home

if TYPE_CHECKING:
    from nightferry.destination.tape.library.scsi_open import Options

DEFAULT_STREAMS = 4
"""Images written to a folder at once when the site file does not say."""

HOST_LOCKS = Path("/run/nightferry-locks")
"""Where root's processes on this host find each other's locks, whatever site they work for. Not in /run/lock, where
everyone may write: whoever made a lock's file first could keep us from a drive."""


class _Open:
    """The destinations that are open, for all threads of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_name: dict[str, Destination] = {}


def destination_of(site: OpenSite, name: str) -> Destination:
    """The opened destination; the same object for all threads of this process."""
    known = site.part(_Open)
    with known.lock:
        if name not in known.by_name:
            known.by_name[name] = open_destination(site, site.file.destination(name))
            site.on_close(partial(close_destination, site, name))
        return known.by_name[name]


def close_destination(site: OpenSite, name: str) -> None:
    """Unloads and unlocks a destination; it is opened again when next asked for. One that is closed is fine."""
    known = site.part(_Open)
    with known.lock:
        destination = known.by_name.pop(name, None)
    if destination is not None:
        destination.close()


def open_destination(site: OpenSite, settings: DestinationSettings) -> Destination:
    """A destination, ready for work; nothing is loaded or made before it is needed.

    Raises:
        DestinationError: it is not there.
    """
    match settings:
        case TapeSettings():
            from nightferry.claims.drives import DriveLeases
            from nightferry.destination.tape.library.destination import TapeDestination
            from nightferry.destination.tape.library.pool import Pool
            from nightferry.site.destinations import Keepers, open_library

            library = settings.library
            if isinstance(library, VirtualLibrarySettings):
                _require_known(site, settings.name, library.path / "library.json")
            pool = Pool(
                settings.pool.name,
                settings.pool.barcodes,
                settings.pool.autolabel,
                settings.pool.wait_for_media,
                settings.pool.cleaning,
            )

            def tell(text: str) -> None:
                site.warn(text, settings.name)

            leases = None
            if site.file.catalog_path is None:
                leases = DriveLeases(site.catalog, say=tell, clock=site.clock, lease_s=site.lease_s)
            keepers = Keepers(_shared_locks(site), leases, site.file.cluster.kind == "local")
            return TapeDestination(
                settings.name,
                open_library(library, keepers, site.clock),
                pool,
                CatalogRegister(site.catalog, settings.name, leases),
                clock=site.clock,
                cancel=site.cancel,
                tell=tell,
                buffer_bytes=settings.buffer_bytes,
                pages=_pages(site),
            )
        case FsspecSettings():
            from nightferry.destination.fsspec import FsspecDestination

            return FsspecDestination(
                settings.name,
                settings.url,
                lanes=settings.streams or DEFAULT_STREAMS,
                options=settings.options,
                holds_copies=_holds_copies(site, settings.name),
                mark=site.mark,
            )
        case S3Settings():
            from nightferry.destination.s3.destination import open_s3

            lanes = settings.streams or DEFAULT_STREAMS
            return open_s3(settings, clock=site.clock, lanes=lanes, mark=site.mark)
        case _:
            assert_never(settings)


def _require_known(site: OpenSite, name: str, made_once: Path) -> None:
    """What a destination's first copy made must still be there; else a folder without its disk would be
    filled, and whole copies taken for damaged ones.

    Raises:
        Unavailable: the destination holds copies, and ``made_once`` is not there.
    """
    if not made_once.exists() and _holds_copies(site, name):
        raise Unavailable(
            f"destination {name} holds copies, and {made_once} is not there",
            hint="mount its disk; the next run makes the missing copies",
            subject=name,
        )


def _holds_copies(site: OpenSite, name: str) -> bool:
    """Whether copies at a destination are on record that may be there, or the records are lost."""
    held = ("whole", "verified", "suspect", "damaged")
    return site.is_lost or any(
        copy.destination == name and copy.state in held for copy in site.catalog.all(CopyRecord)
    )


def _shared_locks(site: OpenSite) -> Path | None:
    """A folder that every node of the site sees, for locks; None when the catalog is not a folder."""
    path = site.file.catalog_path
    return None if path is None else path / "locks"


def speed_of(settings: DestinationSettings) -> Speed:
    """What a destination of this kind can be expected to do."""
    match settings:
        case TapeSettings():
            return TAPE_SPEED
        case S3Settings():
            return ARCHIVE_SPEED if settings.archives else OBJECT_SPEED
        case FsspecSettings():
            return FOLDER_SPEED if settings.scheme == "file" else OBJECT_SPEED
        case _:
            assert_never(settings)


def _pages(site: OpenSite) -> dict[str, bytes]:
    """What a cartridge that is found has to say of itself: how to read it, and what the site was."""
    return {"recovery.md": recovery_page(), "site.toml": redacted(site.loaded.text).encode()}


def recovery_page() -> bytes:
    """How to read a cartridge without nightferry; it goes onto each."""
    return (resources.files("nightferry.destination.tape") / "recovery.md").read_bytes()


def speeds(site: OpenSite) -> dict[str, Speed]:
    """What each destination can be expected to do, to choose where to restore from."""
    return {d.name: speed_of(d) for d in site.file.destinations}


def offsite(site: OpenSite) -> dict[str, set[str]]:
    """Destination → barcodes of its cartridges that are in a vault."""
    found: dict[str, set[str]] = {}
    for record in site.catalog.all(CartridgeRecord):
        if record.state == "offsite":
            found.setdefault(record.destination, set()).add(record.barcode)
    return found


@dataclass(frozen=True, slots=True)
class Keepers:
    """What keeps the hosts of a site out of each other's way: locks in a folder that they share, or leases."""

    folder: Path | None
    leases: Leases | None = None
    one_host: bool = False
    """One machine plays every node."""


def open_library(settings: LibrarySettings, keepers: Keepers, clock: Clock) -> Library:
    """Opens a library.

    Args:
        settings: What the site file says of it.
        keepers: What keeps hosts of the site apart, where they share real drives.
        clock: Time.

    Raises:
        ConfigError: what is there is not what the site file says.
        DestinationError: it does not answer.
    """
    match settings:
        case VirtualLibrarySettings():
            from nightferry.destination.tape.library.virtual import open_virtual

            return open_virtual(
                settings.path, settings.drives, settings.slots, settings.cartridge_bytes, settings.ports
            )
        case IscsiLibrarySettings():
            from nightferry.destination.tape.library.scsi_open import open_iscsi
            from nightferry.scsi.iscsi import Portal

            password = resolve_secret(settings.password).get_secret_value() if settings.password else ""
            portal = Portal(settings.portal, settings.target, settings.user, password, settings.initiator)
            return open_iscsi(portal, settings.drives, _options(settings, keepers), clock)
        case ScsiLibrarySettings():
            from nightferry.destination.tape.library.scsi_open import open_scsi

            return open_scsi(settings.changer, settings.drives, _options(settings, keepers), clock)
        case NdmpLibrarySettings():
            raise NotInThisRelease(f"libraries of kind {settings.kind!r} are not in this release")
        case _:
            assert_never(settings)


def _options(settings: IscsiLibrarySettings | ScsiLibrarySettings, keepers: Keepers) -> Options:
    from nightferry.destination.tape.library.scsi_open import Options

    folders = (_host_locks(), keepers.folder)
    return Options(
        locks=tuple(folder for folder in folders if folder is not None),
        elements=settings.elements,
        cartridge_bytes=settings.cartridge_bytes,
        reserve_bytes=settings.early_warning_reserve,
        leases=keepers.leases,
        one_host=keepers.one_host,
    )


def _host_locks() -> Path:
    """Root's folder of locks; for other users, to whom /run is closed, one in their own state folder."""
    return HOST_LOCKS if os.geteuid() == 0 else make_private_folder(state_home()) / "locks"


class CatalogRegister:
    """Implements ``destination.base.Register`` for one destination.

    Args:
        catalog: The catalog.
        destination: The destination's name.
        leases: Its drives' leases, if there are any: whoever lost a drive records nothing more of cartridges.
    """

    def __init__(self, catalog: Catalog, destination: str, leases: DriveLeases | None = None) -> None:
        self._catalog = catalog
        self._destination = destination
        self._permit = None if leases is None else leases.permit

    def cartridge(self, barcode: str) -> CartridgeRecord | None:
        self._catalog.refresh()
        return self._catalog.latest(CartridgeRecord, f"{self._destination}/{barcode}")

    def cartridges(self) -> list[CartridgeRecord]:
        self._catalog.refresh()
        return self._catalog.cartridges(self._destination)

    def record(self, cartridge: CartridgeRecord, phase: Literal["intent", "result"] = "result") -> None:
        self._catalog.append(cartridge, phase, permit=self._permit)

    def record_after(self, known: CartridgeRecord, cartridge: CartridgeRecord) -> bool:
        self._catalog.refresh()
        newest = self._catalog.latest_event(CartridgeRecord, cartridge.subject)
        if newest is None or self._catalog.latest(CartridgeRecord, cartridge.subject) != known:
            return False
        try:
            self._catalog.append(cartridge, expect=newest.sequence)
        except BusyError:
            return False
        return True

    def record_drive(self, drive: DriveRecord) -> None:
        self._catalog.append(drive)

    def live_images(self, barcode: str, given_up: Collection[str] = ()) -> list[str]:
        return self._catalog.live_images(self._destination, barcode, given_up)
