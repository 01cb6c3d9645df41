"""Tape libraries as the site file names them, opened."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from nightferry.clock import Clock
from nightferry.destination.tape.drives.lease import Leases
from nightferry.destination.tape.library.changer import Library
from nightferry.errors import NotInThisRelease
from nightferry.model.destinations import IscsiLibrary, NdmpLibrary, ScsiLibrary, VirtualLibrary
from nightferry.model.destinations import Library as LibrarySettings
from nightferry.model.secrets import resolve_secret
from nightferry.site.state import make_private_folder, state_home

if TYPE_CHECKING:
    from nightferry.destination.tape.library.scsi_open import Options

HOST_LOCKS = Path("/run/nightferry-locks")
"""Where root's processes on this host find each other's locks, whatever site they work for. Not in /run/lock, where
everyone may write: whoever made a lock's file first could keep us from a drive."""


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
        case VirtualLibrary():
            from nightferry.destination.tape.library.virtual import open_virtual

            return open_virtual(
                settings.path, settings.drives, settings.slots, settings.cartridge_bytes, settings.ports
            )
        case IscsiLibrary():
            from nightferry.destination.tape.library.scsi_open import open_iscsi
            from nightferry.scsi.iscsi import Portal

            password = resolve_secret(settings.password).get_secret_value() if settings.password else ""
            portal = Portal(settings.portal, settings.target, settings.user, password, settings.initiator)
            return open_iscsi(portal, settings.drives, _options(settings, keepers), clock)
        case ScsiLibrary():
            from nightferry.destination.tape.library.scsi_open import open_scsi

            return open_scsi(settings.changer, settings.drives, _options(settings, keepers), clock)
        case NdmpLibrary():
            raise NotInThisRelease(f"libraries of kind {settings.kind!r} are not in this release")
        case _:
            assert_never(settings)


def _options(settings: IscsiLibrary | ScsiLibrary, keepers: Keepers) -> Options:
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
