"""What keeps a cartridge from being written over: the copies, and the parts of copies, that live on it. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from nightferry.model.records import CartridgeRecord, CopyRecord


def barcodes_of(copy: CopyRecord) -> set[str]:
    """Cartridges that a copy lies on; the one thing of a location that is read outside its destination."""
    parts = copy.location.get("parts", [])
    return {part["barcode"] for part in parts if isinstance(part, dict) and "barcode" in part}


def live_by_cartridge(
    cartridges: Iterable[CartridgeRecord], copies: Iterable[CopyRecord], given_up: Collection[str] = ()
) -> dict[str, set[str]]:
    """Barcode → images that keep the cartridge from being written over; cartridges without any are left out.

    Those are images with a copy on it that is neither lost nor expired. Of a copy that is not finished, its whole
    parts: they are gone on behind. While it is not on record what became of an attempt, every cartridge that the image
    was written to, until a later copy is verified. An image that was given up keeps no cartridge by what is not
    finished.

    Args:
        cartridges: Those of one destination.
        copies: All copies of the same destination.
        given_up: Images of which an operator said so.
    """
    written_to: dict[str, set[str]] = defaultdict(set)
    for cartridge in cartridges:
        for image in cartridge.images:
            written_to[image].add(cartridge.barcode)
    copies = list(copies)
    proved: dict[str, int] = defaultdict(int)
    newest: dict[str, int] = defaultdict(int)
    for copy in copies:
        newest[copy.image] = max(newest[copy.image], copy.epoch)
        if copy.state == "verified":
            proved[copy.image] = max(proved[copy.image], copy.epoch)
    live: dict[str, set[str]] = defaultdict(set)
    for copy in copies:
        if copy.state in ("lost", "expired"):
            continue
        on_them = barcodes_of(copy)
        if copy.state == "writing":
            if copy.epoch < proved[copy.image] or copy.image in given_up:
                continue
            if copy.ended is None:
                on_them |= written_to.get(copy.image, set())
            elif copy.epoch < newest[copy.image]:
                continue
        for barcode in on_them:
            live[barcode].add(copy.image)
    return dict(live)


def unfinished_on(
    cartridges: Iterable[CartridgeRecord], copies: Iterable[CopyRecord], barcode: str
) -> list[CopyRecord]:
    """Attempts that are not finished, and that have, or may have, something on a cartridge."""
    images = {image for cartridge in cartridges if cartridge.barcode == barcode for image in cartridge.images}
    return [
        copy
        for copy in copies
        if copy.state == "writing"
        and (barcode in barcodes_of(copy) or (copy.ended is None and copy.image in images))
    ]
