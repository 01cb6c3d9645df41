"""What the catalog asks of its folder: names that are safe, claimed once, and errors that say which file."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from nightferry.errors import CatalogError
from nightferry.transfer.durable import DRAFT_PREFIX, create_file, sync_folder

FOLDER_MODE = 0o700

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@contextlib.contextmanager
def catalog_errors(doing: str, path: Path) -> Iterator[None]:
    """Turns the system's refusals into the catalog's own error, naming what was done to which file.

    Raises:
        CatalogError: the body raised an OSError.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise CatalogError(f"cannot {doing} {path}: {reason}", operation=doing, subject=str(path)) from error


def check_name(name: str) -> str:
    """``name`` when it is safe as the name of one file.

    Raises:
        CatalogError: it is empty, hidden, or would lead out of its folder.
    """
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise CatalogError(f"not a name for a file of the catalog: {name!r}", subject=name)
    return name


def make_folder(folder: Path) -> None:
    """Makes a folder below an existing one, for its owner only, durable; one that is there stays as it is."""
    try:
        os.mkdir(folder, FOLDER_MODE)
    except FileExistsError:
        return
    sync_folder(folder.parent)


def publish(path: Path, data: bytes) -> bool:
    """Claims the name ``path`` with ``data`` in it, unless it is taken.

    Returns:
        True: the name is ours, whole and durable. False: it was taken before; nothing was changed.

    Raises:
        CatalogError: the folder's file system has no hard links.
        OSError: as ``create_file``.
    """
    try:
        create_file(path, data)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise CatalogError(
            f"{path.parent} is on a file system without hard links",
            hint="put the catalog on a file system with hard links, such as ext4, xfs or NFS",
            subject=str(path.parent),
        ) from error
    return True


def remove_stale_drafts(folder: Path, before: float) -> None:
    """Removes what crashed writers left unfinished; ``before`` is a time in seconds of the epoch."""
    for name in os.listdir(folder):
        if not name.startswith(DRAFT_PREFIX):
            continue
        path = folder / name
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_mtime < before:
                os.unlink(path)
