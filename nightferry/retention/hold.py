"""Holds: images that the retention must leave alone."""

from __future__ import annotations

from nightferry.errors import ConfigError
from nightferry.model.records import OUTLIVED, HoldRecord
from nightferry.site.opened import OpenSite, operator


def add_hold(opened: OpenSite, image: str, reason: str) -> HoldRecord:
    """Holds an image: its copies, and its place on staging, do not expire until the hold is removed.

    Raises:
        ConfigError: no reason, no such image, or copies of it are expired or about to be.
    """
    if not reason.strip():
        raise ConfigError("a hold needs a reason", hint="add --reason TEXT", subject=image)
    opened.catalog.refresh()
    opened.catalog.image(image)
    record = _record(opened, image, True, reason)
    # The record comes before the look: an expiry looks at holds after it has said what it takes, so that one
    # of the two sees the other.
    opened.catalog.refresh()
    states = {copy.state for copy in opened.catalog.copies(image)}
    if opened.catalog.expired(image) or (states and states <= {*OUTLIVED, "lost"}):
        _record(opened, image, False, "every copy of it has expired")
        raise ConfigError(
            f"image {image} cannot be held: every copy of it has expired",
            hint="`nightferry images` lists what there is",
            subject=image,
        )
    return record


def remove_hold(opened: OpenSite, image: str, reason: str = "") -> HoldRecord:
    """Lets an image expire again when its time comes.

    Raises:
        ConfigError: it is not held.
    """
    opened.catalog.refresh()
    if opened.catalog.hold(image) is None:
        opened.catalog.image(image)
        raise ConfigError(
            f"image {image} is not held", hint="`nightferry hold list` lists what is", subject=image
        )
    return _record(opened, image, False, reason)


def holds(opened: OpenSite) -> list[HoldRecord]:
    """Every hold, the oldest first."""
    opened.catalog.refresh()
    return opened.catalog.holds()


def _record(opened: OpenSite, image: str, held: bool, reason: str) -> HoldRecord:
    record = HoldRecord(image=image, held=held, reason=reason, who=operator(), at=opened.clock.now())
    opened.catalog.append(record)
    return record
