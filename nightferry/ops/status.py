"""Is every store restorable? Green, amber or red, from our own records alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from nightferry.model.records import CopyRecord, ImageRecord
from nightferry.ops.opened import OpenSite

Colour = Literal["green", "amber", "red"]
EXIT_CODES: dict[Colour, int] = {"green": 0, "amber": 3, "red": 30}


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """One store's standing.

    green: the newest whole image is young enough and every copy of its policy is verified; amber: it can be
    restored, but something of that is missing; red: nothing whole that is young enough can be restored.
    """

    group: str
    store: str
    colour: Colour
    image: ImageRecord | None
    staged: bool
    copies: tuple[CopyRecord, ...]
    proved: datetime | None
    reason: str

    def as_json(self) -> dict[str, Any]:
        return {
            "store": f"{self.group}/{self.store}",
            "colour": self.colour,
            "image": self.image.image if self.image else None,
            "started": self.image.started if self.image else None,
            "state": self.image.state if self.image else None,
            "staged": self.staged,
            "copies": [{"destination": c.destination, "state": c.state} for c in self.copies],
            "proved": self.proved,
            "reason": self.reason,
        }


def status(opened: OpenSite, *, max_age: timedelta = timedelta(hours=26)) -> list[StoreStatus]:
    """Every store of the site file, in its order."""
    opened.catalog.refresh()
    now = opened.clock.now()
    return [
        _of_store(opened, group.name, store.name, group.copies, now - max_age)
        for group in opened.site.groups
        for store in group.stores
    ]


def _of_store(
    opened: OpenSite, group: str, store: str, policy: tuple[str, ...], oldest: datetime
) -> StoreStatus:
    image = opened.catalog.image_as_of(group, store, None)
    if image is None:
        return StoreStatus(group, store, "red", None, False, (), None, "never backed up whole")
    staged = opened.keeps(image)
    copies = tuple(opened.catalog.copies(image.image))
    reached = {d.name for d in opened.site.destinations}
    good = {c.destination for c in copies if c.state in ("whole", "verified")} & reached
    proved = max((c.verified for c in copies if c.verified and c.state == "verified"), default=None)
    lacking = [d for d in policy if not any(c.destination == d and c.state == "verified" for c in copies)]
    colour: Colour
    if not good and not staged:
        colour, reason = "red", "no readable copy"
    elif image.started < oldest:
        colour, reason = "red", "the newest whole image is too old"
    elif lacking:
        colour, reason = "amber", f"no verified copy at {', '.join(lacking)}"
    else:
        colour, reason = "green", ""
    return StoreStatus(group, store, colour, image, staged, copies, proved, reason)


def exit_code(stores: list[StoreStatus]) -> int:
    """0 all green, 3 some amber, 30 some red."""
    return max((EXIT_CODES[s.colour] for s in stores), default=0)
