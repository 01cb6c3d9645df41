"""Sense data: both forms, the stream bits, deferred errors, and what cannot be sense."""

from __future__ import annotations

import pytest

from nightferry.errors import ProtocolError
from nightferry.scsi.sense import BLANK_CHECK, NO_SENSE, UNIT_ATTENTION, parse_sense

# Fixed form, by hand from SPC-5 table 48: VALID, FM EOM ILI key, information, additional length, ASC, ASCQ.
FILEMARK = bytes.fromhex("f000800000001e0a000000000001000000 00".replace(" ", ""))
SHORT_BLOCK = bytes.fromhex("f00020000003e80a0000000000000000 0000".replace(" ", ""))
LONG_BLOCK = bytes.fromhex("f00020fff000000a0000000000000000 0000".replace(" ", ""))
EARLY_WARNING = bytes.fromhex("700040000000000a00000000000200000000")
DEFERRED = bytes.fromhex("710003000000000a000000000c0000000000")
# Descriptor form, SPC-5 table 30: information descriptor and stream commands descriptor.
DESCRIPTOR = bytes.fromhex("7200000100000010000a8000ffffffffffffff9c04020080")


def test_a_filemark_is_told_by_its_bit_and_what_was_left() -> None:
    sense = parse_sense(FILEMARK)
    assert (sense.key, sense.code) == (NO_SENSE, (0x00, 0x01))
    assert (sense.filemark, sense.end_of_medium, sense.wrong_length) == (True, False, False)
    assert sense.information == 0x1E


def test_a_wrong_length_counts_up_and_down() -> None:
    assert parse_sense(SHORT_BLOCK).information == 1000
    assert parse_sense(LONG_BLOCK).information == -(1 << 20)
    assert parse_sense(LONG_BLOCK).wrong_length


def test_early_warning_is_a_bit_and_vouches_for_no_number() -> None:
    sense = parse_sense(EARLY_WARNING)
    assert sense.end_of_medium
    assert sense.information is None


def test_a_deferred_error_speaks_of_an_earlier_command() -> None:
    assert parse_sense(DEFERRED).deferred
    assert "deferred medium error, write error" in str(parse_sense(DEFERRED))


def test_descriptors_say_the_same_as_the_fixed_form() -> None:
    sense = parse_sense(DESCRIPTOR)
    assert (sense.filemark, sense.information, sense.code) == (True, -100, (0x00, 0x01))


def test_a_short_fixed_sense_has_no_code() -> None:
    assert parse_sense(bytes((0x70, 0, 0x08))).key == BLANK_CHECK


@pytest.mark.parametrize("raw", [b"", b"\x70", b"\x72\x06", bytes(18), b"\xff" * 18])
def test_what_is_no_sense_is_a_protocol_error(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_sense(raw)


def test_an_unknown_code_is_shown_by_its_numbers() -> None:
    assert str(parse_sense(bytes((0x72, UNIT_ATTENTION, 0x99, 0x98, 0, 0, 0, 0)))) == (
        "unit attention (6/99/98)"
    )
