"""What stands on a cartridge behind its label: parts of images and their trailers (docs/tape-layout.md)."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from blake3 import blake3
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from nightferry.destination.tape.drives.base import RECORD_BYTES, Mark
from nightferry.errors import ConfigError, MediumDamaged

TRAILER_NAME = ".nightferry/trailer.json"
CHUNK_DIGEST_BYTES = 8
HEAD_BYTES = 64 << 10
"""What a trailer that is not final takes at most besides its records' digests, tar frames included."""
_BLOCK = 512
_JSON_LIMIT = 1 << 20
_TRAILER_LIMIT = 16 << 30
_Count = Annotated[int, Field(ge=0)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Part(_Model):
    """Where a part of an image lies: tape files and records from 0, ``first_record`` counted in the whole
    image."""

    barcode: str
    label: str
    file: Annotated[int, Field(ge=1)]
    first_record: _Count
    records: _Count
    bytes: _Count
    trailer: Annotated[int, Field(ge=2)]

    @model_validator(mode="after")
    def _fits(self) -> Part:
        if -(-self.bytes // RECORD_BYTES) != self.records:
            raise ValueError(f"{self.bytes} bytes are not {self.records} records")
        return self


class Location(_Model):
    """Every part of a copy in order, without a gap; what the catalog keeps."""

    parts: Annotated[tuple[Part, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _joins(self) -> Location:
        following = 0
        for part in self.parts:
            if part.first_record != following:
                raise ValueError(f"record {following} of the image is missing")
            following += part.records
            if part.bytes % RECORD_BYTES and part.first_record + part.records != self.records:
                raise ValueError("a short record inside the image")
        return self

    @property
    def records(self) -> int:
        return sum(part.records for part in self.parts)

    @property
    def size_bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def as_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


def parse_location(location: Mapping[str, Any]) -> Location:
    """The location of a tape copy as the catalog keeps it.

    Raises:
        ConfigError: it is none; the catalog's record was not written by a tape destination.
    """
    try:
        return Location.model_validate({"parts": location.get("parts")})
    except ValidationError as error:
        raise ConfigError(f"not the location of a tape copy: {error.errors()[0]['msg']}") from error


class Trailer(_Model):
    """The description of the part that stands before it."""

    format: Literal["nightferry-tape-trailer"] = "nightferry-tape-trailer"
    version: Literal[1] = 1
    kind: Literal["image", "catalog"] = "image"
    image: str
    epoch: int
    digest: str
    size_bytes: _Count
    part: Annotated[int, Field(ge=1)]
    parts: int | None = None
    this: Part
    previous: Part | None = None
    next: dict[Literal["barcode"], str] | None = None
    location: Location | None = None
    previous_trailer: int | None = None
    written: AwareDatetime
    members: dict[str, tuple[int, str]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _agrees(self) -> Trailer:
        if (self.parts is None) != (self.location is None):
            raise ValueError("parts and location stand together, in a final trailer")
        if self.location is not None and (
            self.parts != self.part
            or len(self.location.parts) != self.part
            or self.location.parts[-1] != self.this
            or self.location.size_bytes != self.size_bytes
        ):
            raise ValueError("the location does not agree with this part")
        return self

    @property
    def final(self) -> bool:
        return self.location is not None


def now_to_the_second(now: datetime) -> datetime:
    """Aware UTC without a fraction, as trailers and labels carry it."""
    return now.astimezone(UTC).replace(microsecond=0)


def _member(name: str, data: bytes, written: datetime) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(data), 0o600, int(written.timestamp())
    return info


def render_trailer(trailer: Trailer, members: Mapping[str, bytes]) -> bytes:
    """A trailer file's bytes: a POSIX tar, ``trailer.json`` first, then ``members`` in their order.

    Raises:
        ConfigError: the image lies on more cartridges than a trailer can name.
    """
    sums = {name: (len(data), blake3(data).hexdigest()) for name, data in members.items()}
    head = trailer.model_copy(update={"members": sums}).model_dump_json(indent=1).encode()
    if len(head) > _JSON_LIMIT:
        raise ConfigError(
            f"the image {trailer.image} lies on too many cartridges ({trailer.part}): use larger ones"
        )
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in {TRAILER_NAME: head, **members}.items():
            tar.addfile(_member(name, data, trailer.written), io.BytesIO(data))
    return out.getvalue()


def records_of(data: bytes) -> Iterator[memoryview]:
    """Cuts a trailer file's bytes into records."""
    view = memoryview(data)
    return (view[at : at + RECORD_BYTES] for at in range(0, len(data), RECORD_BYTES))


def begins_a_trailer(record: bytes) -> bool:
    """Whether a tape file's first record can be a trailer's. An image begins with another member."""
    return record[:100].rstrip(b"\0") == TRAILER_NAME.encode()


def _padded(size: int) -> int:
    return _BLOCK + -(-size // _BLOCK) * _BLOCK


def _head(data: bytes | bytearray) -> tuple[Trailer, int] | None:
    """The parsed ``trailer.json`` and the whole trailer file's length; None while more bytes are needed."""
    info = tarfile.TarInfo.frombuf(bytes(data[:_BLOCK]), "ascii", "strict")
    if info.size > _JSON_LIMIT:
        raise ValueError(f"its trailer.json of {info.size} bytes is too long")
    if len(data) < _BLOCK + info.size:
        return None
    trailer = Trailer.model_validate_json(bytes(data[_BLOCK : _BLOCK + info.size]))
    total = _padded(info.size) + sum(_padded(size) for size, _ in trailer.members.values()) + 2 * _BLOCK
    total = -(-total // tarfile.RECORDSIZE) * tarfile.RECORDSIZE
    if total > _TRAILER_LIMIT:
        raise ValueError(f"it says that it has {total} bytes")
    return trailer, total


def read_trailer(
    first: bytes, read: Callable[[], bytes | Mark], where: str, *, closed: bool = True
) -> tuple[Trailer, dict[str, bytes]]:
    """Reads the rest of a trailer file whose first record was read, and proves it.

    Args:
        first: Its first record.
        read: Reads the next record.
        where: Cartridge and tape file, for messages.
        closed: It must end with a filemark; else the end of the tape will do.

    Returns:
        The trailer and its members by name. The tape stands behind the trailer's filemark, if it has one.

    Raises:
        MediumDamaged: it is not a whole trailer.
    """
    ends = (Mark.FILEMARK,) if closed else (Mark.FILEMARK, Mark.END_OF_DATA)
    try:
        data = bytearray(first)
        head = _head(data)
        while head is None or len(data) < head[1]:
            record = read()
            if isinstance(record, Mark):
                raise ValueError(f"it ends after {len(data)} bytes, at the {record.value}")
            data += record
            head = head or _head(data)
        if len(data) != head[1] or read() not in ends:
            raise ValueError("no filemark where it should end")
        return head[0], _members(bytes(data), head[0])
    except (ValueError, tarfile.TarError) as error:
        problem = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise MediumDamaged(f"the trailer in {where} is not whole: {problem}", subject=where) from error


def _members(data: bytes, trailer: Trailer) -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        for info in tar:
            content = tar.extractfile(info) if info.isreg() and not info.issparse() else None
            if content is None:  # holes would be read as zeros, more than there is memory
                raise ValueError(f"{info.name!r} is not a plain file")
            if info.name != TRAILER_NAME:
                members[info.name] = content.read()
    if list(members) != list(trailer.members):
        raise ValueError("its members are not those it names")
    for name, (size, digest) in trailer.members.items():
        if len(members[name]) != size or blake3(members[name]).hexdigest() != digest:
            raise ValueError(f"its {name} is damaged")
    return members
