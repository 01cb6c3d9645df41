"""Images of bytes without meaning, put to a destination and read back: for tests of destinations of any kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import xxhash

from nightferry.destination.base import (
    Destination,
    Encoding,
    Measure,
    Outgoing,
    Receipt,
    SiteMark,
    Span,
)
from nightferry.destination.copies import plain_spans
from nightferry.progress import QUIET, Cancel, Progress

MIB = 1 << 20
MARK = SiteMark("TEX", "0123456789abcdef" * 2)
"""Whose destinations those of tests are that have no catalog."""


def mark() -> SiteMark:
    return MARK


def table_of(data: bytes) -> bytes:
    """The chunk table, made independently: the integer digest of every slice, put down big-endian."""
    return b"".join(
        xxhash.xxh3_64_intdigest(data[at : at + MIB]).to_bytes(8, "big") for at in range(0, len(data), MIB)
    )


@dataclass
class PlainImage:
    """An image of given bytes, with the side files that destinations want."""

    image: str
    data: bytes = field(repr=False)
    index: bytes = b"index"
    digest: str = "d1"
    encoding: Encoding = ""
    on_chunk: Callable[[int], None] = lambda number: None
    """Called with each chunk's number before it is handed out."""
    side_files: dict[str, bytes] = field(init=False)

    def __post_init__(self) -> None:
        meta = f'{{"image": "{self.image}"}}'.encode()
        self.side_files = {"index": self.index, "chunks": table_of(self.data), "meta.json": meta}

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    @property
    def most_bytes(self) -> int:
        return len(self.data)

    def spans(self, span_bytes: int, measure: Measure) -> Iterator[Span]:
        return plain_spans(self.chunks, span_bytes, measure)

    def chunks(self, first_chunk: int = 0) -> Iterator[memoryview]:
        for number, at in enumerate(range(first_chunk * MIB, len(self.data), MIB), first_chunk):
            self.on_chunk(number)
            yield memoryview(self.data)[at : at + MIB]


def at_chunk(wanted: int, do: Callable[[], object]) -> Callable[[int], None]:
    """For ``on_chunk``: does something before that chunk is handed out."""

    def on_chunk(number: int) -> None:
        if number == wanted:
            do()

    return on_chunk


def put(
    destination: Destination,
    image: Outgoing,
    epoch: int = 1,
    *,
    progress: Progress = QUIET,
    cancel: Cancel | None = None,
) -> Receipt:
    """Puts it there in a lane of its own."""
    with destination.lane(progress=progress, cancel=Cancel()) as lane:
        return lane.put(image, epoch, progress=progress, cancel=cancel or Cancel())


def read_all(destination: Destination, receipt: Receipt) -> bytes:
    """Every byte of the copy, as a stream."""
    with destination.open(receipt.location) as reader:
        return b"".join(bytes(piece) for piece in reader.stream(0, reader.size_bytes))
