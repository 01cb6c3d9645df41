"""Bringing a whole store back in its own place: nobody may use it; beside it first, then exchanged by rename."""

from __future__ import annotations

import errno
import logging
import os
import secrets
import stat
from dataclasses import dataclass, replace
from pathlib import Path

from nightferry.errors import BusyError, ClusterError, ConfigError, NotInThisRelease, PartialResult
from nightferry.model.records import ImageRecord
from nightferry.model.stores import FilesStore, SqliteStore
from nightferry.model.text import safe
from nightferry.progress import Cancel, Progress
from nightferry.restore.restore import Restored, RestorePlan, plan_restore, restore
from nightferry.restore.syscalls import rename_exchange, rename_noreplace
from nightferry.restore.tree import AS_NEW, Writing
from nightferry.restore.walk import remove_tree
from nightferry.site.nodes import active_node, require_here, working_on
from nightferry.site.opened import OpenSite
from nightferry.transfer.durable import sync_folder
from nightferry.units import counted

_PROC = Path("/proc")

_JOURNALS = ("-wal", "-shm", "-journal")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreUse:
    """Who has files of a store open.

    ``processes`` reads ``postgres (pid 812): /srv/mail/priv1/base``, safe to show; ``unseen`` is how many
    processes this user may not look into (usually none for root): unless it is 0 an empty list is not proof.
    """

    processes: tuple[str, ...]
    unseen: int


def store_in_use(path: Path) -> StoreUse:
    """Looks for processes with an open file, a mapping, a working or a root directory at or below ``path``.

    Files are told by name, and a single file also by device and inode. Our own process is left out. Users
    on other nodes, and mounts below ``path``, are not seen.
    """
    store = os.path.realpath(os.fsencode(path))
    try:
        status = os.stat(store)
        identity = None if stat.S_ISDIR(status.st_mode) else (status.st_dev, status.st_ino)
    except FileNotFoundError:
        identity = None
    found: list[str] = []
    unseen = 0
    for entry in sorted((e for e in os.listdir(_PROC) if e.isdecimal()), key=int):
        if int(entry) == os.getpid():
            continue
        try:
            used = _first_use(os.fsencode(_PROC / entry), store, identity)
        except PermissionError:
            unseen += 1
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        else:
            if used is not None:
                found.append(f"{_name_of(entry)} (pid {entry}): {safe(used)}")
    return StoreUse(tuple(found), unseen)


def _first_use(process: bytes, store: bytes, identity: tuple[int, int] | None) -> bytes | None:
    """The name of a file below the store that the process uses.

    Raises:
        PermissionError: not all that it uses can be seen.
    """
    descriptors = process + b"/fd"
    unnamed: OSError | None = None
    for link in (process + b"/cwd", process + b"/root", *_children(descriptors), process + b"/exe"):
        try:
            name = os.readlink(link)
            if _lies_in(name, store):
                return name
            if identity is not None and link.startswith(descriptors):
                status = os.stat(link)
                if (status.st_dev, status.st_ino) == identity:
                    return name
        except FileNotFoundError:
            continue  # closed while we looked; kernel threads have no exe
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            unnamed = error
    with open(process + b"/maps", "rb") as maps:
        for line in maps:
            fields = line.rstrip(b"\n").split(maxsplit=5)
            if len(fields) == 6 and _lies_in(fields[5], store):
                return fields[5]
    if unnamed is not None:  # a path beyond 4 KiB, which the kernel does not tell: it may lie in the store
        raise PermissionError(unnamed.errno, unnamed.strerror)
    return None


def _children(directory: bytes) -> list[bytes]:
    return [directory + b"/" + name for name in os.listdir(directory)]


def _lies_in(name: bytes, store: bytes) -> bool:
    name = name.removesuffix(b" (deleted)")
    return name == store or name.startswith(store.rstrip(b"/") + b"/")


def _name_of(entry: str) -> str:
    try:
        return safe((_PROC / entry / "comm").read_bytes().rstrip(b"\n"))
    except (FileNotFoundError, ProcessLookupError):
        return "a process that ended"


def path_beside(store_path: Path, run: str) -> Path:
    """Where a store is restored to before it is exchanged: beside it, so that a rename can do it."""
    real = Path(os.path.realpath(store_path))
    return real.with_name(f"{real.name}.restore-{run}")


def in_place_exchange(store_path: Path, new_path: Path, run: str) -> Path | None:
    """Puts ``new_path``, whole and verified, in the store's place; the old content stays beside it.

    The exchange is one rename: after a crash at any moment the store's path leads to the old content or
    to the new, never to neither. A crash right after it leaves the old content at ``new_path`` instead of
    its final name.

    Args:
        store_path: The store, a directory or a file; links in the path are resolved. It may be missing.
        new_path: What takes its place, on the same file system: see ``path_beside``.
        run: Names the old content: ``<path>.before-<run>``, with ``-2``, ``-3`` … when that is taken.

    Returns:
        Where the old content is; None when there was none.

    Raises:
        ConfigError: it cannot be exchanged (another file system, a mount point, no such rename there);
            nothing changed.
    """
    store = Path(os.path.realpath(store_path))
    try:
        if not os.path.lexists(store):
            rename_noreplace(os.fsencode(new_path), os.fsencode(store))
            sync_folder(store.parent)
            return None
        rename_exchange(os.fsencode(new_path), os.fsencode(store))
    except OSError as error:
        raise _cannot_exchange(store, new_path, error) from error
    sync_folder(store.parent)
    number = 1
    while True:
        suffix = "" if number == 1 else f"-{number}"
        before = store.with_name(f"{store.name}.before-{run}{suffix}")
        try:
            rename_noreplace(os.fsencode(new_path), os.fsencode(before))
        except FileExistsError:
            number += 1
            continue
        sync_folder(store.parent)
        return before


def _cannot_exchange(store: Path, new_path: Path, error: OSError) -> ConfigError:
    reasons = {
        errno.EXDEV: "it is another file system",
        errno.EBUSY: "it is a mount point",
        errno.EINVAL: "this file system cannot exchange two names in one step",
        errno.ENOSYS: "this system cannot exchange two names in one step",
    }
    reason = reasons.get(error.errno or 0, os.strerror(error.errno or 0).lower())
    return ConfigError(
        f"cannot exchange {store} for {new_path}: {reason}",
        hint=f"nothing changed; the restored store is whole at {new_path}: rename it by hand",
        subject=str(store),
    )


def set_journals_aside(database: Path) -> dict[str, Path]:
    """Takes an old SQLite database's journals out of the way before the exchange.

    Replayed onto the new database they would destroy it. Nobody has the database open, so one is only there
    after its last user crashed.

    Returns:
        Suffix → where it lies now; see ``give_journals_back``.
    """
    real = Path(os.path.realpath(database))
    aside = {}
    for suffix in _JOURNALS:
        journal = real.with_name(real.name + suffix)
        if os.path.lexists(journal):
            aside[suffix] = journal.with_name(f"{journal.name}.aside-{secrets.token_hex(4)}")
            rename_noreplace(os.fsencode(journal), os.fsencode(aside[suffix]))
    if aside:
        sync_folder(real.parent)
    return aside


def give_journals_back(journals: dict[str, Path], database: Path) -> None:
    """Puts journals beside the old database's new name: what waits in them can still be read there."""
    real = Path(os.path.realpath(database))
    for suffix, journal in journals.items():
        journal.rename(real.with_name(real.name + suffix))
    if journals:
        sync_folder(next(iter(journals.values())).parent)


def plan_in_place(site: OpenSite, image: ImageRecord, *, copy: str | None = None) -> RestorePlan:
    """The plan of an in-place restore: everything, beside the store.

    Raises:
        NotInThisRelease: the store's kind has no place on a file system.
        NotOwner: the store's service is on another node than this one.
    """
    path = store_path_of(site, image)
    _require_service_here(site, image)
    return plan_restore(site, image, [], path_beside(path, image.run), copy=copy)


def _require_service_here(site: OpenSite, image: ImageRecord) -> None:
    """What lies at a store's path on another node than its service's is not the store.

    Raises:
        NotOwner: the service is on another node. One that is on none for certain may be restored where its disk is.
    """
    try:
        node = active_node(site, site.file.group(image.group).back_group)
    except ClusterError as error:
        log.warning("the cluster does not say where %s/%s is: %s", image.group, image.store, error.message)
        return
    require_here(site, node, f"restoring {image.group}/{image.store} in place")


def store_path_of(site: OpenSite, image: ImageRecord) -> Path:
    """Where the image's store lies.

    Raises:
        NotInThisRelease: the store's kind has no place on a file system.
    """
    name = f"{image.group}/{image.store}"
    store = site.file.store(name).store
    if not isinstance(store, FilesStore | SqliteStore):
        raise NotInThisRelease(
            f"in-place restores of {store.kind} stores are not in this release", subject=name
        )
    return store.path


def restore_in_place(
    site: OpenSite,
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
    _require_service_here(site, plan_for)
    with working_on(site, group=plan_for.group, cancel=cancel, if_here=True) as stop:
        return _in_place(site, plan_for, copy=copy, writing=writing, progress=progress, cancel=stop)


def _in_place(
    site: OpenSite,
    plan_for: ImageRecord,
    *,
    copy: str | None,
    writing: Writing,
    progress: Progress,
    cancel: Cancel,
) -> Restored:
    name = f"{plan_for.group}/{plan_for.store}"
    path = store_path_of(site, plan_for)
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
    plan = plan_in_place(site, plan_for, copy=copy)
    new = plan.target
    if new.exists():
        raise ConfigError(
            f"{new} is left over from an interrupted restore",
            hint="check it, remove it, then restore again",
            subject=name,
        )
    try:
        done = restore(
            site, plan, writing=replace(writing, overwrite="never"), progress=progress, cancel=cancel
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
