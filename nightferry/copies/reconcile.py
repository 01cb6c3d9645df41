"""What a rebuilt catalog says of copies, looked for where they should lie.

The copy of the catalog that a rebuild begins with may be older than the last expiry: it lists copies at other
destinations that are gone, and images on staging that were freed. What is found to be gone is said, and not owed for
ever; what cannot be looked at stays as it is on record.
"""

from __future__ import annotations

from collections.abc import Iterable

from nightferry.catalog.query import Catalog
from nightferry.destination.base import Destination, Found, Marked, Odd, SiteMark
from nightferry.destination.ours import parse_marker
from nightferry.errors import ConfigError, DestinationError
from nightferry.model.destinations import TapeSettings
from nightferry.model.records import THERE, CopyRecord, CopyState
from nightferry.site.destinations import destination_of
from nightferry.site.opened import OpenSite


def reconcile_copies(
    catalog: Catalog, destination: Destination, found: Iterable[Found], odd: Iterable[Odd]
) -> tuple[list[str], list[str]]:
    """Copies that are on record at the destination, and were not found, are lost; those of which something is there
    are damaged.

    One on a cartridge that is not in the library is only elsewhere: a lost one would let the cartridge be
    written over.

    Returns:
        The images whose copies are lost, and those whose copies are on such a cartridge.
    """
    lost: list[str] = []
    elsewhere: list[str] = []
    there = {(one.image, one.epoch) for one in found}
    odd_images = {one.image for one in odd}
    missing_media = _cartridges_elsewhere(catalog, destination)
    for copy in catalog.all(CopyRecord):
        if copy.destination != destination.name or (copy.image, copy.epoch) in there:
            continue
        if copy.state not in THERE and copy.state != "writing":
            continue  # it is known to be gone, or to be going
        parts = copy.location.get("parts", ())
        if any(part["barcode"] in missing_media for part in parts):
            elsewhere.append(copy.image)
            continue
        state: CopyState = "damaged" if copy.image in odd_images and copy.state != "writing" else "lost"
        note = f"not {'whole' if state == 'damaged' else 'there'} when the catalog was rebuilt; {copy.note}"
        catalog.append(copy.model_copy(update={"state": state, "note": note.rstrip("; ")[:500]}))
        if copy.state != "writing" and state == "lost":
            lost.append(copy.image)
    return lost, elsewhere


def _cartridges_elsewhere(catalog: Catalog, destination: Destination) -> set[str]:
    """Barcodes that copies name and the library does not have; none where there are no cartridges."""
    from nightferry.destination.tape.library.destination import TapeDestination

    if not isinstance(destination, TapeDestination):
        return set()
    here = {view.barcode for view in destination.inventory() if view.element}
    named = {
        part["barcode"]
        for copy in catalog.all(CopyRecord)
        if copy.destination == destination.name
        for part in copy.location.get("parts", ())
    }
    return named - here


def reconcile_elsewhere(
    site: OpenSite, catalog: Catalog, but: str, mark: SiteMark | None
) -> tuple[list[str], list[str]]:
    """Copies that are on record at another destination of objects, and of which nothing lies there, are lost.

    A tape is not asked: that takes mounts, and what expired is on it until it is written over.

    Args:
        site: Opens the destinations.
        catalog: The one that is being made.
        but: The destination that it is made from.
        mark: Whose the copies are; what does not say that it is the same site's is not believed.

    Returns:
        The lost copies as ``IMAGE at DESTINATION``, and why other destinations could not be looked at.
    """
    lost: list[str] = []
    unseen: list[str] = []
    for settings in site.file.destinations:
        name = settings.name
        there = [c for c in catalog.all(CopyRecord) if c.destination == name and c.state in THERE]
        if name == but or not there:
            continue
        try:
            listed = _listed(site, name, mark)
        except (DestinationError, ConfigError) as error:
            unseen.append(f"{name}: {error.message}")
            continue
        if listed is None:
            unseen.append(f"{name}: a tape library, or without this site's marker")
            continue
        for copy in there:
            if copy.image not in listed:
                note = f"not there when the catalog was rebuilt from {but}; {copy.note}".rstrip("; ")
                catalog.append(copy.model_copy(update={"state": "lost", "note": note[:500]}))
                lost.append(f"{copy.image} at {name}")
    return lost, unseen


def _listed(site: OpenSite, name: str, mark: SiteMark | None) -> set[str] | None:
    """The images that something lies of at a destination; None when it does not say that it is this site's."""
    if isinstance(site.file.destination(name), TapeSettings):
        return None
    target = destination_of(site, name)
    if not isinstance(target, Marked) or mark is None:
        return None
    text = target.marker()
    whose = parse_marker(text) if text is not None else None
    if whose is None or whose.id != mark.id:
        return None
    return set(target.images())
