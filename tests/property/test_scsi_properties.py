"""Whatever a device answers, reading it ends in a value or a ProtocolError; what is built can be read again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nightferry.errors import ProtocolError
from nightferry.scsi import cdb
from nightferry.scsi.cdb import Over
from nightferry.scsi.sense import parse_sense
from tests.support.scripted_library import sense

PARSERS = [
    cdb.parse_inquiry,
    cdb.parse_serial,
    cdb.parse_luns,
    cdb.parse_mode,
    cdb.parse_block_limits,
    cdb.parse_position,
    cdb.parse_alerts,
    cdb.parse_elements,
    parse_sense,
]


@given(st.sampled_from(PARSERS), st.binary(max_size=300))
def test_any_answer_is_read_or_refused(parse, raw):
    try:
        parse(raw)
    except ProtocolError:
        pass


@given(
    code=st.tuples(st.integers(0, 15), st.integers(0, 255), st.integers(0, 255)),
    information=st.none() | st.integers(-(1 << 31), (1 << 31) - 1),
    bits=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    deferred=st.booleans(),
    descriptor=st.booleans(),
)
def test_both_forms_of_sense_say_what_was_meant(code, information, bits, deferred, descriptor):
    raw = sense(
        code,
        information=information,
        filemark=bits[0],
        eom=bits[1],
        ili=bits[2],
        deferred=deferred,
        descriptor=descriptor,
    )
    read = parse_sense(raw)
    assert (read.key, read.asc, read.ascq) == code
    assert read.information == information
    assert (read.filemark, read.end_of_medium, read.wrong_length) == bits
    assert read.deferred == deferred


@given(st.sampled_from(Over), st.integers(-(1 << 23), (1 << 23) - 1))
def test_a_count_of_space_is_signed(over, count):
    command = cdb.space(over, count)
    assert len(command) == 6
    assert int.from_bytes(command[2:5], "big", signed=True) == count
