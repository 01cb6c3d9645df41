"""Tar headers, judged by GNU tar."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from nightferry.errors import IntegrityError
from nightferry.image.attributes import Attributes
from nightferry.image.pax import format_time, pax_record
from nightferry.image.tar import (
    ALIGN_FROM,
    MAX_SEGMENTS,
    PAYLOAD_ALIGNMENT,
    STREAM_SIZE_AT,
    HeaderTooLarge,
    Member,
    decode_header,
    encode_header,
    padding,
    size_field,
    ustar_header,
)
from tests.imaging import gnu_tar, mtime_text, output

SECOND = 1_000_000_000


def archive(path: Path, *members: tuple[Member, bytes]) -> Path:
    """A tar of members and their payloads."""
    data = b""
    for member, payload in members:
        data += encode_header(member, len(data)) + payload + bytes(padding(len(payload)))
    path.write_bytes(data + bytes(1024))
    return path


def decode(data: bytes, offset: int = 0):
    return decode_header(lambda at, length: data[at : at + length], offset, len(data))


@pytest.mark.parametrize(
    ("mtime_ns", "text"),
    [
        (-1000 * SECOND, "-1000.000000000"),
        (-1_000_500_000_000, "-1000.500000000"),
        ((2**33 + 5) * SECOND, "8589934597.000000000"),
        (645_903_343, "0.645903343"),
        (1_700_000_000_645_903_343, "1700000000.645903343"),
        (-1, "-0.000000001"),
    ],
)
def test_gnu_tar_restores_the_exact_modification_time(tmp_path: Path, mtime_ns: int, text: str) -> None:
    image = archive(tmp_path / "a.tar", (Member(b"f", size=1, mtime_ns=mtime_ns), b"x"))
    gnu_tar("--warning=no-timestamp", "-C", tmp_path, "-xf", image)
    assert mtime_text(tmp_path / "f") == text


@pytest.mark.parametrize(
    "name",
    [
        b"caf\xe9\xff",
        b"\x1b[31mred\x07",
        b"new\nline",
        b"back\\slash and spaces ",
        "smörgåsbord".encode(),
        b"l" * 255,
        b"/".join([b"d" * 200] * 5),
        b"100=percent%25",
        b"-rf",
    ],
)
def test_gnu_tar_silently_restores_any_name(tmp_path: Path, name: bytes) -> None:
    image = archive(tmp_path / "a.tar", (Member(name, size=5), b"hello"))
    listed = gnu_tar("--quoting-style=literal", "-tf", image)
    assert listed == name + b"\n"
    gnu_tar("-C", tmp_path, "-xf", image)
    assert Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).read_bytes() == b"hello"


def test_gnu_tar_reads_ids_beyond_the_octal_fields(tmp_path: Path) -> None:
    image = archive(tmp_path / "a.tar", (Member(b"f", uid=70_000_000, gid=4_294_967_294), b""))
    assert b"70000000/4294967294" in gnu_tar("--numeric-owner", "-tvf", image)


def test_gnu_tar_reads_owner_names_of_any_bytes(tmp_path: Path) -> None:
    member = Member(b"f", uname=b"u" * 40, gname="größe".encode())
    image = archive(tmp_path / "a.tar", (member, b""))
    assert b"u" * 40 + b"/" + "größe".encode() in gnu_tar("-tvf", image)


def test_gnu_tar_takes_a_size_that_was_written_back(tmp_path: Path) -> None:
    header = bytearray(encode_header(Member(b"f"), 0, stream=True))
    header[STREAM_SIZE_AT : STREAM_SIZE_AT + 20] = size_field(5000)
    image = tmp_path / "a.tar"
    image.write_bytes(header + b"x" * 5000 + bytes(padding(5000)) + bytes(1024))
    gnu_tar("-C", tmp_path, "-xf", image)
    assert (tmp_path / "f").read_bytes() == b"x" * 5000


def test_a_size_beyond_8_gib_is_read_by_gnu_tar_and_by_python(tmp_path: Path) -> None:
    size = 9 << 30
    image = tmp_path / "a.tar"
    header = encode_header(Member(b"f", size=size), 0)
    with image.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + size + 1024)
    assert b" %d " % size in gnu_tar("-tvf", image)
    with tarfile.open(image) as tar:
        assert tar.getmember("f").size == size


def test_gnu_tar_restores_types_links_and_devices(tmp_path: Path) -> None:
    image = archive(
        tmp_path / "a.tar",
        (Member(b"d", type="directory", mode=0o750), b""),
        (Member(b"d/f", size=1), b"x"),
        (Member(b"d/hard", type="hardlink", link_target=b"d/f"), b""),
        (Member(b"d/soft", type="symlink", link_target=b"\xff" * 150), b""),
        (Member(b"d/pipe", type="fifo", mode=0o600), b""),
    )
    gnu_tar("-C", tmp_path, "-xpf", image)
    assert output("stat", "-c", "%F %a", tmp_path / "d") == b"directory 750\n"
    assert os.path.samefile(tmp_path / "d/f", tmp_path / "d/hard")
    assert os.readlink(os.fsencode(tmp_path / "d/soft")) == b"\xff" * 150
    assert output("stat", "-c", "%F %a", tmp_path / "d/pipe") == b"fifo 600\n"
    device = archive(tmp_path / "b.tar", (Member(b"null", type="char", rdev=(1, 300)), b""))
    assert gnu_tar("-tvf", device).split()[2] == b"1,300"


def test_gnu_tar_restores_attributes_and_acls(tmp_path: Path) -> None:
    attributes = Attributes(
        ((b"user.a=b%c", b"\0binary\n"), (b"user.plain", b"v")),
        acl_access=b"user::rw-\nuser:1234:r--\ngroup::r--\nmask::r--\nother::---\n",
    )
    default = Attributes(acl_default=b"user::rwx\nuser:1234:r-x\ngroup::r-x\nmask::r-x\nother::---\n")
    image = archive(
        tmp_path / "a.tar",
        (Member(b"d", type="directory", mode=0o755, attributes=default), b""),
        (Member(b"f", attributes=attributes), b""),
    )
    gnu_tar("--xattrs", "--acls", "-C", tmp_path, "-xpf", image)
    assert os.getxattr(tmp_path / "f", "user.a=b%c") == b"\0binary\n"
    assert os.getxattr(tmp_path / "f", "user.plain") == b"v"
    assert b"user:1234:r--" in output("getfacl", "-np", tmp_path / "f")
    assert b"default:user:1234:r-x" in output("getfacl", "-np", tmp_path / "d")


@pytest.mark.parametrize("count", [0, 1, 2, 300])
def test_gnu_tar_restores_sparse_files_with_their_holes(tmp_path: Path, count: int) -> None:
    segments = tuple((number * 100_000, 4096) for number in range(count))
    size = 100_000 * count + 1_000_000
    payload = b"".join(bytes([number % 255 + 1]) * 4096 for number in range(count))
    member = Member(b"d/sparse \xff", size=size, segments=segments)
    image = archive(tmp_path / "a.tar", (member, payload), (Member(b"next", size=1), b"x"))
    assert b" %d " % size in gnu_tar("-tvf", image)
    gnu_tar("-C", tmp_path, "-xf", image)
    restored = Path(os.fsdecode(os.fsencode(tmp_path) + b"/d/sparse \xff"))
    expected = bytearray(size)
    for number, (offset, length) in enumerate(segments):
        expected[offset : offset + length] = payload[number * 4096 : number * 4096 + 4096]
    assert restored.read_bytes() == expected
    assert restored.stat().st_blocks * 512 < size
    assert (tmp_path / "next").read_bytes() == b"x"
    found = decode(image.read_bytes())
    assert found is not None
    assert found.member == member


def test_a_long_sparse_map_is_read_back_whole() -> None:
    segments = tuple((number << 20, 1) for number in range(MAX_SEGMENTS))
    member = Member(b"f", size=MAX_SEGMENTS << 20, segments=segments)
    data = encode_header(member, 0) + bytes(MAX_SEGMENTS)
    found = decode(data)
    assert found is not None
    assert found.member == member
    assert (len(data) - MAX_SEGMENTS) % 512 == 0


@pytest.mark.parametrize("position", [0, 512, 1536, 3584, 4096, 7 * 512])
@pytest.mark.parametrize("segments", [None, ((0, ALIGN_FROM), (2 * ALIGN_FROM, 4096))])
def test_large_payloads_begin_on_the_alignment(position: int, segments: object) -> None:
    member = Member(b"f" * 300, size=3 * ALIGN_FROM, segments=segments)  # type: ignore[arg-type]  # parametrized
    header = encode_header(member, position)
    assert (position + len(header)) % PAYLOAD_ALIGNMENT == 0
    found = decode_header(lambda at, n: header[at - position : at - position + n], position, 1 << 40)
    assert found is not None
    assert found.payload_offset == position + len(header)
    assert found.member == member


def test_small_payloads_are_packed() -> None:
    assert len(encode_header(Member(b"f", size=ALIGN_FROM - 1), 512)) == 1536


def test_attributes_beyond_the_limit_are_refused() -> None:
    member = Member(b"f", attributes=Attributes(((b"user.a", bytes(17 << 20)),)))
    with pytest.raises(HeaderTooLarge):
        encode_header(member, 0)


def corrupt(**changes: bytes) -> bytes:
    """A member whose extended header holds the given records beside a path."""
    records = pax_record(b"path", b"f") + b"".join(
        pax_record(name.replace("__", ".").encode(), value) for name, value in changes.items()
    )
    head = ustar_header(Member(b"x"), len(records), flag=b"x")
    return head + records + bytes(padding(len(records))) + ustar_header(Member(b"f"), 0)


@pytest.mark.parametrize(
    "data",
    [
        b"x" * 512,
        ustar_header(Member(b"f", size=5), 5),
        ustar_header(Member(b"f"), 0, flag=b"g"),
        ustar_header(Member(b"f"), 17 << 20, flag=b"x") + bytes(18 << 20),
        ustar_header(Member(b"f"), 10, flag=b"x") + b"99 path=f\n".ljust(512, b"\0"),
        ustar_header(Member(b"f"), 10, flag=b"x") + b"0000000000000000000000000010 p=f\n".ljust(512, b"\0"),
        corrupt(size=b"-1"),
        corrupt(size=b"99999999999999999999"),
        corrupt(size=b"1"),
        corrupt(mtime=b"now"),
        corrupt(uid=b"0x10"),
        corrupt(GNU__sparse__major=b"1", GNU__sparse__minor=b"0", GNU__sparse__realsize=b"5"),
        corrupt(GNU__sparse__major=b"2"),
    ],
)
def test_a_broken_header_is_an_integrity_error(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        decode(data)


@pytest.mark.parametrize(
    "text",
    [b"99999999\n", b"1\n5\n", b"2\n0\n4\n2\n4\n", b"1\n10\n5\n", b"x\n", b"-1\n", b"1" * 600, b"1\n0\n4\n"],
)
def test_a_broken_sparse_map_is_an_integrity_error(text: bytes) -> None:
    stored = len(text) + padding(len(text))
    records = (
        b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"
        + pax_record(b"path", b"GNUSparseFile.0/f")
        + pax_record(b"GNU.sparse.name", b"f")
        + pax_record(b"GNU.sparse.realsize", b"12")
    )
    data = ustar_header(Member(b"x"), len(records), flag=b"x") + records.ljust(512, b"\0")
    data += ustar_header(Member(b"f"), stored) + text.ljust(stored, b"\0")
    with pytest.raises(IntegrityError):
        decode(data)


def test_zeros_are_the_end() -> None:
    assert decode(bytes(1024)) is None


def test_whole_seconds_have_no_fraction() -> None:
    assert format_time(5 * SECOND) == b"5"
    assert format_time(1_500_000_000) == b"1.5"
