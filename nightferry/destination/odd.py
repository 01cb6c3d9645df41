"""What lies in an image's folder and is no whole copy: why, and what of it can still be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nightferry.destination.base import DATA_NAMES, Odd
from nightferry.destination.copies import COPY, META, data_name, location_of, parse_about
from nightferry.destination.ours import ORIGIN, Origin, site_of
from nightferry.errors import NotInThisRelease


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
