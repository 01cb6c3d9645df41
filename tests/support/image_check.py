"""Reading an image from its first byte to its last, and comparing all that can be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from nightferry.errors import IntegrityError
from nightferry.image.format import END_PATH, INDEX_COMMENT, INDEX_PATH, TAIL_BYTES
from nightferry.image.index import INDEX_SCHEMA, ROWS_PER_GROUP, Index, IndexRow, rows_of
from nightferry.image.reader import ImageReader
from nightferry.image.tar import BLOCK, Decoded, decode_header, padding
from nightferry.transfer.base import ByteReader


@dataclass(frozen=True, slots=True)
class CheckReport:
    """A check that found nothing wrong: what it read."""

    members: int
    payload_bytes: int
    size_bytes: int


def check_image(image: ImageReader, *, tick: Callable[[int], None] | None = None) -> CheckReport:
    """Reads every byte once, in order, and compares all that can be compared.

    Chunk digests (when the reader has the chunk table), the tar's structure, each member's headers against
    the index, each payload's BLAKE3, and that index and members name each other without exception. Memory:
    the index, once packed and once as columns (about 300 bytes a path).

    Args:
        image: The image.
        tick: Told the bytes read so far, after every member and every few MiB; may raise to stop.

    Raises:
        IntegrityError: the first thing that is wrong.
        DestinationError: bytes cannot be had.
    """
    end, index = image.end, image.index
    image.header  # noqa: B018 - read and checked by being asked for
    if blake3(index.data).hexdigest() != end.index_digest:
        raise IntegrityError("the index beside the image is not the image's own")
    rows = _by_offset(index)
    expected = next(rows, None)
    walk = _Walk(image.reader, tick)
    members = payload_bytes = 0
    index_met = False
    while (found := walk.header()) is not None:
        member = found.member
        if found.offset == 0:
            walk.skip(found)
        elif found.payload_offset == end.index_offset:
            if (member.path, member.comment) != (
                INDEX_PATH,
                INDEX_COMMENT,
            ) or found.payload_bytes != end.index_bytes:
                raise IntegrityError("the image's end does not point to its index")
            if walk.digest(found).hex() != end.index_digest:
                raise IntegrityError("the image's index is damaged: its digest differs")
            index_met = True
        elif found.offset == image.size_bytes - TAIL_BYTES:
            if member.path != END_PATH:
                raise IntegrityError("the image's last member is not its end")
            walk.skip(found)
        else:
            if expected is None or expected.offset != found.offset:
                raise IntegrityError(f"{member.path!r} at byte {found.offset} is not in the index")
            _compare(found, expected)
            digest = walk.digest(found)
            if member.type == "file" and digest != expected.blake3:
                raise IntegrityError(f"the content of {member.path!r} is damaged: its BLAKE3 differs")
            members += 1
            payload_bytes += found.payload_bytes
            expected = next(rows, None)
    if expected is not None:
        raise IntegrityError(
            f"the index names {expected.path!r} at byte {expected.offset}; no member begins there"
        )
    if not index_met or walk.at != image.size_bytes - 2 * BLOCK:
        raise IntegrityError(f"the image's tar ends at byte {walk.at}, before its end")
    walk.zeros(2 * BLOCK)
    return CheckReport(members, payload_bytes, image.size_bytes)


class _Walk:
    """A tar read in one forward stream."""

    def __init__(self, reader: ByteReader, tick: Callable[[int], None] | None) -> None:
        self._size = reader.size_bytes
        self._pieces = reader.stream(0, self._size)
        self._piece = memoryview(b"")
        self._tick = tick
        self.at = 0

    def header(self) -> Decoded | None:
        """The next member's headers; afterwards ``at`` is where its payload begins."""
        start = self.at
        held = bytearray()

        def read(offset: int, length: int) -> bytes:
            # Headers are decoded front to back; only a sparse map is asked for again from its beginning.
            missing = offset + length - start - len(held)
            if missing > 0:
                held.extend(b"".join(map(bytes, self._take(missing))))
            return bytes(held[offset - start : offset - start + length])

        found = decode_header(read, start, self._size)
        if found is None:
            self._piece = memoryview(bytes(held) + bytes(self._piece))
            self.at = start
        elif self.at > found.payload_offset:
            # The sparse map's last read reached into the payload.
            surplus = bytes(held[found.payload_offset - start :])
            self._piece = memoryview(surplus + bytes(self._piece))
            self.at = found.payload_offset
        return found

    def digest(self, found: Decoded) -> bytes:
        """Reads the payload and its padding; returns the payload's BLAKE3."""
        hasher = blake3()
        for piece in self._take(found.payload_bytes):
            hasher.update(piece)
        self.zeros(padding(found.payload_bytes))
        return hasher.digest()

    def skip(self, found: Decoded) -> None:
        """Reads the payload and its padding."""
        self.digest(found)

    def zeros(self, length: int) -> None:
        """Raises:
        IntegrityError: the next ``length`` bytes are not all zero.
        """
        at = self.at
        if any(any(piece) for piece in self._take(length)):
            raise IntegrityError(f"the padding at byte {at} is not zero")

    def _take(self, length: int) -> Iterator[memoryview]:
        while length:
            if not len(self._piece):
                self._piece = next(self._pieces)
            piece = self._piece[:length]
            self._piece = self._piece[length:]
            length -= len(piece)
            self.at += len(piece)
            if self._tick is not None:
                self._tick(self.at)
            yield piece


def _by_offset(index: Index) -> Iterator[IndexRow]:
    """The rows that have a member, in the order of the tar."""
    table = pa.concat_tables([*index.tables()] or [INDEX_SCHEMA.empty_table()])
    table = table.filter(pc.greater_equal(table.column("offset"), 0)).sort_by("offset")
    for start in range(0, table.num_rows, ROWS_PER_GROUP):
        yield from rows_of(table.slice(start, ROWS_PER_GROUP))


def _compare(found: Decoded, row: IndexRow) -> None:
    member = found.member
    same = (
        (member.path, member.type, member.mode, member.mtime_ns, member.comment)
        == (row.path, row.type, row.mode, row.mtime_ns, b"")
        and (member.uid, member.gid, member.uname, member.gname) == (row.uid, row.gid, row.uname, row.gname)
        and found.end - found.offset == row.length
        and (member.link_target or None) == row.link_target
        and (
            member.type == "hardlink"  # its row repeats what the file it links to has
            or (member.size, member.segments, member.attributes.digest())
            == (row.size, row.sparse, row.attributes_digest)
        )
        and (
            member.type != "file"
            or (found.payload_offset, found.payload_bytes) == (row.payload_offset, row.payload_length)
        )
    )
    if not same:
        raise IntegrityError(f"{member.path!r} at byte {found.offset} is not what the index says")
