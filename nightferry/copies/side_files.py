"""An image's index and chunk table: the catalog's, else those that stand beside a copy of it.

What a copy says of itself is held against its image: what a rebuild takes, a check must not find less of.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from nightferry.copies.encode import image_of
from nightferry.destination.base import Destination, Found
from nightferry.errors import (
    CatalogError,
    ConfigError,
    CopyMissing,
    IntegrityError,
    MediumDamaged,
    NightferryError,
)
from nightferry.image.guard import require_proved
from nightferry.model.catalog_records import RebuildRecord
from nightferry.model.names import parse_image_name
from nightferry.model.records import CopyRecord, ImageRecord
from nightferry.model.text import safe
from nightferry.plan.restore_order import STAGING, choose_copies
from nightferry.progress import Cancel
from nightferry.site.destinations import destination_of, offsite, speeds
from nightferry.site.nodes import working_on
from nightferry.site.opened import OpenSite, known_mark
from nightferry.staging.adoption import read_index
from nightferry.staging.images import back_group_of, files_of, is_staged
from nightferry.transfer.digest import digest_of, image_digest, table_bytes
from nightferry.transfer.spool import Content, whole

log = logging.getLogger(__name__)


_OF_THE_BYTES = ("digest", "size_bytes", "index_offset", "index_bytes", "index_digest")
"""What a record says of the image's bytes. The rest may differ: one that was made again from the data knows less."""


@dataclass(frozen=True, slots=True)
class SideFiles:
    """Proved by the image's digest: what they judge must not be judged by damaged ones."""

    index: Content
    chunks: bytes


def side_files(site: OpenSite, image: ImageRecord) -> SideFiles:
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
        return _of_catalog(site, image)
    except CatalogError as error:
        missing = error
    if site.catalog.expired(image.image):
        raise CopyMissing(
            f"image {image.image} has expired, and its index with it",
            hint="`nightferry images` lists the images",
            subject=image.image,
        )
    tried = []
    for place, found in _elsewhere(site, image):
        if isinstance(found, SideFiles) and image_digest(found.chunks, found.index) == image.digest:
            if is_foreign(site, image):
                require_proved(found.index, "index", f"the index of {image.image} at {place}", site.cancel)
            log.warning("%s; reading them from %s", missing.message, place)
            _keep(site, image, found)
            return found
        why = "they differ from the record" if isinstance(found, SideFiles) else found.message
        tried.append(f"{place}: {why}")
    raise CatalogError(
        f"{missing.message}" + "".join(f"; {each}" for each in tried),
        hint=f"`nightferry copies {image.image}` shows where else they may be",
        subject=image.image,
    ) from missing


def proven_chunks(site: OpenSite, image: ImageRecord) -> bytes:
    """The image's chunk table; see ``side_files``."""
    return side_files(site, image).chunks


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


def is_foreign(site: OpenSite, image: ImageRecord) -> bool:
    """Whether others may have made the image's record, and so its index: a rebuild took it from a destination. What
    this catalog recorded itself is proved by its digest."""
    catalog = site.catalog
    rebuilt = [catalog.latest_event(RebuildRecord, record.subject) for record in catalog.all(RebuildRecord)]
    last = max((event.sequence for event in rebuilt if event is not None), default=0)
    return catalog.place_in_log(image.image) < last


def _of_catalog(site: OpenSite, image: ImageRecord) -> SideFiles:
    """Raises:
    CatalogError: they are not there, or not what was recorded.
    """
    found = SideFiles(site.catalog.index(image.image), site.catalog.chunks(image.image))
    if image_digest(found.chunks, found.index) != image.digest:
        raise CatalogError(
            f"the catalog's index and chunk table of {image.image} differ from the record",
            subject=image.image,
        )
    return found


def _elsewhere(site: OpenSite, image: ImageRecord) -> Iterator[tuple[str, SideFiles | NightferryError]]:
    """What each place says, the nearest first."""
    names = {d.name for d in site.file.destinations}
    copies = [copy for copy in site.catalog.copies(image.image) if copy.destination in names]
    staged = is_staged(site, image)
    for place in choose_copies(image, copies, staged, speeds(site), wanted_bytes=0, offsite=offsite(site)):
        try:
            if place.copy is None:
                yield STAGING, _staged(site, image)
            else:
                destination = destination_of(site, place.source)
                index, chunks = side_files_of(destination, place.copy.location, image, site.cancel)
                yield place.source, SideFiles(index, whole(chunks))
        except NightferryError as error:
            yield place.source, error
        except OSError as error:
            yield place.source, ConfigError(f"{error.filename} cannot be read: {error.strerror}")


def _staged(site: OpenSite, image: ImageRecord) -> SideFiles:
    files = files_of(site, image)
    with working_on(site, back_group=back_group_of(site, image), cancel=site.cancel):
        chunks = files.read(".chunks", table_bytes(image.size_bytes))
        return SideFiles(read_index(files, chunks), chunks)


def _keep(site: OpenSite, image: ImageRecord, found: SideFiles) -> None:
    """Looking needs no right to write: who may not keeps them for this once."""
    try:
        site.catalog.keep_index(image.image, found.index, found.chunks)
    except CatalogError as error:
        log.info("the index of %s is not kept: %s", image.image, error)


class NotDescribed(IntegrityError):
    """A copy whose data may be right, and that no rebuild would take as it is."""

    def __init__(self, copy: CopyRecord, why: Exception) -> None:
        super().__init__(
            f"the copy of {copy.image} at {copy.destination} does not describe itself: {why}",
            hint=f"`nightferry copy {copy.image} --to {copy.destination}` writes what is wrong again",
            subject=copy.image,
        )


def record_in(found: Found) -> ImageRecord:
    """The image's record as it stands beside a copy.

    Raises:
        ConfigError: the copy is not called as an image.
        IntegrityError: it is not a record of this image.
    """
    name = parse_image_name(found.image)
    try:
        said = image_of(found.meta)
    except ValidationError as error:
        wrong = error.errors()[0]
        where = ".".join(str(part) for part in wrong["loc"])
        raise IntegrityError(
            f"its record cannot be read: {safe(where)}: {wrong['msg'].lower()}",
            hint="read it with the release that wrote it, or a newer one",
        ) from error
    if (said.run, said.group, said.store, said.level) != (name.run, name.group, name.store, name.level):
        raise IntegrityError("its record does not match its name")
    if said.image != found.image:
        raise IntegrityError(f"its record belongs to {safe(said.image)}")
    return said


def require_side_files(found: Found, image: ImageRecord, index: Content, chunks: Content) -> None:
    """Raises:
    IntegrityError: index and chunk table beside a copy are not the image's.
    """
    if image_digest(chunks, index) != image.digest:
        wrong = "chunks" if digest_of(index) == image.index_digest else "index"
        raise IntegrityError(f"the side file {wrong} of {found.image} differs from its record")


def require_described(site: OpenSite, copy: CopyRecord, cancel: Cancel) -> None:
    """Whether a copy could be taken into a catalog that knows nothing of it: all that describes it is there, and is
    this image's, this copy's and this site's.

    Raises:
        NotDescribed: it could not.
        DestinationError: it cannot be looked at.
    """
    image = site.catalog.image(copy.image)
    try:
        destination = destination_of(site, copy.destination)
        # In this order no cartridge is mounted twice: that of the last trailer is in the drive.
        index, chunks = side_files_of(destination, copy.location, image, cancel)
        found = destination.describe(copy.location)
        if found.note:
            raise IntegrityError(found.note)
        mark = known_mark(site.catalog, site.file.site.name)
        if found.site is not None and mark is not None and found.site.id != mark.id:
            raise IntegrityError(f"it belongs to {found.site}")
        if (found.image, found.location, found.digest) != (copy.image, copy.location, image.digest):
            raise IntegrityError(
                f"it claims to be attempt {found.epoch} of {safe(found.image)}, "
                f"digest {safe(found.digest[:16])}, but another one was recorded"
            )
        said = record_in(found)
        for name in _OF_THE_BYTES:
            if getattr(said, name) != getattr(image, name):
                raise IntegrityError(f"its record has another {name} than the catalog")
        require_side_files(found, image, index, chunks)
    except (IntegrityError, MediumDamaged) as error:
        raise NotDescribed(copy, error) from error
