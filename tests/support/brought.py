"""What the catalog says of an image's copies, and the image brought back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nightferry.model.records import ImageRecord
from nightferry.progress import QUIET, Cancel, Progress
from nightferry.restore import restore
from nightferry.site.opened import OpenSite


def states(opened: OpenSite, image: str) -> dict[str, str]:
    """Destination → state of the image's copy there, by records read again."""
    opened.catalog.refresh()
    return {copy.destination: copy.state for copy in opened.catalog.copies(image)}


def bring_back(
    opened: OpenSite,
    to: Path,
    patterns: Sequence[str] = (),
    copy: str | None = None,
    *,
    store: str = "SG1/a",
    image: ImageRecord | None = None,
    progress: Progress = QUIET,
    cancel: Cancel | None = None,
) -> restore.Restored:
    """Restores the newest image of a store, or the one given, as ``nightferry restore`` does."""
    image = image or restore.find_image(opened, *store.split("/"))
    plan = restore.plan_restore(opened, image, patterns, to, copy=copy)
    return restore.restore(opened, plan, progress=progress, cancel=cancel or Cancel())
