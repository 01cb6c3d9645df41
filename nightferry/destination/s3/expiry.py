"""Taking copies out of a bucket for good: locks, versions and delete markers, and what interrupted work left."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from nightferry.destination.base import DATA_NAMES, Leftover, Locked
from nightferry.destination.copies import META
from nightferry.destination.leftovers import Entry, left_in
from nightferry.destination.s3.bucket import Bucket, Version
from nightferry.destination.s3.failure import Forbidden
from nightferry.errors import NotRemoved, Retained

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


def remove_copy(bucket: Bucket, image: str, now: datetime) -> str:
    """Removes every version of every object of a copy, its data first.

    Where the key may not remove versions the copy is hidden behind delete markers.

    Returns:
        What stays all the same; empty when nothing does.

    Raises:
        Retained: a lock keeps it; nothing was removed.
        NotRemoved: the key may not even hide it.
    """
    lock = locked(bucket, image, now)
    if lock is not None:
        raise Retained(f"{bucket.name} keeps {image}: {lock}", subject=image)
    known = [f"images/{image}/{name}" for name in DATA_NAMES.values()]
    return remove_all(bucket, f"images/{image}/", known)


def remove_all(bucket: Bucket, prefix: str, first: Iterable[str]) -> str:
    """Removes all below a prefix, the paths of ``first`` before the others; see `remove_copy`."""
    order = {path: number for number, path in enumerate(first)}
    found = _versions(bucket, prefix)
    if found is None:
        return _hide(bucket, [*order, *_others(bucket, prefix, order)])
    found.sort(key=lambda v: (v.is_marker, order.get(v.path, len(order)), v.path))
    try:
        for version in found:
            bucket.delete(version.path, "" if version.version == _NO_VERSION else version.version)
    except Forbidden as error:
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


def _others(bucket: Bucket, prefix: str, known: Mapping[str, int]) -> list[str]:
    return [entry.path for entry in bucket.tree(prefix) if entry.path not in known]


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
    for upload in bucket.uploads("images/"):
        if upload.initiated >= before:
            continue
        parts = list(bucket.parts(upload))
        since = max([upload.initiated, *(part.changed for part in parts if part.changed)])
        if since < before:
            path = bucket.path(upload.key)
            size = sum(part.size_bytes for part in parts)
            yield Leftover("upload", path.split("/")[1], path, since, size, upload.upload_id)
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
        remove_all(bucket, leftover.path, [leftover.path])
    else:
        remove_all(bucket, f"{leftover.path}/", [])
