"""Room on staging: what may be freed, and giving it back."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress

from nightferry.model.records import FreedRecord, ImageRecord
from nightferry.plan.staging import freeable
from nightferry.site.nodes import working_on
from nightferry.site.opened import OpenSite
from nightferry.staging.images import back_group_of, files_of
from nightferry.staging.owed import policy_of
from nightferry.staging.ownership import confirm
from nightferry.staging.staged_files import Ending, StagedFiles

log = logging.getLogger(__name__)

WHOLE: tuple[Ending, ...] = (".tar", ".chunks", ".meta.json")
"""What a whole image on staging consists of, in the order in which it is removed."""


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
    with working_on(opened, back_group=back_group, cancel=opened.cancel):
        return _free(opened, back_group, needed_bytes)


def _free(opened: OpenSite, back_group: str, needed_bytes: int) -> list[ImageRecord]:
    for image in _on_disk(opened, back_group):
        if opened.catalog.freed(image.image):
            remove_staged(opened, image)
    freed = may_free(opened, back_group, needed_bytes=needed_bytes)
    for image in freed:
        # The record comes first: a crash then leaves bytes too many, never a record of bytes that are gone.
        opened.catalog.append(
            FreedRecord(image=image.image, reason="its policy's copies are verified", at=opened.clock.now())
        )
        remove_staged(opened, image)
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
        if back_group_of(opened, image) == back_group and files_of(opened, image).size_bytes() is not None
    ]


def quarantine(files: StagedFiles) -> None:
    """Takes a damaged image's name away, so that nothing takes it for one; what can be salvaged stays."""
    with suppress(FileNotFoundError):
        files.rename(".tar", ".tar.damaged")


def remove_staged(opened: OpenSite, image: ImageRecord) -> None:
    """Removes an image and its side files from staging, unless what bears its name there is another one: a record that
    came back with a rebuilt catalog removes nothing that was not staged as it says.

    The tar goes first: no tar is ever without its side files, and the record that proves it goes last.
    """
    files = files_of(opened, image)
    if files.is_of(image):
        files.remove(*WHOLE)
    elif files.size_bytes() is not None:
        log.warning("%s is kept: it is not the image on record; if nobody needs it, remove it", files.tar)


class _RoomLocks:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_disk: dict[str, threading.Lock] = {}


def room_lock(opened: OpenSite, back_group: str) -> threading.Lock:
    """Held between looking at a disk's free room and reserving a part of it."""
    locks = opened.part(_RoomLocks)
    with locks.lock:
        return locks.by_disk.setdefault(back_group, threading.Lock())
