"""What could fail at a bucket tonight, found with one scratch object."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.destination.s3.bucket import Bucket
from nightferry.destination.s3.probe import SCRATCH, checks_checksums, honours_conditions
from nightferry.errors import DestinationError
from nightferry.model.destinations import ARCHIVE_CLASSES, Lock
from nightferry.model.findings import Finding
from nightferry.units import counted, format_duration

CLOCKS_APART = timedelta(minutes=5)
LEFTOVER_AGE = timedelta(days=2)
"""An upload that was begun before and has not ended is no night's any more."""


def look(bucket: Bucket, lock: Lock | None, clock: Clock, storage_class: str | None = None) -> list[Finding]:
    """Every finding. Writes the scratch object and removes it; what the store does not honour is said."""
    name = bucket.name
    try:
        bucket.require()
        checked = checks_checksums(bucket)
        conditional = honours_conditions(bucket)
    except DestinationError as error:
        return [Finding("NF-S3-001", "fail", f"destination {name} cannot be written: {error}", error.hint)]
    found = [*_clocks(bucket), *_rights(bucket), *_lock(bucket, lock), *_leftovers(bucket, clock)]
    if not checked:
        found.append(
            Finding(
                "NF-S3-002",
                "note",
                f"destination {name} does not check CRC64NVME: every copy is read back instead",
                "reading back needs the right to read, and may cost",
            )
        )
    if not checked and storage_class in ARCHIVE_CLASSES:
        found.append(
            Finding(
                "NF-S3-010",
                "warn",
                f"destination {name} does not check CRC64NVME, and {storage_class} is not read back: no copy there "
                "becomes verified",
                "leave storage_class out and let a lifecycle rule archive what was read back",
            )
        )
    if not conditional:
        found.append(
            Finding(
                "NF-S3-003",
                "note",
                f"destination {name} does not honour If-None-Match: nothing there keeps an object from being "
                "written over",
                "let no other program write below the url",
            )
        )
    return found


def _clocks(bucket: Bucket) -> Iterator[Finding]:
    """Requests are signed with the machine's own time, whatever clock is handed in."""
    there = bucket.time_there()
    if there is None:
        return
    apart = abs(there - SYSTEM_CLOCK.now())
    if apart > CLOCKS_APART:
        yield Finding(
            "NF-S3-009",
            "warn",
            f"destination {bucket.name}: its clock and this node's are {format_duration(apart.total_seconds())} "
            "apart; from 15 min on requests are refused",
            "set the clock that is wrong",
        )


def _rights(bucket: Bucket) -> Iterator[Finding]:
    try:
        bucket.get(SCRATCH, 1 << 16)
    except DestinationError as error:
        yield Finding(
            "NF-S3-004",
            "note",
            f"destination {bucket.name}: this key may only write ({error})",
            "copies are made with it; restores and verify need one that may read",
        )
    try:
        bucket.delete(SCRATCH)
    except DestinationError as error:
        yield Finding(
            "NF-S3-005",
            "note",
            f"destination {bucket.name}: this key may not remove ({error})",
            "a damaged copy can then not be made anew in its place",
        )


def _lock(bucket: Bucket, lock: Lock | None) -> Iterator[Finding]:
    try:
        answer = bucket.call(
            "get_object_lock_configuration", unless=("ObjectLockConfigurationNotFoundError", 404, 501, 405)
        )
    except DestinationError as error:
        if lock is not None:
            yield Finding(
                "NF-S3-006",
                "warn",
                f"destination {bucket.name}: whether the bucket locks objects cannot be seen: {error.message}",
                "give the key s3:GetBucketObjectLockConfiguration, or look by hand",
            )
        return
    said = (answer or {}).get("ObjectLockConfiguration", {})
    enabled = said.get("ObjectLockEnabled") == "Enabled"
    if lock is not None and not enabled:
        yield Finding(
            "NF-S3-006",
            "fail",
            f"destination {bucket.name}: lock is asked for, and the bucket {bucket.bucket!r} has no object lock",
            "make a bucket with object lock, or take lock out",
        )
    default = said.get("Rule", {}).get("DefaultRetention")
    if default and lock is None:
        span = f"{default.get('Days') or default.get('Years')} {'days' if default.get('Days') else 'years'}"
        yield Finding(
            "NF-S3-007",
            "note",
            f"destination {bucket.name}: the bucket locks every object for {span} by itself",
            "room of removed copies comes back after that",
        )


def _leftovers(bucket: Bucket, clock: Clock) -> Iterator[Finding]:
    limit = clock.now() - LEFTOVER_AGE
    try:
        old = [upload for upload in bucket.uploads("images/") if upload.initiated < limit]
    except DestinationError:
        return
    if old:
        shown = ", ".join(bucket.path(upload.key) for upload in old[:5])
        yield Finding(
            "NF-S3-008",
            "warn",
            f"destination {bucket.name}: {counted(len(old), 'unfinished upload')} from before "
            f"{limit:%Y-%m-%d}: {shown}{' …' if len(old) > 5 else ''}",
            "they cost room: copying the image again goes on from them; `nightferry expire` aborts them",
        )
