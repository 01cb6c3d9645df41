"""Object lock: what each object of a copy is stored with, and whether the store has kept it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from nightferry.destination.s3.bucket import Bucket
from nightferry.destination.s3.failure import Forbidden
from nightferry.errors import DestinationError

_ROUNDED = timedelta(minutes=1)
"""Stores keep whole seconds, and some round."""
_NONE = (
    "NoSuchObjectLockConfiguration",
    "ObjectLockConfigurationNotFoundError",
    "InvalidRequest",
    404,
    405,
    501,
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The lock that a site file asks for. ``mode`` in the API's capitals."""

    mode: str
    days: int

    def headers(self, until: datetime) -> dict[str, Any]:
        """What a request that stores an object says besides."""
        return {"ObjectLockMode": self.mode, "ObjectLockRetainUntilDate": until}


class NotLocked(DestinationError):
    """An object is there without the lock that it was stored with."""

    default_hint = "the store, or a gateway before it, drops locks: no copy there counts until it keeps them"


def require_locked(bucket: Bucket, path: str, wanted: Wanted, until: datetime) -> None:
    """Reads an object's lock back.

    Raises:
        NotLocked: it has none, a weaker or a shorter one.
        DestinationError: the key may not see it.
    """
    found = _retention(bucket, path)
    if found is None:
        raise NotLocked(f"{bucket.name}: {path} was stored with a lock, but has none", subject=bucket.name)
    mode, ends = found
    if mode not in (wanted.mode, "COMPLIANCE") or ends < until - _ROUNDED:
        raise NotLocked(
            f"{bucket.name}: {path} is locked as {mode} until {ends:%Y-%m-%d %H:%M}, "
            f"{wanted.mode} until {until:%Y-%m-%d %H:%M} was asked for",
            subject=bucket.name,
        )


def _retention(bucket: Bucket, path: str) -> tuple[str, datetime] | None:
    """Mode and end. A HEAD is silent of them to a key that may not see them, so its silence proves nothing."""
    try:
        said = bucket.call("head_object", Key=bucket.key(path)) or {}
    except Forbidden:
        said = {}
    if "ObjectLockRetainUntilDate" not in said:
        try:
            answer = bucket.call("get_object_retention", Key=bucket.key(path), unless=_NONE) or {}
        except Forbidden as error:
            raise DestinationError(
                f"{bucket.name}: whether {path} is locked cannot be seen: {error.message}",
                subject=bucket.name,
                hint="give the key s3:GetObjectRetention: an unseen lock is not believed",
            ) from error
        kept = answer.get("Retention", {})
        said = {"ObjectLockMode": kept.get("Mode"), "ObjectLockRetainUntilDate": kept.get("RetainUntilDate")}
    ends = said.get("ObjectLockRetainUntilDate")
    return (str(said.get("ObjectLockMode")), ends) if isinstance(ends, datetime) else None
