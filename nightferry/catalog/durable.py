"""Files that are there whole and for good, or not at all.

The two ways a name comes into being in the catalog: `publish` never replaces (the name is claimed with a hard
link, so of several writers exactly one gets it), `replace` always does (the rename swaps whole contents).
Both make the content durable before the name, and the name durable before they return.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from nightferry.errors import CatalogError

TEMP_PREFIX = ".tmp-"
FOLDER_MODE = 0o700
FILE_MODE = 0o600

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


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def publish(folder: Path, name: str, data: bytes) -> bool:
    """Claims ``name`` with ``data`` in it, unless it is taken.

    Returns:
        True: the name is ours, whole and durable. False: it was taken before; nothing was changed.

    Raises:
        CatalogError: the folder's file system has no hard links.
        OSError: the folder cannot be written. When the last step failed (making the name durable) the name
            may be there all the same; whoever reads it reads all of ``data``.
    """
    temp = _write_temp(folder, data)
    try:
        try:
            os.link(temp, folder / name)
        except FileExistsError:
            # A network file system that repeats a lost request answers "exists" to its own success; the
            # number of names tells whose it is.
            if os.stat(temp).st_nlink < 2:
                return False
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise CatalogError(
                    f"{folder} is on a file system without hard links",
                    hint="put the catalog on a file system with hard links, such as ext4, xfs or NFS",
                    subject=str(folder),
                ) from error
            raise
        sync_folder(folder)
    finally:
        os.unlink(temp)
    return True


def replace(folder: Path, name: str, data: bytes) -> None:
    """Puts ``data`` under ``name`` in place of what was there: readers see the old content or the new."""
    temp = _write_temp(folder, data)
    try:
        os.replace(temp, folder / name)
    except OSError:
        os.unlink(temp)
        raise
    sync_folder(folder)


def remove_stale_temps(folder: Path, before: float) -> None:
    """Removes what crashed writers left unfinished; ``before`` is a time in seconds of the epoch."""
    for name in os.listdir(folder):
        if not name.startswith(TEMP_PREFIX):
            continue
        path = folder / name
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_mtime < before:
                os.unlink(path)


def _write_temp(folder: Path, data: bytes) -> Path:
    """A new file with ``data`` in it, durable, under a name that no reader takes for anything."""
    temp = folder / f"{TEMP_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError:
        os.unlink(temp)
        raise
    return temp
