"""What a rebuild begins from: copies of the catalog at the destinations, and what people decided, beside the copies.

Holds, selections, approvals and seals of images that there are go to each destination of objects as plain JSON,
``records/records-<order>-<time>.json``, so that a catalog which is made from the copies alone knows them. On tape they
stand in the trailer of each image.
"""

from __future__ import annotations

import json
import logging
from datetime import datetime

from pydantic import ValidationError

from nightferry.catalog.query import Catalog
from nightferry.destination.base import Marked, SiteMark
from nightferry.destination.ours import catalog_name, records_name
from nightferry.errors import BusyError, ConfigError, DestinationError, NightferryError
from nightferry.model.catalog_records import DeliveryRecord
from nightferry.model.destinations import TapeSettings
from nightferry.model.record import Record
from nightferry.model.records import (
    RECORDS,
    THERE,
    ApprovalRecord,
    CopyRecord,
    HoldRecord,
    ImageRecord,
    SealRecord,
    SelectionRecord,
)
from nightferry.site.destinations import destination_of
from nightferry.site.marker import require_ours
from nightferry.site.opened import OpenSite

log = logging.getLogger(__name__)

DECIDED = "records.json"
"""What the records that speak of one image are called in a tape's trailer."""
_FORMAT = 1
_KINDS: tuple[type[Record], ...] = (SelectionRecord, SealRecord, ApprovalRecord, HoldRecord)


def render_decisions(catalog: Catalog, mark: SiteMark, image: ImageRecord | None = None) -> bytes:
    """The records as one JSON document, in the log's order.

    Args:
        catalog: Where they are.
        mark: This site's.
        image: Only what speaks of this image; None: of all that have not expired.
    """
    images = (
        [image]
        if image is not None
        else [i for i in catalog.all(ImageRecord) if not catalog.expired(i.image)]
    )
    names, runs = {i.image for i in images}, {i.run for i in images}
    groups = {i.group for i in images}
    kept: list[Record] = []
    kept += [r for r in catalog.all(SelectionRecord) if image is None or r.group in groups]
    kept += [r for r in catalog.all(SealRecord) if r.run in runs]
    kept += [r for r in catalog.all(ApprovalRecord) if r.run in runs]
    kept += [r for r in catalog.all(HoldRecord) if r.image in names]
    said = {
        "format": _FORMAT,
        "site": mark.site,
        "id": mark.id,
        "through": catalog.last,
        "records": [{"kind": r.kind, "body": r.model_dump(mode="json")} for r in kept],
    }
    return json.dumps(said, ensure_ascii=True, indent=1).encode() + b"\n"


class Decisions:
    """What stood beside the copies. ``through``: the last event of the catalog that it was written from."""

    def __init__(self, text: bytes) -> None:
        """Raises:
        ValueError: it is none.
        """
        try:
            said = json.loads(text)
            known = {cls.kind: cls for cls in _KINDS}
            self.id = str(said["id"])
            self.through = int(said["through"])
            self.records = [
                RECORDS[each["kind"]].model_validate(each["body"], strict=False)
                for each in said["records"]
                if each["kind"] in known
            ]
        except (ValidationError, LookupError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(str(error)) from error


def add_records(catalog: Catalog, found: Decisions, last: int) -> int:
    """Adds what stood beside the copies; returns how many records. What the catalog knows of a subject stays, unless it
    knew it before that was written.

    Args:
        catalog: Takes them.
        found: What stood there.
        last: The last event of the copy of the catalog that was begun with; 0 where there was none.
    """
    added = 0
    for record in found.records:
        known = catalog.latest(type(record), record.subject)
        if known is None or (found.through > last and known != record):
            catalog.append(record)
            added += 1
    return added


def put_decisions(site: OpenSite, destination: str, when: datetime) -> None:
    """Lays the records beside the copies at a destination of objects.

    Raises:
        OtherSite: it is another site's.
        DestinationError: it cannot be written.
    """
    target = destination_of(site, destination)
    if isinstance(target, Marked):
        require_ours(site, destination, marking=True)
        target.put_records(
            records_name(site.catalog.order, when), render_decisions(site.catalog, site.mark())
        )


def spread_decisions(site: OpenSite) -> dict[str, NightferryError]:
    """Lays the records beside the copies wherever there are some; returns, by destination, why that failed. What does
    not get there now comes with the copies of the next night."""
    failed: dict[str, NightferryError] = {}
    used = {copy.destination for copy in site.catalog.all(CopyRecord) if copy.state in THERE}
    for name in [d.name for d in site.file.destinations if d.name in used]:
        try:
            put_decisions(site, name, site.clock.now())
        except NightferryError as error:
            log.warning("the records were not delivered to %s: %s", name, error.message)
            failed[name] = error
    return failed


def deliver_catalog(site: OpenSite, destination: str, when: datetime) -> str:
    """Keeps a copy of the catalog at a destination, against the loss of its disk, and people's decisions beside the
    copies; returns the copy's name."""
    require_ours(site, destination, marking=True)
    put_decisions(site, destination, when)
    name = catalog_name(site.catalog.order, when)
    before = site.catalog.latest(DeliveryRecord, destination)
    data, digest = site.catalog.export(before.digest if before is not None else "")
    destination_of(site, destination).put_catalog(name, data)
    site.catalog.append(DeliveryRecord(destination=destination, name=name, digest=digest, at=when))
    return name


def deliver_everywhere(site: OpenSite) -> dict[str, NightferryError]:
    """A copy of the catalog to each destination that was ever copied to, tapes excepted: so that no rebuild begins
    from what the catalog does not say any more. A tape gets the next night's: a mount is not worth it, since what
    expired is on a tape until that is written over.

    Returns:
        Destination → why no copy came there. The next night brings it one.
    """
    used = {copy.destination for copy in site.catalog.all(CopyRecord)}
    failed: dict[str, NightferryError] = {}
    for settings in site.file.destinations:
        if isinstance(settings, TapeSettings) or settings.name not in used:
            continue
        try:
            deliver_catalog(site, settings.name, site.clock.now())
        except (DestinationError, ConfigError, BusyError) as error:
            failed[settings.name] = error
    return failed
