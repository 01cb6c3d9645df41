"""What a restore can expect of each destination."""

from __future__ import annotations

from nightferry.model.records import CartridgeRecord
from nightferry.plan.restore_order import Speed
from nightferry.site.destinations import speed_of
from nightferry.site.opened import OpenSite


def speeds(opened: OpenSite) -> dict[str, Speed]:
    """What each destination can be expected to do, to choose where to restore from."""
    return {d.name: speed_of(d) for d in opened.site.destinations}


def offsite(opened: OpenSite) -> dict[str, set[str]]:
    """Destination → barcodes of its cartridges that are in a vault."""
    found: dict[str, set[str]] = {}
    for record in opened.catalog.all(CartridgeRecord):
        if record.state == "offsite":
            found.setdefault(record.destination, set()).add(record.barcode)
    return found
