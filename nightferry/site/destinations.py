"""Opening a site's destinations, each of its kind."""

from __future__ import annotations

import threading
from functools import partial
from importlib import resources
from pathlib import Path
from typing import assert_never

from nightferry.destination.base import Destination
from nightferry.errors import Unavailable
from nightferry.model.destinations import Destination as DestinationSettings
from nightferry.model.destinations import FsspecSettings, S3Settings, TapeSettings, VirtualLibrary
from nightferry.model.records import CopyRecord
from nightferry.model.redact import redacted
from nightferry.plan.restore_order import ARCHIVE_SPEED, FOLDER_SPEED, OBJECT_SPEED, TAPE_SPEED, Speed
from nightferry.site.opened import OpenSite
from nightferry.site.register import CatalogRegister

DEFAULT_STREAMS = 4
"""Images written to a folder at once when the site file does not say."""


class _Open:
    """The destinations that are open, for all threads of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_name: dict[str, Destination] = {}


def destination_of(opened: OpenSite, name: str) -> Destination:
    """The opened destination; the same object for all threads of this process."""
    known = opened.part(_Open)
    with known.lock:
        if name not in known.by_name:
            known.by_name[name] = open_destination(opened, opened.site.destination(name))
            opened.on_close(partial(close_destination, opened, name))
        return known.by_name[name]


def close_destination(opened: OpenSite, name: str) -> None:
    """Unloads and unlocks a destination; it is opened again when next asked for. One that is closed is fine."""
    known = opened.part(_Open)
    with known.lock:
        destination = known.by_name.pop(name, None)
    if destination is not None:
        destination.close()


def open_destination(opened: OpenSite, settings: DestinationSettings) -> Destination:
    """A destination, ready for work; nothing is loaded or made before it is needed.

    Raises:
        DestinationError: it is not there.
    """
    match settings:
        case TapeSettings():
            from nightferry.catalog.drives import DriveLeases
            from nightferry.destination.tape.library.destination import TapeDestination
            from nightferry.destination.tape.library.pool import Pool
            from nightferry.site.libraries import Keepers, open_library

            library = settings.library
            if isinstance(library, VirtualLibrary):
                _require_known(opened, settings.name, library.path / "library.json")
            pool = Pool(
                settings.pool.name,
                settings.pool.barcodes,
                settings.pool.autolabel,
                settings.pool.wait_for_media,
                settings.pool.cleaning,
            )

            def tell(text: str) -> None:
                opened.warn(text, settings.name)

            leases = None
            if opened.site.catalog_path is None:
                leases = DriveLeases(opened.catalog, say=tell, clock=opened.clock)
            keepers = Keepers(_shared_locks(opened), leases, opened.site.cluster.kind == "local")
            return TapeDestination(
                settings.name,
                open_library(library, keepers, opened.clock),
                pool,
                CatalogRegister(opened.catalog, settings.name, leases),
                clock=opened.clock,
                cancel=opened.cancel,
                tell=tell,
                buffer_bytes=settings.buffer_bytes,
                pages=_pages(opened),
            )
        case FsspecSettings():
            from nightferry.destination.fsspec import FsspecDestination

            return FsspecDestination(
                settings.name,
                settings.url,
                lanes=settings.streams or DEFAULT_STREAMS,
                options=settings.options,
                holds_copies=_holds_copies(opened, settings.name),
                mark=opened.mark,
            )
        case S3Settings():
            from nightferry.destination.s3.destination import open_s3

            lanes = settings.streams or DEFAULT_STREAMS
            return open_s3(settings, clock=opened.clock, lanes=lanes, mark=opened.mark)
        case _:
            assert_never(settings)


def _require_known(opened: OpenSite, name: str, made_once: Path) -> None:
    """What a destination's first copy made must still be there; else a folder without its disk would be
    filled, and whole copies taken for damaged ones.

    Raises:
        Unavailable: the destination holds copies, and ``made_once`` is not there.
    """
    if not made_once.exists() and _holds_copies(opened, name):
        raise Unavailable(
            f"destination {name} holds copies, and {made_once} is not there",
            hint="mount its disk; the next run makes the missing copies",
            subject=name,
        )


def _holds_copies(opened: OpenSite, name: str) -> bool:
    """Whether copies at a destination are on record that may be there, or the records are lost."""
    held = ("whole", "verified", "suspect", "damaged")
    return opened.is_lost or any(
        copy.destination == name and copy.state in held for copy in opened.catalog.all(CopyRecord)
    )


def _shared_locks(opened: OpenSite) -> Path | None:
    """A folder that every node of the site sees, for locks; None when the catalog is not a folder."""
    path = opened.site.catalog_path
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


def _pages(opened: OpenSite) -> dict[str, bytes]:
    """What a cartridge that is found has to say of itself: how to read it, and what the site was."""
    return {"recovery.md": recovery_page(), "site.toml": redacted(opened.loaded.text).encode()}


def recovery_page() -> bytes:
    """How to read a cartridge without nightferry; it goes onto each."""
    return (resources.files("nightferry.destination.tape") / "recovery.md").read_bytes()
