"""The index: sorted, bounded in memory, read by other Parquet readers."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightferry.errors import IntegrityError
from nightferry.image.index import INDEX_SCHEMA, ROWS_PER_GROUP, Index, IndexRow
from nightferry.image.index_builder import IndexBuilder

FULL = IndexRow(
    path=b"caf\xe9\xff",
    type="hardlink",
    link_target=b"x",
    size=1 << 40,
    mode=0o4755,
    uid=70_000,
    gid=4_294_967_294,
    uname=b"u",
    gname=b"\xff",
    mtime_ns=-1_000_500_000_000,
    ctime_ns=(2**33 + 5) * 1_000_000_000,
    dev=2**64 - 1,
    inode=2**64 - 1,
    nlink=3,
    attributes_digest=b"a" * 32,
    sparse=((0, 4096), (1 << 30, 1)),
    offset=512,
    length=1024,
    payload_offset=4096,
    payload_length=4097,
    blake3=b"b" * 32,
    outcome="changed",
    deleted=True,
    fh_info=2**64 - 1,
    node=0,
    note="why",
    flags=0x20000040,
)


def build(rows: list[IndexRow], **options: int) -> Index:
    builder = IndexBuilder(**options)  # type: ignore[arg-type]
    for row in rows:
        builder.add(row)
    return Index(builder.finish())


@pytest.fixture(scope="module")
def paths() -> list[bytes]:
    made = [b"d%02d/f%05d" % (number % 40, number) for number in range(20_000)]
    made += [b"d%02d" % number for number in range(40)]
    made += [b"d07-x", b"d07.x", b"."]
    return sorted(made)


@pytest.fixture(scope="module")
def index(paths: list[bytes]) -> Index:
    shuffled = paths.copy()
    random.Random(7).shuffle(shuffled)
    return build([IndexRow(path, "file") for path in shuffled], spill_rows=3000)


def test_every_column_comes_back() -> None:
    plain = IndexRow(b"plain", "file")
    assert list(build([plain, FULL])) == [FULL, plain]


def test_rows_are_sorted_whatever_order_they_came_in(index: Index, paths: list[bytes]) -> None:
    assert [row.path for row in index] == paths
    assert len(index) == len(paths)


def test_every_path_is_found_and_no_other(index: Index, paths: list[bytes]) -> None:
    edges = [*paths[::977], paths[0], paths[-1], paths[ROWS_PER_GROUP - 1], paths[ROWS_PER_GROUP]]
    for path in edges:
        found = index.lookup(path)
        assert found is not None
        assert found.path == path
    for path in (b"", b"d", b"d07/", b"zzz", paths[ROWS_PER_GROUP] + b"x"):
        assert index.lookup(path) is None


def test_a_prefix_may_span_row_groups(index: Index, paths: list[bytes]) -> None:
    expected = [path for path in paths if path.startswith(b"d1")]
    assert [row.path for row in index.prefix(b"d1")] == expected
    assert [row.path for row in index.prefix(b"")] == paths


def test_rows_are_selected_by_their_path(index: Index, paths: list[bytes]) -> None:
    expected = [path for path in paths if path.endswith(b"7")]
    assert [row.path for row in index.select(lambda path: path.endswith(b"7"))] == expected
    assert list(index.select(lambda path: False)) == []


def test_paths_too_long_for_statistics_are_found() -> None:
    rows = [IndexRow(b"x" * 4200 + b"%05d" % number, "file") for number in range(ROWS_PER_GROUP + 10)]
    index = build(rows)
    assert index.lookup(rows[ROWS_PER_GROUP].path) is not None
    assert index.lookup(rows[5].path) is not None


def test_an_index_without_rows() -> None:
    index = build([])
    assert len(index) == 0
    assert list(index) == []
    assert index.lookup(b"a") is None


def test_two_rows_of_one_path_are_refused_even_in_different_batches() -> None:
    rows = [IndexRow(b"%d" % (number % 4), "file") for number in range(5)]
    with pytest.raises(IntegrityError, match="one path"):
        build(rows, spill_rows=2)


def test_row_groups_and_encoding_are_as_documented(index: Index) -> None:
    metadata = pq.ParquetFile(pa.BufferReader(index.data)).metadata
    assert metadata.row_group(0).num_rows == ROWS_PER_GROUP
    assert "DELTA_BYTE_ARRAY" in metadata.row_group(0).column(0).encodings
    assert metadata.row_group(1).column(0).statistics.has_min_max


def test_duckdb_reads_it(tmp_path: Path, index: Index) -> None:
    duckdb = pytest.importorskip("duckdb")
    (tmp_path / "index.parquet").write_bytes(build([FULL, IndexRow(b"plain", "file", size=7)]).data)
    relation = duckdb.read_parquet(str(tmp_path / "index.parquet")).order("path")
    rows = relation.project("path, size, mtime_ns, dev, sparse, blake3, outcome").fetchall()
    assert rows == [
        (FULL.path, 1 << 40, FULL.mtime_ns, 2**64 - 1, [0, 4096, 1 << 30, 1], b"b" * 32, "changed"),
        (b"plain", 7, 0, 0, None, None, "whole"),
    ]
    (tmp_path / "many.parquet").write_bytes(index.data)
    many = duckdb.read_parquet(str(tmp_path / "many.parquet"))
    found = many.aggregate("count(*), min(path), max(path)").fetchall()
    assert found == [(len(index), b".", b"d39/f19999")]


def parquet(table: pa.Table, **options: int) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return sink.getvalue().to_pybytes()


def table_of(*rows: IndexRow) -> pa.Table:
    return pq.read_table(pa.BufferReader(build(list(rows)).data))


def test_what_is_no_index_is_refused(index: Index) -> None:
    good = table_of(IndexRow(b"a", "file"), IndexRow(b"b", "file"))
    for data in (
        b"",
        b"PAR1",
        index.data[:-10],
        b"PAR1" + b"\xff" * 100 + b"PAR1",
        parquet(good.drop_columns(["offset"])),
        parquet(good.set_column(3, "size", pa.array(["1", "2"]))),
    ):
        with pytest.raises(IntegrityError):
            Index(data)


def test_damage_inside_a_row_group_is_an_integrity_error(index: Index) -> None:
    data = bytearray(index.data)
    data[2000:4000] = bytes(2000)
    with pytest.raises(IntegrityError):
        list(Index(bytes(data)))


def test_rows_out_of_order_are_refused() -> None:
    unsorted = table_of(IndexRow(b"a", "file"), IndexRow(b"b", "file")).take([1, 0])
    with pytest.raises(IntegrityError, match="not sorted"):
        list(Index(parquet(unsorted)))


def test_gigantic_row_groups_are_refused() -> None:
    wide = pa.concat_tables([table_of(IndexRow(b"a", "file"))] * 70_000).combine_chunks()
    with pytest.raises(IntegrityError, match="limits"):
        Index(parquet(wide, row_group_size=70_000))


def test_nulls_and_odd_sparse_maps_are_refused() -> None:
    table = table_of(replace(FULL, path=b"a"))
    odd = table.set_column(
        table.schema.get_field_index("sparse"), "sparse", pa.array([[1]], pa.list_(pa.int64()))
    )
    with pytest.raises(IntegrityError, match="odd"):
        list(Index(parquet(odd)))
    null = table.set_column(table.schema.get_field_index("size"), "size", pa.array([None], pa.int64()))
    with pytest.raises(IntegrityError, match="nulls"):
        list(Index(parquet(null)))


def test_columns_added_later_are_ignored() -> None:
    later = table_of(FULL).append_column("colour", pa.array(["blue"]))
    assert list(Index(parquet(later))) == [FULL]
    assert len(later.schema) == len(INDEX_SCHEMA) + 1


def test_an_index_without_the_later_columns_is_read(tmp_path: Path) -> None:
    rows = [replace(FULL, path=b"%05d" % number, flags=0) for number in range(ROWS_PER_GROUP + 5)]
    index = Index(
        parquet(table_of(*rows).drop_columns(["mtime_s", "ctime_s", "flags"]), row_group_size=ROWS_PER_GROUP)
    )
    assert list(index) == rows
    assert index.lookup(b"08000") == rows[8000]
    assert sum(table["mtime_s"].null_count for table in index.tables(["path", "mtime_s"])) == len(rows)


FAR = [-(2**63) * 10**9, -(2**63) - 1, -(2**63), -1, 0, 2**63 - 1, 2**63, 2**63 * 10**9 - 1]


def test_times_beyond_64_bits_are_exact_and_another_reader_can_tell_them(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    rows = [IndexRow(b"%d" % n, "file", mtime_ns=ns, ctime_ns=FAR[-1 - n]) for n, ns in enumerate(FAR)]
    index = build(rows)
    assert list(index) == rows
    (tmp_path / "index.parquet").write_bytes(index.data)
    whole = "(case when {0}_s is null then 0::hugeint else {0}_s::hugeint * 1000000000 end + {0}_ns)::varchar"
    read = duckdb.read_parquet(str(tmp_path / "index.parquet")).order("path")
    found = read.project(f"{whole.format('mtime')}, {whole.format('ctime')}").fetchall()
    assert [(int(m), int(c)) for m, c in found] == [(row.mtime_ns, row.ctime_ns) for row in rows]


def test_long_paths_do_not_pile_up_in_memory() -> None:
    builder = IndexBuilder()
    rows = [IndexRow(b"%04d" % number + b"x" * 1_000_000, "file") for number in range(130)]
    for row in rows:
        builder.add(row)
        assert len(builder._pending) <= 67
    assert [row.path[:4] for row in Index(builder.finish())] == [b"%04d" % number for number in range(130)]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"type": "whiteout"}, "unknown type: 'whiteout'"),
        ({"outcome": "perhaps"}, "unknown outcome: 'perhaps'"),
        ({"path": b""}, "a path of 0 bytes"),
        ({"path": b"x" * ((1 << 20) + 1)}, "a path of 1048577 bytes"),
        ({"path": b"a/" * 4097}, "a path more than 4096 deep"),
        ({"note": "x" * ((1 << 20) + 1)}, "a note of 1048577 bytes"),
        ({"sparse": ((0, 0),) * 65_537}, "a sparse of 131074 numbers"),
    ],
)
def test_rows_that_no_image_has_are_damage(wrong: dict[str, object], said: str) -> None:
    row = replace(IndexRow(b"plain", "file"), **wrong)  # type: ignore[arg-type]
    with pytest.raises(IntegrityError, match=said):
        list(build([row]))
