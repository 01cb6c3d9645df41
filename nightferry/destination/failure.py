"""What an operating system's error means at a destination: full, away, or refused."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from nightferry.errors import DestinationError, MediumFull, Unavailable
from nightferry.transfer.below import name_really

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_AWAY = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EIO,
    errno.ENXIO,
    errno.ENODEV,
    errno.ENOTCONN,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.EPIPE,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
}
_AWAY_KINDS = (TimeoutError, ConnectionError, FileNotFoundError, socket.gaierror)


def as_destination_error(error: OSError, subject: str) -> DestinationError:
    """The error a user should see for ``error`` met at ``subject`` (a destination, a cartridge)."""
    text = f"{subject}: {error.strerror or error}"
    if error.filename:
        text += f" ({error.filename})"
    if error.errno in _FULL:
        return MediumFull(text, subject=subject)
    if error.errno in _AWAY or isinstance(error, _AWAY_KINDS):
        return Unavailable(text, subject=subject)
    return DestinationError(text, subject=subject)


@contextmanager
def os_errors(subject: str) -> Iterator[None]:
    """Turns every ``OSError`` inside into the ``DestinationError`` it means.

    Raises:
        MediumFull: no room.
        Unavailable: the place does not answer or is not there.
        DestinationError: it refused.
    """
    try:
        yield
    except OSError as error:
        name_really(error)
        raise as_destination_error(error, subject) from error
