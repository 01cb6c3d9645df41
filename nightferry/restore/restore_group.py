"""Bringing back a storage group: every store of it, read in the order in which the copies lie."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from nightferry.copies.passes import in_passes
from nightferry.errors import ConfigError, NightferryError, NotInThisRelease
from nightferry.model.names import choose
from nightferry.model.records import CopyRecord
from nightferry.progress import Cancel, Progress
from nightferry.restore.restore import Restored, RestorePlan, find_image, plan_restore, restore
from nightferry.restore.tree import AS_NEW, Writing
from nightferry.site.opened import OpenSite

_HAVE_NO_LOG = ("files", "sqlite")


@dataclass(frozen=True, slots=True)
class StoreBack:
    """What became of one store."""

    store: str
    done: Restored | None = None
    error: NightferryError | None = None

    @property
    def exit_code(self) -> int:
        """The contract's code for this store alone."""
        if self.error is not None:
            return self.error.exit_code
        return 0 if self.done is not None and self.done.is_complete else 3

    def as_json(self) -> dict[str, Any]:
        return {
            "store": self.store,
            **(self.done.as_json() if self.done is not None else {}),
            "error": self.error.message if self.error is not None else None,
        }


def plan_group(
    site: OpenSite, group: str, target: Path, *, as_of: datetime | None = None, copy: str | None = None
) -> list[RestorePlan]:
    """A plan for every store of the group that has a whole image, each to a folder of its name below the target.

    Raises:
        ConfigError: no such group, or a store without a whole image.
        NotInThisRelease: stores whose log would have to be replayed.
        CopyMissing: an image without a readable copy.
    """
    site.catalog.refresh()
    stores = _stores_of(site, group)
    if not stores:
        known = [g.name for g in site.file.groups]
        if group not in known:
            raise choose(group, known, "storage group")
        raise ConfigError(f"storage group {group} has no image", subject=group)
    plans = []
    for store in stores:
        image = find_image(site, group, store, as_of=as_of)
        if image.source_kind not in _HAVE_NO_LOG:
            raise NotInThisRelease(
                f"`nightferry restore group` of {image.source_kind} stores is not in this release: "
                "their log would have to be replayed",
                hint="restore its stores one by one with `nightferry restore store`",
                subject=group,
            )
        plans.append(plan_restore(site, image, [], target / store, copy=copy))
    return plans


def _stores_of(site: OpenSite, group: str) -> list[str]:
    """The group's stores that have images, those of renamed ones under the names that they go on with; of a group
    that goes on under another name, the stores as they were called."""
    lines = {site.catalog.line_of(image) for image in site.catalog.images()}
    of_lines = {store for of_group, _, store in (line.partition("/") for line in lines) if of_group == group}
    return sorted(of_lines or {image.store for image in site.catalog.images(group)})


def restore_group(
    site: OpenSite,
    plans: list[RestorePlan],
    *,
    writing: Writing = AS_NEW,
    progress: Progress,
    cancel: Cancel,
) -> list[StoreBack]:
    """Follows the plans, cartridge by cartridge and drive beside drive; a store that fails stops no other one.

    Returns:
        What became of each store, by name.

    Raises:
        Cancelled: between two pieces.
    """

    def back(plan: RestorePlan) -> StoreBack:
        name = f"{plan.image.group}/{plan.image.store}"
        if writing.below is None:
            plan.target.parent.mkdir(parents=True, exist_ok=True)
        try:
            done = restore(site, plan, writing=writing, progress=progress, cancel=cancel)
        except NightferryError as error:
            cancel.check()
            return StoreBack(name, error=error)
        return StoreBack(name, done)

    done = list(in_passes(site, plans, _first_copy, back, cancel))
    return sorted(done, key=lambda one: one.store)


def _first_copy(plan: RestorePlan) -> CopyRecord | None:
    return plan.sources[0].copy if plan.sources else None
