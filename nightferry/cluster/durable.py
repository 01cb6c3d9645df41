"""Small files that are there whole and on the disk, or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Puts ``data`` in the place of ``path`` (mode 0600); durable on return, and never seen half-written."""
    draft = _draft(path, data)
    try:
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def create_file(path: Path, data: bytes) -> None:
    """Creates ``path`` with ``data`` (mode 0600); durable on return, and never seen half-written.

    Raises:
        FileExistsError: somebody else created it first; their file is untouched.
    """
    draft = _draft(path, data)
    try:
        # A link, unlike O_EXCL and then writing, gives the name to a file that is already whole.
        os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Makes the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _draft(path: Path, data: bytes) -> Path:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.draft")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return draft
