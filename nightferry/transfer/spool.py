"""Files read back from elsewhere: small ones in memory, larger ones in a temporary file of ours."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator

from nightferry.errors import ConfigError
from nightferry.progress import Cancel
from nightferry.transfer.durable import write_all
from nightferry.transfer.files import NO_SPACE
from nightferry.transfer.regular import read_at

HELD_BYTES = 32 << 20
"""A file up to this length is held in memory."""
PIECE_BYTES = 4 << 20


class Spooled:
    """A file without a name, which nobody else can change. It is there as long as this is; any thread may read it.

    Args:
        fd: Its descriptor, which is closed with this.
        size_bytes: Its length.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        self._fd = fd
        self._size_bytes = size_bytes

    def __len__(self) -> int:
        return self._size_bytes

    def __del__(self) -> None:
        os.close(self._fd)

    def fileno(self) -> int:
        return self._fd

    @property
    def path(self) -> str:
        """Opens the same file, at a position of its own."""
        return f"/proc/self/fd/{self._fd}"

    def read(self, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes; fewer only at the end.

        Raises:
            OSError: they cannot be read.
        """
        return read_at(self._fd, offset, length)


Content = bytes | Spooled
"""All of a file."""


def pieces_of(content: Content) -> Iterator[bytes]:
    """All of it, in pieces that memory has room for.

    Raises:
        OSError: the temporary file cannot be read.
    """
    if isinstance(content, bytes):
        yield content
        return
    for offset in range(0, len(content), PIECE_BYTES):
        yield content.read(offset, PIECE_BYTES)


def part_of(content: Content, offset: int, length: int) -> bytes:
    """Up to ``length`` bytes from ``offset`` on; fewer only at the end."""
    return content[offset : offset + length] if isinstance(content, bytes) else content.read(offset, length)


def whole(content: Content) -> bytes:
    """All of it, in memory."""
    return content if isinstance(content, bytes) else content.read(0, len(content))


def spooled(pieces: Iterable[bytes | memoryview], cancel: Cancel | None = None) -> Content:
    """Keeps what comes: in memory up to ``HELD_BYTES``, beyond that in a file of the temporary directory.

    Args:
        pieces: All of it, in order.
        cancel: Seen between two pieces.

    Raises:
        ConfigError: the temporary directory has no room.
        Cancelled: a stop was asked for.
    """
    held = bytearray()
    file: Spooled | None = None
    size = 0
    for piece in pieces:
        if cancel is not None:
            cancel.check()
        size += len(piece)
        if file is None and size <= HELD_BYTES:
            held += piece
            continue
        if file is None:
            file = _unnamed(bytes(held))
            held.clear()
        _add(file, piece)
    if file is None:
        return bytes(held)
    file._size_bytes = size
    return file


def in_a_file(content: Content) -> Spooled:
    """The same in a file that a descriptor leads to; of what is in memory, in memory still."""
    if isinstance(content, Spooled):
        return content
    fd = os.memfd_create("nightferry")
    file = Spooled(fd, len(content))
    write_all(fd, content)
    return file


def _unnamed(begin: bytes) -> Spooled:
    try:
        fd, path = tempfile.mkstemp(prefix="nightferry-")
    except OSError as error:
        raise _no_room(error) from error
    file = Spooled(fd, len(begin))
    os.unlink(path)
    _add(file, begin)
    return file


def _add(file: Spooled, piece: bytes | memoryview) -> None:
    try:
        write_all(file.fileno(), piece)
    except OSError as error:
        raise _no_room(error) from error


def _no_room(error: OSError) -> ConfigError:
    folder = tempfile.gettempdir()
    full = error.errno in NO_SPACE
    return ConfigError(
        f"cannot keep a temporary file in {folder}: {error.strerror}",
        hint=f"{'free space there' if full else 'make the folder writable'}, or name another one with TMPDIR",
        subject=folder,
    )
