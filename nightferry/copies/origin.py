"""Where a store lies when it is read, and what that says of its image."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from nightferry.cluster.mount import Mount, mount_of, mounts_below
from nightferry.errors import ClusterError
from nightferry.model.patterns import Ignore
from nightferry.model.records import ImageRecord, StoreOrigin
from nightferry.model.stores import FilesStore, StoreRef
from nightferry.plan.expectation import doubts, elsewhere
from nightferry.plan.lines import lines, path_before
from nightferry.site.opened import OpenSite

UUIDS = Path("/dev/disk/by-uuid")
"""Where udev names block devices by the UUID of what is on them."""

_NOT_A_STORE_OF_ITS_OWN = frozenset({"squashfs", "iso9660"})


def origin_now(definition: StoreRef) -> StoreOrigin | None:
    """Where the store lies now; None for a kind without a path here.

    Raises:
        ClusterError: the path is not there, or the kernel does not say what is mounted.
    """
    if not definition.path:
        return None
    path = Path(definition.path)
    mount = mount_of(path)
    return StoreOrigin(
        path=definition.path,
        mount=_text(mount.point),
        source=_text(mount.source),
        filesystem=mount.kind,
        uuid=_uuid(mount),
        fsid=f"{mount.fsid:016x}" if mount.kind in ("ext2", "ext3", "ext4") else "",
        device=f"{os.major(mount.device)}:{os.minor(mount.device)}",
        below=_below(definition, path),
    )


def last_whole(site: OpenSite, definition: StoreRef) -> ImageRecord | None:
    """The newest image of the store's present line that is whole, expired or not; None when the line is new."""
    return _last_whole(site, definition, _images(site, definition))


def _images(site: OpenSite, definition: StoreRef, besides: str = "") -> list[ImageRecord]:
    images = site.catalog.images(definition.group.name, definition.store.name)
    return [image for image in images if image.image != besides]


def _last_whole(site: OpenSite, definition: StoreRef, images: Sequence[ImageRecord]) -> ImageRecord | None:
    line_of = lines(images, definition.path)
    of_line = (image for image in images if line_of[image.image] == definition.path)
    return next((image for image in of_line if site.catalog.is_whole(image)), None)


def suspicion(site: OpenSite, definition: StoreRef, image: ImageRecord) -> str:
    """Why an image that was just written is suspect; empty when it is not."""
    before = last_whole(site, definition)
    found = doubts(image, before, definition.expect) if before is not None else []
    if image.origin is not None:
        try:
            now = origin_now(definition)
        except ClusterError as error:
            found.append(error.message)
        else:
            if now is not None and any(elsewhere(now, image.origin)):
                found.append("the mount there changed while it was read")
    return "; ".join(found)


def new_line(site: OpenSite, definition: StoreRef, besides: str = "") -> str:
    """What is said when a store's path is not that of its newest image; empty when it is.

    Args:
        besides: An image that does not count: the one that is being made, or that is asked about.
    """
    images = _images(site, definition, besides)
    before = path_before(images, definition.path)
    if not before:
        return ""
    if _last_whole(site, definition, images) is not None:
        return f"its path was {before}; the images from {definition.path} continue as a line of their own"
    return (
        f"its path was {before}; a new line of images begins with {definition.path}, "
        "and is not compared with the old one"
    )


def _below(definition: StoreRef, path: Path) -> tuple[str, ...]:
    """Disks inside a tree; not those that the store leaves out."""
    store = definition.store
    if not isinstance(store, FilesStore):
        return ()
    excluded = Ignore(store.exclude)
    found = []
    for mount in mounts_below(path):
        place = os.path.relpath(mount.point, path.resolve())
        is_disk = mount.source.startswith(("/dev/", "//")) or ":" in mount.source
        entered = (Path(place), *Path(place).parents[:-1])
        if any(excluded.matches(os.fsencode(folder), directory=True) for folder in entered):
            continue
        if is_disk and mount.kind not in _NOT_A_STORE_OF_ITS_OWN:
            found.append(_text(place))
    return tuple(sorted(set(found)))


def _uuid(mount: Mount) -> str:
    device = mount.device
    with suppress(OSError):
        status = os.stat(mount.source)
        device = status.st_rdev if stat.S_ISBLK(status.st_mode) else device
    with suppress(OSError), os.scandir(UUIDS) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.stat().st_rdev == device:
                    return entry.name
    return ""


def _text(name: str) -> str:
    """A mount's name as a record can hold it."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")
