"""When an object must be recalled, and what is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from nightferry.destination.s3.archive import archived, ask
from nightferry.destination.s3.bucket import Head
from nightferry.model.destinations import Recall

ON_ITS_WAY = 'ongoing-request="true"'
BROUGHT_BACK = 'ongoing-request="false", expiry-date="Fri, 21 Dec 2029 00:00:00 GMT"'


@dataclass
class Store:
    """Answers as a bucket does; counts what was asked."""

    readable: bool = False
    looks: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)

    def key(self, path: str) -> str:
        return f"tex/{path}"

    def is_readable(self, path: str) -> bool:
        self.looks += 1
        return self.readable

    def call(self, verb: str, **params: Any) -> None:
        self.asked.append({"verb": verb, **params})


def head(storage_class: str = "", restore: str = "", archive: str = "") -> Head:
    return Head(1, "e", "d", "", storage_class, restore, archive)


@pytest.mark.parametrize(
    "storage_class", ["", "STANDARD", "GLACIER_IR", "STANDARD_IA", "INTELLIGENT_TIERING"]
)
def test_other_classes_are_read_without_a_further_request(storage_class: str) -> None:
    store = Store()
    assert archived(store, "data", head(storage_class), Recall()) is None  # type: ignore[arg-type]  # a stand-in
    assert store.looks == 0


@pytest.mark.parametrize(
    ("said", "readable", "asked", "looks"),
    [
        (head("GLACIER"), False, False, 1),
        (head("DEEP_ARCHIVE", ON_ITS_WAY), False, True, 0),
        (head("GLACIER", BROUGHT_BACK), False, None, 0),
        (head("GLACIER"), True, None, 1),
        (head("INTELLIGENT_TIERING", "", "ARCHIVE_ACCESS"), False, False, 1),
        (head("INTELLIGENT_TIERING", ON_ITS_WAY, "DEEP_ARCHIVE_ACCESS"), False, True, 0),
    ],
)
def test_the_stores_words_decide_and_where_they_do_not_one_byte_does(
    said: Head, readable: bool, asked: bool | None, looks: int
) -> None:
    store = Store(readable)
    found = archived(store, "data", said, Recall(tier="bulk"))  # type: ignore[arg-type]  # a stand-in
    assert store.looks == looks
    assert (None if found is None else found.asked) == asked
    if found is not None:
        assert (found.storage_class, found.how) == (said.archive or said.storage_class, "bulk")
        assert found.wait_s == 48 * 3600


def test_an_intelligent_class_is_asked_without_days() -> None:
    store = Store()
    for said in (head("GLACIER"), head("INTELLIGENT_TIERING", "", "ARCHIVE_ACCESS")):
        ask(store, "data", said, Recall(days=5))  # type: ignore[arg-type]  # a stand-in
    first, second = (sent["RestoreRequest"] for sent in store.asked)
    assert first == {"Days": 5, "GlacierJobParameters": {"Tier": "Standard"}}
    assert second == {"GlacierJobParameters": {"Tier": "Standard"}}
    assert {sent["Key"] for sent in store.asked} == {"tex/data"}
    assert {sent["unless"] for sent in store.asked} == {("RestoreAlreadyInProgress",)}
