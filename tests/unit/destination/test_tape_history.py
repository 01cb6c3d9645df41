"""Which parts of an image are gone on behind, by the trailers that were read."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
import xxhash
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from nightferry.destination.tape.format.layout import Part, Trailer
from nightferry.destination.tape.library.history import Met, chain, is_part_of

MIB = 1 << 20
CHUNKS = b"".join(xxhash.xxh3_64(bytes([n])).digest() for n in range(40))


def part(number: int, first: int, records: int, *, barcode: str = "") -> Part:
    return Part(
        barcode=barcode or f"A{number:05d}L9",
        label="l" * 32,
        file=1,
        first_record=first,
        records=records,
        bytes=records * MIB,
        trailer=2,
    )


def met(this: Part, previous: Part | None, number: int, **more: object) -> Met:
    table = CHUNKS[this.first_record * 8 :][: this.records * 8]
    trailer = Trailer(
        image="i1",
        epoch=1,
        digest="d1",
        size_bytes=40 * MIB,
        part=number,
        this=this,
        previous=previous,
        written=datetime(2026, 11, 30, tzinfo=UTC),
        members={"records": (len(table), blake3(table).hexdigest())},
    ).model_copy(update=more)
    edges = table[:8] + (table[-8:] if this.records > 1 else b"")
    return Met(trailer, edges if this.records else b"")


def row(*records: int) -> list[Met]:
    found: list[Met] = []
    first = 0
    for number, count in enumerate(records, 1):
        this = part(number, first, count)
        found.append(met(this, found[-1].trailer.this if found else None, number))
        first += count
    return found


def parts(found: list[Met], epoch: int = 1, digest: str = "d1") -> list[int]:
    return [each.records for each in chain(found, lambda m: is_part_of(m, epoch, digest, memoryview(CHUNKS)))]


@given(st.lists(st.integers(1, 7), max_size=5), st.randoms())
def test_every_part_of_a_row_is_gone_on_behind_in_whatever_order_it_was_met(
    records: list[int], random: object
) -> None:
    found = row(*records)
    random.shuffle(found)  # type: ignore[attr-defined]
    assert parts(found) == records


@pytest.mark.parametrize("lacks", [0, 1, 2, 3])
def test_it_ends_before_the_first_part_that_is_not_there(lacks: int) -> None:
    found = row(5, 6, 7, 8)
    del found[lacks]
    assert parts(found) == [5, 6, 7, 8][:lacks]


@pytest.mark.parametrize("lacks", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "harm",
    [
        lambda m: replace(m, edges=b""),
        lambda m: replace(m, edges=bytes(len(m.edges))),
        lambda m: replace(m, trailer=m.trailer.model_copy(update={"members": {}})),
        lambda m: replace(m, trailer=m.trailer.model_copy(update={"digest": "d2"})),
        lambda m: replace(m, trailer=m.trailer.model_copy(update={"epoch": 2})),
        lambda m: replace(m, trailer=m.trailer.model_copy(update={"kind": "catalog"})),
        lambda m: replace(m, trailer=m.trailer.model_copy(update={"previous": part(9, 0, 1)})),
        lambda m: replace(m, trailer=m.trailer.model_copy(update={"part": 9})),
    ],
    ids=[
        "unread",
        "other records",
        "no table",
        "other image",
        "other epoch",
        "a catalog",
        "elsewhere",
        "number",
    ],
)
def test_it_ends_before_the_first_part_that_is_not_proven(lacks: int, harm: object) -> None:
    found = row(5, 6, 7, 8)
    found[lacks] = harm(found[lacks])  # type: ignore[operator]
    assert parts(found) == [5, 6, 7, 8][:lacks]


def test_a_part_that_was_written_twice_is_counted_once() -> None:
    found = row(5, 6, 7)
    again = part(2, 5, 4, barcode="B00002L9")
    found += [met(again, found[0].trailer.this, 2), met(part(3, 9, 2, barcode="B00003L9"), again, 3)]
    assert parts(found) in ([5, 6, 7], [5, 4, 2])
    # The longer row is taken whole: no part of one is joined to a part of the other.
    found.append(met(part(4, 11, 3, barcode="B00004L9"), found[-1].trailer.this, 4))
    assert parts(found) == [5, 4, 2, 3]


def test_trailers_that_lead_in_a_circle_are_no_row() -> None:
    one, two = part(1, 0, 5), part(2, 5, 5)
    assert parts([met(one, two, 1), met(two, one, 2)]) == []
    assert parts([met(one, one, 1)]) == []
