"""Indexes that cost much more than their length, or are as no image has them. Each is some megabytes at most."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3

from nightferry.catalog import schema
from nightferry.image.index import INDEX_SCHEMA, IndexRow
from nightferry.image.index_builder import IndexBuilder
from tests.support import parquet_bytes as by_hand

_ROWS = 8192


def _plain(rows: int = 8) -> bytes:
    """A sound index without a dictionary: its pages are easy to replace."""
    builder = IndexBuilder()
    for number in range(rows):
        builder.add(IndexRow(b"%08d" % number, "file"))
    table = pq.read_table(io.BytesIO(builder.finish()), use_threads=False)
    return _parquet(pa.Table.from_arrays(table.columns, schema=INDEX_SCHEMA))


def _parquet(table: pa.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    said = {"compression": "zstd", "use_dictionary": False, "store_schema": False, "row_group_size": 65_536}
    pq.write_table(table, out, **{**said, **options})
    return out.getvalue()


def _changed(column: str, values: pa.Array, rows: int, **options: Any) -> bytes:
    table = pq.read_table(io.BytesIO(_plain(rows)), use_threads=False)
    at = table.schema.get_field_index(column)
    return _parquet(table.set_column(at, INDEX_SCHEMA.field(column), values), **options)


def compressed_bomb() -> bytes:
    """A page of a few kilobytes that is 1 GiB: eight values, one of them nearly all of it."""
    length = (1 << 30) - 64
    page = by_hand.packed_zeros(length.to_bytes(4, "little"), length)
    return by_hand.with_column(_plain(), b"note", by_hand.data_page(page, (1 << 30), 8, 0), values=8)


def dictionary_bomb() -> bytes:
    """One text of 1 MiB in the dictionary, and 8,192 rows that have it."""
    text = by_hand.packed((1 << 20).to_bytes(4, "little") + b"x" * (1 << 20))
    dictionary = by_hand.dictionary_page(text, (1 << 20) + 4, 1)
    run = by_hand.rle_run(_ROWS)
    page = by_hand.data_page(by_hand.packed(run), len(run), _ROWS, 8)
    pages = dictionary + page
    return by_hand.with_column(_plain(_ROWS), b"note", pages, dictionary_bytes=len(dictionary), values=_ROWS)


def endless_run() -> bytes:
    """A run of 2³¹ − 1 equal numbers, in a row group that speaks of as many as may be."""
    number = by_hand.packed(bytes(8))
    dictionary = by_hand.dictionary_page(number, 8, 1)
    run = by_hand.rle_run((1 << 31) - 1)
    page = by_hand.data_page(by_hand.packed(run), len(run), (1 << 31) - 1, 8)
    sound = _plain(65_536)
    return by_hand.with_column(
        sound, b"size", dictionary + page, dictionary_bytes=len(dictionary), values=(1 << 31) - 1
    )


def endless_group() -> bytes:
    """The same, and the footer admits it."""
    data = endless_run()
    footer = by_hand.footer_of(data)
    footer[by_hand.NUM_ROWS] = (by_hand.I64, (1 << 31) - 1)
    footer[by_hand.ROW_GROUPS][1][1][0][by_hand.GROUP_ROWS] = (by_hand.I64, (1 << 31) - 1)
    return by_hand.with_footer(data, footer)


def lying_footer() -> bytes:
    """Eight rows of nothing, says the footer; the pages hold a dictionary of 512 MiB."""
    length = 512 << 20
    text = by_hand.packed_zeros(length.to_bytes(4, "little"), length)
    dictionary = by_hand.dictionary_page(text, length + 4, 1)
    run = by_hand.rle_run(8)
    page = by_hand.data_page(by_hand.packed(run), len(run), 8, 8)
    data = by_hand.with_column(
        _plain(), b"note", dictionary + page, dictionary_bytes=len(dictionary), values=8
    )
    footer = by_hand.footer_of(data)
    footer[by_hand.ROW_GROUPS][1][1][0][by_hand.GROUP_BYTES] = (by_hand.I64, 8)
    return by_hand.with_footer(data, footer)


def million_row_groups() -> bytes:
    data = _plain()
    footer = by_hand.footer_of(data)
    empty = {
        by_hand.GROUP_COLUMNS: (by_hand.LIST, (by_hand.STRUCT, [])),
        by_hand.GROUP_BYTES: (by_hand.I64, 1),
        by_hand.GROUP_ROWS: (by_hand.I64, 1),
    }
    footer[by_hand.ROW_GROUPS] = (by_hand.LIST, (by_hand.STRUCT, [empty] * 1_000_000))
    footer[by_hand.NUM_ROWS] = (by_hand.I64, 1_000_000)
    return by_hand.with_footer(data, footer)


def many_row_groups() -> bytes:
    """As many row groups as may be, nearly: all of them the same one."""
    data = _plain(1)
    footer = by_hand.footer_of(data)
    footer[by_hand.ROW_GROUPS] = (by_hand.LIST, (by_hand.STRUCT, footer[by_hand.ROW_GROUPS][1][1] * 6000))
    footer[by_hand.NUM_ROWS] = (by_hand.I64, 6000)
    return by_hand.with_footer(data, footer)


def dense_rows() -> bytes:
    """600,000 rows of members in a few hundred kilobytes: as objects they take hundreds of megabytes."""
    count = 600_000
    one = pq.read_table(io.BytesIO(_plain(1)), use_threads=False)
    table = one.take(pa.array(np.zeros(count, "int32")))
    paths = pa.array([b"%08d" % number for number in range(count)], pa.binary())
    table = table.set_column(0, INDEX_SCHEMA.field("path"), paths)
    offsets = pa.array(np.zeros(count, "int64"))
    table = table.set_column(table.schema.get_field_index("offset"), INDEX_SCHEMA.field("offset"), offsets)
    dictionary = [field.name for field in INDEX_SCHEMA if field.name not in ("path", "sparse")]
    return _parquet(table, use_dictionary=dictionary, column_encoding={"path": "DELTA_BYTE_ARRAY"})


def long_texts() -> bytes:
    """Two row groups that are large enough for one, from notes that are all the same."""
    count = 65_536
    one = pq.read_table(io.BytesIO(_plain(1)), use_threads=False)
    table = one.take(pa.array(np.zeros(count, "int32")))
    paths = pa.array([b"%08d" % number for number in range(count)], pa.binary())
    notes = pa.DictionaryArray.from_arrays(np.zeros(count, "int32"), pa.array(["x" * 1500]))
    table = table.set_column(0, INDEX_SCHEMA.field("path"), paths)
    table = table.set_column(table.schema.get_field_index("note"), "note", notes)
    dictionary = [field.name for field in INDEX_SCHEMA if field.name not in ("path", "sparse")]
    encoding = {"path": "DELTA_BYTE_ARRAY"}
    return _parquet(table, use_dictionary=dictionary, column_encoding=encoding, row_group_size=32_768)


def deep_path() -> bytes:
    return _changed("path", pa.array([b"d/" * 100_000 + b"x"], pa.binary()), 1)


def long_path() -> bytes:
    return _changed("path", pa.array([b"x" * (2 << 20)], pa.binary()), 1)


def long_name() -> bytes:
    return _changed("link_target", pa.array([b"x" * (2 << 20)], pa.binary()), 1)


def many_segments() -> bytes:
    return _changed("sparse", pa.array([[0] * 300_000], pa.list_(pa.int64())), 1)


def hostile_catalog(sound: bytes) -> bytes:
    """A copy of the catalog whose bodies are a bomb, with a digest that proves it."""
    rows = by_hand.footer_of(sound)[by_hand.NUM_ROWS][1]
    length = 1 << 30
    text = by_hand.packed_zeros((length - 64).to_bytes(4, "little"), length - 64)
    dictionary = by_hand.dictionary_page(text, length - 60, 1)
    run = by_hand.rle_run(rows)
    levels = by_hand.packed(run)
    page = by_hand.data_page(levels, len(run), rows, 8)
    forged = by_hand.with_column(
        sound, b"body", dictionary + page, dictionary_bytes=len(dictionary), values=rows
    )
    (place,) = schema._PLACE_OF_DIGEST.finditer(forged)
    begin, end = forged[: place.start(1)], forged[place.end(1) :]
    return begin + blake3(begin + schema._NO_DIGEST + end).hexdigest().encode() + end


HOSTILE: Mapping[str, Callable[[], bytes]] = {
    made.__name__: made
    for made in (
        compressed_bomb,
        dictionary_bomb,
        endless_group,
        lying_footer,
        million_row_groups,
        many_row_groups,
        dense_rows,
        long_texts,
        deep_path,
        long_path,
        long_name,
        many_segments,
    )
}
