"""Everything that is written on tape is read back as it was, and what was not is refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightferry.destination.tape.drives.base import RECORD_BYTES, Mark
from nightferry.destination.tape.drives.virtual import Runs, parse_runs, uniform
from nightferry.destination.tape.format.label import Label, NotALabel, parse
from nightferry.destination.tape.format.layout import (
    Location,
    Part,
    Trailer,
    begins_a_trailer,
    read_trailer,
    records_of,
    render_trailer,
)
from nightferry.errors import MediumDamaged

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,30}", fullmatch=True)
times = st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)).map(
    lambda t: t.replace(microsecond=0, tzinfo=UTC)
)
labels = st.builds(
    Label, names.filter(lambda n: len(n) <= 31), names, st.from_regex(r"[0-9a-f]{32}", fullmatch=True), times
)


@given(labels)
def test_labels_are_read_back(label: Label) -> None:
    record = label.render()
    assert len(record) < 4096
    assert parse(record) == label


@given(labels, st.integers(0, 200), st.binary(min_size=1, max_size=1))
def test_a_changed_label_is_another_one_or_none(label: Label, at: int, byte: bytes) -> None:
    record = label.render()
    head = record.index(b"\n\n")
    at %= head
    changed = record[:at] + byte + record[at + 1 :]
    try:
        found = parse(changed)
    except NotALabel:
        return
    assert (found == label) == (changed == record)


@given(st.binary(max_size=300))
def test_noise_is_no_label(noise: bytes) -> None:
    with pytest.raises(NotALabel):
        parse(noise)


@st.composite
def trailers(draw: st.DrawFn) -> tuple[Trailer, dict[str, bytes]]:
    final = draw(st.booleans())
    before = [
        Part(barcode="A1", label="a" * 32, file=1, first_record=n, records=1, bytes=RECORD_BYTES, trailer=2)
        for n in range(draw(st.integers(0, 3)))
    ]
    size = draw(st.integers(0, 3 * RECORD_BYTES))
    this = Part(
        barcode="A2",
        label="b" * 32,
        file=draw(st.integers(1, 9)),
        first_record=len(before),
        records=-(-size // RECORD_BYTES),
        bytes=size,
        trailer=10,
    )
    parts = (*before, this)
    trailer = Trailer(
        image=draw(st.text(min_size=1, max_size=40).filter(lambda t: t.isprintable())),
        epoch=draw(st.integers(1, 99)),
        digest="d",
        size_bytes=sum(p.bytes for p in parts),
        part=len(parts),
        parts=len(parts) if final else None,
        this=this,
        previous=before[-1] if before else None,
        next=None if final else {"barcode": "A3"},
        location=Location(parts=parts) if final else None,
        written=draw(times),
    )
    return trailer, draw(
        st.dictionaries(st.sampled_from(["meta.json", "chunks", "index"]), st.binary(max_size=3000))
    )


def _reading(data: bytes) -> tuple[bytes, list[bytes | Mark]]:
    records = [bytes(r) for r in records_of(data)]
    return records[0], [*records[1:], Mark.FILEMARK]


@given(trailers())
def test_trailers_are_read_back(case: tuple[Trailer, dict[str, bytes]]) -> None:
    trailer, members = case
    first, rest = _reading(render_trailer(trailer, members))
    assert begins_a_trailer(first)
    found, found_members = read_trailer(first, lambda: rest.pop(0), "here")
    assert found_members == members
    assert found.model_copy(update={"members": {}}) == trailer
    assert rest == []


@given(trailers())
def test_a_trailer_without_its_filemark_is_whole_only_where_that_is_looked_for(
    case: tuple[Trailer, dict[str, bytes]],
) -> None:
    first, rest = _reading(render_trailer(*case))
    rest[-1] = Mark.END_OF_DATA
    again = iter(rest)
    with pytest.raises(MediumDamaged, match="no filemark"):
        read_trailer(first, lambda: next(again), "here")
    assert read_trailer(first, lambda: rest.pop(0), "here", closed=False)[1] == case[1]


@given(trailers(), st.data())
def test_a_trailer_that_is_cut_off_or_longer_is_not_whole(
    case: tuple[Trailer, dict[str, bytes]], data: st.DataObject
) -> None:
    whole = render_trailer(*case)
    cut = whole[: data.draw(st.integers(1, len(whole) - 1))] if data.draw(st.booleans()) else whole + b"\0"
    first, rest = _reading(cut)
    with pytest.raises(MediumDamaged):
        read_trailer(first, lambda: rest.pop(0), "here")


@given(trailers(), st.data())
def test_a_changed_member_is_found(case: tuple[Trailer, dict[str, bytes]], data: st.DataObject) -> None:
    trailer, members = case
    members = {**members, "index": b"0123456789" * 20}
    whole = bytearray(render_trailer(trailer, members))
    whole[whole.rindex(b"0123456789") + data.draw(st.integers(0, 9))] ^= 1
    first, rest = _reading(bytes(whole))
    with pytest.raises(MediumDamaged, match="index is damaged"):
        read_trailer(first, lambda: rest.pop(0), "here")


@given(trailers())
def test_a_member_of_eight_gigabytes_of_holes_is_not_read(case: tuple[Trailer, dict[str, bytes]]) -> None:
    """A sparse file as GNU tar has it: the header says how long the file is, and where its few bytes belong."""
    trailer, _ = case
    whole = bytearray(render_trailer(trailer, {"index": b"x" * 512}))
    at = whole.rindex(b"index\0")
    whole[at + 156 : at + 157] = b"S"
    whole[at + 345 : at + 500] = bytes(155)
    whole[at + 257 : at + 265] = b"ustar  \0"
    whole[at + 386 : at + 410] = b"%011o\0%011o\0" % (0, 512)
    whole[at + 483 : at + 495] = b"%011o\0" % ((1 << 33) - 1)
    whole[at + 148 : at + 156] = b" " * 8
    whole[at + 148 : at + 156] = b"%06o\0 " % sum(whole[at : at + 512])
    first, rest = _reading(bytes(whole))
    with pytest.raises(MediumDamaged, match="'index' is not a plain file"):
        read_trailer(first, lambda: rest.pop(0), "here")


@given(st.lists(st.integers(1, (16 << 20) - 1), max_size=30), st.data())
def test_record_sizes_are_read_back(sizes: list[int], data: st.DataObject) -> None:
    runs = Runs([])
    for size in sizes:
        runs.append(size)
    found = parse_runs(runs.render())
    assert (found.runs, found.count, found.bytes) == (runs.runs, len(sizes), sum(sizes))
    if sizes:
        at = data.draw(st.integers(0, len(sizes) - 1))
        assert found.locate(at) == (sum(sizes[:at]), sizes[at])
        assert found.upto(at).bytes == sum(sizes[:at])


@given(st.text(alphabet="0123456789x -", max_size=20))
def test_other_text_is_no_record_sizes(text: str) -> None:
    try:
        runs = parse_runs(text)
    except ValueError:
        return
    assert runs.bytes >= runs.count


@given(st.integers(0, 1 << 40))
def test_undescribed_bytes_are_taken_as_whole_records_and_a_rest(size: int) -> None:
    runs = uniform(size)
    assert runs.bytes == size
    assert runs.count == -(-size // RECORD_BYTES)
