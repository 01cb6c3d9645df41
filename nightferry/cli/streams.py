"""stdout and stderr that never decide how a command ends.

A disk that is full, a pipe whose reader has gone, a stream that was closed before we began and a character that the
terminal's encoding lacks are none of a night's business. What cannot be written is dropped and remembered; the end
of the command says what that means for its exit code.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, NamedTuple


class Stream(io.TextIOBase):
    """A text stream that drops what it cannot write. Characters that its encoding lacks become ``\\uNNNN``.

    Args:
        stream: Where the text goes; None when it was closed before the process began.
    """

    def __init__(self, stream: IO[str] | None) -> None:
        super().__init__()
        self._stream = stream if stream is not None and not stream.closed else None
        self.lost: OSError | None = None
        """Why something was dropped; the first reason."""
        if isinstance(self._stream, io.TextIOWrapper):
            self._stream.reconfigure(errors="backslashreplace")

    @property
    def encoding(self) -> str:  # type: ignore[override] # a class attribute there, a property everywhere else
        return getattr(self._stream, "encoding", None) or "utf-8"

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        if self._stream is None:
            self._lose(OSError(errno.EBADF, os.strerror(errno.EBADF)))
        elif self.lost is None:
            try:
                self._stream.write(text)
            except (OSError, ValueError) as error:
                self._lose(error)
        return len(text)

    def flush(self) -> None:
        if self._stream is None or self.lost is not None:
            return
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._lose(error)

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def fileno(self) -> int:
        if self._stream is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._stream.fileno()

    def _lose(self, error: OSError | ValueError) -> None:
        if self.lost is not None:
            return
        self.lost = error if isinstance(error, OSError) else OSError(errno.EBADF, str(error))
        # What is buffered would fail again when the interpreter flushes at its end, and change the exit code there.
        try:
            null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(null, self.fileno())
            os.close(null)
        except (OSError, ValueError):
            return  # no file of the system's: nothing is flushed to it


class StandardStreams(NamedTuple):
    """What ``sys.stdout`` and ``sys.stderr`` are while a command runs."""

    stdout: Stream
    stderr: Stream


@contextmanager
def tolerant() -> Iterator[StandardStreams]:
    """Puts such streams in the place of ``sys.stdout`` and ``sys.stderr`` for the block, and flushes them after it."""
    _fill_closed()
    before = sys.stdout, sys.stderr
    streams = StandardStreams(Stream(before[0]), Stream(before[1]))
    sys.stdout, sys.stderr = streams
    try:
        yield streams
    finally:
        streams.stdout.flush()
        streams.stderr.flush()
        sys.stdout, sys.stderr = before


def _fill_closed() -> None:
    """Takes the numbers of stdin, stdout and stderr where they are free: the next file opened would get them."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
