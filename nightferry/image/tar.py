"""Tar members, bytes in and bytes out: POSIX pax headers as GNU tar reads and writes them.

Sources: IEEE Std 1003.1-2001 *pax* (ustar fields, extended header records); GNU tar manual, "Storing Sparse
Files" (format 1.0) and tar 1.34 for the ``SCHILY.*`` keywords. docs/image-format.md says which of them an
image uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

from nightferry.errors import IntegrityError
from nightferry.image.attributes import (
    NO_ATTRIBUTES,
    PAX_ACL_ACCESS,
    PAX_ACL_DEFAULT,
    XATTR_PREFIX,
    Attributes,
    decode_keyword,
)
from nightferry.image.pax import format_time, parse_decimal, parse_records, parse_time, pax_record

BLOCK: Final = 512
PAYLOAD_ALIGNMENT: Final = 4096
"""Payloads of ``ALIGN_FROM`` bytes and more begin at a multiple of this."""
ALIGN_FROM: Final = 1 << 20
MAX_EXTENDED_HEADER: Final = 16 << 20
MAX_SEGMENTS: Final = 65_536
MAX_SPARSE_MAP: Final = 4 << 20
STREAM_SIZE_AT: Final = BLOCK + len(b"29 size=")
"""Offset of the 20 size digits in the header of a member whose size is written back."""
STREAM_SIZE_DIGITS: Final = 20

MemberType = Literal["file", "hardlink", "symlink", "char", "block", "directory", "fifo"]
Segments = tuple[tuple[int, int], ...]
"""(offset in the file, bytes) of each stored piece of a sparse file, ascending."""

_TYPE_FLAGS: Final[dict[MemberType, bytes]] = {
    "file": b"0", "hardlink": b"1", "symlink": b"2", "char": b"3", "block": b"4", "directory": b"5",
    "fifo": b"6",
}  # fmt: skip
_FLAG_TYPES: Final[dict[bytes, MemberType]] = {flag: name for name, flag in _TYPE_FLAGS.items()} | {
    b"\0": "file"
}
_SPARSE_DIRECTORY: Final = b"GNUSparseFile.0/"
_OCTAL_7: Final = 0o7777777
_OCTAL_11: Final = 0o77777777777


class HeaderTooLarge(ValueError):
    """A file carries more attributes than an image's header may hold."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a tar as its headers describe it.

    ``path`` has no trailing slash. ``size`` is the file's size; what is stored may be less (``segments``).
    ``comment`` is the ``comment`` record without the spaces at its end.
    """

    path: bytes
    type: MemberType = "file"
    size: int = 0
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    uname: bytes = b""
    gname: bytes = b""
    mtime_ns: int = 0
    link_target: bytes = b""
    rdev: tuple[int, int] = (0, 0)
    attributes: Attributes = NO_ATTRIBUTES
    segments: Segments | None = None
    comment: bytes = b""

    @property
    def payload_bytes(self) -> int:
        """Bytes stored for it."""
        if self.type != "file":
            return 0
        return self.size if self.segments is None else sum(length for _, length in self.segments)


@dataclass(frozen=True, slots=True)
class Decoded:
    """A member found in an image. ``end`` is where the next header begins."""

    member: Member
    offset: int
    payload_offset: int
    payload_bytes: int
    end: int


def padding(length: int) -> int:
    """Zero bytes that follow ``length`` bytes of data up to the next block."""
    return -length % BLOCK


def size_field(size: int) -> bytes:
    """The fixed-width digits that a stream's header reserves."""
    return b"%0*d" % (STREAM_SIZE_DIGITS, size)


def ustar_header(member: Member, stored: int, *, flag: bytes = b"", path: bytes | None = None) -> bytes:
    """The 512 bytes of a ustar header; what does not fit is cut or 0 (an extended header says it)."""
    seconds = member.mtime_ns // 1_000_000_000
    uid = member.uid if member.uid <= _OCTAL_7 else 0
    gid = member.gid if member.gid <= _OCTAL_7 else 0
    header = b"%s%07o\0%07o\0%07o\0%011o\0%011o\0        %s%sustar\00000%s%s%07o\0%07o\0" % (
        (member.path if path is None else path)[:100].ljust(100, b"\0"),
        member.mode & 0o7777,
        uid,
        gid,
        stored if stored <= _OCTAL_11 else 0,
        seconds if 0 <= seconds <= _OCTAL_11 else 0,
        flag or _TYPE_FLAGS[member.type],
        member.link_target[:100].ljust(100, b"\0"),
        member.uname[:31].ljust(32, b"\0"),
        member.gname[:31].ljust(32, b"\0"),
        member.rdev[0] & _OCTAL_7,
        member.rdev[1] & _OCTAL_7,
    )
    header = header.ljust(BLOCK, b"\0")
    return b"%s%06o\0 %s" % (header[:148], sum(header), header[156:])


def sparse_map(segments: Segments, size: int) -> bytes:
    """The map at the beginning of a GNU.sparse 1.0 member's data, padded to a block."""
    entries = list(segments)
    if not entries or sum(entries[-1]) != size:
        entries.append((size, 0))
    text = b"%d\n" % len(entries) + b"".join(b"%d\n%d\n" % entry for entry in entries)
    return text + bytes(padding(len(text)))


def encode_header(member: Member, position: int, *, stream: bool = False) -> bytes:
    """Everything that stands before a member's payload: extended header, ustar header, sparse map.

    Args:
        member: What to write; its ``path`` without a trailing slash.
        position: Offset in the image at which the bytes will be written, a multiple of 512; decides the
            padding.
        stream: The size is not known: 20 zero digits are reserved at ``STREAM_SIZE_AT``.

    Returns:
        A multiple of 512 bytes. With a payload of ``ALIGN_FROM`` bytes or a stream, ``position`` plus their
        number is a multiple of ``PAYLOAD_ALIGNMENT``.

    Raises:
        HeaderTooLarge: the extended header would be larger than ``MAX_EXTENDED_HEADER``.
    """
    path = member.path + b"/" if member.type == "directory" else member.path
    sparse = b"" if member.segments is None else sparse_map(member.segments, member.size)
    stored = len(sparse) + member.payload_bytes
    records = []
    if stream:
        records.append(pax_record(b"size", size_field(0)))
    elif stored > _OCTAL_11:
        records.append(pax_record(b"size", b"%d" % stored))
    if member.segments is None:
        records.append(pax_record(b"path", path))
    else:
        records += (
            pax_record(b"path", _SPARSE_DIRECTORY + path),
            b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n",
            pax_record(b"GNU.sparse.name", path),
            pax_record(b"GNU.sparse.realsize", b"%d" % member.size),
        )
    if member.link_target:
        records.append(pax_record(b"linkpath", member.link_target))
    records.append(pax_record(b"mtime", format_time(member.mtime_ns)))
    if member.uid > _OCTAL_7:
        records.append(pax_record(b"uid", b"%d" % member.uid))
    if member.gid > _OCTAL_7:
        records.append(pax_record(b"gid", b"%d" % member.gid))
    for keyword, name in ((b"uname", member.uname), (b"gname", member.gname)):
        if len(name) > 31 or not name.isascii():
            records.append(pax_record(keyword, name))
    if member.attributes is not NO_ATTRIBUTES:
        records += [pax_record(*record) for record in member.attributes.records()]
    extended = b"".join(records)
    if stream or member.payload_bytes >= ALIGN_FROM:
        extended = _placed(extended, member.comment, position + 2 * BLOCK + len(sparse))
    elif member.comment:
        extended += pax_record(b"comment", member.comment)
    if len(extended) > MAX_EXTENDED_HEADER:
        raise HeaderTooLarge(
            f"an extended header of {len(extended)} bytes; at most {MAX_EXTENDED_HEADER} are written"
        )
    return b"".join(
        (
            ustar_header(member, len(extended), flag=b"x", path=b"PaxHeaders/" + path),
            extended,
            bytes(padding(len(extended))),
            ustar_header(member, stored, path=path if member.segments is None else _SPARSE_DIRECTORY + path),
            sparse,
        )
    )


def _placed(extended: bytes, comment: bytes, fixed: int) -> bytes:
    """Adds a ``comment`` record so that ``fixed`` plus the padded whole is a multiple of ``PAYLOAD_ALIGNMENT``."""
    blocks = len(extended) + padding(len(extended))
    if not comment and (fixed + blocks) % PAYLOAD_ALIGNMENT == 0:
        return extended
    target = len(extended) + len(pax_record(b"comment", comment))
    target += -(fixed + target) % PAYLOAD_ALIGNMENT
    room = target - len(extended)
    return extended + b"%d comment=%s\n" % (room, comment.ljust(room - len(b"%d comment=\n" % room)))


def decode_header(read: Callable[[int, int], bytes], offset: int, end: int) -> Decoded | None:
    """Reads the headers of the member at ``offset``.

    Args:
        read: (offset, length) → exactly that many bytes; never asked beyond ``end``.
        offset: Where its first header block is.
        end: Where the bytes end.

    Returns:
        None at a block of zeros (the end of the archive).

    Raises:
        IntegrityError: not the header of a member an image may have, or the bytes end within it.
    """

    def take(at: int, length: int, limit: int) -> bytes:
        if length > limit:
            raise IntegrityError(f"tar header at byte {offset}: {length} bytes, at most {limit} are allowed")
        if at + length > end:
            raise IntegrityError(f"tar header at byte {offset}: cut off at byte {end}")
        return read(at, length)

    block = take(offset, BLOCK, BLOCK)
    if block == bytes(BLOCK):
        return None
    _check_sum(block, offset)
    at = offset + BLOCK
    records: dict[bytes, bytes] = {}
    if block[156:157] == b"x":
        length = _octal(block[124:136])
        body = take(at, length + padding(length), MAX_EXTENDED_HEADER + BLOCK)
        records = parse_records(body[:length], offset)
        _check_padding(body[length:], offset)
        at += len(body)
        block = take(at, BLOCK, BLOCK)
        _check_sum(block, offset)
        at += BLOCK
    member, stored = _build(block, records, offset)
    member_end = at + stored + padding(stored)
    if b"GNU.sparse.major" in records:
        member, map_bytes = _with_map(member, records, lambda n: take(at, n, MAX_SPARSE_MAP), stored, offset)
        at += map_bytes
        stored -= map_bytes
    if member_end > end:
        raise IntegrityError(f"tar member at byte {offset}: cut off at byte {end}")
    return Decoded(member, offset, at, stored, member_end)


def _check_sum(block: bytes, offset: int) -> None:
    if sum(block) - sum(block[148:156]) + 8 * 0x20 != _octal(block[148:156]):
        raise IntegrityError(f"tar header at byte {offset}: its checksum is wrong")


def _check_padding(data: bytes, offset: int) -> None:
    if any(data):
        raise IntegrityError(f"tar header at byte {offset}: its padding is not zero")


def _octal(field: bytes) -> int:
    digits = field.strip(b"\0 ")
    if digits.strip(b"01234567"):
        raise IntegrityError(f"not an octal number in a tar header: {field!r}")
    return int(digits or b"0", 8)


def _build(block: bytes, records: dict[bytes, bytes], offset: int) -> tuple[Member, int]:
    """(the member without its sparse map, bytes of its data)."""
    kind = _FLAG_TYPES.get(block[156:157])
    if kind is None:
        raise IntegrityError(f"tar header at byte {offset}: an unknown member type {block[156:157]!r}")

    def text(keyword: bytes, start: int, length: int) -> bytes:
        return records.get(keyword) or block[start : start + length].split(b"\0", 1)[0]

    def number(keyword: bytes, start: int, length: int) -> int:
        return (
            parse_decimal(records[keyword]) if keyword in records else _octal(block[start : start + length])
        )

    path = records.get(b"GNU.sparse.name") or text(b"path", 0, 100)
    stored = number(b"size", 124, 12) if kind == "file" else 0
    mtime = records.get(b"mtime")
    xattrs = sorted(
        (decode_keyword(keyword.removeprefix(XATTR_PREFIX)), value)
        for keyword, value in records.items()
        if keyword.startswith(XATTR_PREFIX)
    )
    attributes = Attributes(
        tuple(xattrs), records.get(PAX_ACL_ACCESS, b""), records.get(PAX_ACL_DEFAULT, b"")
    )
    member = Member(
        path=path.removesuffix(b"/"),
        type=kind,
        size=stored,
        mode=_octal(block[100:108]) & 0o7777,
        uid=number(b"uid", 108, 8),
        gid=number(b"gid", 116, 8),
        uname=text(b"uname", 265, 32),
        gname=text(b"gname", 297, 32),
        mtime_ns=parse_time(mtime) if mtime is not None else _octal(block[136:148]) * 1_000_000_000,
        link_target=text(b"linkpath", 157, 100),
        rdev=(_octal(block[329:337]), _octal(block[337:345])),
        attributes=attributes if attributes != NO_ATTRIBUTES else NO_ATTRIBUTES,
        comment=records.get(b"comment", b"").rstrip(b" "),
    )
    return member, stored


def _with_map(
    member: Member, records: dict[bytes, bytes], take: Callable[[int], bytes], stored: int, offset: int
) -> tuple[Member, int]:
    """(the member with its map, bytes of the map with its padding)."""
    if records[b"GNU.sparse.major"] != b"1" or records.get(b"GNU.sparse.minor") != b"0":
        raise IntegrityError(f"tar header at byte {offset}: a sparse format other than 1.0")
    name = records.get(b"GNU.sparse.name", b"")
    if not name or records.get(b"path") not in (None, _SPARSE_DIRECTORY + name):
        raise IntegrityError(f"tar header at byte {offset}: the names of a sparse member do not agree")
    size = parse_decimal(records.get(b"GNU.sparse.realsize", b""))
    text = b""
    at = 0

    def number() -> int:
        # The map's length is not announced: what was read is doubled until it is enough.
        nonlocal text, at
        while (newline := text.find(b"\n", at, at + 21)) < 0:
            if len(text) >= min(at + 21, stored):
                raise IntegrityError(f"tar header at byte {offset}: a broken sparse map")
            text = take(min(max(BLOCK, 2 * len(text)), stored))
        value = parse_decimal(text[at:newline])
        at = newline + 1
        return value

    count = number()
    if count > MAX_SEGMENTS + 1:
        raise IntegrityError(f"tar header at byte {offset}: more than {MAX_SEGMENTS} sparse segments")
    entries = [(number(), number()) for _ in range(count)]
    segments = tuple(entry for entry in entries if entry[1])
    map_bytes = at + padding(at)
    if len(text) < map_bytes <= stored:
        text = take(map_bytes)
    _check_padding(text[at:map_bytes], offset)
    check_segments(segments, size, stored - map_bytes)
    return replace(member, size=size, segments=segments), map_bytes


def check_segments(segments: Segments, size: int, payload_bytes: int) -> None:
    """Raises:
    IntegrityError: not ascending, beyond ``size``, or not ``payload_bytes`` in all.
    """
    at = 0
    for start, length in segments:
        if start < at or length < 0:
            raise IntegrityError("a sparse map whose segments overlap")
        at = start + length
    if at > size or sum(length for _, length in segments) != payload_bytes:
        raise IntegrityError("a sparse map that does not fit its file")
