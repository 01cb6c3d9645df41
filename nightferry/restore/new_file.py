"""A restore's new files: without a name until they are whole, and how they get their content."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Iterable, Iterator

from nightferry.errors import NightferryError
from nightferry.restore.walk import EntryRefused
from nightferry.transfer.direct import DirectWriter, RingSettings

PlacedPieces = Iterable[tuple[int, bytes | memoryview]]
"""``(offset, data)``."""

Guard = Callable[[], contextlib.AbstractContextManager[None]]
"""What sorts the target's errors from those of whoever delivers the data."""

WRITE_BACK_BYTES = 64 << 20
"""A large file is sent to the disk every so many bytes, so that no more of it waits in memory."""

UNBUFFERED_BYTES = 32 << 20
"""Files of at least this size are written past the page cache."""

_RING = RingSettings(buffers=8)

TEMPORARY_PREFIX = b".nightferry-"
"""How names of files not yet whole begin, where they need one."""

_NO_NAMELESS = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL})
"""How a file system, or a kernel, says that it has no O_TMPFILE (open(2))."""


@contextlib.contextmanager
def temporary_name(parent: int) -> Iterator[bytes]:
    """A random name in a directory, gone at the end unless it was renamed."""
    name = TEMPORARY_PREFIX + secrets.token_hex(8).encode()
    try:
        yield name
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        raise


def new_file(parent: int, temporary: bytes) -> tuple[int, bool]:
    """A new empty file, and whether it had to be given the temporary name."""
    try:
        return os.open(b".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=parent), False
    except OSError as error:
        if error.errno not in _NO_NAMELESS:
            raise
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(temporary, flags, 0o600, dir_fd=parent), True


def fill_file(
    path: bytes, fd: int, size_bytes: int, pieces: PlacedPieces, *, in_order: bool, guard: Guard
) -> int:
    """Writes a new file's content; what ``pieces`` leaves out stays a hole.

    Args:
        path: What it is to be called, for messages.
        fd: The file.
        size_bytes: Its size.
        pieces: In any order; what they raise is let through.
        in_order: They come one after the other and leave nothing out.
        guard: Around every call to the system.

    Returns:
        Bytes written.

    Raises:
        Refused: the pieces do not fit into the size.
    """
    if in_order and size_bytes >= UNBUFFERED_BYTES:
        return _stream(path, fd, size_bytes, pieces, guard)
    written = 0
    for offset, data in pieces:
        view = memoryview(data)
        if offset < 0 or offset + len(view) > size_bytes:
            raise EntryRefused("its data does not fit into its size")
        with guard():
            done = 0
            while done < len(view):
                done += os.pwrite(fd, view[done:], offset + done)
            if written // WRITE_BACK_BYTES != (written + done) // WRITE_BACK_BYTES:
                # On Linux this starts writing what is dirty and drops what is written.
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        written += done
    with guard():
        os.ftruncate(fd, size_bytes)
    return written


def _stream(path: bytes, fd: int, size_bytes: int, pieces: PlacedPieces, guard: Guard) -> int:
    with _writer_errors(guard):
        writer = DirectWriter(os.fsdecode(path), settings=_RING, expected_bytes=size_bytes, fd=fd)
    try:
        for offset, data in pieces:
            if offset != writer.position or offset + len(data) > size_bytes:
                raise EntryRefused("its data does not fit into its size")
            with _writer_errors(guard):
                writer.write(data)
        if writer.position != size_bytes:
            raise EntryRefused("its data ends before its size")
        with _writer_errors(guard):
            writer.finish()
    except BaseException:
        writer.abort()
        raise
    return size_bytes


@contextlib.contextmanager
def _writer_errors(guard: Guard) -> Iterator[None]:
    """As ``guard``, of a writer that tells its file's errors in its own words."""
    with guard():
        try:
            yield
        except NightferryError as error:
            if isinstance(error.__cause__, OSError):
                raise error.__cause__ from None
            raise
