"""Bytes in memory as a ``ByteReader`` that counts what is asked of it."""

from __future__ import annotations

from collections.abc import Iterator


class MemoryReader:
    """``requests`` and ``read_bytes`` count; ``piece`` is the length of a stream's pieces."""

    def __init__(self, data: bytes, piece: int = 300_000) -> None:
        self.data = data
        self.piece = piece
        self.requests = 0
        self.read_bytes = 0

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        assert 0 <= offset <= offset + length <= len(self.data)
        self.requests += 1
        self.read_bytes += length
        return self.data[offset : offset + length]

    def stream(self, offset: int, length: int) -> Iterator[memoryview]:
        assert 0 <= offset <= offset + length <= len(self.data)
        self.requests += 1
        self.read_bytes += length
        for at in range(offset, offset + length, self.piece):
            yield memoryview(self.data)[at : min(at + self.piece, offset + length)]
