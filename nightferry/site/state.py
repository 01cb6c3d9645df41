"""This node's own files, which nobody else needs: what the background server keeps, what hooks wrote.

Nothing that is true of a backup lies here. Folders are 0700 and files 0600, whatever the umask.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path


def state_home() -> Path:
    """The folder of all sites: ``NIGHTFERRY_STATE``; else ``/var/lib/nightferry`` for root, for others the XDG state
    folder's."""
    given = os.environ.get("NIGHTFERRY_STATE")
    if given:
        return Path(given)
    if os.geteuid() == 0:
        return Path("/var/lib/nightferry")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "nightferry"


def make_private_folder(folder: Path) -> Path:
    """The folder, made with those above it that are not there; only this user may enter it."""
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.mkdir(exist_ok=True, mode=0o700)
    return folder


def write_private(path: Path, content: bytes) -> None:
    """Writes a file that only this user can read, whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(content)
    partial.replace(path)


def keep_private() -> Callable[[], None]:
    """From now on what this process and its children write is their user's alone, where no mode is given, too.

    The umask is 077. Temporary files lie in the state folder where the system's own temporary directory is one that
    everyone may write; when the state folder cannot be written they stay there, in folders of their own.

    Returns:
        What makes it as it was.
    """
    umask = os.umask(0o077)
    before, chosen = os.environ.get("TMPDIR"), tempfile.tempdir
    with contextlib.suppress(OSError):
        if os.stat(tempfile.gettempdir()).st_mode & stat.S_IWOTH:
            folder = make_private_folder(make_private_folder(state_home()) / "tmp")
            status = folder.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077:
                os.environ["TMPDIR"] = tempfile.tempdir = str(folder)

    def undo() -> None:
        os.umask(umask)
        tempfile.tempdir = chosen
        if before is None:
            os.environ.pop("TMPDIR", None)
        else:
            os.environ["TMPDIR"] = before

    return undo
