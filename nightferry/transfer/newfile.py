"""A file of ours in the making: created exclusively, unbuffered where possible, exact at its end, or gone."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nightferry.errors import BusyError, ConfigError, DestinationError, NightferryError, StagingFull
from nightferry.transfer.durable import FILE_MODE
from nightferry.transfer.files import NO_SPACE, preallocate
from nightferry.units import format_size

_log = logging.getLogger(__name__)
_said: set[int] = set()
"""Devices of which it was already said that they refuse unbuffered I/O."""


class NewFile:
    """The file behind a writer.

    Args:
        path: Where; nothing may be there, its directory must be. With ``fd`` only what it is called in messages.
        unbuffered: Whether to pass the page cache by where the file system allows it.
        expected_bytes: Room to allocate at once; 0 for none.
        fd: An empty file that the caller made, names and removes: it is opened once more for the writing.

    Raises:
        BusyError: something is at ``path``; it is not touched.
        ConfigError: the file cannot be created.
        StagingFull: the room is not there; nothing is left behind.
        DestinationError: the disk failed.
    """

    def __init__(self, path: Path, *, unbuffered: bool, expected_bytes: int, fd: int | None = None) -> None:
        self.path = path
        self.direct = False
        self._identity: tuple[int, int] | None = None
        if fd is None:
            self.fd = self._create()
            status = os.fstat(self.fd)
            self._identity = (status.st_dev, status.st_ino)
        else:
            self.fd = self._open_again(fd)
        try:
            if unbuffered:
                self._pass_by_the_cache()
            if expected_bytes:
                preallocate(self.fd, expected_bytes)
        except OSError as error:
            self.close()
            self.remove()
            if error.errno in NO_SPACE:
                raise StagingFull(f"no space for the {format_size(expected_bytes)} of {path}") from error
            raise self.failure(error, 0) from error

    @property
    def is_open(self) -> bool:
        """Whether it can still be written."""
        return self.fd >= 0

    def fall_back(self) -> None:
        """From here on writes go through the cache: the file system took the flag and refused the write."""
        if self.direct:
            self.direct = False
            fcntl.fcntl(self.fd, fcntl.F_SETFL, fcntl.fcntl(self.fd, fcntl.F_GETFL) & ~os.O_DIRECT)
            self._say_buffered()

    @contextmanager
    def readable(self) -> Iterator[int]:
        """A descriptor that reads what was written, by the same way."""
        flags = os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if self.direct else 0)
        fd = os.open(f"/proc/self/fd/{self.fd}", flags)
        try:
            yield fd
        finally:
            os.close(fd)

    def complete(self, size_bytes: int, *, forget: bool) -> None:
        """Cuts the file to its size, brings it to the disk, closes it; ``forget`` empties its page cache.

        Raises:
            StagingFull, DestinationError: the disk could not; the file is still open.
        """
        try:
            os.ftruncate(self.fd, size_bytes)
            os.fsync(self.fd)
            if forget:
                os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise self.failure(error, size_bytes) from error
        self.close()

    def failure(self, error: OSError, offset: int) -> NightferryError:
        """What to raise when writing at ``offset`` failed."""
        if error.errno in NO_SPACE:
            return StagingFull(f"no space left for {self.path} after {format_size(offset)}")
        return DestinationError(
            f"cannot write {self.path} at byte {offset}: {error.strerror}",
            hint="check the disk that holds it (kernel log, SMART), then run again",
        )

    def close(self) -> None:
        """Closes it. May be called twice."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def remove(self) -> None:
        """Takes the name away, unless another file has it by now, or the caller gave it. May be called
        twice."""
        identity, self._identity = self._identity, None
        if identity is None:
            return
        try:
            status = os.lstat(self.path)
            if (status.st_dev, status.st_ino) == identity:
                os.unlink(self.path)
        except FileNotFoundError:
            pass

    def _create(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(self.path, flags, FILE_MODE)
        except FileExistsError as error:
            raise BusyError(
                f"{self.path} exists already", hint="another run is writing it, or an interrupted one left it"
            ) from error
        except OSError as error:
            if error.errno in NO_SPACE:
                raise StagingFull(f"no space to create {self.path}") from error
            raise ConfigError(f"cannot create {self.path}: {error.strerror}") from error

    def _open_again(self, fd: int) -> int:
        # Not a duplicate, which would share the flag that passes the cache by.
        try:
            return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self.failure(error, 0) from error

    def _pass_by_the_cache(self) -> None:
        # Asked for on the open file and not in open(2), which leaves a file behind where it refuses.
        try:
            fcntl.fcntl(self.fd, fcntl.F_SETFL, fcntl.fcntl(self.fd, fcntl.F_GETFL) | os.O_DIRECT)
            self.direct = True
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._say_buffered()

    def _say_buffered(self) -> None:
        device = os.fstat(self.fd).st_dev
        if device not in _said:
            _said.add(device)
            _log.warning("the file system of %s refuses unbuffered I/O; using the page cache", self.path)
