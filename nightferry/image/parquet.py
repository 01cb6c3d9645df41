"""Parquet files, read by the calling thread alone.

pyarrow would decode columns in threads of its own. Such a thread gives back what it read after the reader was
answered; when the interpreter is at its end by then, Python ends the thread in the middle of a C++ destructor, and
the process aborts (exit 134) whatever its result was.

A footer's column metadata is never asked for: pyarrow lets the exceptions of its parser pass through code that
cannot pass them on, so that one wrong byte in a file's statistics ends the process the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from nightferry.transfer.spool import Content, part_of

MAX_FOOTER_BYTES: Final = 16 << 20
"""A footer takes about twenty times its length in memory."""

DAMAGED: Final = (pa.ArrowException, OSError, ValueError, OverflowError)
"""What reading a damaged file raises, text that is not UTF-8 included."""


def open_parquet(data: Content) -> pq.ParquetFile:
    """The file that these are the bytes of, which must stay there; its footer is parsed, nothing else is read.

    Raises:
        DAMAGED: not a Parquet file.
    """
    return pq.ParquetFile(
        pa.BufferReader(data) if isinstance(data, bytes) else pa.OSFile(data.path),
        pre_buffer=False,
        thrift_string_size_limit=1 << 30,
        thrift_container_size_limit=1 << 24,
    )


def footer_bytes(data: Content) -> int:
    """How long the file says that its footer is; 0 when it is not a Parquet file.

    Source: https://parquet.apache.org/docs/file-format: length in four bytes little-endian, then ``PAR1``.
    """
    end = part_of(data, max(len(data) - 8, 0), 8)
    return int.from_bytes(end[:4], "little") if len(end) == 8 and end[4:] == b"PAR1" else 0


def read_columns(file: pq.ParquetFile, columns: Sequence[str], group: int | None = None) -> pa.Table:
    """Columns of one row group, or of all.

    Raises:
        DAMAGED: they cannot be decoded.
    """
    if group is None:
        return file.read(columns=list(columns), use_threads=False)
    return file.read_row_group(group, columns=list(columns), use_threads=False)


def first_value(file: pq.ParquetFile, column: str, group: int) -> object:
    """A column's value in the first row of a row group, which has one; no other value is decoded.

    Raises:
        DAMAGED: it cannot be decoded.
    """
    batches = file.iter_batches(batch_size=1, row_groups=[group], columns=[column], use_threads=False)
    for batch in batches:
        return batch.column(0)[0].as_py()
    raise ValueError(f"row group {group} has no row")
