"""Commands byte for byte, and answers of real and imagined devices."""

from __future__ import annotations

import pytest

from nightferry.errors import ProtocolError
from nightferry.scsi import cdb
from nightferry.scsi.cdb import ElementType, Over


# Right values: the layouts of SPC-5, SSC-5 and SMC-3, written down by hand.
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (cdb.test_unit_ready(), "000000000000"),
        (cdb.inquiry(96), "120000006000"),
        (cdb.inquiry(252, 0x80), "12018000fc00"),
        (cdb.report_luns(4096), "a00000000000000010000000"),
        (cdb.mode_sense(0), "1a000000fc00"),
        (cdb.mode_select(12), "151000000c00"),
        (cdb.log_sense(0x2E), "4d006e00000000100000"),
        (cdb.rewind(), "010000000000"),
        (cdb.read_block_limits(), "050000000000"),
        (cdb.read_block(1 << 20), "080010000000"),
        (cdb.write_block((1 << 24) - 1), "0a00ffffff00"),
        (cdb.write_filemarks(1, immediate=True), "100100000100"),
        (cdb.write_filemarks(0, immediate=False), "100000000000"),
        (cdb.space(Over.BLOCKS, -1), "1100ffffff00"),
        (cdb.space(Over.FILEMARKS, 258), "110100010200"),
        (cdb.space(Over.END_OF_DATA), "110300000000"),
        (cdb.locate_file(7), "92080000000000000000000700000000"),
        (cdb.read_position(), "34060000000000000000"),
        (cdb.load_unload(load=True), "1b0100000100"),
        (cdb.load_unload(load=False), "1b0000000000"),
        (cdb.load_unload(load=False, eject=True), "1b0000000200"),
        (cdb.read_element_status(ElementType.DRIVE, 0x1000, identifiers=True), "b8140000ffff010010000000"),
        (cdb.move_medium(0, 1000, 500), "a500000003e801f400000000"),
    ],
)
def test_commands_are_as_the_standards_lay_them_out(command: bytes, expected: str) -> None:
    assert command.hex() == expected


# What tgtd answered for four drives: the last serial number is cut off.
TGTD_DRIVES = bytes.fromhex("01f40004000001600480005600000158") + b"".join(
    (500 + n).to_bytes(2, "big")
    + bytes((n == 1, 0, 0, 0, 0, 0, 0, 0x80 if n == 1 else 0))
    + (1000 if n == 1 else 0).to_bytes(2, "big")
    + (b"RIG001L5" if n == 1 else b"").ljust(32)
    + bytes(4)
    + bytes((2, 1, 0, 0x22))
    + b"HP      Ultrium 5-SCSI  HUDRIVE00%d" % (n + 1)
    for n in range(4)
)


def test_a_real_answer_tells_places_barcodes_sources_and_serial_numbers() -> None:
    found = cdb.parse_elements(TGTD_DRIVES)
    assert [(e.kind, e.address) for e in found] == [(ElementType.DRIVE, 500 + n) for n in range(4)]
    assert [e.full for e in found] == [False, True, False, False]
    assert (found[1].barcode, found[1].source) == ("RIG001L5", 1000)
    assert found[0].identifier.endswith("HUDRIVE001")
    assert found[0].source is None


def test_an_answer_cut_short_yields_what_is_whole_in_it() -> None:
    assert [e.address for e in cdb.parse_elements(TGTD_DRIVES[:200])] == [500, 501]


def test_alerts_are_the_flags_that_are_set() -> None:
    flags = b"".join(n.to_bytes(2, "big") + bytes((0, 1, n in (20, 38))) for n in range(1, 65))
    page = b"\x2e\0" + len(flags).to_bytes(2, "big") + flags
    assert cdb.parse_alerts(page + bytes(100)) == (20, 38)


def test_logical_units_are_listed() -> None:
    listed = bytes((0, 0, 0, 24, 0, 0, 0, 0)) + bytes(8) + b"\0\x05" + bytes(6) + b"\x41\x02" + bytes(6)
    assert cdb.parse_luns(listed + bytes(64)) == [0, 5, 0x102]


def test_a_position_is_told_or_unknown() -> None:
    raw = bytes((0x80, 0, 0, 0, 0, 0, 0, 0)) + (0).to_bytes(8, "big") + (0).to_bytes(8, "big") + bytes(8)
    assert cdb.parse_position(raw) == cdb.TapePosition(0, 0, True)
    assert cdb.parse_position(b"\x0c" + raw[1:]) == cdb.TapePosition(None, None, False)


def test_device_text_is_printable() -> None:
    raw = bytes((0, 0x80, 0, 9)) + b"S\x1b[31m\xff1 "
    assert cdb.parse_serial(raw) == "S[31m1"


@pytest.mark.parametrize(
    "parse",
    [
        cdb.parse_inquiry,
        cdb.parse_serial,
        cdb.parse_luns,
        cdb.parse_mode,
        cdb.parse_block_limits,
        cdb.parse_position,
        cdb.parse_alerts,
        cdb.parse_elements,
    ],
)
def test_an_answer_of_nothing_is_a_protocol_error(parse: object) -> None:
    with pytest.raises(ProtocolError):
        parse(b"\x01")  # type: ignore[operator]
