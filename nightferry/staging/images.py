"""Where an image is staged, whether it still is, and whether it must be made again."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from nightferry.cluster.reader_agent import registered
from nightferry.errors import GroupStopping
from nightferry.model.records import ImageRecord, RunRecord
from nightferry.site.nodes import had_disk, has_disk
from nightferry.site.opened import OpenSite
from nightferry.staging.staged_files import StagedFiles


def back_group_of(site: OpenSite, image: ImageRecord) -> str:
    """The BACK group that the image was staged on.

    Its run knows, also when its storage group has left the site file or went to another BACK group; when
    that BACK group has another name by now, the storage group does.
    """
    run = site.catalog.latest(RunRecord, image.run)
    group = next((g for g in site.file.groups if g.name == image.group), None)
    if run is not None and (group is None or any(b.name == run.back_group for b in site.file.back_groups)):
        return run.back_group
    if group is not None:
        return group.back_group
    # A BACK group that has another name now, and still the same disk.
    return next((b.name for b in site.file.back_groups if (b.path / image.path).exists()), "")


def files_of(site: OpenSite, image: ImageRecord) -> StagedFiles:
    """The image's files on staging, whether or not they are still there.

    Raises:
        ConfigError: its BACK group has left the site file.
    """
    disk = site.file.back_group(back_group_of(site, image))
    return StagedFiles(Path(disk.path), image.image, leased=partial(registered, [disk.name]))


def staged_path(site: OpenSite, image: ImageRecord) -> Path:
    """Where the image lies on staging (whether or not it is still there), for people.

    Raises:
        ConfigError: its BACK group has left the site file.
    """
    return files_of(site, image).tar


def is_staged(site: OpenSite, image: ImageRecord) -> bool:
    """Whether the image can be read from staging, on this node.

    Raises:
        GroupStopping: the cluster takes the disk away just now, so nobody can say.
    """
    back_group = back_group_of(site, image)
    if site.catalog.freed(image.image) or back_group not in {b.name for b in site.file.back_groups}:
        return False
    try:
        return files_of(site, image).size_bytes() is not None
    except GroupStopping:
        if has_disk(site, back_group):
            raise
        return False


def seems_staged(site: OpenSite, image: ImageRecord) -> bool:
    """Whether staging has the image, for lists; of a disk that is on another node the catalog tells."""
    if site.catalog.freed(image.image):
        return False
    if is_staged(site, image):
        return True
    back_group = back_group_of(site, image)
    known = any(b.name == back_group for b in site.file.back_groups)
    return known and not had_disk(site, back_group) and not site.catalog.lost_on_staging(image)


def may_come_whole(site: OpenSite, image: ImageRecord) -> bool:
    """Whether another try is worth it: the image is not whole, nobody accepted that, and it has no copy yet."""
    return (
        image.state != "whole"
        and not site.catalog.all_copies(image.image)
        and not site.catalog.accepted(image)
    )


def is_kept(site: OpenSite, image: ImageRecord) -> bool:
    """Whether a recorded image need not be made again: it lies on staging, or a sound copy of it exists.

    An image that has a copy keeps its name for good: made again it would be another one, and its copies
    wrong.
    """
    return is_there(site, image) or any(
        copy.state in ("whole", "verified") for copy in site.catalog.copies(image.image)
    )


def is_there(site: OpenSite, image: ImageRecord) -> bool:
    """Whether a recorded image still lies on staging with its recorded size; a freed one counts as done."""
    if site.catalog.freed(image.image):
        return True
    if not is_staged(site, image):
        return False
    files = files_of(site, image)
    return files.size_bytes() == image.size_bytes and files.size_bytes(".chunks") is not None


def lost_images(site: OpenSite, run: RunRecord) -> list[ImageRecord]:
    """Images of the run that must be made again: lost or found damaged on staging, and without a copy."""
    return [image for image in site.catalog.images(run=run.run) if not is_kept(site, image)]
