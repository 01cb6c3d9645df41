"""What at a destination is this site's, and so may be removed: names of our shape, and who wrote them.

Nothing is removed for its place alone. Three things prove that it is ours:

- the **marker** of the place, ``site.json``: the site that has it to itself;
- the **first side file** of a copy, ``origin.json``: written before the copy's data, it names site, run and epoch;
- of copies made before there was one: ``copy.json`` or ``meta.json`` with the digest that the catalog recorded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime

from nightferry.destination.base import DATA_NAMES, SIDE_FILES, SiteMark
from nightferry.destination.copies import COPY, META
from nightferry.errors import ConfigError, MediumDamaged, NotOurs
from nightferry.model.names import parse_image_name

ORIGIN = "origin.json"
SCRATCH = ".nightferry-check"
"""The name of what a check writes and removes."""
MARKER = "site.json"
MARKER_BYTES = 1 << 20
"""Longer than this nothing that proves something makes sense, and it is not read."""

NAMES = (*DATA_NAMES.values(), *(name for name in SIDE_FILES if name != META), META, COPY, ORIGIN)
"""Every object that a copy may have, in the order in which they are removed: without its data nothing that a
crash leaves behind looks whole, and what proves it ours goes last."""

_FORMAT = 1
_PARTIAL = re.compile(r"\.partial-[0-9]+")
_DRAFT = re.compile(r"\.draft-(.+)|\.(.+)\.new")
_RECORDS = re.compile(r"records-(?:([0-9]{12})-)?([0-9]{8}T[0-9]{6}Z)\.json")
_CATALOG = re.compile(r"catalog-(?:([0-9]{12})-)?([0-9]{8}T[0-9]{6}Z)\.parquet")


@dataclass(frozen=True, slots=True)
class Origin:
    """Who began to write a copy: the content of ``origin.json``."""

    image: str
    site: str
    id: str
    run: str
    epoch: int


def render_origin(mark: SiteMark, image: str, epoch: int) -> bytes:
    """The first side file of a copy."""
    run = parse_image_name(image).run if is_image(image) else ""
    said = {"format": _FORMAT, **asdict(Origin(image, mark.site, mark.id, run, epoch))}
    return json.dumps(said, indent=1).encode() + b"\n"


def parse_origin(image: str, text: bytes | None) -> Origin | None:
    """Who began to write this image here; None when that is not said."""
    try:
        said = json.loads(text or b"")
        found = Origin(said["image"], said["site"], said["id"], said["run"], said["epoch"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    sound = found.image == image and all(isinstance(word, str) for word in (found.site, found.id, found.run))
    return found if sound and isinstance(found.epoch, int) else None


def require_said(image: str, text: bytes | None) -> None:
    """Raises:
    MediumDamaged: there is a first side file, and it does not say whose the copy is.
    """
    if text is not None and parse_origin(image, text) is None:
        raise MediumDamaged(f"its {ORIGIN} does not name its site", subject=image)


def site_of(origin: Origin | None) -> SiteMark | None:
    """Who began to write a copy, where it says so."""
    return SiteMark(origin.site, origin.id) if origin is not None and origin.id else None


def is_ours(origin: Origin | None, mark: SiteMark) -> bool:
    """Whether a copy was begun by this site."""
    return origin is not None and bool(mark.id) and origin.id == mark.id


def render_marker(mark: SiteMark) -> bytes:
    """The marker of a place that a site has to itself."""
    said = {"format": _FORMAT, "site": mark.site, "id": mark.id}
    return json.dumps(said, indent=1).encode() + b"\n"


def parse_marker(text: bytes) -> SiteMark | None:
    """Whose a place is; None when the text is not a marker."""
    try:
        said = json.loads(text)
        found = SiteMark(said["site"], said["id"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    sound = isinstance(found.site, str) and isinstance(found.id, str) and found.site and found.id
    return found if sound else None


def is_image(name: str) -> bool:
    """Whether a folder's name is that of an image."""
    try:
        parse_image_name(name)
    except ConfigError:
        return False
    return True


def is_object(name: str) -> bool:
    """Whether a name in an image's folder is that of a copy's object, or of the draft of one."""
    draft = _DRAFT.fullmatch(name)
    return name in NAMES or (draft is not None and (draft[1] or draft[2]) in NAMES)


def is_partial(name: str) -> bool:
    """Whether a name in an image's folder is that of the folder in which a copy's objects are written."""
    return _PARTIAL.fullmatch(name) is not None


def is_catalog(name: str) -> bool:
    """Whether a name is that of a copy of the catalog."""
    return _CATALOG.fullmatch(name) is not None


def is_records(name: str) -> bool:
    """Whether a name is that of records beside the copies."""
    return _RECORDS.fullmatch(name) is not None


def catalog_name(order: int, when: datetime) -> str:
    """What a copy of the catalog is called: its order comes first, since clocks may be wrong."""
    return f"catalog-{order:012d}-{when:%Y%m%dT%H%M%SZ}.parquet"


def records_name(order: int, when: datetime) -> str:
    """What the records beside the copies are called."""
    return f"records-{order:012d}-{when:%Y%m%dT%H%M%SZ}.json"


def age_of(name: str) -> tuple[int, str]:
    """Sorts copies of the catalog, and records, the oldest first. Those of releases that gave no order are older than
    all others, and among themselves in the order of their times."""
    match = _CATALOG.fullmatch(name) or _RECORDS.fullmatch(name)
    return (int(match[1] or 0), match[2]) if match is not None else (0, name)


def in_order(names: Iterable[str]) -> list[str]:
    """Names of a copy's objects in the order in which they are removed; drafts first."""
    order = {name: number for number, name in enumerate(NAMES)}
    return sorted(names, key=lambda name: (order.get(name, -1), name))


def is_proved(read: Callable[[str], bytes | None], image: str, mark: SiteMark, digest: str) -> bool:
    """Whether the copy of an image that the catalog knows is ours.

    Args:
        read: Gives an object of the copy by its name; None when it is not there.
        image: Whose copy.
        mark: This site's.
        digest: The image's, as the catalog recorded it.
    """
    text = read(ORIGIN)
    if text is not None:
        return is_ours(parse_origin(image, text), mark)
    return bool(digest) and any(_names(read(name), image, digest) for name in (COPY, META))


def require_free(
    name: str,
    image: str,
    epoch: int,
    read: Callable[[str], bytes | None],
    there: Iterable[str],
    mark: SiteMark,
    digest: str,
) -> None:
    """Whether an image's name may be written to at a destination.

    It may where no object of a copy lies under it, where what lies there is ours, or where the catalog has begun
    to write there before: no first epoch is given twice.

    Args:
        name: The destination's name.
        image: The image.
        epoch: Of the copy that is to be written.
        read: Gives an object of the copy that is there by its name; None when it is not there.
        there: Names of the objects that are there; asked only where there is no first side file.
        mark: This site's.
        digest: The image's.

    Raises:
        NotOurs: it may not.
    """
    origin = parse_origin(image, read(ORIGIN))
    require_not_others(name, origin, mark)
    if origin is None and epoch == 1 and any(there) and not is_proved(read, image, mark, digest):
        raise NotOurs(
            f"{name}: images/{image} holds objects without proof that they are this site's",
            subject=name,
            hint="move them away, then run the backup again",
        )


def require_not_others(name: str, origin: Origin | None, mark: SiteMark) -> None:
    """Raises:
    NotOurs: a copy was begun by another site.
    """
    if origin is not None and origin.id != mark.id:
        raise NotOurs(
            f"{name}: images/{origin.image} belongs to {SiteMark(origin.site, origin.id)}, not to {mark}",
            subject=name,
            hint="give each site its own location",
        )


def _names(text: bytes | None, image: str, digest: str) -> bool:
    try:
        said = json.loads(text or b"")
        return bool(said["image"] == image and said["digest"] == digest)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
