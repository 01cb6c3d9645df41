"""Digests of an image: the chunk table, what proves a chunk, and the one digest of the whole."""

from __future__ import annotations

import blake3
import xxhash

from nightferry.errors import IntegrityError
from nightferry.transfer.base import CHUNK_BYTES
from nightferry.transfer.spool import Content, pieces_of

ENTRY_BYTES = 8
"""One entry of a chunk table: xxh3-64, big-endian (xxHash specification 0.1.1, canonical form)."""

BytesLike = bytes | bytearray | memoryview


def chunk_digest(data: BytesLike) -> bytes:
    """The chunk table's entry for one chunk: 8 bytes."""
    return xxhash.xxh3_64_digest(data)


def table_bytes(size_bytes: int) -> int:
    """How long the chunk table of a file is."""
    return -(-size_bytes // CHUNK_BYTES) * ENTRY_BYTES


class ChunkTable:
    """The xxh3-64 of every 1 MiB of a file, kept while the file is written in order.

    The last chunk may be shorter than 1 MiB; an empty file has an empty table. Not locked: one thread updates
    it.
    """

    def __init__(self) -> None:
        self._table = bytearray()
        self._partial = xxhash.xxh3_64()
        self._partial_bytes = 0

    def __len__(self) -> int:
        """Chunks so far, the unfinished last one included."""
        return len(self._table) // ENTRY_BYTES + (self._partial_bytes > 0)

    @property
    def size_bytes(self) -> int:
        """Bytes digested so far."""
        return len(self._table) // ENTRY_BYTES * CHUNK_BYTES + self._partial_bytes

    def update(self, data: BytesLike) -> None:
        """Appends ``data``, of any length."""
        rest = memoryview(data)
        while rest.nbytes:
            if self._partial_bytes == 0 and rest.nbytes >= CHUNK_BYTES:
                self._table += chunk_digest(rest[:CHUNK_BYTES])
                rest = rest[CHUNK_BYTES:]
                continue
            piece = rest[: CHUNK_BYTES - self._partial_bytes]
            self._partial.update(piece)
            self._partial_bytes += piece.nbytes
            rest = rest[piece.nbytes :]
            if self._partial_bytes == CHUNK_BYTES:
                self._table += self._partial.digest()
                self._restart_partial()

    def replace(self, number: int, data: BytesLike) -> None:
        """Chunk ``number``, already whole in the table, now holds ``data``.

        Raises:
            IndexError: that chunk is not whole yet.
        """
        if not 0 <= number < len(self._table) // ENTRY_BYTES:
            raise IndexError(f"chunk {number} is not in the table")
        self._table[number * ENTRY_BYTES : (number + 1) * ENTRY_BYTES] = chunk_digest(data)

    def truncate(self, chunks: int) -> None:
        """Forgets everything after the first ``chunks`` chunks, all of which must be whole.

        Raises:
            IndexError: fewer are whole.
        """
        if not 0 <= chunks <= len(self._table) // ENTRY_BYTES:
            raise IndexError(f"cannot keep {chunks} whole chunks of {len(self)}")
        del self._table[chunks * ENTRY_BYTES :]
        self._restart_partial()

    def table(self) -> bytes:
        """The table of all bytes so far, 8 bytes a chunk; more may be appended afterwards."""
        if self._partial_bytes:
            return bytes(self._table) + self._partial.digest()
        return bytes(self._table)

    def _restart_partial(self) -> None:
        self._partial.reset()
        self._partial_bytes = 0


def image_digest(chunk_table: Content, index: Content) -> str:
    """The digest of a whole image: lower-case hex of BLAKE3(chunk table followed by the index's bytes)."""
    return digest_of(chunk_table, index)


def digest_of(*contents: Content) -> str:
    """BLAKE3 of one file after the other, in lower-case hex."""
    hasher = blake3.blake3()
    for content in contents:
        for piece in pieces_of(content):
            hasher.update(piece)
    return hasher.hexdigest()


def check_chunk(table: bytes, number: int, data: BytesLike) -> None:
    """Returns when ``data`` is what chunk ``number`` of ``table`` says.

    Raises:
        IntegrityError: it is not, or the table has no such chunk.
    """
    expected = table[number * ENTRY_BYTES : (number + 1) * ENTRY_BYTES] if number >= 0 else b""
    if len(expected) != ENTRY_BYTES:
        raise IntegrityError(
            f"chunk {number} is not in the chunk table of {len(table) // ENTRY_BYTES} chunks"
        )
    found = chunk_digest(data)
    if found != expected:
        raise IntegrityError(
            f"chunk {number} (bytes from {number * CHUNK_BYTES}) is damaged: "
            f"expected xxh3-64 {expected.hex()}, found {found.hex()}"
        )
