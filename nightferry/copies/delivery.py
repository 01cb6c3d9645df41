"""Copies of the catalog at the destinations, against the loss of its disk: what a rebuild begins from."""

from __future__ import annotations

from datetime import datetime

from nightferry.copies.beside import put_beside
from nightferry.destination.ours import catalog_name
from nightferry.errors import BusyError, ConfigError, DestinationError, NightferryError
from nightferry.model.catalog_records import DeliveryRecord
from nightferry.model.destinations import TapeSettings
from nightferry.model.records import CopyRecord
from nightferry.site.destinations import destination_of
from nightferry.site.marker import require_ours
from nightferry.site.opened import OpenSite


def deliver_catalog(opened: OpenSite, destination: str, when: datetime) -> str:
    """Keeps a copy of the catalog at a destination, against the loss of its disk, and people's decisions beside the
    copies; returns the copy's name."""
    require_ours(opened, destination, marking=True)
    put_beside(opened, destination, when)
    name = catalog_name(opened.catalog.order, when)
    before = opened.catalog.latest(DeliveryRecord, destination)
    data, digest = opened.catalog.export(before.digest if before is not None else "")
    destination_of(opened, destination).put_catalog(name, data)
    opened.catalog.append(DeliveryRecord(destination=destination, name=name, digest=digest, at=when))
    return name


def deliver_everywhere(opened: OpenSite) -> dict[str, NightferryError]:
    """A copy of the catalog to each destination that was ever copied to, tapes excepted: so that no rebuild begins
    from what the catalog does not say any more. A tape gets the next night's: a mount is not worth it, since what
    expired is on a tape until that is written over.

    Returns:
        Destination → why no copy came there. The next night brings it one.
    """
    used = {copy.destination for copy in opened.catalog.all(CopyRecord)}
    failed: dict[str, NightferryError] = {}
    for settings in opened.site.destinations:
        if isinstance(settings, TapeSettings) or settings.name not in used:
            continue
        try:
            deliver_catalog(opened, settings.name, opened.clock.now())
        except (DestinationError, ConfigError, BusyError) as error:
            failed[settings.name] = error
    return failed
