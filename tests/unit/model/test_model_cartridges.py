"""What keeps a cartridge from being written over."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from nightferry.model.cartridges import live_by_cartridge, unfinished_on
from nightferry.model.records import CartridgeRecord, CopyRecord, CopyState

NOW = datetime(2026, 11, 30, tzinfo=UTC)
RUN = "20261130-TEX-BACK-1"
I1, I2 = f"{RUN}.SG1.a.L0", f"{RUN}.SG1.b.L0"


def cartridge(barcode: str, *images: str) -> CartridgeRecord:
    return CartridgeRecord(
        barcode=barcode, destination="tape", pool="daily", state="full", images=images, at=NOW
    )


def copy(epoch: int, state: CopyState, *barcodes: str, ended: bool = False, image: str = I1) -> CopyRecord:
    return CopyRecord(
        image=image,
        destination="tape",
        epoch=epoch,
        state=state,
        run=RUN,
        location={"parts": [{"barcode": barcode} for barcode in barcodes]} if barcodes else {},
        started=NOW,
        ended=NOW if ended else None,
    )


TAPES = [cartridge("A1", I1), cartridge("A2", I1, I2), cartridge("A3")]
ON_A1, ON_BOTH = {"A1": {I1}}, {"A1": {I1}, "A2": {I1}}


@pytest.mark.parametrize("state", ["whole", "verified", "suspect", "damaged", "expiring"])
def test_a_copy_that_is_there_keeps_its_cartridges(state: CopyState) -> None:
    assert live_by_cartridge(TAPES, [copy(1, state, "A1", ended=True)]) == ON_A1
    assert live_by_cartridge(TAPES, [copy(1, state, "A1", ended=True)], {I1}) == ON_A1


@pytest.mark.parametrize("state", ["lost", "expired"])
def test_one_that_is_gone_keeps_none(state: CopyState) -> None:
    assert live_by_cartridge(TAPES, [copy(1, state, "A1", ended=True)]) == {}


@pytest.mark.parametrize(
    ("copies", "live"),
    [
        ([copy(1, "writing")], ON_BOTH),
        ([copy(1, "writing", ended=True)], {}),
        ([copy(1, "writing", "A1", ended=True)], ON_A1),
        ([copy(1, "writing", "A2", ended=True), copy(2, "writing", "A1", ended=True)], ON_A1),
        ([copy(1, "writing"), copy(2, "writing", "A1", ended=True)], ON_BOTH),
        ([copy(1, "writing"), copy(2, "verified", "A1", ended=True)], ON_A1),
        ([copy(1, "writing", "A2", ended=True), copy(2, "verified", "A1", ended=True)], ON_A1),
        ([copy(1, "verified", "A1", ended=True), copy(2, "writing", "A2", ended=True)], ON_BOTH),
    ],
    ids=[
        "of an unknown outcome: all it was written to",
        "that came to nothing: none",
        "that has whole parts: those",
        "of two attempts, the newer one's",
        "an older one may be whole",
        "a newer one is verified",
        "and the older one's parts are dead",
        "a newer attempt beside a copy",
    ],
)
def test_a_copy_that_is_not_finished(copies: list[CopyRecord], live: dict[str, set[str]]) -> None:
    assert live_by_cartridge(TAPES, copies) == live


def test_an_image_that_was_given_up_keeps_no_cartridge_by_what_is_not_finished() -> None:
    for attempt in (copy(1, "writing"), copy(1, "writing", "A1", ended=True)):
        assert live_by_cartridge(TAPES, [attempt], {I1}) == {}
        assert live_by_cartridge(TAPES, [attempt], {I2}) != {}


def test_what_may_have_something_on_a_cartridge_is_listed() -> None:
    unknown, parts = copy(1, "writing"), copy(2, "writing", "A2", ended=True)
    assert unfinished_on(TAPES, [unknown, parts, copy(3, "verified", "A1", "A2")], "A1") == [unknown]
    assert unfinished_on(TAPES, [unknown, parts], "A2") == [unknown, parts]
    assert unfinished_on(TAPES, [unknown, parts], "A3") == []
