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


def free_room(site: OpenSite, back_group: str) -> int:
    """Bytes that may be written to the disk above ``keep_free``; negative when that is touched already."""
    stat = os.statvfs(site.file.back_group(back_group).path)
    keep = site.file.staging.keep_free_bytes(stat.f_blocks * stat.f_frsize)
    return stat.f_bavail * stat.f_frsize - keep


def free_staging(site: OpenSite, back_group: str, *, needed_bytes: int = 0) -> list[ImageRecord]:
    """Frees what staging may give back; see ``plan.staging.freeable`` for the rule.

    An image that an interrupted call freed on record, but not on the disk, goes first.

    Raises:
        NotOwner: the disk is worked on, and not ours any more.
        GroupStopping: the cluster takes it away.
    """
    confirm(site, back_group)
    site.catalog.refresh()
    with working_on(site, back_group=back_group, cancel=site.cancel):
        return _free(site, back_group, needed_bytes)


def _free(site: OpenSite, back_group: str, needed_bytes: int) -> list[ImageRecord]:
    for image in _on_disk(site, back_group):
        if site.catalog.freed(image.image):
            remove_staged(site, image)
    freed = may_free(site, back_group, needed_bytes=needed_bytes)
    for image in freed:
        # The record comes first: a crash then leaves bytes too many, never a record of bytes that are gone.
        site.catalog.append(
            FreedRecord(image=image.image, reason="its policy's copies are verified", at=site.clock.now())
        )
        remove_staged(site, image)
    return freed


def may_free(site: OpenSite, back_group: str, *, needed_bytes: int = 0) -> list[ImageRecord]:
    """The images that ``free_staging`` would free now. Changes nothing."""
    staged = [i for i in _on_disk(site, back_group) if not site.catalog.freed(i.image)]
    copies = {image.image: site.catalog.copies(image.image) for image in staged}
    policies = {image.image: policy_of(site, image) for image in staged}
    forgotten = {image.image for image in staged if site.catalog.forgotten(image.image)}
    return freeable(staged, copies, policies, forgotten=forgotten, needed_bytes=needed_bytes)


def _on_disk(site: OpenSite, back_group: str) -> list[ImageRecord]:
    return [
        image
        for image in site.catalog.images()
        if back_group_of(site, image) == back_group and files_of(site, image).size_bytes() is not None
    ]


def quarantine(files: StagedFiles) -> None:
    """Takes a damaged image's name away, so that nothing takes it for one; what can be salvaged stays."""
    with suppress(FileNotFoundError):
        files.rename(".tar", ".tar.damaged")


def remove_staged(site: OpenSite, image: ImageRecord) -> None:
    """Removes an image and its side files from staging, unless what bears its name there is another one: a record that
    came back with a rebuilt catalog removes nothing that was not staged as it says.

    The tar goes first: no tar is ever without its side files, and the record that proves it goes last.
    """
    files = files_of(site, image)
    if files.is_of(image):
        files.remove(*WHOLE)
    elif files.size_bytes() is not None:
        log.warning("%s is kept: it is not the image on record; if nobody needs it, remove it", files.tar)


class _RoomLocks:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_disk: dict[str, threading.Lock] = {}


def room_lock(site: OpenSite, back_group: str) -> threading.Lock:
    """Held between looking at a disk's free room and reserving a part of it."""
    locks = site.part(_RoomLocks)
    with locks.lock:
        return locks.by_disk.setdefault(back_group, threading.Lock())
