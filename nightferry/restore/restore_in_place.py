"""Bringing a whole store back in its own place: beside it first, then exchanged by rename."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

from nightferry.errors import BusyError, ClusterError, ConfigError, NotInThisRelease, PartialResult
from nightferry.model.records import ImageRecord
from nightferry.model.stores import FilesStore, SqliteStore
from nightferry.progress import Cancel, Progress
from nightferry.restore.in_place import (
    beside,
    give_journals_back,
    in_place_exchange,
    set_journals_aside,
    store_in_use,
)
from nightferry.restore.restore import Restored, RestorePlan, plan_restore, restore
from nightferry.restore.tree import AS_NEW, Writing
from nightferry.restore.walk import remove_tree
from nightferry.site.nodes import active_node, require_here, working_on
from nightferry.site.opened import OpenSite
from nightferry.units import counted

log = logging.getLogger(__name__)


def plan_in_place(opened: OpenSite, image: ImageRecord, *, copy: str | None = None) -> RestorePlan:
    """The plan of an in-place restore: everything, beside the store.

    Raises:
        NotInThisRelease: the store's kind has no place on a file system.
        NotOwner: the store's service is on another node than this one.
    """
    path = place_of(opened, image)
    _require_service_here(opened, image)
    return plan_restore(opened, image, [], beside(path, image.run), copy=copy)


def _require_service_here(opened: OpenSite, image: ImageRecord) -> None:
    """What lies at a store's path on another node than its service's is not the store.

    Raises:
        NotOwner: the service is on another node. One that is on none for certain may be restored where its disk is.
    """
    try:
        node = active_node(opened, opened.site.group(image.group).back_group)
    except ClusterError as error:
        log.warning("the cluster does not say where %s/%s is: %s", image.group, image.store, error.message)
        return
    require_here(opened, node, f"restoring {image.group}/{image.store} in place")


def place_of(opened: OpenSite, image: ImageRecord) -> Path:
    """Where the image's store lies.

    Raises:
        NotInThisRelease: the store's kind has no place on a file system.
    """
    name = f"{image.group}/{image.store}"
    store = opened.site.store(name).store
    if not isinstance(store, FilesStore | SqliteStore):
        raise NotInThisRelease(
            f"in-place restores of {store.kind} stores are not in this release", subject=name
        )
    return store.path


def restore_in_place(
    opened: OpenSite,
    plan_for: ImageRecord,
    *,
    copy: str | None = None,
    writing: Writing = AS_NEW,
    progress: Progress,
    cancel: Cancel,
) -> Restored:
    """Restores a whole store beside itself, then exchanges the two by rename.

    Raises:
        BusyError: the store is in use; the message names the processes.
        NotOwner: the store's service is on another node than this one.
    """
    _require_service_here(opened, plan_for)
    with working_on(opened, group=plan_for.group, cancel=cancel, if_here=True) as stop:
        return _in_place(opened, plan_for, copy=copy, writing=writing, progress=progress, cancel=stop)


def _in_place(
    opened: OpenSite,
    plan_for: ImageRecord,
    *,
    copy: str | None,
    writing: Writing,
    progress: Progress,
    cancel: Cancel,
) -> Restored:
    name = f"{plan_for.group}/{plan_for.store}"
    path = place_of(opened, plan_for)
    use = store_in_use(path)
    if use.processes:
        raise BusyError(
            f"store {name} is in use by {', '.join(use.processes)}",
            hint="stop what uses it, then restore in place again; or restore elsewhere with --to",
            subject=name,
        )
    if use.unseen:
        unseen = counted(use.unseen, "process", "processes")
        progress.say(f"{unseen} could not be examined: make sure that none of them uses {path}")
    plan = plan_in_place(opened, plan_for, copy=copy)
    new = plan.target
    if new.exists():
        raise ConfigError(
            f"{new} is left over from an interrupted restore",
            hint="check it, remove it, then restore again",
            subject=name,
        )
    try:
        done = restore(
            opened, plan, writing=replace(writing, overwrite="never"), progress=progress, cancel=cancel
        )
    except BaseException:
        # Nobody has seen it, and the next try needs the name.
        if new.exists():
            remove_tree(new)
        raise
    if not done.is_complete:
        raise PartialResult(
            f"store {name} was not exchanged: something could not be restored",
            hint=f"what was restored is at {new}; see its report with --to",
            subject=name,
        )
    single = new / path.name
    is_file = [row.path for row in plan.rows] == [os.fsencode(path.name)] and not single.is_dir()
    journals = set_journals_aside(path) if is_file and plan_for.source_kind == "sqlite" else {}
    try:
        previous = in_place_exchange(path, single if is_file else new, plan_for.run)
    except BaseException:
        give_journals_back(journals, path)
        raise
    give_journals_back(journals, previous or path.with_name(f"{path.name}.before-{plan_for.run}"))
    if is_file:
        new.rmdir()
    return replace(done, plan=replace(plan, target=path), previous=str(previous) if previous else "")
