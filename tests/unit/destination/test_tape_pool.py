"""Which cartridge of a pool comes next."""

from __future__ import annotations

from datetime import UTC, datetime

from nightferry.destination.tape.library.pool import Pool
from nightferry.model.records import CartridgeRecord, CartridgeState


def record(barcode: str, state: CartridgeState, used_bytes: int = 0, pool: str = "daily") -> CartridgeRecord:
    return CartridgeRecord(
        barcode=barcode,
        destination="tape",
        pool=pool,
        state=state,
        used_bytes=used_bytes,
        at=datetime(2026, 1, 1, tzinfo=UTC),
    )


RECORDS = {
    r.barcode: r
    for r in [
        record("A1", "appendable", 5),
        record("A2", "appendable", 9),
        record("A3", "full"),
        record("A4", "foreign"),
        record("A5", "expired"),
        record("A6", "appendable", pool="weekly"),
        record("A7", "retired"),
        record("A8", "blank"),
    ]
}


def test_the_fullest_appendable_comes_first_then_blanks_then_expired() -> None:
    assert Pool("daily").in_order([*RECORDS, "A9"], RECORDS) == ["A2", "A1", "A8", "A9", "A5"]


def test_blanks_are_left_out_where_they_are_not_labelled() -> None:
    assert Pool("daily", autolabel="never").in_order([*RECORDS, "A9"], RECORDS) == ["A2", "A1", "A5"]


def test_only_matching_barcodes_are_used() -> None:
    assert Pool("daily", barcodes=("B*", "A[12]")).in_order([*RECORDS, "B1"], RECORDS) == ["A2", "A1", "B1"]
