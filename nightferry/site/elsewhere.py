"""What a rebuilt catalog says of other places than the one that it was made from, looked for there.

The copy of the catalog that a rebuild begins with may be older than the last expiry: it lists copies at other
destinations that are gone, and images on staging that were freed. What is found to be gone is said, and not owed for
ever; what cannot be looked at stays as it is on record.
"""

from __future__ import annotations

from nightferry.catalog.query import Catalog
from nightferry.destination.base import Marked, SiteMark
from nightferry.destination.ours import parse_marker
from nightferry.errors import ConfigError, DestinationError
from nightferry.model.destinations import TapeSettings
from nightferry.model.records import THERE, CopyRecord
from nightferry.site.destinations import destination_of
from nightferry.site.opened import OpenSite


def settle_elsewhere(
    opened: OpenSite, catalog: Catalog, but: str, mark: SiteMark | None
) -> tuple[list[str], list[str]]:
    """Copies that are on record at another destination of objects, and of which nothing lies there, are lost.

    A tape is not asked: that takes mounts, and what expired is on it until it is written over.

    Args:
        opened: Opens the destinations.
        catalog: The one that is being made.
        but: The destination that it is made from.
        mark: Whose the copies are; what does not say that it is the same site's is not believed.

    Returns:
        The lost copies as ``IMAGE at DESTINATION``, and why other destinations could not be looked at.
    """
    lost: list[str] = []
    unseen: list[str] = []
    for settings in opened.site.destinations:
        name = settings.name
        there = [c for c in catalog.all(CopyRecord) if c.destination == name and c.state in THERE]
        if name == but or not there:
            continue
        try:
            listed = _listed(opened, name, mark)
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


def _listed(opened: OpenSite, name: str, mark: SiteMark | None) -> set[str] | None:
    """The images that something lies of at a destination; None when it does not say that it is this site's."""
    if isinstance(opened.site.destination(name), TapeSettings):
        return None
    target = destination_of(opened, name)
    if not isinstance(target, Marked) or mark is None:
        return None
    text = target.marker()
    whose = parse_marker(text) if text is not None else None
    if whose is None or whose.id != mark.id:
        return None
    return set(target.images())
