"""Taking a rebuilt catalog for what it is: until somebody does, nothing expires by it.

What it says is owed and lies nowhere is given up with that, image by image: at once, or, where the disk that it was
staged on cannot be seen, by the first night that sees it without the image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nightferry.catalog.query import Catalog
from nightferry.errors import ConfigError, NotAccepted
from nightferry.model.catalog_records import RebuildRecord, SiteRecord
from nightferry.model.records import ImageRecord
from nightferry.site.opened import OpenSite, operator
from nightferry.staging.owed import give_up, is_lost, missing


@dataclass(frozen=True, slots=True)
class Accepted:
    """What was accepted, or in a dry run would be."""

    rebuild: RebuildRecord | None
    renamed_from: str = ""
    given_up: tuple[str, ...] = ()
    """Images that owed copies and are lost."""

    @property
    def undecided(self) -> tuple[str, ...]:
        """Images that owe copies, and are found only if the disk that they were staged on still has them."""
        missing = self.rebuild.missing if self.rebuild is not None else ()
        return tuple(image for image in missing if image not in self.given_up)

    def as_json(self) -> dict[str, Any]:
        made = self.rebuild
        return {
            "rebuild": made.rebuild if made else None,
            "copy": made.copy_from if made else None,
            "begun_from": made.begun_from or None if made else None,
            "left_out": list(made.left_out) if made else [],
            "given_up": list(self.given_up),
            "undecided": list(self.undecided),
            "renamed_from": self.renamed_from or None,
        }


def not_accepted(catalog: Catalog) -> NotAccepted | None:
    """Why nothing may expire by this catalog; None when it may."""
    open_ones = [record for record in catalog.all(RebuildRecord) if not record.accepted]
    if not open_ones:
        return None
    newest = open_ones[-1]
    return NotAccepted(
        f"the catalog was rebuilt from {newest.copy_from} on {newest.at:%Y-%m-%d %H:%M} UTC, and has not been "
        "accepted: nothing expires",
        subject=str(catalog.storage),
    )


class _Warned:
    is_done = False
    """Whether it was said that the catalog is a rebuilt one."""


def warn_unaccepted(site: OpenSite) -> None:
    """Says, once for a process, where a rebuilt catalog came from that nobody accepted: what is restored by it is as
    whoever could write to that destination left it."""
    open_ones = [record for record in site.catalog.all(RebuildRecord) if not record.accepted]
    if open_ones and not site.part(_Warned).is_done:
        site.part(_Warned).is_done = True
        newest = open_ones[-1]
        begun = f" ({newest.begun_from})" if newest.begun_from else ", without a copy of the catalog"
        site.warn(
            f"the catalog was rebuilt from {newest.copy_from}{begun} on {newest.at:%Y-%m-%d %H:%M} UTC, and has not "
            "been accepted: check what was rebuilt, then run `nightferry catalog accept`"
        )


def named_left_out(catalog: Catalog, destination: str, path: str) -> bool:
    """Whether somebody accepted that a folder was left out."""
    name = f"{destination}/{path}"
    return any(record.accepted and name in record.left_out for record in catalog.all(RebuildRecord))


def accept(site: OpenSite, *, reason: str = "", renamed_from: str = "", dry_run: bool = False) -> Accepted:
    """Records that a rebuilt catalog is right, or that the site has another name now.

    Args:
        site: The site.
        reason: Why; kept in the log.
        renamed_from: The name under which the catalog knows the site; empty: it was not renamed.
        dry_run: Only say what there is to accept.

    Raises:
        ConfigError: there is nothing to accept, or the site has another name than ``renamed_from`` says.
    """
    site.catalog.refresh()
    pending = [record for record in site.catalog.all(RebuildRecord) if not record.accepted]
    if renamed_from:
        _rename(site, renamed_from, reason, dry_run=dry_run)
    elif not pending:
        raise ConfigError(
            "there is nothing to accept: the catalog was not rebuilt, or was already accepted",
            hint="`nightferry catalog rebuild` rebuilds a catalog from a destination",
        )
    else:
        site.mark()
    if renamed_from or not pending:
        return Accepted(None, renamed_from)
    at_stake = _missing_since(site, pending[-1])
    update = {
        "accepted": True,
        "missing": tuple(image.image for image in at_stake),
        "who": operator(),
        "reason": reason,
        "at": site.clock.now(),
    }
    if dry_run:
        lost = tuple(image.image for image in at_stake if is_lost(site, image))
        return Accepted(pending[-1].model_copy(update={"missing": update["missing"]}), given_up=lost)
    for record in pending:
        site.catalog.append(record.model_copy(update=update))
    return Accepted(pending[-1].model_copy(update=update), given_up=tuple(reconcile_accepted(site)))


def reconcile_accepted(site: OpenSite) -> list[str]:
    """Gives up what was missing when a rebuilt catalog was accepted, and is seen to be lost now; returns its names."""
    found: list[str] = []
    for record in site.catalog.all(RebuildRecord):
        for name in record.missing if record.accepted else ():
            image = site.catalog.latest(ImageRecord, name)
            if image is not None and is_lost(site, image):
                reason = f"lost with the catalog that was rebuilt from {record.copy_from}, and accepted by {record.who}"
                give_up(site, image, f"{reason}: {record.reason}".rstrip(": ")[:500])
                found.append(name)
    return found


def _missing_since(site: OpenSite, rebuild: RebuildRecord) -> list[ImageRecord]:
    """What is owed and lies nowhere, of the images that the rebuilt catalog began with."""
    made = site.catalog.latest_event(RebuildRecord, rebuild.subject)
    end = made.sequence if made is not None else 0
    return [image for image in missing(site) if site.catalog.place_in_log(image.image) < end]


def _rename(site: OpenSite, before: str, reason: str, *, dry_run: bool) -> None:
    record = site.catalog.latest(SiteRecord, "site")
    name = site.file.site.name
    if record is None or record.name != before:
        known = f"site {record.name}" if record is not None else "no site yet"
        raise ConfigError(
            f"the catalog belongs to {known}, not to site {before}",
            hint="use the site name that the catalog has; `nightferry check` says how",
            subject=before,
        )
    if not dry_run:
        change = {"name": name, "who": operator(), "reason": reason, "at": site.clock.now()}
        site.catalog.append(record.model_copy(update=change))
