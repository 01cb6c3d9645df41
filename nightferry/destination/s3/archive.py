"""Copies in storage classes that cannot be read in place: finding them, and asking for them."""

from __future__ import annotations

from typing import Any

from nightferry.destination.base import Archived
from nightferry.destination.s3.bucket import Bucket, Head
from nightferry.model.destinations import ARCHIVE_CLASSES, Recall

_ON_ITS_WAY = 'ongoing-request="true"'
_BROUGHT_BACK = 'ongoing-request="false"'


def archived(bucket: Bucket, path: str, head: Head, recall: Recall) -> Archived | None:
    """Whether the object must be recalled before it is read; None when it need not be.

    Its class alone does not say so: some stores keep the word and read the object all the same. One byte of it
    is asked for, where the store's own words about a recall do not decide.

    Raises:
        Forbidden: the key may not read.
    """
    if head.storage_class not in ARCHIVE_CLASSES and not head.archive:
        return None
    if _BROUGHT_BACK in head.restore:
        return None
    asked = _ON_ITS_WAY in head.restore
    if not asked and bucket.is_readable(path):
        return None
    return Archived(head.archive or head.storage_class, asked, recall.wait, recall.tier)


def ask(bucket: Bucket, path: str, head: Head, recall: Recall) -> None:
    """Asks for an archived object; one that is on its way already is not asked for twice.

    Raises:
        Forbidden: the key may not.
        DestinationError: the store refuses.
    """
    request: dict[str, Any] = {"GlacierJobParameters": {"Tier": recall.tier.capitalize()}}
    if not head.archive:  # an intelligent class takes it back for good
        request["Days"] = recall.days
    bucket.call(
        "restore_object", Key=bucket.key(path), RestoreRequest=request, unless=("RestoreAlreadyInProgress",)
    )
