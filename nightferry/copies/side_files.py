"""An image's index and chunk table: the catalog's, else those that stand beside a copy of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nightferry.destination.base import Destination
from nightferry.errors import CatalogError, ConfigError, CopyMissing, NightferryError
from nightferry.image.guard import require_proved
from nightferry.model.catalog_records import RebuildRecord
from nightferry.model.records import ImageRecord
from nightferry.plan.restore_order import STAGING, choose_copies
from nightferry.progress import Cancel
from nightferry.site.destinations import destination_of, offsite, speeds
from nightferry.site.nodes import working_on
from nightferry.site.opened import OpenSite
from nightferry.staging.adoption import read_index
from nightferry.staging.images import back_group_of, files_of, is_staged
from nightferry.transfer.digest import image_digest, table_bytes
from nightferry.transfer.spool import Content, whole

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SideFiles:
    """Proved by the image's digest: what they judge must not be judged by damaged ones."""

    index: Content
    chunks: bytes


def side_files(opened: OpenSite, image: ImageRecord) -> SideFiles:
    """The image's side files.

    A catalog that lacks them, or has damaged ones, gets them from staging or from the nearest copy and keeps
    them: one that was made again from another destination knows of a copy and has only read of it.

    What others may have made is read in a process apart before it is used: see ``image.guard``.

    Raises:
        CopyMissing: the image has expired.
        IntegrityError: its index cannot be read within the format's limits.
        CatalogError: neither the catalog nor any place that can be read has them.
    """
    try:
        return _of_catalog(opened, image)
    except CatalogError as error:
        missing = error
    if opened.catalog.expired(image.image):
        raise CopyMissing(
            f"image {image.image} has expired, and its index with it",
            hint="`nightferry images` lists what there is",
            subject=image.image,
        )
    tried = []
    for place, found in _elsewhere(opened, image):
        if isinstance(found, SideFiles) and image_digest(found.chunks, found.index) == image.digest:
            if _is_foreign(opened, image):
                require_proved(found.index, "index", f"the index of {image.image} at {place}", opened.cancel)
            log.warning("%s; reading them from %s", missing.message, place)
            _keep(opened, image, found)
            return found
        why = "they differ from the record" if isinstance(found, SideFiles) else found.message
        tried.append(f"{place}: {why}")
    raise CatalogError(
        f"{missing.message}" + "".join(f"; {each}" for each in tried),
        hint=f"`nightferry copies {image.image}` shows where else they may be",
        subject=image.image,
    ) from missing


def proven_chunks(opened: OpenSite, image: ImageRecord) -> bytes:
    """The image's chunk table; see ``side_files``."""
    return side_files(opened, image).chunks


def side_files_of(
    destination: Destination, location: Mapping[str, Any], image: ImageRecord, cancel: Cancel
) -> tuple[Content, Content]:
    """Index and chunk table beside a copy; nothing longer than the image's own is read.

    Raises:
        MediumDamaged: they are not there, cannot be read, or are longer.
    """
    most_bytes = table_bytes(image.size_bytes)
    chunks = destination.side_file(location, "chunks", most_bytes=most_bytes, cancel=cancel)
    most_bytes = image.index_bytes
    return destination.side_file(location, "index", most_bytes=most_bytes, cancel=cancel), chunks


def _is_foreign(opened: OpenSite, image: ImageRecord) -> bool:
    """Whether others may have made the image's record, and so its index: a rebuild took it from a destination. What
    this catalog recorded itself is proved by its digest."""
    catalog = opened.catalog
    rebuilt = [catalog.latest_event(RebuildRecord, record.subject) for record in catalog.all(RebuildRecord)]
    last = max((event.sequence for event in rebuilt if event is not None), default=0)
    return catalog.place_in_log(image.image) < last


def _of_catalog(opened: OpenSite, image: ImageRecord) -> SideFiles:
    """Raises:
    CatalogError: they are not there, or not what was recorded.
    """
    found = SideFiles(opened.catalog.index(image.image), opened.catalog.chunks(image.image))
    if image_digest(found.chunks, found.index) != image.digest:
        raise CatalogError(
            f"the catalog's index and chunk table of {image.image} differ from the record",
            subject=image.image,
        )
    return found


def _elsewhere(opened: OpenSite, image: ImageRecord) -> Iterator[tuple[str, SideFiles | NightferryError]]:
    """What each place says, the nearest first."""
    names = {d.name for d in opened.site.destinations}
    copies = [copy for copy in opened.catalog.copies(image.image) if copy.destination in names]
    staged = is_staged(opened, image)
    for place in choose_copies(
        image, copies, staged, speeds(opened), wanted_bytes=0, offsite=offsite(opened)
    ):
        try:
            if place.copy is None:
                yield STAGING, _staged(opened, image)
            else:
                destination = destination_of(opened, place.source)
                index, chunks = side_files_of(destination, place.copy.location, image, opened.cancel)
                yield place.source, SideFiles(index, whole(chunks))
        except NightferryError as error:
            yield place.source, error
        except OSError as error:
            yield place.source, ConfigError(f"{error.filename} cannot be read: {error.strerror}")


def _staged(opened: OpenSite, image: ImageRecord) -> SideFiles:
    files = files_of(opened, image)
    with working_on(opened, back_group=back_group_of(opened, image), cancel=opened.cancel):
        chunks = files.read(".chunks", table_bytes(image.size_bytes))
        return SideFiles(read_index(files, chunks), chunks)


def _keep(opened: OpenSite, image: ImageRecord, found: SideFiles) -> None:
    """Looking needs no right to write: who may not keeps them for this once."""
    try:
        opened.catalog.keep_index(image.image, found.index, found.chunks)
    except CatalogError as error:
        log.info("the index of %s is not kept: %s", image.image, error)
