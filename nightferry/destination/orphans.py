"""What lies at a destination of objects and belongs to no copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from nightferry.destination.base import DATA_NAMES, Orphan, SiteMark
from nightferry.destination.copies import data_name
from nightferry.destination.ours import Origin, is_image, is_object, is_ours
from nightferry.errors import NotOurs


class Entry(NamedTuple):
    """An object. ``changed``: when it was last written to, aware."""

    path: str
    size_bytes: int
    changed: datetime


def left_in(
    image: str,
    said: Mapping[str, Any] | None,
    origin: Origin | None,
    mark: SiteMark,
    entries: Sequence[Entry],
    before: datetime,
) -> Iterator[Orphan]:
    """What is left over in an image's folder, as far as its first side file says that we wrote there.

    Beside a whole copy that is data under another name, which the key could not remove when the copy was made
    again. Where no copy is whole, it is the folder, once nothing in it was touched any more; without a first
    side file of ours it is foreign.

    Args:
        image: The image.
        said: ``copy.json`` of its whole copy, None when there is none.
        origin: Its first side file.
        mark: This site's.
        entries: The objects of a copy that the folder holds.
        before: Only what was last written to before.
    """
    ours = is_ours(origin, mark)
    if said is None:
        if not entries or any(entry.changed >= before for entry in entries):
            return
        size = sum(entry.size_bytes for entry in entries)
        newest = max(entry.changed for entry in entries)
        if ours:
            yield Orphan("unfinished", image, f"images/{image}", newest, size)
        else:
            yield foreign(Entry(f"images/{image}", size, newest))
        return
    others = set(DATA_NAMES.values()) - {data_name(said)}
    for entry in entries:
        if entry.path.rpartition("/")[2] in others and entry.changed < before:
            if ours:
                yield Orphan("data", image, entry.path, entry.changed, entry.size_bytes)
            else:
                yield foreign(entry)


def foreign(entry: Entry) -> Orphan:
    """Something that is not ours."""
    return Orphan("foreign", "", entry.path, entry.changed, entry.size_bytes)


def is_copys(path: str) -> bool:
    """Whether a path is that of an object of a copy: ``images/<image>/<object>``."""
    parts = path.split("/")
    return len(parts) == 3 and parts[0] == "images" and is_image(parts[1]) and is_object(parts[2])


def refuse_foreign(name: str, orphan: Orphan) -> None:
    """Raises:
    NotOurs: it is foreign.
    """
    if orphan.what == "foreign":
        raise NotOurs(f"{name}: {orphan.path} is not ours", subject=name)
