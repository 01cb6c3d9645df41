"""What could fail at a bucket tonight."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from nightferry.clock import CLOCKS_APART, SYSTEM_CLOCK, Clock
from nightferry.destination.s3.bucket import Bucket
from nightferry.destination.s3.lock import Wanted
from nightferry.destination.s3.probe import abilities
from nightferry.errors import DestinationError
from nightferry.model.destinations import ARCHIVE_CLASSES
from nightferry.model.findings import Finding
from nightferry.units import counted, format_duration

ORPHAN_AGE = timedelta(days=2)
"""An upload that was begun before and has not ended no longer belongs to a night."""


def check_bucket(
    bucket: Bucket, wanted: Wanted | None, clock: Clock, storage_class: str | None = None
) -> list[Finding]:
    """Every finding. What a night asks of the endpoint is asked of it, with scratch objects that are removed."""
    name = bucket.name
    try:
        bucket.require()
        able = abilities(bucket, wanted, storage_class, clock.now(), again=True)
    except DestinationError as error:
        return [Finding("NF-S3-001", "fail", f"destination {name} cannot be written: {error}", error.hint)]
    found = [*_clocks(bucket), *able.findings, *_own_lock(bucket, wanted), *_orphans(bucket, clock)]
    if not able.checksums and storage_class in ARCHIVE_CLASSES:
        found.append(
            Finding(
                "NF-S3-010",
                "warn",
                f"destination {name} does not check CRC64NVME, and {storage_class} is not read back: no copy there "
                "becomes verified",
                "leave storage_class out and let a lifecycle rule archive what was read back",
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


def _own_lock(bucket: Bucket, wanted: Wanted | None) -> Iterator[Finding]:
    """What the bucket locks by itself."""
    try:
        answer = bucket.call(
            "get_object_lock_configuration", unless=("ObjectLockConfigurationNotFoundError", 404, 501, 405)
        )
    except DestinationError:
        return  # a note is all that would come of it
    default = (answer or {}).get("ObjectLockConfiguration", {}).get("Rule", {}).get("DefaultRetention")
    if default and wanted is None:
        span = f"{default.get('Days') or default.get('Years')} {'days' if default.get('Days') else 'years'}"
        yield Finding(
            "NF-S3-007",
            "note",
            f"destination {bucket.name}: the bucket locks every object for {span} by itself",
            "the space of removed copies is freed only after that",
        )


def _orphans(bucket: Bucket, clock: Clock) -> Iterator[Finding]:
    limit = clock.now() - ORPHAN_AGE
    try:
        old = [upload for upload in bucket.uploads("images/") if upload.initiated < limit]
    except DestinationError:
        return  # whether uploads can be listed was found before
    if old:
        shown = ", ".join(bucket.path(upload.key) for upload in old[:5])
        yield Finding(
            "NF-S3-008",
            "warn",
            f"destination {bucket.name}: {counted(len(old), 'unfinished upload')} from before "
            f"{limit:%Y-%m-%d}: {shown}{' …' if len(old) > 5 else ''}",
            "they take up space: copying the image again continues them; `nightferry expire` aborts them",
        )
