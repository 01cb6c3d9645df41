"""What killed processes left on a BACK disk: cleared, or taken over, before the next run works there.

Only names that this program gives are ever touched. Call it under the run lock: then nobody else stages.
"""

from __future__ import annotations

import fcntl
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

from nightferry.errors import ConfigError
from nightferry.model.names import parse_image_name
from nightferry.model.records import ImageRecord
from nightferry.ops.opened import OpenSite
from nightferry.ops.room import DAMAGED, remove_staged, side_path
from nightferry.ops.stage import adopt, is_safe
from nightferry.progress import QUIET, Cancel
from nightferry.transfer.durable import remove_dead_drafts
from nightferry.transfer.temporary import clear_dead_folders

log = logging.getLogger(__name__)

_PARTIAL = ".tar.partial"
_SET_ASIDE = f".tar{DAMAGED}"
_ENDINGS = (_PARTIAL, _SET_ASIDE, ".tar", ".chunks", ".meta.json")


def clear_leftovers(opened: OpenSite, back_group: str, *, cancel: Cancel) -> None:
    """Gives back the room of what is of no use, and takes over what is.

    - Scratch files, half-written images and side files without their image are removed.
    - An image that was freed on record, and not on the disk, is removed; so is one that was set aside because
      it was damaged, when its store has a newer whole one.
    - A whole image that nobody lived to record is recorded, after every byte was checked: even if its own run
      is never continued, it is a backup of that night.

    Raises:
        GroupStopping: the disk is not here, or the cluster takes it away.
        Cancelled: stopped at a chunk; what was not looked at is left for the next run.
    """
    with opened.working_on(back_group=back_group, cancel=cancel) as narrower:
        _clear(opened, back_group, narrower)


def _clear(opened: OpenSite, back_group: str, cancel: Cancel) -> None:
    _clear_scratch(opened, back_group)
    opened.disk(back_group).clear(expired_runs(opened))
    disk = Path(opened.site.back_group(back_group).path)
    for folder in _store_folders(opened, disk):
        remove_dead_drafts(folder)
    for path in _staged_files(disk):
        cancel.check()
        image, ending = _split(path.name)
        tar = path.with_name(f"{image}.tar")
        if ending == _SET_ASIDE:
            if _is_outdated(opened, image):
                path.unlink(missing_ok=True)
        elif ending != ".tar":
            if ending == _PARTIAL or not tar.exists():
                path.unlink(missing_ok=True)
                log.info("removed %s, which an interrupted run left", path.name)
        elif opened.catalog.freed(image):
            remove_staged(tar)
        elif opened.catalog.latest(ImageRecord, image) is None and side_path(tar, "meta.json").exists():
            adopt(opened, tar, QUIET, cancel)


def clear_killed(opened: OpenSite, back_group: str) -> None:
    """Removes what killed processes left in the catalog and in the temporary directory of this node."""
    opened.catalog.tidy()
    opened.leases(back_group).clear()
    clear_dead_folders()


def forget_expired(opened: OpenSite) -> None:
    """Gives back the room that the catalog needs for expired images: their indexes, and the logs of their runs."""
    opened.catalog.drop_indexes(i.image for i in opened.catalog.images() if opened.catalog.expired(i.image))
    opened.catalog.drop_logs(expired_runs(opened))


def expired_runs(opened: OpenSite) -> set[str]:
    """The runs of which the retention has taken every image; never the newest run of a BACK group."""
    images: dict[str, list[str]] = {}
    for image in opened.catalog.images():
        images.setdefault(image.run, []).append(image.image)
    gone = {run for run, names in images.items() if all(map(opened.catalog.expired, names))}
    runs = opened.catalog.runs()
    newest = {
        group: next(r.run for r in runs if r.back_group == group) for group in {r.back_group for r in runs}
    }
    return gone - set(newest.values())


def _is_outdated(opened: OpenSite, image: str) -> bool:
    """Whether the store has a sound image as new as this one, or newer. One that the catalog does not know is
    none: what can be salvaged of it may be all that there is."""
    name, known = parse_image_name(image), opened.catalog.latest(ImageRecord, image)
    return known is not None and any(
        opened.catalog.is_whole(other) and other.started >= known.started and is_safe(opened, other)
        for other in opened.catalog.images(name.group, name.store)
    )


def _clear_scratch(opened: OpenSite, back_group: str) -> None:
    for left in opened.scratch_folder(back_group).iterdir():
        if left.is_dir():
            shutil.rmtree(left)
        elif not _is_in_use(left):
            left.unlink(missing_ok=True)


def _is_in_use(path: Path) -> bool:
    """Whether a living process holds it: a copy is re-made beside a run (``OpenSite.scratch``)."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _store_folders(opened: OpenSite, disk: Path) -> list[Path]:
    """The staging folders of the stores that we know."""
    stores = {(ref.group.name, ref.store.name) for ref in opened.site.stores}
    stores |= {(image.group, image.store) for image in opened.catalog.images()}
    return [disk / group / store for group, store in sorted(stores)]


def _staged_files(disk: Path) -> Iterator[Path]:
    """Files that bear the name of an image of the store in whose folder they lie."""
    for path in sorted(disk.glob("[!.]*/[!.]*/*")):
        image, ending = _split(path.name)
        if ending and _lies_right(path, image) and path.is_file() and not path.is_symlink():
            yield path


def _split(name: str) -> tuple[str, str]:
    """A staged file's name → (image, ending); no ending when it is none of ours."""
    for ending in _ENDINGS:
        if name.endswith(ending):
            return name.removesuffix(ending), ending
    return name, ""


def _lies_right(path: Path, image: str) -> bool:
    try:
        name = parse_image_name(image)
    except ConfigError:
        return False
    return (name.group, name.store) == (path.parent.parent.name, path.parent.name)
