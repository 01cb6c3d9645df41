"""The seams of the transfer room: what can be read by range, what can be written in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

CHUNK_BYTES = 1 << 20
"""Bytes of an image that one entry of its chunk table covers; also one tape record."""


class ByteReader(Protocol):
    """Bytes of known length that can be read by range: a staged file, a copy at a destination."""

    @property
    def size_bytes(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``offset``.

        Raises:
            DestinationError: they cannot be had (``MediumDamaged``, ``Unavailable``).
            IntegrityError: the range ends beyond the end.
        """

    def stream(self, offset: int, length: int) -> Iterator[memoryview]:
        """The same bytes in order, in pieces of a few MiB; a piece is valid until the next is asked for."""


class PayloadHasher(Protocol):
    """Anything that digests bytes in order (blake3, hashlib)."""

    def update(self, data: memoryview | bytes, /) -> object: ...


class ByteSink(Protocol):
    """A file that is written once, in order, through a bounded ring.

    ``position`` is the offset of the next byte. Chunk digests are kept on the way. Nothing is durable before
    ``finish`` returned; after ``abort`` the file is gone.
    """

    @property
    def position(self) -> int: ...

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Appends a copy of ``data``."""

    def copy_from(self, fd: int, offset: int, length: int, hasher: PayloadHasher | None) -> int:
        """Appends ``length`` bytes of ``fd`` from ``offset``; returns when all were read and hashed.

        Returns how many bytes the source really had; the rest up to ``length`` is written as zeros (and
        hashed as such), so that what was announced in a header stays true.
        """

    def patch(self, position: int, data: bytes) -> None:
        """Overwrites bytes already written (a header's size field); chunk digests follow."""

    def rewind(self, position: int) -> None:
        """Drops everything written from ``position`` on."""

    def finish(self) -> bytes:
        """Drains, cuts the tail to its exact length, fsyncs, closes; returns the chunk table."""

    def abort(self) -> None:
        """Closes and removes the file. May be called at any time, also twice."""
