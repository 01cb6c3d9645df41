"""Taking copies out of a bucket for good: locks, versions and delete markers, and what interrupted work left."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

from nightferry.destination.base import DATA_NAMES, SIDE_FILES, Leftover, Locked
from nightferry.destination.copies import COPY, META
from nightferry.destination.leftovers import Entry, left_in
from nightferry.destination.s3.bucket import Bucket, Version
from nightferry.destination.s3.failure import Forbidden
from nightferry.destination.s3.probe import SCRATCH
from nightferry.errors import NotRemoved, Retained

NAMES = (*DATA_NAMES.values(), META, COPY, *(name for name in SIDE_FILES if name != META))
"""Every object that a copy may have, in the order in which they are removed: without its data nothing that a
crash leaves behind looks whole."""
_NO_VERSION = "null"
"""The version id of an object that was stored while its bucket kept no versions: it can have no lock."""


def locked(bucket: Bucket, image: str, now: datetime) -> Locked | None:
    """The longest lock on anything of a copy, as far as the key may see."""
    found = _versions(bucket, f"images/{image}/")
    if found is None:
        wanted = [(f"images/{image}/{name}", "") for name in (*DATA_NAMES.values(), META)]
    else:
        wanted = [(v.path, v.version) for v in found if not v.is_marker and v.version != _NO_VERSION]
    locks = [lock for path, version in wanted if (lock := _lock_of(bucket, path, version, now)) is not None]
    return max(locks, key=lambda lock: (lock.until is None, lock.until or now), default=None)


def _lock_of(bucket: Bucket, path: str, version: str, now: datetime) -> Locked | None:
    which: dict[str, Any] = {"VersionId": version} if version else {}
    try:
        said = bucket.call("head_object", Key=bucket.key(path), unless=(404, 405), **which)
    except Forbidden:
        return None
    if said is None:
        return None
    if said.get("ObjectLockLegalHoldStatus") == "ON":
        return Locked("legal hold", None)
    until = said.get("ObjectLockRetainUntilDate")
    if not isinstance(until, datetime) or until <= now:
        return None
    return Locked(f"{said.get('ObjectLockMode', 'object')} lock".lower(), until)


def remove_copy(bucket: Bucket, image: str, now: datetime, *, locks: bool) -> str:
    """Removes every version of every object of a copy, its data first.

    Where the key may not remove versions the copy is hidden behind delete markers. One that may be locked is
    not: a key that cannot see the lock is refused in the same words as one that has no right.

    Args:
        bucket: Where.
        image: Whose copy.
        now: What is locked until later stays.
        locks: Whether copies are stored with a lock.

    Returns:
        What stays all the same; empty when nothing does.

    Raises:
        Retained: a lock keeps it; nothing was removed.
        NotRemoved: the key may not; nothing was removed.
    """
    lock = locked(bucket, image, now)
    if lock is not None:
        raise Retained(f"{bucket.name} keeps {image}: {lock}", subject=image)
    found = _versions(bucket, f"images/{image}/")
    if found is None:
        return _hide(bucket, [f"images/{image}/{name}" for name in NAMES])
    return _remove(bucket, found, may_hide=not locks)


def _remove(bucket: Bucket, found: list[Version], *, may_hide: bool = True) -> str:
    """Removes versions, those of images' data first; where the key may not, the objects as they are seen."""
    found.sort(key=lambda version: (version.is_marker, _data_first(version.path)))
    removed = 0
    try:
        for version in found:
            bucket.delete(version.path, version.version)
            removed += 1
    except Forbidden as error:
        if not may_hide and not removed:
            raise NotRemoved(
                f"{error.message}: it is locked, or the key may not remove versions",
                subject=bucket.name,
                hint="let the key that expires see locks (s3:GetObjectRetention) and remove versions",
            ) from error
        hidden = _hide(bucket, [version.path for version in found if not version.is_marker])
        return f"{hidden}: {error.message}" if hidden else ""
    return ""


def _hide(bucket: Bucket, paths: Iterable[str]) -> str:
    """Removes objects as they are seen; where versions are kept that puts delete markers before them.

    Raises:
        NotRemoved: the key may not remove anything at all.
    """
    markers = False
    for number, path in enumerate(dict.fromkeys(paths)):
        try:
            markers |= bucket.delete(path)
        except Forbidden as error:
            if number:
                raise
            raise NotRemoved(error.message, subject=path, hint=error.hint) from error
    return "hidden behind delete markers; its versions stay" if markers else ""


def _data_first(path: str) -> tuple[bool, str]:
    return path.rpartition("/")[2] not in DATA_NAMES.values(), path


def _versions(bucket: Bucket, prefix: str) -> list[Version] | None:
    """Every version below a prefix; None when the key may not list them, or the store knows none."""
    try:
        return list(bucket.versions(prefix))
    except Forbidden:
        return None


def leftovers(
    bucket: Bucket, copy_of: Callable[[str], dict[str, Any] | None], before: datetime
) -> Iterator[Leftover]:
    """Uploads to which nothing was added since ``before``, and objects that belong to no copy.

    Args:
        bucket: Where.
        copy_of: An image's ``copy.json`` when its copy is whole.
        before: What was touched later may be at work.
    """
    for upload in (*bucket.uploads("images/"), *bucket.uploads(SCRATCH)):
        if upload.initiated >= before:
            continue
        parts = list(bucket.parts(upload))
        since = max([upload.initiated, *(part.changed for part in parts if part.changed)])
        if since < before:
            path = bucket.path(upload.key)
            size = sum(part.size_bytes for part in parts)
            image = path.split("/")[1] if "/" in path else ""
            yield Leftover("upload", image, path, since, size, upload.upload_id)
    folders: dict[str, list[Entry]] = defaultdict(list)
    for entry in bucket.tree("images/"):
        folders[entry.path.split("/")[1]].append(entry)
    for image, entries in sorted(folders.items()):
        names = {entry.path.rpartition("/")[2] for entry in entries}
        # One listing tells of nearly all folders that they are in order; only the others are asked.
        if META not in names or len(names.intersection(DATA_NAMES.values())) > 1:
            yield from left_in(image, copy_of(image), entries, before)


def clear(bucket: Bucket, leftover: Leftover) -> None:
    """Removes a leftover."""
    if leftover.what == "upload":
        bucket.abort(bucket.key(leftover.path), leftover.upload_id)
    elif leftover.what == "data":
        _clear(bucket, leftover.path, lambda path: path == leftover.path)
    else:
        _clear(bucket, f"{leftover.path}/", lambda path: True)


def _clear(bucket: Bucket, prefix: str, wanted: Callable[[str], bool]) -> None:
    found = _versions(bucket, prefix)
    if found is None:
        _hide(bucket, [entry.path for entry in bucket.tree(prefix) if wanted(entry.path)])
    else:
        _remove(bucket, [version for version in found if wanted(version.path)])
