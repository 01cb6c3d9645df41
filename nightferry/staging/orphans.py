"""What killed processes left on a BACK disk: cleared, or taken over, before the next run works there.

Only names that this program gives are ever touched. Call it under the run lock: then nobody else stages.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from nightferry.cluster.disk import disk_errors
from nightferry.model.names import image_name
from nightferry.model.records import ImageRecord
from nightferry.progress import QUIET, Cancel
from nightferry.site.nodes import working_on
from nightferry.site.opened import OpenSite
from nightferry.staging.adoption import adopt_image
from nightferry.staging.images import is_kept
from nightferry.staging.room import remove_staged
from nightferry.staging.scratch import scratch_folder
from nightferry.staging.staged_files import Ending, StagedFiles, staged_names
from nightferry.transfer.regular import open_regular
from nightferry.transfer.temporary import clear_dead_folders

log = logging.getLogger(__name__)

_ANY_RUN = "20000101-any"


def clear_orphans(site: OpenSite, back_group: str, *, cancel: Cancel) -> None:
    """Gives back the room of what is of no use, and takes over what is.

    - Scratch files, half-written images and side files without their image are removed.
    - An image that was freed on record, and not on the disk, is removed; so is one that was quarantined because
      it was damaged, when its store has a newer whole one.
    - A whole image that nobody lived to record is recorded, after every byte was checked: even if its own run
      is never continued, it is a backup of that night.

    Raises:
        GroupStopping: the disk is not here, or the cluster takes it away.
        Cancelled: stopped at a chunk; what was not looked at is left for the next run.
    """
    disk = Path(site.file.back_group(back_group).path)
    with working_on(site, back_group=back_group, cancel=cancel) as narrower, disk_errors(disk):
        _clear(site, back_group, narrower)


def _clear(site: OpenSite, back_group: str, cancel: Cancel) -> None:
    _clear_scratch(site, back_group)
    site.disk(back_group).clear(expired_runs(site))
    disk = Path(site.file.back_group(back_group).path)
    for image in _any_of_each_store(site):
        StagedFiles(disk, image).clear_drafts()
    for image, ending in list(staged_names(disk)):
        cancel.check()
        files = StagedFiles(disk, image)
        known = site.catalog.latest(ImageRecord, image)
        if ending == ".tar.damaged":
            if known is not None and files.is_of(known) and _is_outdated(site, known):
                files.remove(ending)
        elif ending != ".tar":
            if ending == ".tar.partial" or not (_has(files, ".tar") or _has(files, ".tar.damaged")):
                files.remove(ending)
                log.info("removed %s%s, left by an interrupted run", image, ending)
        elif known is not None and site.catalog.freed(image):
            remove_staged(site, known)
        elif known is None and files.size_bytes(".meta.json") is not None:
            adopt_image(site, files, QUIET, cancel)


def _has(files: StagedFiles, ending: Ending) -> bool:
    return files.size_bytes(ending) is not None


def clear_killed(site: OpenSite, back_group: str) -> None:
    """Removes what killed processes left in the catalog and in the temporary directory of this node."""
    site.catalog.tidy()
    site.claims.shared(back_group).clear()
    clear_dead_folders()


def forget_expired(site: OpenSite) -> None:
    """Gives back the room that the catalog needs for expired images: their indexes, and the logs of their runs."""
    site.catalog.drop_indexes(i.image for i in site.catalog.images() if site.catalog.expired(i.image))
    site.catalog.drop_logs(expired_runs(site))


def expired_runs(site: OpenSite) -> set[str]:
    """The runs of which the retention has taken every image; never the newest run of a BACK group."""
    images: dict[str, list[str]] = {}
    for image in site.catalog.images():
        images.setdefault(image.run, []).append(image.image)
    gone = {run for run, names in images.items() if all(map(site.catalog.expired, names))}
    runs = site.catalog.runs()
    newest = {
        group: next(r.run for r in runs if r.back_group == group) for group in {r.back_group for r in runs}
    }
    return gone - set(newest.values())


def _is_outdated(site: OpenSite, image: ImageRecord) -> bool:
    """Whether the store has a sound image as new as this one, or newer, by the log."""
    place = site.catalog.place_in_log(image.image)
    return any(
        site.catalog.is_whole(other)
        and site.catalog.place_in_log(other.image) >= place
        and is_kept(site, other)
        for other in site.catalog.images(image.group, image.store)
    )


def _clear_scratch(site: OpenSite, back_group: str) -> None:
    for left in scratch_folder(site, back_group).iterdir():
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        elif not _is_in_use(left):
            left.unlink(missing_ok=True)


def _is_in_use(path: Path) -> bool:
    """Whether a living process holds it: a copy is re-made beside a run (``OpenSite.scratch``)."""
    try:
        fd = open_regular(path)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _any_of_each_store(site: OpenSite) -> Iterator[str]:
    """The name of some image of each store that we know: it says in which folder its images are staged."""
    stores = {(ref.group.name, ref.store.name) for ref in site.file.stores}
    stores |= {(image.group, image.store) for image in site.catalog.images()}
    for group, store in sorted(stores):
        yield image_name(_ANY_RUN, group, store, 0)
