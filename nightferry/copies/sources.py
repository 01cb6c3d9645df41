"""Where an image can be read from now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nightferry.copies.encode import open_copy
from nightferry.copies.side_files import proven_chunks
from nightferry.errors import CopyMissing
from nightferry.image.chunks import CheckedReader
from nightferry.model.names import choose
from nightferry.model.records import ImageRecord
from nightferry.plan.restore_order import STAGING, Choice, choose_copies
from nightferry.site.nodes import require_disk
from nightferry.site.opened import OpenSite
from nightferry.site.speeds import offsite, speeds
from nightferry.staging.images import back_group_of, files_of, is_staged, seems_staged
from nightferry.transfer.base import ByteReader


def sources_of(
    opened: OpenSite, image: ImageRecord, only: str | None = None, *, wanted_bytes: int | None = None
) -> tuple[Choice, ...]:
    """Where the image can be read from, the nearest first; not where the site file knows no way to any more.

    Raises:
        ConfigError: ``only`` is not the name of a destination.
        CopyMissing: there is no readable copy.
        NotOwner: only staging has it, and that is on another node.
    """
    staged = is_staged(opened, image)
    names = [d.name for d in opened.site.destinations]
    copies = [c for c in opened.catalog.copies(image.image) if c.destination in names]
    if only == STAGING:
        copies = []
    elif only is not None:
        if only not in names:
            raise choose(only, [STAGING, *names], "source of copies")
        copies = [c for c in copies if c.destination == only]
        staged = False
    ordered = tuple(
        choose_copies(
            image, copies, staged, speeds(opened), wanted_bytes=wanted_bytes, offsite=offsite(opened)
        )
    )
    if not ordered and only in (None, STAGING) and seems_staged(opened, image):
        back_group = back_group_of(opened, image)
        require_disk(opened, back_group, f"reading {image.image} from the disk of {back_group}")
    if not ordered:
        raise nowhere(opened, image, only)
    return ordered


def nowhere(opened: OpenSite, image: ImageRecord, only: str | None) -> CopyMissing:
    """What became of the copies that were asked for."""
    states = [f"{c.destination} {c.state}" for c in opened.catalog.copies(image.image)]
    if only is not None:
        states = [state for state in states if state.startswith(f"{only} ")]
        return CopyMissing(
            f"no readable copy of image {image.image} at {only}" + "".join(f": {state}" for state in states),
            hint=f"leave --copy out to read another; `nightferry copies {image.image}` lists all",
            subject=image.image,
        )
    return CopyMissing(
        f"no readable copy of image {image.image}: {', '.join(states) or 'none was ever made'}",
        hint=f"`nightferry copies {image.image}` shows why; `nightferry images` lists what there is",
        subject=image.image,
    )


@contextmanager
def open_image_from(opened: OpenSite, image: ImageRecord, place: Choice) -> Iterator[ByteReader]:
    """The image's bytes at a place; each chunk is proved against the chunk table before it is handed out."""
    chunks = proven_chunks(opened, image)
    if place.copy is None:
        back_group = back_group_of(opened, image)
        with (
            opened.leases(back_group).read(f"restore of {image.image}", warn=opened.warn),
            files_of(opened, image).reader() as reader,
        ):
            yield CheckedReader(reader, chunks)
    else:
        with open_copy(opened, place.copy) as reader:
            yield CheckedReader(reader, chunks)
