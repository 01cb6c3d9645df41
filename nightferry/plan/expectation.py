"""Whether a new image can be what the store was: compared with the last whole image of its line.

A store whose disk is not mounted is an empty folder, and an empty folder is read without an error.
"""

from __future__ import annotations

from collections.abc import Iterator

from nightferry.model.records import ImageRecord, StoreOrigin
from nightferry.model.stores import Expect
from nightferry.units import MIB, counted, format_size

FLOOR_BYTES = MIB
FLOOR_FILES = 100
"""Less counts as this much: half of a few files is nothing to wake anybody for."""

_EMPTY_DATABASE_BYTES = 4096
"""A database without a table is one page at most."""


def doubts(image: ImageRecord, before: ImageRecord, expect: Expect) -> list[str]:
    """Why the image is suspect; empty when nothing speaks against it.

    The rule:

    1. It is empty and was not: no files, or no bytes in them, or no table in any database.
    2. Its bytes or its files are less than ``expect.least`` or more than ``expect.most`` of what they were. Less than
       ``FLOOR_BYTES`` and ``FLOOR_FILES`` count as that much, on both sides.
    3. It lies on another file system, or a disk that was mounted inside it is not any more.

    ``least = "0 %"`` switches 1 and the lower bound off.
    """
    found = []
    if _is_empty(image) and not _is_empty(before):
        if expect.least > 0:
            found.append(
                f"it is empty, and had {counted(before.files, 'file')} with {format_size(before.payload_bytes)}"
            )
    else:
        found += _sizes(image, before, expect)
    if image.origin is not None and before.origin is not None:
        found += elsewhere(image.origin, before.origin)
    return found


def elsewhere(now: StoreOrigin, before: StoreOrigin) -> Iterator[str]:
    """How the disks below a store's path differ, where that says that one is missing or was exchanged.

    A file system is known by its UUID. Where that of either is not known, type and mount point must be the same; names
    and numbers of devices change from one boot to the next.
    """
    if not _is_same(now, before):
        yield f"its file system is {_named(now)}, and was {_named(before)}"
    for place in before.below:
        if place not in now.below:
            yield f"nothing is mounted at {place} inside it any more"


def _is_same(now: StoreOrigin, before: StoreOrigin) -> bool:
    for mine, other in ((now.uuid, before.uuid), (now.fsid, before.fsid)):
        if mine and other:
            return mine == other
    return (now.filesystem, now.mount) == (before.filesystem, before.mount)


def _named(origin: StoreOrigin) -> str:
    identity = f" with UUID {origin.uuid}" if origin.uuid else ""
    return f"{origin.source} ({origin.filesystem}) at {origin.mount}{identity}"


def _is_empty(image: ImageRecord) -> bool:
    empty_bytes = image.files * _EMPTY_DATABASE_BYTES if image.source_kind == "sqlite" else 0
    return image.files == 0 or image.payload_bytes <= empty_bytes


def _sizes(image: ImageRecord, before: ImageRecord, expect: Expect) -> Iterator[str]:
    figures = (
        (image.payload_bytes, before.payload_bytes, FLOOR_BYTES, format_size),
        (image.files, before.files, FLOOR_FILES, _files),
    )
    for now, then, floor, shown in figures:
        share = max(now, floor) / max(then, floor)
        if share < expect.least:
            yield f"it has {shown(now)}, and had {shown(then)}: less than {expect.least:.0%}"
        elif expect.most != "any" and share > expect.most:
            yield f"it has {shown(now)}, and had {shown(then)}: more than {expect.most:.0%}"


def _files(count: float) -> str:
    return counted(int(count), "file")
