"""Reading an image: its header, its index, one file by its index row."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from blake3 import blake3

from nightferry.errors import IntegrityError, SourceError
from nightferry.image.attributes import NO_ATTRIBUTES, Attributes
from nightferry.image.chunks import CheckedReader
from nightferry.image.format import (
    HEADER_PATH,
    MAX_IMAGE_JSON,
    TAIL_BYTES,
    ImageEnd,
    ImageHeader,
)
from nightferry.image.index import Index, IndexRow
from nightferry.image.tar import Decoded, Member, check_segments, decode_header
from nightferry.transfer.base import CHUNK_BYTES, ByteReader
from nightferry.transfer.digest import digest_of
from nightferry.transfer.spool import Content, spooled


class ImageReader:
    """An image behind any ``ByteReader``: a staged file, a copy at a destination.

    Nothing is read before it is asked for, and then in the order of asking: rows in the order of their
    ``offset`` make one forward pass (a tape does not turn back).

    Args:
        reader: The image's bytes.
        chunks: Its chunk table; with it every byte read is checked before it is used.
        index: The index, when it is at hand beside the image; else it is read from the image's tail.
    """

    def __init__(
        self, reader: ByteReader, chunks: bytes | None = None, *, index: Content | Index | None = None
    ) -> None:
        self.reader: ByteReader = reader if chunks is None else CheckedReader(reader, chunks)
        self._given_index = index

    @property
    def size_bytes(self) -> int:
        return self.reader.size_bytes

    @cached_property
    def header(self) -> ImageHeader:
        """What the image is.

        Raises:
            IntegrityError: not an image.
        """
        found = self.member_at(0)
        if found.member.path != HEADER_PATH or found.payload_bytes > MAX_IMAGE_JSON:
            raise IntegrityError(f"not an image: its first member is not {HEADER_PATH.decode()}")
        return ImageHeader.decode(self.reader.read(found.payload_offset, found.payload_bytes))

    @cached_property
    def end(self) -> ImageEnd:
        """Where the index is.

        Raises:
            IntegrityError: the image was cut off, or its end is damaged.
        """
        if self.size_bytes < TAIL_BYTES:
            raise IntegrityError(f"not an image: only {self.size_bytes} bytes")
        return ImageEnd.decode(self.reader.read(self.size_bytes - TAIL_BYTES, TAIL_BYTES), self.size_bytes)

    @cached_property
    def index(self) -> Index:
        """The image's index.

        Raises:
            IntegrityError: it is not the one the image's end names, or not an index.
        """
        if isinstance(self._given_index, Index):
            return self._given_index
        if self._given_index is not None:
            return Index(self._given_index)
        data = spooled(self.reader.stream(self.end.index_offset, self.end.index_bytes))
        if digest_of(data) != self.end.index_digest:
            raise IntegrityError("the image's index is damaged: its digest differs")
        return Index(data)

    def member_at(self, offset: int) -> Decoded:
        """The headers of the member that begins at ``offset``.

        Raises:
            IntegrityError: none begins there.
        """
        if not 0 <= offset < self.size_bytes:
            raise IntegrityError(f"no tar member at byte {offset} of an image of {self.size_bytes} bytes")
        found = decode_header(self.reader.read, offset, self.size_bytes)
        if found is None:
            raise IntegrityError(f"no tar member at byte {offset}: zeros")
        return found

    def member(self, row: IndexRow) -> Member:
        """The row's member with everything its headers say: attributes, device numbers.

        Raises:
            SourceError: the image holds no member for the row.
            IntegrityError: another member lies there.
        """
        self._require_stored(row)
        member = self.member_at(row.offset).member
        if member.path != row.path or member.type != row.type:
            raise IntegrityError(
                f"the index says {row.path!r} is at byte {row.offset}; {member.path!r} is there"
            )
        return member

    def attributes(self, row: IndexRow) -> Attributes:
        """The row's extended attributes and ACLs; of a hard link those of the file it links to.

        Reads nothing when the index says that there are none.

        Raises:
            SourceError: the image holds no member for the row.
            IntegrityError: they are not what the index says.
        """
        self._require_stored(row)
        if row.attributes_digest is None:
            return NO_ATTRIBUTES
        source = row
        if row.type == "hardlink":
            target = self.index.lookup(row.link_target or b"")
            if target is None or target.type == "hardlink":
                raise IntegrityError(f"the hard link {row.path!r} points to no file of the image")
            source = target
        attributes = self.member(source).attributes
        if attributes.digest() != row.attributes_digest:
            raise IntegrityError(f"the attributes of {row.path!r} are damaged: their digest differs")
        return attributes

    def payload(self, row: IndexRow) -> Iterator[tuple[int, memoryview]]:
        """The content of a file or hard link: (offset in the file, bytes) in ascending order.

        Ranges of the file that no piece covers are holes, up to ``row.size``. A piece is valid until the next
        is asked for. The content is proved only when the iterator has ended without raising.

        Raises:
            SourceError: the image holds no content for the row (vanished, unreadable, a directory ...).
            IntegrityError: the bytes are not what the index says.
        """
        self._require_stored(row)
        if row.type not in ("file", "hardlink"):
            raise SourceError(f"{row.path!r} is a {row.type} and has no content")
        segments = ((0, row.size),) if row.sparse is None else row.sparse
        check_segments(segments, row.size, row.payload_length)
        hasher = blake3()
        at = row.payload_offset
        for start, length in segments:
            for piece in self._pieces(at, length):
                hasher.update(piece)
                yield start, piece
                start += len(piece)
            at += length
        if row.blake3 is not None and hasher.digest() != row.blake3:
            raise IntegrityError(f"the content of {row.path!r} is damaged: its BLAKE3 differs")

    def _pieces(self, offset: int, length: int) -> Iterator[memoryview]:
        if length > CHUNK_BYTES:
            yield from self.reader.stream(offset, length)
        elif length:  # a stream that reads ahead is not worth its set-up
            yield memoryview(self.reader.read(offset, length))

    def _require_stored(self, row: IndexRow) -> None:
        if not row.stored:
            why = "deleted" if row.deleted else row.outcome
            raise SourceError(f"the image does not hold {row.path!r}: {why}", hint="look in an earlier image")
