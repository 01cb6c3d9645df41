"""Where an image is staged, and whether it still is."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from nightferry.cluster.reader_agent import registered
from nightferry.errors import GroupStopping
from nightferry.model.records import ImageRecord, RunRecord
from nightferry.site.nodes import had_disk, has_disk
from nightferry.site.opened import OpenSite
from nightferry.staging.staged_files import StagedFiles


def back_group_of(opened: OpenSite, image: ImageRecord) -> str:
    """The BACK group that the image was staged on.

    Its run knows, also when its storage group has left the site file or went to another BACK group; when
    that BACK group has another name by now, the storage group does.
    """
    run = opened.catalog.latest(RunRecord, image.run)
    group = next((g for g in opened.site.groups if g.name == image.group), None)
    if run is not None and (group is None or any(b.name == run.back_group for b in opened.site.back_groups)):
        return run.back_group
    if group is not None:
        return group.back_group
    # A BACK group that has another name now, and still the same disk.
    return next((b.name for b in opened.site.back_groups if (b.path / image.path).exists()), "")


def files_of(opened: OpenSite, image: ImageRecord) -> StagedFiles:
    """The image's files on staging, whether or not they are still there.

    Raises:
        ConfigError: its BACK group has left the site file.
    """
    disk = opened.site.back_group(back_group_of(opened, image))
    return StagedFiles(Path(disk.path), image.image, leased=partial(registered, [disk.name]))


def staged_path(opened: OpenSite, image: ImageRecord) -> Path:
    """Where the image lies on staging (whether or not it is still there), for people.

    Raises:
        ConfigError: its BACK group has left the site file.
    """
    return files_of(opened, image).tar


def is_staged(opened: OpenSite, image: ImageRecord) -> bool:
    """Whether the image can be read from staging, on this node.

    Raises:
        GroupStopping: the cluster takes the disk away just now, so nobody can say.
    """
    back_group = back_group_of(opened, image)
    if opened.catalog.freed(image.image) or back_group not in {b.name for b in opened.site.back_groups}:
        return False
    try:
        return files_of(opened, image).size_bytes() is not None
    except GroupStopping:
        if has_disk(opened, back_group):
            raise
        return False


def seems_staged(opened: OpenSite, image: ImageRecord) -> bool:
    """Whether staging has the image, for lists; of a disk that is on another node the catalog tells."""
    if opened.catalog.freed(image.image):
        return False
    if is_staged(opened, image):
        return True
    back_group = back_group_of(opened, image)
    known = any(b.name == back_group for b in opened.site.back_groups)
    return known and not had_disk(opened, back_group) and not opened.catalog.lost_on_staging(image)
