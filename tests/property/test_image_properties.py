"""Every encoder of the image room is undone by its decoder, and decoders survive anything."""

from __future__ import annotations

import io
import os
import random
import tarfile
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from nightferry.errors import IntegrityError
from nightferry.image.attributes import (
    Attributes,
    acl_from_text,
    acl_to_text,
    decode_keyword,
    encode_keyword,
)
from nightferry.image.chunks import CheckedReader
from nightferry.image.format import TAIL_BYTES, ImageEnd, ImageHeader
from nightferry.image.index import Index, IndexRow
from nightferry.image.index_builder import IndexBuilder
from nightferry.image.pax import format_time, parse_records, parse_time, pax_record
from nightferry.image.tar import (
    ALIGN_FROM,
    PAYLOAD_ALIGNMENT,
    Member,
    Segments,
    decode_header,
    encode_header,
    padding,
)
from nightferry.transfer.base import CHUNK_BYTES
from nightferry.transfer.digest import ChunkTable

times = st.integers(-(2**63) * 10**9, 2**63 * 10**9 - 1)
ids = st.integers(0, 2**32 - 1)
component = st.binary(min_size=1, max_size=60).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)
paths = st.lists(component, min_size=1, max_size=6).map(b"/".join)
targets = st.binary(min_size=1, max_size=300).filter(lambda target: b"\0" not in target)
owner_names = st.binary(max_size=50).filter(lambda name: b"\0" not in name)
attributes = st.builds(
    Attributes,
    st.dictionaries(component, st.binary(max_size=300), max_size=4).map(
        lambda found: tuple(sorted(found.items()))
    ),
    st.sampled_from([b"", b"user::rw-\ngroup::r--\nother::---\n"]),
    st.sampled_from([b"", b"user::rwx\n"]),
)


@st.composite
def segments(draw: st.DrawFn) -> tuple[Segments, int]:
    """(a sparse map, a file size it fits in)."""
    at, made = 0, []
    pieces = st.tuples(st.integers(0, 1 << 30), st.integers(1, 3 << 20))
    for gap, length in draw(st.lists(pieces, max_size=20)):
        made.append((at + gap, length))
        at += gap + length
    return tuple(made), at + draw(st.integers(0, 1 << 40))


@st.composite
def members(draw: st.DrawFn) -> Member:
    member = Member(
        path=draw(paths),
        type=draw(st.sampled_from(["file", "hardlink", "symlink", "char", "block", "directory", "fifo"])),
        mode=draw(st.integers(0, 0o7777)),
        uid=draw(ids),
        gid=draw(ids),
        uname=draw(owner_names),
        gname=draw(owner_names),
        mtime_ns=draw(times),
        attributes=draw(attributes),
    )
    match member.type:
        case "file":
            if draw(st.booleans()):
                found, size = draw(segments())
                return replace(member, size=size, segments=found)
            return replace(member, size=draw(st.integers(0, 1 << 50)))
        case "hardlink" | "symlink":
            return replace(member, link_target=draw(targets))
        case "char" | "block":
            return replace(member, rdev=(draw(st.integers(0, 4095)), draw(st.integers(0, 2**20))))
    return member


@given(times)
def test_a_time_survives(time_ns: int) -> None:
    assert parse_time(format_time(time_ns)) == time_ns


@given(st.dictionaries(component.filter(lambda k: b"=" not in k), st.binary(max_size=2000), max_size=5))
def test_records_survive_and_say_their_own_length(records: dict[bytes, bytes]) -> None:
    body = b"".join(pax_record(keyword, value) for keyword, value in records.items())
    assert parse_records(body, 0) == records


@given(component)
def test_attribute_names_survive(name: bytes) -> None:
    assert decode_keyword(encode_keyword(name)) == name


@given(members(), st.integers(0, 1 << 30).map(lambda n: n * 512))
def test_a_member_survives_and_its_payload_lies_where_it_must(member: Member, position: int) -> None:
    header = encode_header(member, position)
    found = decode_header(lambda at, n: header[at - position : at - position + n], position, 1 << 60)
    assert found is not None
    assert found.member == member
    assert found.payload_offset == position + len(header)
    assert found.payload_bytes == member.payload_bytes
    assert found.end == found.payload_offset + member.payload_bytes + padding(member.payload_bytes)
    if member.payload_bytes >= ALIGN_FROM:
        assert found.payload_offset % PAYLOAD_ALIGNMENT == 0
    assert len(header) % 512 == 0


@given(st.lists(members(), max_size=5))
@settings(max_examples=50)
def test_another_tar_reader_sees_the_same(listed: list[Member]) -> None:
    archive = b""
    kept = []
    for member in listed:
        small = replace(member, size=7, segments=None) if member.type == "file" else member
        kept.append(small)
        payload = small.payload_bytes
        archive += encode_header(small, len(archive)) + bytes(payload + padding(payload))
    with tarfile.open(fileobj=io.BytesIO(archive + bytes(1024)), errors="surrogateescape") as tar:
        found = tar.getmembers()
    assert [os.fsencode(one.name) for one in found] == [member.path for member in kept]
    assert [(one.size, one.mode, one.uid, one.gid) for one in found] == [
        (member.payload_bytes, member.mode, member.uid, member.gid) for member in kept
    ]
    assert [os.fsencode(one.linkname) for one in found] == [member.link_target for member in kept]


@given(
    members(), st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=6), st.none() | ids
)
def test_a_damaged_header_is_refused_or_read_but_never_crashes(
    member: Member, flips: list[tuple[int, int]], cut: int | None
) -> None:
    data = bytearray(encode_header(member, 0))
    for at, value in flips:
        data[at % len(data)] = value
    if cut is not None:
        del data[cut % len(data) :]
    try:
        decode_header(lambda at, n: bytes(data[at : at + n]), 0, len(data))
    except IntegrityError:
        pass


@given(st.binary(max_size=4096))
def test_any_bytes_are_no_reason_to_crash(data: bytes) -> None:
    for attempt in (
        lambda: decode_header(lambda at, n: data[at : at + n], 0, len(data)),
        lambda: parse_records(data, 0),
        lambda: parse_time(data),
        lambda: acl_to_text(data),
        lambda: acl_from_text(data),
        lambda: ImageHeader.decode(data),
        lambda: ImageEnd.decode(data[-TAIL_BYTES:], 1 << 40),
        lambda: Index(data),
    ):
        try:
            attempt()
        except IntegrityError:
            pass


acl_entries = st.tuples(st.sampled_from([0x02, 0x08]), st.integers(0, 7), st.integers(0, 2**32 - 2))


@given(st.lists(acl_entries, max_size=6, unique_by=lambda entry: (entry[0], entry[2])))
def test_an_acl_survives(named: list[tuple[int, int, int]]) -> None:
    none = 2**32 - 1
    entries = sorted(
        [(0x01, 6, none), (0x04, 4, none), (0x10, 7, none), (0x20, 0, none), *named],
        key=lambda entry: (entry[0], entry[2]),
    )
    value = b"\2\0\0\0" + b"".join(
        tag.to_bytes(2, "little") + bits.to_bytes(2, "little") + who.to_bytes(4, "little")
        for tag, bits, who in entries
    )
    assert acl_from_text(acl_to_text(value)) == value


rows = st.builds(
    IndexRow,
    path=paths,
    type=st.sampled_from(["file", "directory", "socket"]),
    link_target=st.none() | targets,
    size=st.integers(0, 2**63 - 1),
    mode=st.integers(0, 0o7777),
    uid=ids,
    gid=ids,
    uname=owner_names,
    gname=owner_names,
    mtime_ns=times,
    ctime_ns=times,
    dev=st.integers(0, 2**64 - 1),
    inode=st.integers(0, 2**64 - 1),
    nlink=st.integers(0, 2**32),
    attributes_digest=st.none() | st.binary(min_size=32, max_size=32),
    sparse=st.none() | segments().map(lambda made: made[0]),
    offset=st.integers(-1, 2**62),
    length=st.integers(0, 2**62),
    payload_offset=st.integers(0, 2**62),
    payload_length=st.integers(0, 2**62),
    blake3=st.none() | st.binary(min_size=32, max_size=32),
    outcome=st.sampled_from(["whole", "vanished", "changed", "unreadable"]),
    deleted=st.booleans(),
    fh_info=st.none() | st.integers(0, 2**64 - 1),
    node=st.none() | st.integers(0, 2**64 - 1),
    note=st.text(max_size=30),
)


@given(st.lists(rows, max_size=12, unique_by=lambda row: row.path), st.integers(1, 5))
@settings(max_examples=30)
def test_an_index_gives_every_row_back_in_order(added: list[IndexRow], spill_rows: int) -> None:
    builder = IndexBuilder(spill_rows=spill_rows)
    for row in added:
        builder.add(row)
    index = Index(builder.finish())
    assert list(index) == sorted(added, key=lambda row: row.path)
    for row in added:
        assert index.lookup(row.path) == row


class Memory:
    """Bytes that count how many of them were read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.read_bytes = 0

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        self.read_bytes += length
        return self.data[offset : offset + length]

    def stream(self, offset: int, length: int) -> Iterator[memoryview]:
        for at in range(offset, offset + length, 700_001):
            yield memoryview(self.read(at, min(700_001, offset + length - at)))


DATA = random.Random(3).randbytes(6 * CHUNK_BYTES + 12_345)
TABLE = ChunkTable()
TABLE.update(DATA)


@given(st.lists(st.tuples(st.integers(0, len(DATA)), st.integers(0, len(DATA))), max_size=4))
@settings(max_examples=40)
def test_checked_ranges_are_the_ranges_and_cost_little(ranges: list[tuple[int, int]]) -> None:
    memory = Memory(DATA)
    reader = CheckedReader(memory, TABLE.table())
    for start, end in (sorted(one) for one in ranges):
        memory.read_bytes = 0
        assert reader.read(start, end - start) == DATA[start:end]
        assert memory.read_bytes <= end - start + 2 * CHUNK_BYTES


@given(st.integers(0, len(DATA) - 1), st.integers(0, len(DATA) - 1), st.integers(1, 255))
@settings(max_examples=40)
def test_no_wrong_byte_passes(at: int, start: int, flip: int) -> None:
    damaged = bytearray(DATA)
    damaged[at] ^= flip
    reader = CheckedReader(Memory(bytes(damaged)), TABLE.table())
    try:
        got = reader.read(start, len(DATA) - start)
    except IntegrityError:
        assert at >= start // CHUNK_BYTES * CHUNK_BYTES
    else:
        assert got == DATA[start:]
