"""One target for each decoder: valid samples from the product's own encoders, how they are changed, what decodes them.

``accepts`` returns whether the bytes were believed, and raises a fault: all that is not the decoder's own error.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from random import Random

from fuzz import iscsi, mutate
from nightferry.errors import NightferryError
from nightferry.image.guard import GUARD_MEMORY_BYTES

ROOT = Path(__file__).parents[1]
IMAGE = "20261130-TEX-BACK-1.SG1.priv1.L0"
WHEN = datetime(2026, 11, 30, 20, tzinfo=UTC)
Mutate = Callable[[bytes, Random], bytes]


@dataclass(frozen=True)
class Target:
    """``errors``: what the decoder documents beside our own errors."""

    name: str
    samples: Callable[[], tuple[bytes, ...]]
    decode: Callable[[bytes], object]
    mutate: Mutate = mutate.change_bytes
    errors: tuple[type[Exception], ...] = ()
    memory_bytes: int = 0
    """What the process that decodes may take more than it has, where the product sets such a limit; 0: none."""

    def accepts(self, data: bytes) -> bool:
        """Whether it was believed.

        Raises:
            Exception: a fault.
        """
        try:
            self.decode(data)
        except (NightferryError, *self.errors):
            return False
        return True

    def mutate_raw(self, data: bytes, random: Random) -> bytes:
        """Of bytes that need not be a valid sample."""
        return mutate.change_bytes(data, random)


class Reader:
    """Bytes in memory as a ``ByteReader``."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size_bytes = len(data)

    def read(self, offset: int, length: int) -> bytes:
        if not 0 <= offset <= offset + length <= len(self.data):
            raise AssertionError(f"asked for {length} bytes at {offset} of {len(self.data)}")
        return self.data[offset : offset + length]

    def stream(self, offset: int, length: int) -> Iterator[memoryview]:
        yield memoryview(self.read(offset, length))


# --- the index (Parquet)


def _rows() -> list[object]:
    from nightferry.image.index import IndexRow

    row = IndexRow(
        path=b"a", type="file", size=5, offset=512, length=1024, payload_offset=1536, payload_length=5
    )
    return [
        IndexRow(path=b".", type="directory"),
        replace(row, blake3=b"b" * 32, mtime_ns=2**62, dev=2**64 - 1),
        replace(row, path=b"a.link", type="hardlink", link_target=b"a"),
        replace(row, path=b"caf\xe9", sparse=((0, 4096), (1 << 30, 1)), attributes_digest=b"a" * 32),
        replace(row, path=b"d", type="directory", note="x"),
        *(replace(row, path=b"d/%04d" % n, outcome="changed", size=n) for n in range(60)),
    ]


def _indexes() -> tuple[bytes, ...]:
    from nightferry.image.index_builder import IndexBuilder

    made = []
    for rows in (_rows(), _rows()[:2], []):
        builder = IndexBuilder()
        for row in rows:
            builder.add(row)  # type: ignore[arg-type]
        made.append(builder.finish())
        builder.close()
    return tuple(made)


def _change_parquet(data: bytes, random: Random) -> bytes:
    """Another table in a sound file, or the bytes of one: most of them in the footer, where the structure is."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    chance = random.random()
    if chance < 0.3:
        return mutate.change_bytes(data, random)
    if chance < 0.7:
        length = min(int.from_bytes(data[-8:-4], "little") + 8, len(data))
        footer = mutate.change_bytes(data[-length:-8], random)
        return data[:-length] + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    table = pq.read_table(io.BytesIO(data), use_threads=False)
    rows = table.to_pylist()
    odd = (
        None,
        0,
        -1,
        2**31,
        2**63 - 1,
        -(2**63),
        b"",
        b"../x",
        b"/x",
        b"a\0b",
        "",
        "x",
        "whole",
        [0],
        [1, 2, 3],
        [-1, 5],
    )
    for _ in range(random.choice((1, 2, 5))):
        if rows:
            row = random.choice(rows)
            name = random.choice(table.schema.names)
            row[name] = random.choice((*odd, random.choice(rows)[name]))
    if rows and random.random() < 0.2:
        rows = random.sample(rows, len(rows))
    schema = table.schema
    if random.random() < 0.2:
        at = random.randrange(len(schema))
        kind = random.choice(
            (pa.string(), pa.int64(), pa.float64(), pa.binary(), pa.list_(pa.string()), pa.null())
        )
        schema = schema.set(at, pa.field(schema.names[at], kind))
    loose = pa.schema([field.with_nullable(True) for field in schema], metadata=schema.metadata)
    try:
        changed = pa.Table.from_pylist(rows, schema=loose)
        if random.random() < 0.5:
            changed = pa.Table.from_arrays([c.combine_chunks() for c in changed.columns], schema=schema)
        out = io.BytesIO()
        pq.write_table(
            changed,
            out,
            compression=random.choice(("zstd", "none", "snappy", "gzip")),
            row_group_size=random.choice((1, 7, 1000)),
            use_dictionary=random.random() < 0.5,
            data_page_version=random.choice(("1.0", "2.0")),
            write_statistics=random.random() < 0.5,
        )
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return mutate.change_bytes(data, random)
    return out.getvalue() if random.random() < 0.8 else mutate.change_bytes(out.getvalue(), random)


def _read_index(data: bytes) -> None:
    from nightferry.image.index import Index
    from nightferry.image.proof import prove_index

    prove_index(data)
    index = Index(data)
    rows = list(index)
    for path in {b"", b"a", b"d/0003", *(row.path for row in rows[:3])}:
        index.lookup(path)
        list(index.prefix(path))
    list(index.select(lambda path: path.endswith(b"1")))


def _segments() -> tuple[bytes, ...]:
    from nightferry.catalog.schema import encode_segment

    return tuple(encode_segment(_event_rows()[:count]) for count in (40, 3, 1))


@cache
def _event_rows() -> tuple[object, ...]:
    from nightferry.catalog.query import Catalog
    from nightferry.model.records import HoldRecord

    with tempfile.TemporaryDirectory() as folder:
        catalog = Catalog.create(Path(folder) / "catalog", node="TEX-ACTV-1")
        for number in range(40):
            catalog.append(
                HoldRecord(image=IMAGE, held=number % 2 == 0, who="x", reason=f"r{number}", at=WHEN)
            )
        return tuple(catalog._log.rows())


def _read_segment(data: bytes) -> None:
    from nightferry.catalog.memory import MemoryStorage
    from nightferry.catalog.query import Catalog
    from nightferry.catalog.schema import decode_segment

    decode_segment(data, "s")
    Catalog.from_export(data, MemoryStorage())


def _copies() -> tuple[bytes, ...]:
    from nightferry.catalog.schema import encode_copy

    return tuple(encode_copy(_event_rows()[:count], "")[0] for count in (40, 3))  # type: ignore[arg-type]


def _change_copy(data: bytes, random: Random) -> bytes:
    """As another Parquet file, mostly with a digest that fits again: else every change ends there."""
    from blake3 import blake3

    from nightferry.catalog import schema

    changed = _change_parquet(data, random)
    place = schema._PLACE_OF_DIGEST.search(changed)
    if place is None or random.random() < 0.1:
        return changed
    start, end = changed[: place.start(1)], changed[place.end(1) :]
    return start + blake3(start + schema._NO_DIGEST + end).hexdigest().encode() + end


def _read_copy(data: bytes) -> None:
    from nightferry.catalog.memory import MemoryStorage
    from nightferry.catalog.query import Catalog
    from nightferry.catalog.schema import decode_copy
    from nightferry.image.proof import prove_events

    prove_events(data)
    decode_copy(data, "c")
    Catalog.from_export(data, MemoryStorage())


def _events() -> tuple[bytes, ...]:
    from nightferry.catalog.schema import encode_event

    return tuple(encode_event(row) for row in _event_rows()[:1])  # type: ignore[arg-type]


def _read_event(data: bytes) -> None:
    from nightferry.catalog.schema import decode_event
    from nightferry.catalog.shelf import parse_row
    from nightferry.model.records import RECORDS

    row = decode_event(data, 1, "e")
    if row.kind in RECORDS:
        parse_row(RECORDS[row.kind], row)


# --- tar headers, frames


def _headers() -> tuple[bytes, ...]:
    from nightferry.image.attributes import Attributes
    from nightferry.image.tar import Member, encode_header

    plain = Member(b"a/b", size=5, mode=0o4755, uid=70_000, uname=b"u", mtime_ns=-1_000_500_000_000)
    acl = Attributes(xattrs=((b"user.x", b"\0\xff"),))
    members = (
        plain,
        replace(plain, path=b"caf\xe9/" * 60 + b"x", attributes=acl),
        replace(plain, type="directory", size=0),
        replace(plain, type="symlink", size=0, link_target=b"/x" * 80),
        replace(plain, type="block", rdev=(7, 300), size=0),
        replace(plain, size=1 << 34, segments=((0, 3), (1 << 33, 2))),
        replace(plain, comment=b"nightferry index", mtime_ns=2**70),
    )
    made = []
    for member in members:
        header = encode_header(member, 0)
        made.append(header + b"x" * member.payload_bytes + bytes(-member.payload_bytes % 512) + bytes(1024))
    return tuple(made)


def _change_tar(data: bytes, random: Random) -> bytes:
    """Fields and records changed, check sums made right again: else every change ends at the first of them."""
    if random.random() < 0.15:
        return mutate.change_bytes(data, random)
    out = bytearray(data)
    fields = (
        (0, 100),
        (100, 8),
        (108, 8),
        (116, 8),
        (124, 12),
        (136, 12),
        (156, 1),
        (157, 100),
        (257, 8),
        (329, 8),
        (345, 155),
    )
    blocks = [at for at in range(0, len(out) - 511, 512) if out[at + 257 : at + 262] == b"ustar"]
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.choice(blocks or [0])
        if out[at + 156 : at + 157] == b"x" and random.random() < 0.7:
            _change_record(out, at, random)
            continue
        start, length = random.choice(fields)
        value = random.choice(
            (
                b"7" * length,
                b"\0" * length,
                b"\x80" + b"\xff" * length,
                b"-1",
                b" ",
                b"0" * 11 + b"1",
                b"x",
                b"L",
                b"../../x\0",
            )
        )
        out[at + start : at + start + length] = value[:length].ljust(length, random.choice((b"\0", b" ")))
    for at in blocks:
        if at + 512 <= len(out):
            out[at + 148 : at + 156] = b" " * 8
            out[at + 148 : at + 156] = b"%06o\0 " % sum(out[at : at + 512])
    return bytes(out)


def _change_record(out: bytearray, at: int, random: Random) -> None:
    """Another value in one of the records of the extended header, whose length may be right or not."""
    from nightferry.image.pax import pax_record

    digits = bytes(out[at + 124 : at + 135]).strip(b"\0 ")
    length = int(digits, 8) if digits and not digits.strip(b"01234567") else 0
    body = bytes(out[at + 512 : at + 512 + length])
    parts = [line.partition(b" ")[2].partition(b"=") for line in body.split(b"\n") if b"=" in line]
    if not parts:
        return
    which = random.randrange(len(parts))
    value = random.choice(
        (*mutate.WORDS, b"", b"0", b"1.5", b"1e9", b"-0.000000001", b"9" * 5000, b"0,5,3,9", b"user::rwx")
    )
    key = parts[which][0]
    if random.random() < 0.3:
        keys = (
            b"path",
            b"size",
            b"mtime",
            b"uid",
            b"GNU.sparse.major",
            b"GNU.sparse.realsize",
            b"GNU.sparse.name",
            b"SCHILY.acl.access",
            b"SCHILY.xattr.x",
            b"linkpath",
            b"NIGHTFERRY.flags",
        )
        key = random.choice(keys)
    records = [pax_record(k, v) for k, _, v in parts]
    record = pax_record(key, value)
    if random.random() < 0.2:
        record = mutate.change_bytes(record, random)
    records[which : which + random.choice((0, 1))] = [record]
    body = b"".join(records)
    out[at + 512 : at + 512 + length + -length % 512] = body + bytes(-len(body) % 512)
    out[at + 124 : at + 136] = b"%011o\0" % len(body)


def _read_tar(data: bytes) -> None:
    from nightferry.image.tar import decode_header

    reader = Reader(data)
    at, count = 0, 0
    while at + 512 <= len(data) and count < 100:
        found = decode_header(reader.read, at, len(data))
        if found is None:
            return
        if found.end <= at:
            raise AssertionError(f"the member at {at} ends at {found.end}")
        found.member.attributes.records()
        at, count = found.end, count + 1


_FRAMED = 4 * 1024 * 1024 + 4321


def _framed() -> tuple[bytes, ...]:
    from nightferry.image.frames import encode
    from nightferry.transfer.base import CHUNK_BYTES

    plain = (b"The Night Ferry left Victoria at nine. " * (_FRAMED // 39 + 1))[:_FRAMED]
    return (b"".join(encode([plain[at : at + CHUNK_BYTES] for at in range(0, _FRAMED, CHUNK_BYTES)], 1)),)


def _change_frames(data: bytes, random: Random) -> bytes:
    """Bytes of a frame, or of the seek table at the end, at times with a checksum that fits again."""
    import struct

    import xxhash

    if random.random() < 0.5:
        at = len(data) - 8 - 2 * 12 - 9
        tail = mutate.change_bytes(data[at:], random)
        return data[:at] + tail
    length = len(data) - 8 - 2 * 12 - 9
    first = struct.unpack_from("<I", data, length + 8)[0]
    frames = [data[:first], data[first:length]]
    which = random.randrange(2)
    frames[which] = mutate.change_bytes(frames[which], random)
    table = bytearray(data[length:])
    struct.pack_into("<I", table, 8 + 12 * which, len(frames[which]))
    if random.random() < 0.8:
        plain = struct.unpack_from("<I", table, 12 + 12 * which)[0]
        struct.pack_into("<I", table, 16 + 12 * which, xxhash.xxh64_intdigest(bytes(plain)) & 0xFFFFFFFF)
    return b"".join(frames) + bytes(table)


def _read_frames(data: bytes) -> None:
    from nightferry.image.frames import FramedReader

    reader = FramedReader(Reader(data), _FRAMED)
    if sum(map(len, reader.stream(0, _FRAMED))) != _FRAMED:
        raise AssertionError("not all of it")


def _ends() -> tuple[bytes, ...]:
    from nightferry.image.format import ImageEnd, ImageHeader

    header = ImageHeader(
        image=IMAGE, run="20261130-TEX-BACK-1", group="SG1", store="priv1", source_kind="files",
        source={"path": "/srv"}, node="TEX-ACTV-1", started=WHEN, nightferry="0.1.0",
    )  # fmt: skip
    return ImageEnd(10240, 5000, "a" * 64).encode(), header.encode()


def _read_end(data: bytes) -> None:
    from nightferry.image.format import ImageEnd, ImageHeader

    if data[:1] == b"{":
        ImageHeader.decode(data)
    else:
        ImageEnd.decode(data, 1 << 20)


def _change_end(data: bytes, random: Random) -> bytes:
    return (mutate.change_json if data[:1] == b"{" else mutate.change_bytes)(data, random)


# --- side files


def _image_record() -> bytes:
    return (Path(__file__).parent / "meta.json").read_bytes()


def _sides() -> tuple[bytes, ...]:
    from nightferry.destination.ours import SiteMark, render_marker, render_origin

    mark = SiteMark("TEX", "a" * 32)
    copy = {"image": IMAGE, "epoch": 1, "digest": "d", "size_bytes": 5, "encoding": "zstd"}
    hold = {"kind": "hold", "body": json.loads(_event_rows()[0].body)}  # type: ignore[attr-defined]
    beside = {"format": 1, "site": "TEX", "id": mark.id, "through": 5, "records": [hold]}
    return (
        b"m" + _image_record(),
        b"c" + json.dumps(copy).encode(),
        b"o" + render_origin(mark, IMAGE, 1),
        b"s" + render_marker(mark),
        b"b" + json.dumps(beside).encode(),
    )


def _read_side(data: bytes) -> None:
    """The first byte says which of the side files it is."""
    from nightferry.copies.delivery import Decisions
    from nightferry.copies.encode import image_of
    from nightferry.destination.copies import data_name, location_of, parse_about, receipt_of
    from nightferry.destination.ours import parse_marker, parse_origin
    from nightferry.errors import IntegrityError

    found: object
    match data[:1]:
        case b"m":
            found = image_of(data[1:])
        case b"c":
            found = said = parse_about(IMAGE, data[1:])
            if said is not None:
                data_name(said)
                location_of(said)
                receipt_of(said)
        case b"o":
            found = parse_origin(IMAGE, data[1:])
        case b"s":
            found = parse_marker(data[1:])
        case _:
            try:
                found = Decisions(data[1:])
            except ValueError:
                found = None
    if found is None:
        raise IntegrityError("refused")


def _change_side(data: bytes, random: Random) -> bytes:
    return data[:1] + mutate.change_json(data[1:], random)


# --- the site file


def _sites() -> tuple[bytes, ...]:
    return ((Path(__file__).parent / "site.toml").read_bytes(),)


def _read_site(data: bytes) -> None:
    from nightferry.errors import ConfigError
    from nightferry.model.load import parse_site

    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ConfigError("not UTF-8") from None
    parse_site(text, "s")


# --- SCSI and iSCSI


def _senses() -> tuple[bytes, ...]:
    return (
        bytes.fromhex("f000030000001e0a00000000040100000000"),
        bytes.fromhex("7080400000000000000000000002000000"),
        bytes.fromhex("720300020000000e000a80000000000000001e04020080"),
        bytes.fromhex("71000600000000000000000029000000"),
    )


def _read_sense(data: bytes) -> None:
    from nightferry.scsi.sense import parse_sense

    str(parse_sense(data))


def _element_answers() -> tuple[bytes, ...]:
    drives = b"".join(
        (500 + n).to_bytes(2, "big") + bytes((n == 1, 0, 4, 1, 0, 0, 0, 0x80)) + b"\x03\xe8"
        + b"RIG001L5".ljust(32) + bytes(4) + bytes((2, 1, 0, 0x22)) + b"HP      Ultrium 5-SCSI  HUDRIVE00%d" % n
        for n in range(4)
    )  # fmt: skip
    slots = b"".join((1000 + n).to_bytes(2, "big") + bytes(10) for n in range(9))
    pages = b"\x04\x80\0\x56\0\0\x01\x58" + drives + b"\x02\0\0\x0c\0\0\0\x6c" + slots
    return (b"\x01\xf4\0\x0d\0" + len(pages).to_bytes(3, "big") + pages,)


def _read_elements(data: bytes) -> None:
    from nightferry.scsi import cdb

    cdb.bytes_reported(data)
    for element in cdb.parse_elements(data):
        str(element)


def _answers() -> tuple[bytes, ...]:
    inquiry = bytes.fromhex("0180050200000000") + b"HP      Ultrium 5-SCSI  Z64D"
    alerts = b"".join(n.to_bytes(2, "big") + bytes((0, 1, n in (20, 38))) for n in range(1, 65))
    return (
        b"i" + inquiry,
        b"s" + b"\x01\x80\0\x0aHU12345678",
        b"l" + bytes.fromhex("0000001000000000" + "0000000000000000" + "0001000000000000"),
        b"m" + bytes.fromhex("0b001008580000000000000000000000"),
        b"b" + bytes.fromhex("00ffffff0001"),
        b"p" + bytes.fromhex("30000000" + "00000000" + "0000000000000007" + "0000000000000003" + "00" * 8),
        b"a" + b"\x2e\0" + len(alerts).to_bytes(2, "big") + alerts,
    )


def _read_answer(data: bytes) -> None:
    """What devices answer, through iSCSI as well as the kernel; the first byte says to which command."""
    from nightferry.scsi import cdb

    parsers: dict[bytes, Callable[[bytes], object]] = {
        b"i": cdb.parse_inquiry,
        b"s": cdb.parse_serial,
        b"l": cdb.parse_luns,
        b"m": cdb.parse_mode,
        b"b": cdb.parse_block_limits,
        b"p": cdb.parse_position,
        b"a": cdb.parse_alerts,
    }
    str(parsers.get(data[:1], cdb.parse_inquiry)(data[1:]))


def _change_answer(data: bytes, random: Random) -> bytes:
    return data[:1] + mutate.change_bytes(data[1:], random)


# --- Pacemaker


def _crm() -> tuple[bytes, ...]:
    folder = ROOT / "tests" / "unit" / "cluster" / "pacemaker"
    return tuple(
        (folder / name).read_bytes() for name in ("status.xml", "failed.xml", "cib.xml", "simulated.xml")
    )


def _read_crm(data: bytes) -> None:
    from nightferry.cluster.crm import read_actions, read_cib, read_status
    from nightferry.errors import ClusterError

    believed = 0
    for read in (read_status, read_actions, read_cib):
        try:
            str(read(data))
            believed += 1
        except ClusterError:
            continue
    if not believed:
        raise ClusterError("refused by all")


# --- tape


def _labels() -> tuple[bytes, ...]:
    from nightferry.destination.tape.format.label import new_label

    return tuple(new_label(barcode, "night", WHEN).render() for barcode in ("A00001L9", "X"))


def _read_label(data: bytes) -> None:
    from nightferry.destination.tape.format.label import NotALabel, parse
    from nightferry.errors import WrongCartridge

    try:
        parse(data)
    except NotALabel as error:
        raise WrongCartridge(str(error)) from error


def _trailers() -> tuple[bytes, ...]:
    from blake3 import blake3

    from nightferry.destination.tape.format.layout import Location, Part, Trailer, render_trailer

    this = Part(barcode="A2", label="b" * 32, file=1, first_record=0, records=1, bytes=1000, trailer=2)
    members = {"meta.json": b"{}", "chunks": b"x" * 8}
    sizes = {name: (len(data), blake3(data).hexdigest()) for name, data in members.items()}
    last = Trailer(
        image=IMAGE, epoch=1, digest="d", size_bytes=1000, part=1, parts=1, this=this,
        location=Location(parts=(this,)), written=WHEN, members=sizes,
    )  # fmt: skip
    return (render_trailer(last, members),)


def _change_trailer(data: bytes, random: Random) -> bytes:
    """Its JSON changed, in a tar that fits; or any byte."""
    import tarfile

    if random.random() < 0.3:
        return mutate.change_bytes(data, random)
    size = int(data[124:135], 8)
    changed = mutate.change_json(data[512 : 512 + size], random)
    info = tarfile.TarInfo(".nightferry/trailer.json")
    info.size = len(changed)
    rest = data[512 + size + -size % 512 :]
    whole = info.tobuf(tarfile.USTAR_FORMAT) + changed + bytes(-len(changed) % 512) + rest.rstrip(b"\0")
    return (
        whole
        + bytes(-len(whole) % 512)
        + bytes(1024)
        + bytes(-(len(whole) + -len(whole) % 512 + 1024) % 10240)
    )


def _read_trailer(data: bytes) -> None:
    from nightferry.destination.tape.drives.base import Mark
    from nightferry.destination.tape.format.layout import begins_a_trailer, read_trailer, records_of

    records = [bytes(record) for record in records_of(data)] or [b""]
    begins_a_trailer(records[0])
    rest = iter([*records[1:], Mark.FILEMARK, Mark.END_OF_DATA])
    read_trailer(records[0], lambda: next(rest, Mark.END_OF_DATA), "A2, file 1")


def _validation_error() -> type[Exception]:
    from pydantic import ValidationError

    return ValidationError


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("index", _indexes, _read_index, _change_parquet, memory_bytes=GUARD_MEMORY_BYTES),
        Target("segment", _segments, _read_segment, _change_parquet),
        Target("catalog", _copies, _read_copy, _change_copy, memory_bytes=GUARD_MEMORY_BYTES),
        Target("event", _events, _read_event, mutate.change_json),
        Target("tar", _headers, _read_tar, _change_tar),
        Target("image", _ends, _read_end, _change_end),
        Target("frames", _framed, _read_frames, _change_frames),
        Target("side", _sides, _read_side, _change_side, (_validation_error(),)),
        Target("site", _sites, _read_site, mutate.change_lines),
        Target("sense", _senses, _read_sense),
        Target("elements", _element_answers, _read_elements),
        Target("answers", _answers, _read_answer, _change_answer),
        Target("iscsi", iscsi.samples, iscsi.decode, iscsi.change),
        Target("crm", _crm, _read_crm, mutate.change_xml),
        Target("label", _labels, _read_label, mutate.change_lines),
        Target("trailer", _trailers, _read_trailer, _change_trailer),
    )
}
