"""What every image has besides its data members: its header, its end, its names (docs/image-format.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from nightferry.errors import IntegrityError
from nightferry.image.tar import BLOCK, Member, ustar_header

FORMAT_VERSION: Final = 1
HEADER_PATH: Final = b".nightferry/image.json"
INDEX_PATH: Final = b".nightferry/index.parquet"
END_PATH: Final = b".nightferry/end"
INDEX_COMMENT: Final = b"nightferry index"
TAIL_BYTES: Final = 4 * BLOCK
"""The end member's header and data, and the two zero blocks that close a tar."""
MAX_IMAGE_JSON: Final = 1 << 20
MAX_INDEX_BYTES: Final = 16 << 30

_END_TEXT: Final = re.compile(
    rb"nightferry-end 1\nindex_offset ([0-9]{20})\nindex_bytes ([0-9]{20})\nindex_blake3 ([0-9a-f]{64})\n+"
)


class ImageHeader(BaseModel):
    """What an image is: the content of ``.nightferry/image.json``.

    ``source`` says what was asked for (path, exclude ...) and never holds a secret. ``base`` is the image
    that a level above 0 builds on.
    """

    # Later formats add keys; an older reader must still read such an image.
    model_config = ConfigDict(frozen=True, extra="ignore")
    format: int = FORMAT_VERSION
    image: str
    run: str
    group: str
    store: str
    level: int = Field(default=0, ge=0, le=9)
    base: str = ""
    source_kind: str
    source: dict[str, Any] = Field(default_factory=dict)
    node: str
    started: AwareDatetime
    nightferry: str

    def encode(self) -> bytes:
        """The member's bytes."""
        return self.model_dump_json(indent=1).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> ImageHeader:
        """Reads the member's bytes.

        Raises:
            IntegrityError: not such a document, or one of a later format.
        """
        try:
            header = cls.model_validate_json(data)
        except ValidationError as error:
            raise IntegrityError(
                f"not an image: {HEADER_PATH.decode()}: {error.errors()[0]['msg']}"
            ) from error
        if header.format > FORMAT_VERSION:
            raise IntegrityError(
                f"an image of format {header.format}; this release reads up to {FORMAT_VERSION}",
                hint="read it with a newer nightferry, or with tar",
            )
        return header


@dataclass(frozen=True, slots=True)
class ImageEnd:
    """Where an image's index is. ``index_offset`` is that of the Parquet file's first byte."""

    index_offset: int
    index_bytes: int
    index_digest: str

    def encode(self) -> bytes:
        """The last ``TAIL_BYTES`` of an image."""
        text = b"nightferry-end 1\nindex_offset %020d\nindex_bytes %020d\nindex_blake3 %s\n" % (
            self.index_offset,
            self.index_bytes,
            self.index_digest.encode(),
        )
        header = ustar_header(Member(END_PATH, mode=0o444), BLOCK)
        return header + text.ljust(BLOCK, b"\n") + bytes(2 * BLOCK)

    @classmethod
    def decode(cls, tail: bytes, image_bytes: int) -> ImageEnd:
        """Reads the last ``TAIL_BYTES`` of an image of ``image_bytes``.

        Raises:
            IntegrityError: the image has no end, or one that points outside it.
        """
        match = _END_TEXT.fullmatch(tail[BLOCK : 2 * BLOCK])
        if match is None or tail[: len(END_PATH) + 1] != END_PATH + b"\0":
            raise IntegrityError("the image has no end: it was cut off")
        end = cls(int(match[1]), int(match[2]), match[3].decode())
        if end.index_bytes > MAX_INDEX_BYTES or end.index_offset + end.index_bytes > image_bytes - TAIL_BYTES:
            raise IntegrityError("the image's end points to an index outside the image")
        if tail != end.encode():
            raise IntegrityError("the image's end is damaged")
        return end
