"""Small files that are there whole and for good, or not at all.

A name comes into being in two ways: ``create_file`` never replaces (the name is claimed with a hard link, so
of several writers exactly one gets it), ``replace_file`` always does (the rename swaps whole contents). Both
make the content durable before the name, and the name durable before they return. A crash may leave a draft,
whose name begins with ``DRAFT_PREFIX``. A draft is locked while its writer lives, so that nobody takes it for one
that was left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

DRAFT_PREFIX = ".tmp-"
_DRAFT = re.compile(r"\.tmp-[0-9]+-[0-9a-f]{16}")
FILE_MODE = 0o600
FOLDER_MODE = 0o700


def replace_file(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Puts ``data``, whole or in pieces, in the place of ``path``: readers see the old content or the new, after a
    crash too."""
    with _draft(path.parent, data) as draft:
        os.replace(draft, path)
    sync_folder(path.parent)


def create_file(path: Path, data: bytes) -> None:
    """Claims the name ``path`` with ``data`` in it.

    Raises:
        FileExistsError: somebody else claimed it first; their file is untouched.
        OSError: the folder cannot be written. When only the last step failed (making the name durable) the
            name may be there all the same; whoever reads it reads all of ``data``.
    """
    with _draft(path.parent, data) as draft:
        try:
            # A link, unlike O_EXCL and then writing, gives the name to a file that is already whole.
            os.link(draft, path)
        except FileExistsError:
            # A network file system that repeats a lost request answers "exists" to its own success; the
            # number of names tells whose it is.
            if os.stat(draft).st_nlink < 2:
                raise
        sync_folder(path.parent)


def draft_name() -> str:
    """A draft's name that nobody else has."""
    return f"{DRAFT_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"


def is_draft(name: str) -> bool:
    """Whether a name is that of a draft of ours."""
    return _DRAFT.fullmatch(name) is not None


def durable_rename(src: Path, dst: Path) -> None:
    """Renames a file that is already on the disk, and returns when the new name is there too.

    Raises:
        OSError: as os.rename; the old name is then still there.
    """
    os.rename(src, dst)
    sync_folder(dst.parent)
    if src.parent != dst.parent:
        sync_folder(src.parent)


def sync_folder(path: Path) -> None:
    """Makes the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Writes every byte at the file's position; a short write goes on where it stopped."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def remove_dead_drafts(folder: Path) -> None:
    """Removes the drafts whose writers died; a folder that is not there has none.

    Raises:
        OSError: the folder cannot be read, or written.
    """
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    for path in (folder / name for name in names if is_draft(name)):
        if path.is_file() and not path.is_symlink():
            with contextlib.suppress(FileNotFoundError):
                _remove_if_dead(path)


def _remove_if_dead(draft: Path) -> None:
    fd = os.open(draft, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if _lock(fd):
            os.unlink(draft)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _draft(folder: Path, data: bytes | Iterable[bytes]) -> Iterator[Path]:
    """A new file with ``data`` in it, durable, under a name that no reader takes for anything; gone after the block."""
    draft, fd = _new_draft(folder)
    try:
        for piece in [data] if isinstance(data, bytes) else data:
            write_all(fd, piece)
        os.fsync(fd)
        yield draft
    finally:
        # Still locked: nobody else removes it meanwhile.
        draft.unlink(missing_ok=True)
        os.close(fd)


def _new_draft(folder: Path) -> tuple[Path, int]:
    while True:
        draft = folder / draft_name()
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        # Before it is locked, somebody who clears may take it for one that was left: then another is made.
        if _lock(fd) is not False and os.fstat(fd).st_nlink:
            return draft, fd
        os.close(fd)


def _lock(fd: int) -> bool | None:
    """Whether the file is locked now; false when another has it, None on a file system without locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
