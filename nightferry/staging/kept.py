"""Which images of a run are kept, and which must be made again."""

from __future__ import annotations

from nightferry.model.records import ImageRecord, RunRecord
from nightferry.site.opened import OpenSite
from nightferry.staging.images import files_of, is_staged


def may_come_whole(opened: OpenSite, image: ImageRecord) -> bool:
    """Whether another try is worth it: the image is not whole, nobody accepted that, and it has no copy yet."""
    return (
        image.state != "whole"
        and not opened.catalog.all_copies(image.image)
        and not opened.catalog.accepted(image)
    )


def is_kept(opened: OpenSite, image: ImageRecord) -> bool:
    """Whether a recorded image need not be made again: it lies on staging, or a sound copy of it exists.

    An image that has a copy keeps its name for good: made again it would be another one, and its copies
    wrong.
    """
    return is_there(opened, image) or any(
        copy.state in ("whole", "verified") for copy in opened.catalog.copies(image.image)
    )


def is_there(opened: OpenSite, image: ImageRecord) -> bool:
    """Whether a recorded image still lies on staging with its recorded size; a freed one counts as done."""
    if opened.catalog.freed(image.image):
        return True
    if not is_staged(opened, image):
        return False
    files = files_of(opened, image)
    return files.size_bytes() == image.size_bytes and files.size_bytes(".chunks") is not None


def lost_images(opened: OpenSite, run: RunRecord) -> list[ImageRecord]:
    """Images of the run that must be made again: lost or found damaged on staging, and without a copy."""
    return [image for image in opened.catalog.images(run=run.run) if not is_kept(opened, image)]
