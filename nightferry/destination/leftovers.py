"""What lies at a destination of objects and belongs to no copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from nightferry.destination.base import DATA_NAMES, Leftover
from nightferry.destination.copies import data_name


class Entry(NamedTuple):
    """An object in an image's folder. ``changed``: when it was last written to, aware."""

    path: str
    size_bytes: int
    changed: datetime


def left_in(
    image: str, said: Mapping[str, Any] | None, entries: Sequence[Entry], before: datetime
) -> Iterator[Leftover]:
    """What is left over in an image's folder.

    Beside a whole copy that is data under another name, which the key could not remove when the copy was made
    anew. Where no copy is whole, it is the folder, once nothing in it was touched any more.

    Args:
        image: The image.
        said: ``copy.json`` of its whole copy, None when there is none.
        entries: What the folder holds.
        before: Only what was last written to before.
    """
    if said is None:
        if entries and all(entry.changed < before for entry in entries):
            size = sum(entry.size_bytes for entry in entries)
            newest = max(entry.changed for entry in entries)
            yield Leftover("unfinished", image, f"images/{image}", newest, size)
        return
    others = set(DATA_NAMES.values()) - {data_name(said)}
    for entry in entries:
        if entry.path.rpartition("/")[2] in others and entry.changed < before:
            yield Leftover("data", image, entry.path, entry.changed, entry.size_bytes)
