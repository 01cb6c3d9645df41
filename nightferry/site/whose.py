"""Whose a catalog and a destination are: nothing of ours is done in the place of another site.

A site is known by a random id, drawn by its first use of a catalog and recorded there. Every destination of
objects bears a marker with it (``destination/ours.py``), written when it is first used, never written over.
"""

from __future__ import annotations

import secrets

from nightferry.catalog.query import Catalog
from nightferry.clock import Clock
from nightferry.destination.base import SiteMark
from nightferry.errors import BusyError, OtherSite
from nightferry.model.catalog_records import SiteRecord


def known_mark(catalog: Catalog, site: str) -> SiteMark | None:
    """The site's mark as the catalog has it; None while it has none. Changes nothing.

    Raises:
        OtherSite: it is another site's catalog.
    """
    record = catalog.latest(SiteRecord, "site")
    if record is None:
        return None
    if record.name != site:
        raise OtherSite(
            f"the catalog {catalog.storage} belongs to site {record.name} (id {record.id[:8]}), but the site file is "
            f"for {site}",
            hint="correct site.catalog; after renaming a site, run "
            f"`nightferry catalog accept --renamed-from {record.name} --reason TEXT`",
            subject=str(catalog.storage),
        )
    return SiteMark(record.name, record.id)


def require_mark(catalog: Catalog, site: str, clock: Clock, who: str) -> SiteMark:
    """The site's mark; the first use of a catalog draws it.

    Raises:
        OtherSite: it is another site's catalog.
        CatalogError: it cannot be recorded.
    """
    while (found := known_mark(catalog, site)) is None:
        record = SiteRecord(name=site, id=secrets.token_hex(16), who=who, at=clock.now())
        try:
            catalog.append(record, expect=0)
        except BusyError:  # another process was first: what it drew counts
            catalog.refresh()
    return found
