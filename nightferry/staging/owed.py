"""What copies are owed, from the records alone: the policy as it was when an image was staged.

An image owes its copies until each is verified, or an operator gives it up. Neither a site file that no longer names
its storage group, store, destination or BACK group ends that, nor the loss of the image on staging: it is made again
from another copy, and where there is none it is lost, which is said until somebody gives it up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nightferry.cluster.disk import FOLDER
from nightferry.errors import ConfigError
from nightferry.model.records import (
    OUTLIVED,
    THERE,
    AdoptionRecord,
    ForgottenRecord,
    FreedRecord,
    ImageRecord,
    SelectionRecord,
    StagingLossRecord,
)
from nightferry.plan.staging import CopyPolicy
from nightferry.site.nodes import had_disk, require_store
from nightferry.site.opened import OpenSite, operator
from nightferry.staging.images import back_group_of, is_staged
from nightferry.units import counted


@dataclass(frozen=True, slots=True)
class Owed:
    """One copy that is still to be made or proved."""

    image: ImageRecord
    destination: str
    undeliverable: str = ""
    """Why no night delivers it as the site file is; empty when one does."""
    unnamed: str = ""
    """Which name of the image's the site file no longer has, although the next night delivers the copy."""


def owed(site: OpenSite, back_group: str | None = None) -> list[Owed]:
    """Every copy that is owed; what was owed longest comes first.

    Args:
        site: The site.
        back_group: Only of images on this BACK group's disk; None: of all, also those whose disk nobody knows.
    """
    site.catalog.refresh()
    return [
        each
        for image in reversed(site.catalog.images())
        if back_group is None or back_group_of(site, image) == back_group
        for each in _owed_by(site, image)
    ]


def undeliverable(site: OpenSite) -> list[Owed]:
    """What is owed by images that the site file does not account for any more, whether or not a night still delivers
    it; of a lost image nothing can be delivered (``lost``)."""
    found = [each for each in owed(site) if each.undeliverable or each.unnamed]
    return [each for each in found if not is_lost(site, each.image)]


def owes(site: OpenSite, image: ImageRecord) -> bool:
    """Whether a copy of the image is owed."""
    return next(_owed_by(site, image), None) is not None


def policy_of(site: OpenSite, image: ImageRecord) -> CopyPolicy:
    """Where the image's copies must be: as its storage group said when it was staged.

    Of an image from before that was recorded the storage group says it now. Of one whose group is gone, the copies of
    that group's images do; where none was ever made, every destination counts, so that nothing is forgotten.
    """
    if image.policy is not None:
        return CopyPolicy(image.policy, image.at_least)
    group = next((g for g in site.file.groups if g.name == image.group), None)
    if group is not None:
        return CopyPolicy(group.copies, group.at_least)
    of_group = (
        copy for other in site.catalog.images(image.group) for copy in site.catalog.copies(other.image)
    )
    used = tuple(dict.fromkeys(copy.destination for copy in of_group))
    return CopyPolicy(used or tuple(destination.name for destination in site.file.destinations))


def is_lost(site: OpenSite, image: ImageRecord) -> bool:
    """Whether the image can be read nowhere although its copies are owed: the night that staged it is gone.

    Of a disk that is not here, on another node or not mounted, only the catalog can say that: its image was found
    damaged or gone.
    """
    if is_staged(site, image) or not owes(site, image) or _readable_copies(site, image):
        return False
    return site.catalog.lost_on_staging(image) or disk_is_here(site, image)


def disk_is_here(site: OpenSite, image: ImageRecord) -> bool:
    """Whether the disk that the image was staged on is mounted on this node."""
    back_group = back_group_of(site, image)
    disk = next((b.path for b in site.file.back_groups if b.name == back_group), None)
    return disk is not None and (disk / FOLDER).is_dir() and had_disk(site, back_group)


def missing(site: OpenSite) -> list[ImageRecord]:
    """Images that owe copies and can be read neither on staging, as far as it can be seen from here, nor anywhere else:
    the lost ones, and those whose disk is on another node or not mounted. The oldest first."""
    owing = {each.image.image: each.image for each in owed(site)}
    return [
        image for image in owing.values() if not is_staged(site, image) and not _readable_copies(site, image)
    ]


def give_up(site: OpenSite, image: ImageRecord, reason: str) -> ForgottenRecord:
    """Records that an image owes nothing more. A lost one is no longer listed."""
    now = site.clock.now()
    was_lost = is_lost(site, image)
    record = ForgottenRecord(image=image.image, reason=reason, who=operator(), at=now)
    site.catalog.append(record)
    if was_lost:
        site.catalog.append(FreedRecord(image=image.image, reason=reason, at=now, expired=True))
    return record


def note_loss(site: OpenSite, image: ImageRecord, reason: str) -> None:
    """Records that staging has the image no more, so that every node knows it; making it again ends that."""
    if not site.catalog.lost_on_staging(image):
        site.catalog.append(StagingLossRecord(image=image.image, reason=reason[:500], at=site.clock.now()))


def lost(site: OpenSite) -> list[ImageRecord]:
    """The lost images, the newest first."""
    return [image for image in site.catalog.images() if is_lost(site, image)]


def describe_undeliverable(undeliverable: list[Owed]) -> list[str]:
    """A line for each image of `undeliverable`."""
    found: dict[str, list[Owed]] = {}
    for each in undeliverable:
        found.setdefault(each.image.image, []).append(each)
    return [
        f"{image} owes {counted(len(rows), 'copy', 'copies')} at {', '.join(row.destination for row in rows)}: "
        + "; ".join(dict.fromkeys(row.undeliverable or row.unnamed for row in rows))
        for image, rows in found.items()
    ]


FORGET_HINT = (
    "put what is named back into the site file: a destination or BACK group under its old name, a renamed store or "
    "storage group with `nightferry selection adopt OLD NEW`; or give it up: `nightferry forget IMAGE --reason TEXT`"
)


def forget_owed(site: OpenSite, name: str, reason: str) -> list[ForgottenRecord]:
    """Records an operator's word that an image, or all of a store's, owes nothing more.

    No byte is removed by that. Staging frees a given-up image when the rule for staging lets it; a lost one is no
    longer listed.

    Args:
        site: The site.
        name: An image's name, or ``GROUP/STORE``.
        reason: Why.

    Returns:
        What was recorded, one for each image.

    Raises:
        ConfigError: no reason, no such image or store, or nothing that could be given up.
    """
    if not reason.strip():
        raise ConfigError("forgetting needs a reason", hint="add --reason TEXT", subject=name)
    site.catalog.refresh()
    if "/" in name:
        group, store = require_store(site, name)
        images = site.catalog.images(group, store)
    else:
        images = [site.catalog.image(name)]
    owing = [image for image in images if owes(site, image)]
    if not owing:
        raise ConfigError(
            f"{name} owes nothing and is not lost",
            hint="see `nightferry status` and `nightferry images` for what is owed or lost",
            subject=name,
        )
    return [give_up(site, image, reason) for image in owing]


def adopt(site: OpenSite, old: str, new: str) -> list[AdoptionRecord]:
    """Records that a renamed store, or every store of a renamed storage group, goes on under its new name.

    Images of before belong to the new name's line: restores, `status` and the retention take them for its own. A fixed
    selection that names the old store names the new one from now on.

    Args:
        site: The site.
        old: ``GROUP/STORE`` or ``GROUP`` that the site file does not name any more.
        new: The same in its new words, which it names.

    Raises:
        ConfigError: the old name has no images or is still in the site file, or the new one is not.
    """
    site.catalog.refresh()
    if ("/" in old) != ("/" in new):
        raise ConfigError(
            f"{old} and {new} are not of the same kind",
            hint="name two stores as GROUP/STORE, or two storage groups",
            subject=new,
        )
    pairs = [(old, new)] if "/" in old else list(_stores_of(site, old, new))
    now, who = site.clock.now(), operator()
    for before, after in pairs:
        _require_adoptable(site, before, after)
    records = [AdoptionRecord(old=before, new=after, who=who, at=now) for before, after in pairs]
    for record in records:
        site.catalog.append(record)
        _rename_in_selection(site, record)
    return records


def _stores_of(site: OpenSite, old: str, new: str) -> Iterator[tuple[str, str]]:
    """The stores of a renamed storage group, each with its new name."""
    if any(group.name == old for group in site.file.groups):
        raise _still_there(old)
    stores = dict.fromkeys(image.store for image in reversed(site.catalog.images(old)))
    known = {store.name for store in site.file.group(new).stores}
    missing = [store for store in stores if store not in known]
    if not stores or missing:
        named = (
            f"{old}/{missing[0]} has no store of the same name in {new}"
            if missing
            else f"{old} has no images"
        )
        raise ConfigError(
            named, hint="adopt store by store: `nightferry selection adopt OLD/STORE NEW/STORE`", subject=old
        )
    yield from ((f"{old}/{store}", f"{new}/{store}") for store in stores)


def _require_adoptable(site: OpenSite, old: str, new: str) -> None:
    group, _, store = old.partition("/")
    site.file.store(new)
    if any(ref.name == old for ref in site.file.stores):
        raise _still_there(old)
    if not any(True for _ in site.catalog.images(group, store)):
        raise ConfigError(
            f"no image of {old} is in the catalog",
            hint="`nightferry images` lists the stores that have some",
            subject=old,
        )


def _still_there(old: str) -> ConfigError:
    return ConfigError(
        f"{old} is still in the site file, so nothing can take over its images",
        hint="rename it there first",
        subject=old,
    )


def _rename_in_selection(site: OpenSite, record: AdoptionRecord) -> None:
    group, _, store = record.old.partition("/")
    new_group, _, new_store = record.new.partition("/")
    fixed = site.catalog.selection(group)
    if group != new_group or fixed is None or store not in fixed.stores or new_store in fixed.stores:
        return
    stores = tuple(new_store if name == store else name for name in fixed.stores)
    changed = SelectionRecord(group=group, stores=stores, rule=fixed.rule, at=record.at, who=record.who)
    site.catalog.append(changed)


def _owed_by(site: OpenSite, image: ImageRecord) -> Iterator[Owed]:
    """Partial images owe copies, too, once an operator approved them."""
    if site.catalog.freed(image.image) or site.catalog.forgotten(image.image):
        return
    if image.state != "whole" and not site.catalog.accepted(image):
        return
    done = {c.destination for c in site.catalog.copies(image.image) if c.state in (*OUTLIVED, "verified")}
    known = {destination.name for destination in site.file.destinations}
    home = back_group_of(site, image)
    disks = {back_group.name for back_group in site.file.back_groups}
    line = site.catalog.line_of(image)
    named = any(ref.name == line for ref in site.file.stores)
    unnamed = "" if named else f"{line} is not in the site file, and a night still delivers its copies"
    for destination in policy_of(site, image).destinations:
        if destination in done:
            continue
        if destination not in known:
            yield Owed(image, destination, f"destination {destination} is not in the site file")
        elif home not in disks:
            yield Owed(
                image,
                destination,
                " ".join(filter(None, ("its BACK group", home, "is not in the site file"))),
            )
        else:
            yield Owed(image, destination, unnamed=unnamed)


def _readable_copies(site: OpenSite, image: ImageRecord) -> list[str]:
    known = {destination.name for destination in site.file.destinations}
    return [
        copy.destination
        for copy in site.catalog.copies(image.image)
        if copy.state in THERE - {"damaged"} and copy.destination in known
    ]
