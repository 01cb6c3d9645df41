"""Records of the catalog itself: whose it is, where copies of it went, what it was rebuilt from."""

from __future__ import annotations

from typing import ClassVar

from pydantic import AwareDatetime

from nightferry.model.fields import Digest, ImageText, SafeName
from nightferry.model.record import Record


class SiteRecord(Record):
    """Whose catalog this is. The id is drawn once, and goes with the catalog wherever it goes; the name may change."""

    kind: ClassVar[str] = "site"
    name: str
    """As the site file says it."""
    id: str
    """128 random bits, lower-case hex."""
    who: str = ""
    reason: str = ""
    """Why the name was changed."""
    at: AwareDatetime

    @property
    def subject(self) -> str:
        return "site"


class DeliveryRecord(Record):
    """The newest copy of the catalog at a destination; the next one there names its digest."""

    kind: ClassVar[str] = "delivery"
    destination: SafeName
    name: str
    digest: Digest
    at: AwareDatetime

    @property
    def subject(self) -> str:
        return self.destination


class RebuildRecord(Record):
    """A catalog that was made from media alone, and whether somebody took it for what it is."""

    kind: ClassVar[str] = "rebuild"
    rebuild: str
    """Its name: when it was made, UTC."""
    copy_from: SafeName
    """The destination that it was made from."""
    begun_from: str = ""
    """The copy of the catalog that it began with."""
    left_out: tuple[str, ...] = ()
    """Folders that could not be taken, as ``DESTINATION/PATH``."""
    missing: tuple[ImageText, ...] = ()
    """Images that owed copies and were found nowhere when it was accepted."""
    accepted: bool = False
    who: str
    reason: str = ""
    at: AwareDatetime

    @property
    def subject(self) -> str:
        return self.rebuild
