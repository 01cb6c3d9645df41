"""Taking copies out of a bucket for good: locks, versions and delete markers, and what interrupted work left."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

from nightferry.destination.base import DATA_NAMES, Locked, Orphan, SiteMark
from nightferry.destination.copies import META
from nightferry.destination.orphans import Entry, foreign, is_copys, left_in, refuse_foreign
from nightferry.destination.ours import (
    MARKER_BYTES,
    NAMES,
    ORIGIN,
    SCRATCH,
    Origin,
    is_image,
    is_ours,
    is_proved,
    parse_origin,
)
from nightferry.destination.s3.bucket import Bucket, Upload, Version
from nightferry.destination.s3.failure import Forbidden, NotSupported
from nightferry.errors import MediumDamaged, NotInThisRelease, NotOurs, NotRemoved, Retained

_NO_VERSION = "null"
"""The version id of an object that was stored while its bucket kept no versions: it can have no lock."""


def locked_until(bucket: Bucket, image: str, now: datetime) -> Locked | None:
    """The longest lock on anything of a copy, as far as the key may see."""
    found = _versions(bucket, image)
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


def remove_copy(
    bucket: Bucket, image: str, now: datetime, *, locks: bool, mark: SiteMark, digest: str
) -> str:
    """Removes every version of every object of a copy, its data first.

    Where the key may not remove versions the copy is hidden behind delete markers. One that may be locked is
    not: a key that cannot see the lock is refused in the same words as one that has no right.

    Args:
        bucket: Where.
        image: Whose copy.
        now: What is locked until later stays.
        locks: Whether copies are stored with a lock.
        mark: This site's.
        digest: The image's, as it is on record.

    Returns:
        What stays all the same; empty when nothing does.

    Raises:
        Retained: a lock keeps it; nothing was removed.
        NotOurs: nothing proves that it is our copy; nothing was removed.
        NotRemoved: the key may not; nothing was removed.
    """
    found = _versions(bucket, image)
    _require_proof(bucket, image, found, mark, digest)
    lock = locked_until(bucket, image, now)
    if lock is not None:
        raise Retained(f"{bucket.name} keeps {image}: {lock}", subject=image)
    if found is None:
        return _hide(bucket, [f"images/{image}/{name}" for name in NAMES])
    return _remove(bucket, found, may_hide=not locks)


def _require_proof(
    bucket: Bucket, image: str, found: list[Version] | None, mark: SiteMark, digest: str
) -> None:
    if found is not None and not found:
        return  # it is gone already

    def read(name: str) -> bytes | None:
        path = f"images/{image}/{name}"
        # What is hidden behind a delete marker takes room, too, and proves as well.
        newest = next((v.version for v in found or () if v.path == path and not v.is_marker), "")
        if found is not None and not newest:
            return None
        return bucket.get(path, MARKER_BYTES, "" if newest == _NO_VERSION else newest)

    try:
        if is_proved(read, image, mark, digest):
            return
        if found is None and all(bucket.head(f"images/{image}/{name}") is None for name in NAMES):
            return
    except Forbidden as error:
        raise NotRemoved(error.message, subject=bucket.name, hint=error.hint) from error
    raise NotOurs(
        f"{bucket.name}: images/{image} has no proof that it is this site's copy", subject=bucket.name
    )


def _remove(bucket: Bucket, found: list[Version], *, may_hide: bool = True) -> str:
    """Removes versions, those of images' data first; where the key may not, the objects as they are seen."""
    order = {name: number for number, name in enumerate(NAMES)}
    found.sort(key=lambda version: (order[version.path.rpartition("/")[2]], version.is_marker))
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
                hint="allow the expiring key to see locks (s3:GetObjectRetention) and remove versions",
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


def _versions(bucket: Bucket, image: str) -> list[Version] | None:
    """Every version of the objects of an image's copy, of each the newest first; None when the key may not list
    them, or the store knows none."""
    try:
        return [v for v in bucket.versions(f"images/{image}/") if _name_in(image, v.path) in NAMES]
    except Forbidden:
        return None


def _name_in(image: str, path: str) -> str:
    """What an object is called in an image's folder; it has a slash in it, or is empty, where it is none of a
    copy's."""
    return path.removeprefix(f"images/{image}/")


def origin_of(bucket: Bucket, image: str) -> Origin | None:
    """The first side file of an image's copy; None when there is none that makes sense."""
    try:
        return parse_origin(image, bucket.get(f"images/{image}/{ORIGIN}", MARKER_BYTES))
    except MediumDamaged:
        return None


def orphans(
    bucket: Bucket, copy_of: Callable[[str], dict[str, Any] | None], before: datetime, mark: SiteMark
) -> Iterator[Orphan]:
    """Uploads to which nothing was added since ``before``, objects that belong to no copy, and what is foreign.

    Args:
        bucket: Where.
        copy_of: An image's ``copy.json`` when its copy is whole.
        before: What was touched later may be at work.
        mark: This site's.
    """
    yield from _uploads(bucket, before, mark)
    folders: dict[str, list[Entry]] = defaultdict(list)
    others: dict[str, list[Entry]] = defaultdict(list)
    for entry in bucket.tree("images/"):
        parts = entry.path.split("/")
        if is_copys(entry.path) and parts[2] in NAMES:
            folders[parts[1]].append(entry)
        elif not entry.path.endswith("/"):  # some stores keep an object for the folder itself
            # What lies in somebody's folder is told as that folder; what lies in an image's, by its name.
            others[entry.path if is_image(parts[1]) else "/".join(parts[:2])].append(entry)
    for image, entries in sorted(folders.items()):
        names = {entry.path.rpartition("/")[2] for entry in entries}
        # One listing tells of nearly all folders that they are in order; only the others are asked.
        if META not in names or len(names.intersection(DATA_NAMES.values())) != 1:
            try:
                said = copy_of(image)
            except NotInThisRelease:
                continue  # a whole copy, of a newer release
            except MediumDamaged:
                said = None  # longer than makes sense
            yield from left_in(image, said, origin_of(bucket, image), mark, entries, before)
    for path, entries in sorted(others.items()):
        newest = max(entry.changed for entry in entries)
        yield foreign(Entry(path, sum(entry.size_bytes for entry in entries), newest))


def _uploads(bucket: Bucket, before: datetime, mark: SiteMark) -> Iterator[Orphan]:
    try:
        uploads = [*bucket.uploads("images/"), *bucket.uploads(SCRATCH)]
    except NotSupported:
        return  # `check` says that there the bucket's own rule must end them
    for upload in uploads:
        if upload.initiated >= before:
            continue
        parts = list(bucket.parts(upload))
        since = max([upload.initiated, *(part.changed for part in parts if part.changed)])
        if since < before:
            path, size = bucket.path(upload.key), sum(part.size_bytes for part in parts)
            if _is_our_upload(bucket, upload, mark):
                image = path.split("/")[1] if "/" in path else ""
                yield Orphan("upload", image, path, since, size, upload.upload_id)
            else:
                yield foreign(Entry(path, size, since))


def _is_our_upload(bucket: Bucket, upload: Upload, mark: SiteMark) -> bool:
    """Whether an upload is of an image's data below our first side file, or of a scratch object of ours."""
    path = bucket.path(upload.key)
    if path == SCRATCH or path.startswith(f"{SCRATCH}-"):
        return True
    return is_copys(path) and is_ours(origin_of(bucket, path.split("/")[1]), mark)


def clear(bucket: Bucket, orphan: Orphan) -> None:
    """Removes a orphan.

    Raises:
        NotOurs: it is foreign.
    """
    refuse_foreign(bucket.name, orphan)
    if orphan.what == "upload":
        bucket.abort(bucket.key(orphan.path), orphan.upload_id)
        return
    wanted = [orphan.path] if orphan.what == "data" else [f"{orphan.path}/{name}" for name in NAMES]
    found = _versions(bucket, orphan.image)
    if found is None:
        there = {entry.path for entry in bucket.tree(f"images/{orphan.image}/")}
        _hide(bucket, [path for path in wanted if path in there])
    else:
        _remove(bucket, [version for version in found if version.path in wanted])
