"""What lies in an image's folder: a whole copy, or why it is none, and what of it can still be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nightferry.destination.base import DATA_NAMES, Found, Odd
from nightferry.destination.copies import COPY, META, data_name, location_of, parse_about
from nightferry.destination.ours import ORIGIN, Origin, parse_origin, require_said, site_of
from nightferry.errors import MediumDamaged, NotInThisRelease


def found_copy(
    said: Mapping[str, Any], meta: bytes, image: str, first_side_file: Callable[[], bytes | None]
) -> Found:
    """A whole copy, by its ``copy.json`` and ``meta.json``; a first side file that says nothing is only noted."""
    origin, note = None, ""
    try:
        text = first_side_file()
        origin = parse_origin(image, text)
        require_said(image, text)
    except MediumDamaged as error:
        note = error.message
    location, digest = location_of(said), said["digest"]
    return Found(image, said["epoch"], location, meta, site_of(origin), note=note, digest=digest)


def require_found(name: str, image: str, scanned: Callable[[str], Found | Odd]) -> Found:
    """What a scan makes of an image's folder, when that is a whole copy.

    Raises:
        MediumDamaged: it is none.
    """
    try:
        found = scanned(image)
    except NotInThisRelease as error:
        raise MediumDamaged(f"{name}: images/{image}: {error}", subject=image) from error
    if isinstance(found, Odd):
        raise MediumDamaged(f"{name}: {found.path}: {found.why}", subject=image)
    return found


def odd_copy(image: str, sizes: Mapping[str, int], copy_text: bytes | None, origin: Origin | None) -> Odd:
    """What an image's folder is, which is not a whole copy.

    Args:
        image: The image.
        sizes: Bytes of each object in its folder.
        copy_text: ``copy.json``; None when there is none.
        origin: The first side file; None when there is none.
    """
    said = None if copy_text is None else parse_about(image, copy_text)
    epoch = said["epoch"] if said is not None else origin.epoch if origin is not None else 0
    digest = said["digest"] if said is not None else ""
    why, location = _read(image, sizes, said, epoch)
    return Odd(f"images/{image}", why, image, epoch, digest, location, site_of(origin))


def _read(
    image: str, sizes: Mapping[str, int], said: Mapping[str, Any] | None, epoch: int
) -> tuple[str, dict[str, Any] | None]:
    missing = [name for name in (META, COPY, "index", "chunks") if name not in sizes]
    there = {encoding: name for encoding, name in DATA_NAMES.items() if name in sizes}
    if not there:
        return ("it is empty" if not set(sizes) - {ORIGIN} else "it has no data"), None
    if said is not None:
        try:
            name = data_name(said)
        except NotInThisRelease as error:
            return error.message, None
        if sizes.get(name) != said["size_bytes"]:
            return f"{name} has {sizes.get(name, 0)} bytes, {said['size_bytes']} were written", None
        location = location_of(said)
    elif len(there) > 1:
        return f"{COPY} does not say which of {' and '.join(there.values())} is its data", None
    else:
        ((encoding, name),) = there.items()
        location = {"image": image, "epoch": epoch, "size_bytes": sizes[name]}
        location |= {"encoding": encoding} if encoding else {}
    if COPY in sizes and said is None:
        missing.append(f"a {COPY} that can be read")
    why = f"it lacks {', '.join(missing)}" if missing else "it was not finished"
    return why, location if {"index", "chunks"} <= set(sizes) else None
