"""Files on the BACK disk that live no longer than the process that made them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nightferry.model.records import ImageRecord
from nightferry.site.opened import OpenSite
from nightferry.staging.images import back_group_of
from nightferry.transfer.durable import FILE_MODE


@contextmanager
def scratch_file(site: OpenSite, image: ImageRecord) -> Iterator[Path]:
    """An empty file below the staging path for an image on its way between destinations; gone afterwards.

    It is locked as long as its process lives: who finds it unlocked may remove it.
    """
    folder = scratch_folder(site, back_group_of(site, image))
    path = folder / f"{image.image}.{os.getpid()}.tar"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    path.unlink(missing_ok=True)  # of a process that had this one's number
    with open(os.open(path, flags, FILE_MODE), "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


def scratch_folder(site: OpenSite, back_group: str) -> Path:
    """Where on the BACK disk what lives shorter than its process may lie."""
    folder = site.disk(back_group).folder
    for level in (folder, folder / "scratch"):
        level.mkdir(exist_ok=True, mode=0o700)  # parents=True would give the upper one the umask's mode
    return folder / "scratch"
