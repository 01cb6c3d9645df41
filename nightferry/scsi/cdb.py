"""Command descriptor blocks and the data that commands answer. Pure: bytes in, bytes out.

Numbers are those of SPC-5 (all devices), SSC-5 (tape drives) and SMC-3 (changers); the section is beside each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from nightferry.errors import ProtocolError

TAPE, CHANGER = 0x01, 0x08
"""Peripheral device types (SPC-5 table 153)."""

LONGEST_BLOCK = (1 << 24) - 1
"""What the three length bytes of READ(6) and WRITE(6) can say (SSC-5 §6.5, §6.9)."""

MOST_SPACED = (1 << 23) - 1
"""The furthest one SPACE(6) goes: its count is a signed 24-bit number (SSC-5 §6.8)."""


# -- any device (SPC-5) -----------------------------------------------------------------------


def test_unit_ready() -> bytes:
    """SPC-5 §6.41."""
    return bytes(6)


def inquiry(length: int = 96, page: int | None = None) -> bytes:
    """SPC-5 §6.7; with ``page`` a page of vital product data (EVPD)."""
    return bytes((0x12, page is not None, page or 0)) + length.to_bytes(2, "big") + b"\0"


def report_luns(length: int = 4096) -> bytes:
    """SPC-5 §6.29."""
    return bytes((0xA0, 0, 0, 0, 0, 0)) + length.to_bytes(4, "big") + bytes(2)


def mode_sense(page: int, length: int = 252) -> bytes:
    """MODE SENSE(6), current values, block descriptor included (SPC-5 §6.14)."""
    return bytes((0x1A, 0, page & 0x3F, 0, length, 0))


def mode_select(length: int) -> bytes:
    """MODE SELECT(6), page format, not saved (SPC-5 §6.12)."""
    return bytes((0x15, 0x10, 0, 0, length, 0))


def log_sense(page: int, length: int = 4096) -> bytes:
    """LOG SENSE, cumulative values (SPC-5 §6.9)."""
    return bytes((0x4D, 0, 0x40 | page, 0, 0, 0, 0)) + length.to_bytes(2, "big") + b"\0"


def prevent_removal(on: bool) -> bytes:
    """PREVENT ALLOW MEDIUM REMOVAL (SPC-5 §6.16): by unloading or by the changer, for as long as this session lasts."""
    return bytes((0x1E, 0, 0, 0, on, 0))


# -- tape drives (SSC-5) ----------------------------------------------------------------------


def rewind() -> bytes:
    """SSC-5 §6.13, not immediate: GOOD means that the tape is at its beginning."""
    return bytes((0x01, 0, 0, 0, 0, 0))


def read_block_limits() -> bytes:
    """SSC-5 §7.3."""
    return bytes((0x05, 0, 0, 0, 0, 0))


def read_block(length: int) -> bytes:
    """READ(6) of one variable block, SILI 0: every other length is said (SSC-5 §6.5)."""
    return b"\x08\0" + length.to_bytes(3, "big") + b"\0"


def write_block(length: int) -> bytes:
    """WRITE(6) of one variable block (SSC-5 §6.9)."""
    return b"\x0a\0" + length.to_bytes(3, "big") + b"\0"


def write_filemarks(count: int, *, immediate: bool) -> bytes:
    """WRITE FILEMARKS(6); count 0, not immediate, writes out the buffer (SSC-5 §6.11)."""
    return bytes((0x10, immediate)) + count.to_bytes(3, "big") + b"\0"


class Over(IntEnum):
    """What SPACE counts (SSC-5 table 43)."""

    BLOCKS = 0
    FILEMARKS = 1
    END_OF_DATA = 3


def space(over: Over, count: int = 0) -> bytes:
    """SPACE(6); a negative count goes back (SSC-5 §6.8)."""
    return bytes((0x11, over)) + count.to_bytes(3, "big", signed=True) + b"\0"


def locate_file(number: int) -> bytes:
    """LOCATE(16) to the beginning of a logical file (SSC-5 §6.4: DEST_TYPE 001b, CP 0)."""
    return bytes((0x92, 0x01 << 3, 0, 0)) + number.to_bytes(8, "big") + bytes(4)


def read_position() -> bytes:
    """READ POSITION, long form (SSC-5 §7.7: service action 06h)."""
    return bytes((0x34, 0x06)) + bytes(8)


READ_POSITION_LENGTH = 32


def load_unload(*, load: bool, eject: bool = False) -> bytes:
    """LOAD UNLOAD; a load is immediate, what becomes of it is asked by TEST UNIT READY (SSC-5 §7.2).

    ``eject`` sets bit 1 beside: RETEN of a tape drive. Targets that treat the command as START STOP UNIT take
    it for LoEj and do nothing without it.
    """
    return bytes((0x1B, load, 0, 0, load | eject << 1, 0))


# -- changers (SMC-3) -------------------------------------------------------------------------


class ElementType(IntEnum):
    """SMC-3 table 10."""

    TRANSPORT = 1
    STORAGE = 2
    PORT = 3
    DRIVE = 4


def read_element_status(kind: ElementType, length: int, *, identifiers: bool = False) -> bytes:
    """Of every element of one type, with volume tags; ``identifiers``: the drives' own (SMC-3 §6.14, DVCID)."""
    head = bytes((0xB8, 0x10 | kind, 0, 0, 0xFF, 0xFF, identifiers))
    return head + length.to_bytes(3, "big") + bytes(2)


def move_medium(transport: int, source: int, target: int) -> bytes:
    """SMC-3 §6.8; transport 0 is the changer's default arm."""
    places = b"".join(address.to_bytes(2, "big") for address in (transport, source, target))
    return b"\xa5\0" + places + bytes(4)


# -- answers ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inquiry:
    """Who a device is."""

    kind: int
    vendor: str
    product: str

    @property
    def is_there(self) -> bool:
        """Whether a device answers at this logical unit (qualifier 000b, a known type)."""
        return self.kind < 0x1F


def parse_inquiry(data: bytes) -> Inquiry:
    """SPC-5 table 151.

    Raises:
        ProtocolError: shorter than the standard data.
    """
    if len(data) < 36:
        raise ProtocolError(f"INQUIRY answered {len(data)} bytes")
    # A qualifier other than 000b: nothing is connected there.
    kind = data[0] & 0x1F if not data[0] & 0xE0 else 0x1F
    return Inquiry(kind, _text(data[8:16]), _text(data[16:32]))


SERIAL_PAGE = 0x80


def parse_serial(data: bytes) -> str:
    """The unit serial number (SPC-5 §7.7.19).

    Raises:
        ProtocolError: it is another page.
    """
    if len(data) < 4 or data[1] != SERIAL_PAGE:
        raise ProtocolError(f"not a serial number page: {data[:8].hex()}")
    return _text(data[4 : 4 + int.from_bytes(data[2:4], "big")])


def parse_luns(data: bytes) -> list[int]:
    """Logical unit numbers of up to 16383 (SPC-5 §6.29; SAM-5 §4.7: peripheral and flat addressing)."""
    if len(data) < 8:
        raise ProtocolError(f"REPORT LUNS answered {len(data)} bytes")
    listed = data[8 : 8 + int.from_bytes(data[:4], "big")]
    return [
        int.from_bytes(listed[at : at + 2], "big") & 0x3FFF
        for at in range(0, len(listed) - len(listed) % 8, 8)
    ]


@dataclass(frozen=True, slots=True)
class Mode:
    """The head of MODE SENSE and its block descriptor. ``block_bytes`` 0: variable blocks."""

    write_protected: bool
    buffered: int
    density: int
    block_bytes: int


def parse_mode(data: bytes) -> Mode:
    """MODE SENSE(6) of a tape drive (SPC-5 §7.5.5, SSC-5 §8.3).

    Raises:
        ProtocolError: shorter than its head.
    """
    if len(data) < 4:
        raise ProtocolError(f"MODE SENSE answered {len(data)} bytes")
    block = data[4:12] if data[3] >= 8 else b""
    block = block.ljust(8, b"\0")
    return Mode(
        write_protected=bool(data[2] & 0x80),
        buffered=data[2] >> 4 & 0x07,
        density=block[0],
        block_bytes=int.from_bytes(block[5:8], "big"),
    )


def render_mode(density: int) -> bytes:
    """Parameters for MODE SELECT(6): buffered mode 1, variable blocks (SSC-5 §8.3)."""
    return bytes((0, 0, 0x10, 8, density, 0, 0, 0, 0, 0, 0, 0))


def parse_block_limits(data: bytes) -> tuple[int, int]:
    """Shortest and longest block; longest 0: not limited (SSC-5 table 63)."""
    if len(data) < 6:
        raise ProtocolError(f"READ BLOCK LIMITS answered {len(data)} bytes")
    return int.from_bytes(data[4:6], "big"), int.from_bytes(data[1:4], "big")


@dataclass(frozen=True, slots=True)
class TapePosition:
    """READ POSITION, long form. ``block`` counts filemarks too; None where the drive does not know."""

    block: int | None
    file: int | None
    at_beginning: bool


def parse_position(data: bytes) -> TapePosition:
    """SSC-5 table 71."""
    if len(data) < READ_POSITION_LENGTH:
        raise ProtocolError(f"READ POSITION answered {len(data)} bytes")
    block = None if data[0] & 0x04 else int.from_bytes(data[8:16], "big")
    file = None if data[0] & 0x08 else int.from_bytes(data[16:24], "big")
    return TapePosition(block, file, bool(data[0] & 0x80))


TAPE_ALERT_PAGE = 0x2E


def parse_alerts(data: bytes) -> tuple[int, ...]:
    """The numbers of the flags that are set on the TapeAlert page (SSC-5 §8.2.3)."""
    if len(data) < 4 or data[0] & 0x3F != TAPE_ALERT_PAGE:
        raise ProtocolError(f"not a TapeAlert page: {data[:8].hex()}")
    found = []
    rest = data[4 : 4 + int.from_bytes(data[2:4], "big")]
    while len(rest) >= 5:
        code, size = int.from_bytes(rest[:2], "big"), rest[3]
        if size and rest[4] & 1:
            found.append(code)
        rest = rest[4 + size :]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class ElementStatus:
    """One element: its address, what stands in it, and for a drive who it is."""

    kind: ElementType
    address: int
    full: bool
    barcode: str = ""
    source: int | None = None
    exception: tuple[int, int] | None = None
    identifier: str = ""
    """What the changer says of the drive there: its serial number, perhaps behind vendor and product."""
    is_cut: bool = False
    """The identifier is shorter than the changer says: its end is missing."""


def parse_elements(data: bytes) -> list[ElementStatus]:
    """Every element of a READ ELEMENT STATUS answer (SMC-3 §6.14.3).

    Raises:
        ProtocolError: lengths that do not fit.
    """
    if len(data) < 8:
        raise ProtocolError(f"READ ELEMENT STATUS answered {len(data)} bytes")
    rest = data[8 : 8 + int.from_bytes(data[5:8], "big")]
    found: list[ElementStatus] = []
    while len(rest) >= 8:
        size = int.from_bytes(rest[5:8], "big")
        found.extend(_page(rest[:8], rest[8 : 8 + size]))
        rest = rest[8 + size :]
    return found


def bytes_reported(data: bytes) -> int:
    """How long the whole answer is, whatever was asked for: the allocation that would hold it."""
    return 8 + int.from_bytes(data[5:8], "big")


_TAG_BYTES = 36
"""A volume tag: 32 bytes of identifier, two reserved, a sequence number (SMC-3 §6.14.4)."""


def _page(head: bytes, body: bytes) -> Iterator[ElementStatus]:
    size = int.from_bytes(head[2:4], "big")
    try:
        kind = ElementType(head[0] & 0x0F)
    except ValueError:
        raise ProtocolError(f"an element of unknown type {head[0]}") from None
    if size < 12:
        raise ProtocolError(f"element descriptors of {size} bytes")
    for at in range(0, len(body) - len(body) % size, size):
        yield _element(kind, head[1], body[at : at + size])


def _element(kind: ElementType, flags: int, raw: bytes) -> ElementStatus:
    tags = raw[12:]
    barcode = ""
    if flags & 0x80:
        barcode, tags = _text(tags[:32]), tags[_TAG_BYTES:]
    if flags & 0x40:
        tags = tags[_TAG_BYTES:]
    identifier = tags[4 : 4 + tags[3]] if len(tags) >= 4 and kind is ElementType.DRIVE else b""
    full = bool(raw[2] & 0x01)
    return ElementStatus(
        kind=kind,
        address=int.from_bytes(raw[:2], "big"),
        full=full,
        barcode=barcode if full else "",
        source=int.from_bytes(raw[10:12], "big") if raw[9] & 0x80 else None,
        exception=(raw[4], raw[5]) if raw[2] & 0x04 else None,
        identifier=_text(identifier),
        # Some targets count too few bytes, and the last one comes with zeros in its place.
        is_cut=bool(identifier) and (len(identifier) < tags[3] or b"\0" in identifier),
    )


def _text(raw: bytes) -> str:
    """Device text: what is not printable ASCII is dropped, since it goes to terminals, logs and file names."""
    return "".join(chr(byte) for byte in raw if 0x20 <= byte < 0x7F).strip()
