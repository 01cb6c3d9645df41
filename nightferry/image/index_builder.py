"""Building an index in bounded memory: rows arrive in the order of the tar, the file is sorted by path."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nightferry.errors import DestinationError, IntegrityError, StagingFull
from nightferry.image.index import FIELDS, INDEX_SCHEMA, MAX_ROWS_PER_GROUP, NS, ROWS_PER_GROUP, IndexRow
from nightferry.transfer.files import NO_SPACE

SPILL_ROWS: Final = 65_536
MAX_ROW_GROUPS: Final = 4096
"""An index of more rows has larger row groups: the footer, which every reader holds, stays below 8 MiB."""
_GROUP_BYTES: Final = 32 << 20
"""What the columns of a row group take at most, unless a single row takes more."""
SPILL_BYTES: Final = 64 << 20
_DICTIONARY: Final = [
    "type",
    "mode",
    "uid",
    "gid",
    "uname",
    "gname",
    "dev",
    "nlink",
    "outcome",
    "note",
    "flags",
]

# No thread of Arrow's: see nightferry.image.parquet.
_WRITE: Final = pa.ipc.IpcWriteOptions(use_threads=False)
_READ: Final = pa.ipc.IpcReadOptions(use_threads=False)


class IndexBuilder:
    """Collects rows and writes them as one Parquet file sorted by path.

    Up to ``spill_rows`` rows, with at most ``SPILL_BYTES`` of paths, are Python objects (about 50 MB of rows); each
    full batch goes to an unlinked temporary file. ``finish`` holds the paths of all rows, 16 bytes a row beside them,
    and the Parquet file itself (about 80 bytes a row).

    Args:
        spill_directory: Where the temporary file is made; the system's default when None.
        spill_rows: Rows of a batch.
    """

    def __init__(self, spill_directory: Path | None = None, *, spill_rows: int = SPILL_ROWS) -> None:
        self._spill_directory = spill_directory
        self._spill_rows = spill_rows
        self._pending: list[IndexRow] = []
        self._spill: BinaryIO | None = None
        self._spill_writer: pa.RecordBatchStreamWriter | None = None
        self._rows = 0
        self._path_bytes = 0

    def __len__(self) -> int:
        return self._rows

    def add(self, row: IndexRow) -> None:
        """Adds a row; paths must be unique over all of them.

        Raises:
            StagingFull: there is no room for the temporary file; the rows in hand are lost with the image.
            DestinationError: its disk failed.
        """
        self._pending.append(row)
        self._rows += 1
        self._path_bytes += len(row.path)
        if len(self._pending) >= self._spill_rows or self._path_bytes >= SPILL_BYTES:
            self._spill_batch()

    def finish(self) -> bytes:
        """The Parquet file. The builder is empty and closed afterwards.

        Raises:
            IntegrityError: two rows have one path.
        """
        try:
            return self._write(self._batches())
        finally:
            self.close()

    def close(self) -> None:
        """Gives the temporary file back. May be called twice."""
        if self._spill_writer is not None:
            self._spill_writer.close()
            self._spill_writer = None
        if self._spill is not None:
            self._spill.close()
            self._spill = None

    def _batch(self) -> pa.RecordBatch:
        columns = {name: [getattr(row, name) for row in self._pending] for name in FIELDS}
        columns["sparse"] = [
            None if segments is None else [number for segment in segments for number in segment]
            for segments in columns["sparse"]
        ]
        for time, seconds in (("mtime_ns", "mtime_s"), ("ctime_ns", "ctime_s")):
            columns[time], columns[seconds] = _times(columns[time])
        columns["flags"] = [flags or None for flags in columns["flags"]]
        self._pending = []
        self._path_bytes = 0
        arrays = [pa.array(columns[field.name], field.type) for field in INDEX_SCHEMA]
        return pa.RecordBatch.from_arrays(arrays, schema=INDEX_SCHEMA)

    def _spill_batch(self) -> None:
        try:
            if self._spill_writer is None:
                self._spill = tempfile.TemporaryFile(dir=self._spill_directory)  # noqa: SIM115 - closed by close()
                self._spill_writer = pa.ipc.new_stream(self._spill, INDEX_SCHEMA, options=_WRITE)
            self._spill_writer.write_batch(self._batch())
        except OSError as error:
            # An OSError out of the image is the source's; this one is ours, and rows are lost with it.
            message = f"cannot keep the index in {self._spill_directory or tempfile.gettempdir()}: {error}"
            raise (StagingFull if error.errno in NO_SPACE else DestinationError)(message) from error

    def _batches(self) -> list[pa.RecordBatch]:
        last = self._batch()
        if self._spill_writer is None or self._spill is None:
            return [last]
        self._spill_writer.close()
        self._spill_writer = None
        self._spill.flush()
        # Mapped, not read: a batch's columns come into memory only while its rows are taken.
        spilled = pa.memory_map(f"/proc/self/fd/{self._spill.fileno()}")
        with pa.ipc.open_stream(spilled, options=_READ) as reader:
            return [*reader, last]

    def _write(self, batches: list[pa.RecordBatch]) -> bytes:
        paths = pa.chunked_array([batch.column(0) for batch in batches], pa.binary())
        order = pc.sort_indices(paths)
        starts = [0]
        for batch in batches:
            starts.append(starts[-1] + batch.num_rows)
        buffer = io.BytesIO()
        previous: bytes | None = None
        with pq.ParquetWriter(
            buffer,
            INDEX_SCHEMA,
            compression="zstd",
            compression_level=1,
            use_dictionary=_DICTIONARY,
            column_encoding={"path": "DELTA_BYTE_ARRAY"},
            write_statistics=["path"],
            store_schema=False,
        ) as writer:
            rows = min(max(ROWS_PER_GROUP, -(-len(order) // MAX_ROW_GROUPS)), MAX_ROWS_PER_GROUP)
            for start in range(0, len(order), rows):
                taken = _take(batches, starts, order.slice(start, rows))
                previous = _check_unique(taken.column(0), previous)
                for group in _small_enough(taken):
                    writer.write_batch(group, row_group_size=rows)
        return buffer.getvalue()


def _small_enough(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch, halved until each part is of at most ``_GROUP_BYTES`` or one row."""
    if batch.num_rows <= 1 or batch.nbytes <= _GROUP_BYTES:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _small_enough(batch.slice(0, half))
    yield from _small_enough(batch.slice(half))


def _times(times_ns: list[int]) -> tuple[list[int], list[int | None]]:
    """Nanoseconds, and the seconds before them where a 64-bit number cannot hold both."""
    if not times_ns or (min(times_ns) >= -(1 << 63) and max(times_ns) < 1 << 63):
        return times_ns, [None] * len(times_ns)
    split = [(ns, None) if -(1 << 63) <= ns < 1 << 63 else (ns % NS, ns // NS) for ns in times_ns]
    return [ns for ns, _ in split], [seconds for _, seconds in split]


def _take(batches: list[pa.RecordBatch], starts: list[int], order: pa.Array) -> pa.RecordBatch:
    """The rows of ``order``, touching only the batches they are in."""
    wanted = order.to_numpy()
    parts = []
    places = []
    for number, batch in enumerate(batches):
        here = ((wanted >= starts[number]) & (wanted < starts[number + 1])).nonzero()[0]
        if len(here):
            parts.append(batch.take(pa.array(wanted[here] - starts[number])))
            places.append(pa.array(here))
    if len(parts) == 1:
        return parts[0]
    table = pa.Table.from_batches(parts).combine_chunks()
    back = pc.sort_indices(pa.concat_arrays(places))
    return table.take(back).combine_chunks().to_batches()[0]


def _check_unique(paths: pa.Array, previous: bytes | None) -> bytes:
    found = paths.to_pylist()
    for path in found:
        if path == previous:
            raise IntegrityError(f"two members of the image have one path: {path!r}")
        previous = path
    return bytes(found[-1])
