"""Room on staging: what may be freed, and giving it back."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from nightferry.model.records import FreedRecord, ImageRecord
from nightferry.ops.opened import OpenSite
from nightferry.ops.owed import policy_of
from nightferry.ops.ownership import confirm
from nightferry.plan.staging import freeable
from nightferry.transfer.durable import durable_rename

DAMAGED = ".damaged"
"""What follows the name of a staged image that was found damaged."""


def free_room(opened: OpenSite, back_group: str) -> int:
    """Bytes that may be written to the disk above ``keep_free``; negative when that is touched already."""
    stat = os.statvfs(opened.site.back_group(back_group).path)
    keep = opened.site.staging.keep_free_bytes(stat.f_blocks * stat.f_frsize)
    return stat.f_bavail * stat.f_frsize - keep


def free_staging(opened: OpenSite, back_group: str, *, needed_bytes: int = 0) -> list[ImageRecord]:
    """Frees what staging may give back; see ``plan.staging.freeable`` for the rule.

    An image that an interrupted call freed on record, but not on the disk, goes first.

    Raises:
        NotOwner: the disk is worked on, and not ours any more.
        GroupStopping: the cluster takes it away.
    """
    confirm(opened, back_group)
    opened.catalog.refresh()
    with opened.working_on(back_group=back_group, cancel=opened.cancel):
        return _free(opened, back_group, needed_bytes)


def _free(opened: OpenSite, back_group: str, needed_bytes: int) -> list[ImageRecord]:
    for image in _on_disk(opened, back_group):
        if opened.catalog.freed(image.image):
            remove_staged(opened.staged_path(image))
    freed = may_free(opened, back_group, needed_bytes=needed_bytes)
    for image in freed:
        # The record comes first: a crash then leaves bytes too many, never a record of bytes that are gone.
        opened.catalog.append(
            FreedRecord(image=image.image, reason="its policy's copies are verified", at=opened.clock.now())
        )
        remove_staged(opened.staged_path(image))
    return freed


def may_free(opened: OpenSite, back_group: str, *, needed_bytes: int = 0) -> list[ImageRecord]:
    """The images that ``free_staging`` would free now. Changes nothing."""
    staged = [i for i in _on_disk(opened, back_group) if not opened.catalog.freed(i.image)]
    copies = {image.image: opened.catalog.copies(image.image) for image in staged}
    policies = {image.image: policy_of(opened, image) for image in staged}
    forgotten = {image.image for image in staged if opened.catalog.forgotten(image.image)}
    return freeable(staged, copies, policies, forgotten=forgotten, needed_bytes=needed_bytes)


def _on_disk(opened: OpenSite, back_group: str) -> list[ImageRecord]:
    return [
        image
        for image in opened.catalog.images()
        if opened.back_group_of(image) == back_group and opened.staged_path(image).exists()
    ]


def set_aside(tar: Path) -> None:
    """Takes a damaged image's name away, so that nothing takes it for one; what can be salvaged stays."""
    with suppress(FileNotFoundError):
        durable_rename(tar, tar.with_name(tar.name + DAMAGED))


def side_path(tar: Path, side: str) -> Path:
    """``x.tar`` → ``x.chunks`` or ``x.meta.json``."""
    return tar.with_name(tar.name.removesuffix(".tar") + f".{side}")


def remove_staged(tar: Path) -> None:
    """Removes an image and its side files from staging; the tar goes first: no tar is ever without them."""
    tar.unlink(missing_ok=True)
    for side in ("chunks", "meta.json"):
        side_path(tar, side).unlink(missing_ok=True)
