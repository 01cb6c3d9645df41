"""What a Parquet file from elsewhere may cost, found out by reading all of it: run in a process apart (`guard`).

A footer is believed in nothing: a page of a few bytes may decode to gigabytes, and what is too large is known only
when it is decoded. What passes can be read again, row group by row group, within the same limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import pyarrow.compute as pc

from nightferry.errors import IntegrityError
from nightferry.image.index import Index
from nightferry.image.parquet import DAMAGED, MAX_FOOTER_BYTES, footer_bytes, open_parquet
from nightferry.transfer.spool import Content

MAX_FOREIGN_ROW_GROUPS: Final = 8192
MAX_DECODED_BYTES: Final = 64 << 20
"""Of one row group of an index. Of a whole file too, of which each byte may give ``INDEX_PER_BYTE`` or
``EVENTS_PER_BYTE`` more."""
INDEX_PER_BYTE: Final = 64
EVENTS_PER_BYTE: Final = 32
ROWS: Final = 65_536
"""What any file may have; with more a row takes at least ``ROW_BYTES`` of it, and one that is in the image
``STORED_BYTES``."""
ROW_BYTES: Final = 1
STORED_BYTES: Final = 4
EVENT_BYTES: Final = 4
_BATCH_ROWS: Final = 1024


def prove_index(data: Content) -> None:
    """Reads an image's index.

    Raises:
        IntegrityError: not an index, a damaged one, or one beyond the limits.
    """
    _require_short_footer(data)
    index = Index(data)
    _require(index.row_groups <= MAX_FOREIGN_ROW_GROUPS, f"{index.row_groups} row groups")
    _require(len(index) <= ROWS + len(data) // ROW_BYTES, f"{len(index)} rows in {len(data)} bytes")
    stored = decoded = 0
    last = b""
    for number, (table, paths) in enumerate(index.groups()):
        _require(table.nbytes <= MAX_DECODED_BYTES, f"{table.nbytes} bytes in row group {number}")
        decoded += table.nbytes
        _require_decoded(decoded, len(data), INDEX_PER_BYTE)
        stored += pc.sum(pc.greater_equal(table["offset"], 0)).as_py() or 0
        _require(stored <= ROWS + len(data) // STORED_BYTES, f"{stored} rows of members in {len(data)} bytes")
        if paths[0] <= last and number:
            raise IntegrityError(f"row group {number} of the index is not sorted")
        last = paths[-1]


def prove_events(data: Content) -> None:
    """Reads a file of events: of which columns, who reads it again knows.

    Raises:
        IntegrityError: damaged, or beyond the limits.
    """
    _require_short_footer(data)
    try:
        file = open_parquet(data)
        _require(file.num_row_groups <= MAX_FOREIGN_ROW_GROUPS, f"{file.num_row_groups} row groups")
        rows, size = file.metadata.num_rows, len(data)
        _require(rows <= ROWS + size // EVENT_BYTES, f"{rows} rows in {size} bytes")
        seen = decoded = 0
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, use_threads=False):
            batch.validate(full=True)
            seen += batch.num_rows
            decoded += batch.nbytes
            _require(seen <= rows, f"more rows than the {rows} it speaks of")
            _require_decoded(decoded, size, EVENTS_PER_BYTE)
    except DAMAGED as error:
        raise IntegrityError(f"it is damaged: {error}") from error


PROOFS: Final[Mapping[str, Callable[[Content], None]]] = {"index": prove_index, "events": prove_events}
"""By the word that the process apart is asked with."""


def _require_short_footer(data: Content) -> None:
    length = footer_bytes(data)
    _require(length <= MAX_FOOTER_BYTES, f"a footer of {length} bytes")


def _require_decoded(decoded: int, size: int, per_byte: int) -> None:
    _require(decoded <= MAX_DECODED_BYTES + size * per_byte, f"{decoded} bytes, decoded, in {size}")


def _require(within: bool, what: str) -> None:
    """Raises:
    IntegrityError: it is not within the limits.
    """
    if not within:
        raise IntegrityError(f"it has {what}, beyond the format's limits")
