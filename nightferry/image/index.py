"""The index: an image's files and where each lies, as a Parquet file sorted by path.

The first path of each row group makes one path or one directory a matter of reading one or a few of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Final, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from nightferry.errors import IntegrityError
from nightferry.image.parquet import DAMAGED, first_value, open_parquet, read_columns
from nightferry.image.tar import MAX_SEGMENTS, MemberType, Segments
from nightferry.transfer.spool import Content

ROWS_PER_GROUP: Final = 8192
MAX_ROWS_PER_GROUP: Final = 65_536
MAX_GROUP_BYTES: Final = 1 << 30
MAX_PATH_DEPTH: Final = 4096
MAX_TEXT_BYTES: Final = 1 << 20
"""A path, a link's target, an owner's name, a note."""
_SLICE_BYTES: Final = 4 << 20
"""Columns of at most so much become rows at once: as Python's objects they take about eight times as much."""
_TAKEN_ROWS: Final = 1024

EntryType = Literal[MemberType, "socket"]
FileOutcome = Literal["whole", "vanished", "changed", "unreadable"]
_TYPES: Final = frozenset((*get_args(MemberType), "socket"))
_OUTCOMES: Final = frozenset(get_args(FileOutcome))

INDEX_SCHEMA: Final = pa.schema(
    [
        pa.field("path", pa.binary(), nullable=False),
        pa.field("type", pa.string(), nullable=False),
        pa.field("link_target", pa.binary()),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("mode", pa.int32(), nullable=False),
        pa.field("uid", pa.int64(), nullable=False),
        pa.field("gid", pa.int64(), nullable=False),
        pa.field("uname", pa.binary(), nullable=False),
        pa.field("gname", pa.binary(), nullable=False),
        pa.field("mtime_ns", pa.int64(), nullable=False),
        pa.field("ctime_ns", pa.int64(), nullable=False),
        pa.field("dev", pa.uint64(), nullable=False),
        pa.field("inode", pa.uint64(), nullable=False),
        pa.field("nlink", pa.int64(), nullable=False),
        pa.field("attributes_digest", pa.binary(32)),
        pa.field("sparse", pa.list_(pa.int64())),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
        pa.field("payload_offset", pa.int64(), nullable=False),
        pa.field("payload_length", pa.int64(), nullable=False),
        pa.field("blake3", pa.binary(32)),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("deleted", pa.bool_(), nullable=False),
        pa.field("fh_info", pa.uint64()),
        pa.field("node", pa.uint64()),
        pa.field("note", pa.string(), nullable=False),
        pa.field("mtime_s", pa.int64()),
        pa.field("ctime_s", pa.int64()),
        pa.field("flags", pa.uint32()),
    ]
)
_LATER: Final = frozenset({"mtime_s", "ctime_s", "flags"})
"""Columns that indexes written before 0.2 do not have."""

COLUMNS: Final = tuple(INDEX_SCHEMA.names)
NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class IndexRow:
    """One path of an image; fields as in docs/image-format.md.

    ``offset`` is −1 when the image holds no member for it (vanished, unreadable, deleted, a socket).
    A hard link's payload fields are those of the file it links to. ``mtime_ns`` and ``ctime_ns`` have no bounds here,
    whatever a column can hold.
    """

    path: bytes
    type: EntryType
    link_target: bytes | None = None
    size: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0
    uname: bytes = b""
    gname: bytes = b""
    mtime_ns: int = 0
    ctime_ns: int = 0
    dev: int = 0
    inode: int = 0
    nlink: int = 1
    attributes_digest: bytes | None = None
    sparse: Segments | None = None
    offset: int = -1
    length: int = 0
    payload_offset: int = 0
    payload_length: int = 0
    blake3: bytes | None = None
    outcome: FileOutcome = "whole"
    deleted: bool = False
    fh_info: int | None = None
    node: int | None = None
    note: str = ""
    flags: int = 0

    @property
    def stored(self) -> bool:
        """The image holds a member for it."""
        return self.offset >= 0

    @property
    def digest(self) -> str:
        """The payload's BLAKE3 in hex, or empty."""
        return self.blake3.hex() if self.blake3 is not None else ""


FIELDS: Final = tuple(field.name for field in fields(IndexRow))


class Index:
    """A reader of one index; one row group is in memory at a time.

    Args:
        data: The Parquet file.

    Raises:
        IntegrityError: not an index, or one beyond the format's limits.
    """

    def __init__(self, data: Content) -> None:
        self.data = data
        try:
            self._file = open_parquet(data)
        except DAMAGED as error:
            raise IntegrityError(f"not an index: {error}") from error
        self._lacks: set[str] = set()
        self._check_schema()
        metadata = self._file.metadata
        rows = 0
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            if not 0 < group.num_rows <= MAX_ROWS_PER_GROUP or group.total_byte_size > MAX_GROUP_BYTES:
                raise IntegrityError(f"row group {number} of the index is beyond the format's limits")
            rows += group.num_rows
        if rows != metadata.num_rows:
            raise IntegrityError(f"the index has {rows} rows, but claims {metadata.num_rows}")
        self._first: dict[int, bytes] = {}
        self._cached: tuple[int, pa.Table, list[bytes]] | None = None

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def __iter__(self) -> Iterator[IndexRow]:
        """Every row, by path."""
        for number in range(self._file.num_row_groups):
            yield from _rows(self._group(number)[0], 0)

    def tables(self, names: Sequence[str] = COLUMNS) -> Iterator[pa.Table]:
        """Columns of one row group after the other, for work on many rows at once."""
        for number in range(self._file.num_row_groups):
            yield self._read(number, list(names))

    def groups(self) -> Iterator[tuple[pa.Table, list[bytes]]]:
        """The row groups, one after the other, each with its paths.

        Raises:
            IntegrityError: one is damaged, not sorted, or holds longer values than any image has.
        """
        for number in range(self._file.num_row_groups):
            table, paths = self._group(number)
            if self._first_path(number) != paths[0]:
                raise IntegrityError(f"row group {number} of the index does not begin with its first path")
            yield table, paths

    @property
    def row_groups(self) -> int:
        return int(self._file.num_row_groups)

    def lookup(self, path: bytes) -> IndexRow | None:
        """The row of one path; None when the image does not know it."""
        for row in self._from(path):
            return row if row.path == path else None
        return None

    def prefix(self, prefix: bytes) -> Iterator[IndexRow]:
        """Every row whose path begins with the bytes ``prefix``, by path."""
        for row in self._from(prefix):
            if not row.path.startswith(prefix):
                return
            yield row

    def select(self, wanted: Callable[[bytes], bool]) -> Iterator[IndexRow]:
        """Every row whose path is wanted, by path.

        Only paths are read of a row group in which none is: over a large index many times faster than looking
        at every row.
        """
        for number in range(self._file.num_row_groups):
            paths = _paths(self._read(number, ["path"]))
            places = [place for place, path in enumerate(paths) if wanted(path)]
            del paths
            for at in range(0, len(places), _TAKEN_ROWS):
                yield from _rows(self._group(number)[0].take(places[at : at + _TAKEN_ROWS]), 0)

    def _from(self, path: bytes) -> Iterator[IndexRow]:
        """Rows from the first one not before ``path``."""
        low, high = 0, self._file.num_row_groups
        while low < high:
            middle = (low + high) // 2
            if self._first_path(middle) <= path:
                low = middle + 1
            else:
                high = middle
        for number in range(max(low - 1, 0), self._file.num_row_groups):
            table, paths = self._group(number)
            yield from _rows(table, bisect_left(paths, path))

    def _first_path(self, number: int) -> bytes:
        if number not in self._first:
            try:
                first = first_value(self._file, "path", number)
            except DAMAGED as error:
                raise _damaged(error) from error
            if not isinstance(first, bytes):
                raise IntegrityError("the index has nulls in column path")
            self._first[number] = first
        return self._first[number]

    def _group(self, number: int) -> tuple[pa.Table, list[bytes]]:
        if self._cached is None or self._cached[0] != number:
            table = self._read(number, list(COLUMNS))
            paths = _paths(table)
            _require_short(table)
            if any(a >= b for a, b in pairwise(paths)):
                raise IntegrityError(f"row group {number} of the index is not sorted")
            self._cached = (number, table, paths)
        return self._cached[1], self._cached[2]

    def _read(self, group: int, columns: list[str]) -> pa.Table:
        """Columns of one row group; one that an older index lacks is null."""
        there = [name for name in columns if name not in self._lacks]
        try:
            table = read_columns(self._file, there, group)
        except DAMAGED as error:
            raise _damaged(error) from error
        for name in self._lacks.intersection(columns):
            field = INDEX_SCHEMA.field(name)
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
        return table

    def _check_schema(self) -> None:
        found = self._file.schema_arrow
        for field in INDEX_SCHEMA:
            position = found.get_field_index(field.name)
            if position < 0 and field.name in _LATER:
                self._lacks.add(field.name)
                continue
            if position < 0 or not _same_type(found.field(position).type, field.type):
                raise IntegrityError(f"not an index: column {field.name} is missing or of another type")
        if found.field(0).name != "path":
            raise IntegrityError("not an index: its first column is not path")


def _require_short(table: pa.Table) -> None:
    """Raises:
    IntegrityError: a path, another text or a sparse map is longer than any of an image.
    """
    paths = table.column("path")
    if not (pc.min(pc.binary_length(paths)).as_py() or 0):
        raise IntegrityError("the index has a path of 0 bytes")
    if pc.max(pc.count_substring(paths, b"/")).as_py() > MAX_PATH_DEPTH:
        raise IntegrityError(
            f"the index has a path more than {MAX_PATH_DEPTH} deep, beyond the format's limits"
        )
    for field in INDEX_SCHEMA:
        column = table.column(field.name)
        most, unit = MAX_TEXT_BYTES, "bytes"
        if field.name == "sparse":
            longest, most, unit = pc.max(pc.list_value_length(column)), 2 * MAX_SEGMENTS, "numbers"
        elif pa.types.is_binary(field.type) or pa.types.is_string(field.type):
            longest = pc.max(pc.binary_length(column))
        else:
            continue
        if (longest.as_py() or 0) > most:
            raise IntegrityError(
                f"the index has a {field.name} of {longest.as_py()} {unit}, beyond the format's limits"
            )


def _paths(table: pa.Table) -> list[bytes]:
    column = table.column("path")
    if column.null_count:
        raise IntegrityError("the index has nulls in column path")
    return list(column.to_pylist())


def _damaged(error: Exception) -> IntegrityError:
    return IntegrityError(f"the index is damaged: {error}")


def _same_type(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_list(wanted):
        return bool(pa.types.is_list(found) and found.value_type == wanted.value_type)
    return bool(found == wanted)


def _rows(table: pa.Table, start: int) -> Iterator[IndexRow]:
    """Rows from ``start`` on, made in growing slices: most callers want one or a few."""
    step = 1
    while start < table.num_rows:
        some = table.slice(start, step)
        if step > 1 and some.nbytes > _SLICE_BYTES:
            step //= 2
            continue
        yield from rows_of(some)
        start += step
        step = min(step * 8, ROWS_PER_GROUP)


def rows_of(table: pa.Table) -> list[IndexRow]:
    """The rows of a table with the index's columns.

    Raises:
        IntegrityError: a null or a sparse map where none may be, text that is not UTF-8, a type or an outcome that
            no row has, or a path beyond the format's limits.
    """
    try:
        columns = {name: table.column(name).to_pylist() for name in COLUMNS}
    except DAMAGED as error:
        raise _damaged(error) from error
    for name in COLUMNS:
        if not INDEX_SCHEMA.field(name).nullable and table.column(name).null_count:
            raise IntegrityError(f"the index has nulls in column {name}")
    for name, known in (("type", _TYPES), ("outcome", _OUTCOMES)):
        unknown = sorted(set(columns[name]) - known)
        if unknown:
            raise IntegrityError(f"the index has an unknown {name}: {unknown[0][:40]!r}")
    columns["sparse"] = [_segments(flat) for flat in columns["sparse"]]
    for time, seconds in (("mtime_ns", "mtime_s"), ("ctime_ns", "ctime_s")):
        if table.column(seconds).null_count < table.num_rows:
            pairs = zip(columns[time], columns[seconds], strict=True)
            columns[time] = [ns if s is None else s * NS + ns for ns, s in pairs]
    columns["flags"] = [flags or 0 for flags in columns["flags"]]
    return [IndexRow(*values) for values in zip(*(columns[name] for name in FIELDS), strict=True)]


def _segments(flat: list[int] | None) -> Segments | None:
    if flat is None:
        return None
    if len(flat) % 2:
        raise IntegrityError("the index has a sparse map of an odd length")
    return tuple(zip(flat[::2], flat[1::2], strict=True))
