"""What a line of the log looks like: in memory, as JSON, and as Parquet that any tool reads."""

from __future__ import annotations

import io
import itertools
import json
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3
from pydantic import ValidationError

from nightferry.errors import CatalogError
from nightferry.image.parquet import DAMAGED, open_parquet, read_columns
from nightferry.model.records import Event
from nightferry.transfer.spool import Content, part_of, pieces_of

FORMAT = "1"
"""Version of the segments' layout, kept in their metadata as ``nightferry.catalog``."""

_FORMAT_KEY = b"nightferry.catalog"
COPY_FORMAT = "2"
"""The same for a copy of the whole catalog, which proves itself."""

_DIGEST_KEY, _BEFORE_KEY = b"nightferry.digest", b"nightferry.before"
_NO_DIGEST = b"0" * 64
# As the footer has it, by Thrift's compact protocol: the key, then a field header, a length of 64, and the value.
_PLACE_OF_DIGEST = re.compile(re.escape(_DIGEST_KEY) + rb"\x18\x40([0-9a-f]{64})")
_PLACE_BYTES = len(_DIGEST_KEY) + 2 + len(_NO_DIGEST)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

EVENT_SCHEMA = pa.schema(
    [
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("writer", pa.string(), nullable=False),
        pa.field("phase", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("subject", pa.string(), nullable=False),
        pa.field("body", pa.string(), nullable=False),
    ],
    metadata={_FORMAT_KEY: FORMAT.encode()},
)


class Row(NamedTuple):
    """One event as the log keeps it: ``body`` stays JSON text until somebody asks for the record.

    ``at_us``: microseconds since 1970, UTC. ``body``: as `encode_body` writes it.
    """

    sequence: int
    at_us: int
    writer: str
    phase: str
    kind: str
    subject: str
    body: str

    @property
    def at(self) -> datetime:
        """When it was written, UTC."""
        return _EPOCH + timedelta(microseconds=self.at_us)

    @property
    def key(self) -> tuple[str, str]:
        """What the event is about; a later event with the same key replaces it."""
        return (self.kind, self.subject)

    @classmethod
    def of(cls, event: Event) -> Row:
        """The row of an event.

        Raises:
            CatalogError: its time is not aware, or its body is not plain JSON.
        """
        if event.at.tzinfo is None:
            raise CatalogError(f"event {event.sequence} has a time without a zone", subject=event.subject)
        return cls(
            event.sequence,
            microseconds(event.at),
            event.writer,
            event.phase,
            event.kind,
            event.subject,
            encode_body(event.body, event.kind, event.subject),
        )

    def event(self) -> Event:
        """The event of this row."""
        return Event(
            sequence=self.sequence,
            at=self.at,
            writer=self.writer,
            phase="intent" if self.phase == "intent" else "result",
            kind=self.kind,
            subject=self.subject,
            body=json.loads(self.body),
        )

    def may_say(self, **fields: str | None) -> bool:
        """False when the body surely lacks one of these fields with that value; None asks for nothing.

        Far cheaper than parsing; who needs certainty parses what is left.
        """
        return all(
            f'"{name}":{json.dumps(value, ensure_ascii=False)}' in self.body
            for name, value in fields.items()
            if value is not None
        )


def microseconds(at: datetime) -> int:
    """An aware time as microseconds since 1970, UTC."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def encode_body(body: dict[str, Any], kind: str, subject: str) -> str:
    """A body as compact JSON text, the same text for the same body.

    Raises:
        CatalogError: the body, the kind or the subject cannot be written as JSON in UTF-8.
    """
    try:
        text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)
        for part in (text, kind, subject):
            part.encode()
    except (TypeError, ValueError) as error:
        raise CatalogError(f"cannot record {kind} {subject!r}: {error}", subject=repr(subject)) from error
    return text


def encode_event(row: Row) -> bytes:
    """The content of an event file: the event as one JSON document."""
    head = {
        "sequence": row.sequence,
        "at": row.at.isoformat(timespec="microseconds"),
        "writer": row.writer,
        "phase": row.phase,
        "kind": row.kind,
        "subject": row.subject,
    }
    return f'{json.dumps(head, ensure_ascii=False)[:-1]}, "body": {row.body}}}\n'.encode()


def decode_event(data: bytes, sequence: int, name: str) -> Row:
    """The row of an event file; ``sequence`` is what its name ``name`` promises.

    Raises:
        CatalogError: the file is not an event, or another one.
    """
    try:
        event = Event.model_validate_json(data)
    except ValidationError as error:
        raise CatalogError(
            f"event file {name} is garbled: {error.errors()[0]['msg'].lower()}",
            hint="restore the file from a copy of the catalog; until then no later event is used",
            subject=name,
        ) from error
    if event.sequence != sequence:
        raise CatalogError(f"event file {name} holds event {event.sequence}", subject=name)
    return Row.of(event)


class ProvedRows(NamedTuple):
    """A copy of the catalog: its rows, its digest, and that of the copy before it; both are empty in a copy of a
    release that wrote none."""

    rows: list[Row]
    digest: str
    before: str


def encode_copy(rows: Sequence[Row], before: str) -> tuple[bytes, str]:
    """Rows as a copy of the catalog, and its digest: see docs/image-format.md, "Copies of the catalog".

    Args:
        rows: Every event.
        before: Digest of the copy before it at the same place; empty for the first.
    """
    metadata = {_FORMAT_KEY: COPY_FORMAT, _DIGEST_KEY: _NO_DIGEST, _BEFORE_KEY: before}
    data = _encode(rows, EVENT_SCHEMA.with_metadata(metadata))
    (place,) = _PLACE_OF_DIGEST.finditer(data)
    digest = blake3(data).hexdigest()
    return data[: place.start(1)] + digest.encode() + data[place.end(1) :], digest


def decode_copy(data: Content, name: str) -> ProvedRows:
    """The rows of a copy of the catalog, each a whole event of a record that this release can read.

    What carries a digest is proved by it before anything of it is decoded. What others may have written is read in a
    process apart before: see ``image.guard``.

    Raises:
        CatalogError: it is not one, damaged, or of a newer release.
    """
    places = _places_of_digest(data)
    digest = ""
    if places:
        digest = part_of(data, places[0], len(_NO_DIGEST)).decode()
        if len(places) > 1 or _digest_without(data, places[0]) != digest:
            raise CatalogError(f"{name} is damaged: its digest differs", subject=name)
    rows, metadata = _decode(data, name, COPY_FORMAT if digest else FORMAT)
    if not digest and _DIGEST_KEY in metadata:
        raise CatalogError(f"{name} is damaged: its digest is missing", subject=name)
    if rows and rows[0].sequence != 1:
        raise CatalogError(f"{name} begins at event {rows[0].sequence}, not at the first", subject=name)
    return ProvedRows(rows, digest, metadata.get(_BEFORE_KEY, b"").decode(errors="replace"))


def _places_of_digest(data: Content) -> list[int]:
    """Where in a file the digest's value stands: once, if the file is sound."""
    found: list[int] = []
    before, offset = b"", 0
    for piece in pieces_of(data):
        text = before + piece
        found += [offset - len(before) + place.start(1) for place in _PLACE_OF_DIGEST.finditer(text)]
        offset += len(piece)
        before = text[-(_PLACE_BYTES - 1) :]
    return found


def _digest_without(data: Content, place: int) -> str:
    """BLAKE3 of a file with zeros in the digest's place."""
    hasher, offset = blake3(), 0
    for piece in pieces_of(data):
        begin, end = place - offset, place + len(_NO_DIGEST) - offset
        if begin < len(piece) and end > 0:
            zeros = _NO_DIGEST[max(-begin, 0) : len(piece) - begin]
            piece = piece[: max(begin, 0)] + zeros + piece[max(end, 0) :]
        hasher.update(piece)
        offset += len(piece)
    return hasher.hexdigest()


def encode_segment(rows: Sequence[Row]) -> bytes:
    """Rows as one Parquet file, with the schema and statistics any Parquet tool reads."""
    return _encode(rows, EVENT_SCHEMA)


def _encode(rows: Sequence[Row], schema: pa.Schema) -> bytes:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(EVENT_SCHEMA)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, EVENT_SCHEMA, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=schema)
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def decode_segment(data: bytes, name: str) -> list[Row]:
    """The rows of a segment, in order and without a gap.

    Raises:
        CatalogError: it is not a segment, of another format, or has gaps.
    """
    return _decode(data, f"segment {name}", FORMAT)[0]


def _decode(data: Content, name: str, wanted: str) -> tuple[list[Row], dict[bytes, bytes]]:
    """The rows of a file of a format, and what its metadata say."""
    try:
        file = open_parquet(data)
        schema = file.schema_arrow
        metadata = dict(schema.metadata or {})
        found = metadata.get(_FORMAT_KEY, b"").decode(errors="replace")
        if found != wanted or not schema.equals(EVENT_SCHEMA):
            raise CatalogError(
                f"{name} is not of format {wanted} but {found or 'no catalog at all'}",
                hint="read it with the release that wrote it, or a newer one",
                subject=name,
            )
        table = read_columns(file, EVENT_SCHEMA.names)
        columns = {column: table.column(column) for column in EVENT_SCHEMA.names}
        columns["at"] = columns["at"].cast(pa.int64())
        lists = [column.to_pylist() for column in columns.values()]
    except DAMAGED as error:
        raise CatalogError(f"{name} is garbled: {error}", subject=name) from error
    if any(column.null_count for column in columns.values()):
        raise CatalogError(f"{name} is garbled: it contains nulls", subject=name)
    for i in (2, 3, 4):  # writer, phase and kind are few words many times over
        lists[i] = list(map(sys.intern, lists[i]))
    rows = list(map(Row._make, zip(*lists, strict=True)))
    for before, after in itertools.pairwise(rows):
        if after.sequence != before.sequence + 1:
            raise CatalogError(f"{name} lacks event {before.sequence + 1}", subject=name)
    return rows, metadata
