"""Parquet read without a thread, whatever its footer holds. In processes of their own: the wrong ones abort."""

import subprocess
import sys

PROGRAM = """
import os, struct, sys
import numpy, pyarrow.compute
from nightferry.catalog.schema import Row, decode_segment, encode_segment
from nightferry.errors import CatalogError, IntegrityError
from nightferry.image.index import Index, IndexRow
from nightferry.image.index_builder import IndexBuilder

def threads():
    return len(os.listdir("/proc/self/task"))

def rows(count):
    return [IndexRow(b"p%06d" % n, "file", size=n, offset=n, blake3=bytes(32)) for n in range(count)]

def build(rows, **options):
    builder = IndexBuilder(**options)
    for row in rows:
        builder.add(row)
    return builder.finish()

EVENTS = [Row(n, n, "w", "intent", "k", "s", "{}") for n in range(1, 30_000)]
"""


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM + program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_neither_reading_nor_writing_starts_a_thread() -> None:
    run("""
before = threads()
index = Index(build(reversed(rows(20_000)), spill_rows=4_000))
assert threads() == before, "building"
assert len(list(index)) == len(index) == 20_000
assert index.lookup(b"p010000").size == 10_000
assert len(list(index.prefix(b"p01/"))) == 0
assert len(list(index.select(lambda path: path.endswith(b"7")))) == 2_000
assert sum(table.num_rows for table in index.tables(["size"])) == 20_000
assert threads() == before, "reading"
assert decode_segment(encode_segment(EVENTS), "s") == EVENTS
assert threads() == before, "segments"
""")


FLIPS = """
def footer(data):
    length = struct.unpack("<I", data[-8:-4])[0]
    return range(len(data) - 8 - length, len(data) - 8)

def wrong(data):
    for at in footer(data):
        yield data[:at] + bytes([data[at] ^ BIT]) + data[at + 1 :]
"""


def test_no_wrong_bit_in_the_footer_of_an_index_ends_the_process() -> None:
    # Some of them make a histogram of the wrong size, which pyarrow cannot say without std::terminate.
    run(
        f"BIT = 1{FLIPS}"
        + """
refused = 0
for data in wrong(build(rows(3))):
    try:
        index = Index(data)
        index.lookup(b"p000001")
        list(index)
    except IntegrityError:
        refused += 1
assert refused > 100, refused
"""
    )


def test_no_wrong_bit_in_the_footer_of_a_segment_ends_the_process() -> None:
    run(
        f"BIT = 1{FLIPS}"
        + """
refused = 0
for data in wrong(encode_segment(EVENTS[:3])):
    try:
        decode_segment(data, "s")
    except CatalogError:
        refused += 1
assert refused > 100, refused
"""
    )
