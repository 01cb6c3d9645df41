"""What a copy says of itself, held against its image: what a rebuild takes, a check must not find less of."""

from __future__ import annotations

from pydantic import ValidationError

from nightferry.copies.encode import image_of
from nightferry.copies.side_files import side_files_of
from nightferry.destination.base import Found
from nightferry.errors import IntegrityError, MediumDamaged
from nightferry.model.names import parse_image_name
from nightferry.model.records import CopyRecord, ImageRecord
from nightferry.model.text import safe
from nightferry.progress import Cancel
from nightferry.site.destinations import destination_of
from nightferry.site.opened import OpenSite
from nightferry.site.whose import known_mark
from nightferry.transfer.digest import digest_of, image_digest
from nightferry.transfer.spool import Content

_OF_THE_BYTES = ("digest", "size_bytes", "index_offset", "index_bytes", "index_digest")
"""What a record says of the image's bytes. The rest may differ: one that was made again from the data knows less."""


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


def require_described(opened: OpenSite, copy: CopyRecord, cancel: Cancel) -> None:
    """Whether a copy could be taken into a catalog that knows nothing of it: all that describes it is there, and is
    this image's, this copy's and this site's.

    Raises:
        NotDescribed: it could not.
        DestinationError: it cannot be looked at.
    """
    image = opened.catalog.image(copy.image)
    try:
        destination = destination_of(opened, copy.destination)
        # In this order no cartridge is mounted twice: that of the last trailer is in the drive.
        index, chunks = side_files_of(destination, copy.location, image, cancel)
        found = destination.describe(copy.location)
        if found.note:
            raise IntegrityError(found.note)
        mark = known_mark(opened.catalog, opened.site.site.name)
        if found.site is not None and mark is not None and found.site.id != mark.id:
            raise IntegrityError(f"it is of {found.site}")
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
