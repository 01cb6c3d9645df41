"""Copies of the catalog prove themselves: whatever is damaged in one, none of it is believed."""

from __future__ import annotations

import random
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nightferry.catalog.memory import MemoryStorage
from nightferry.catalog.query import Catalog
from nightferry.catalog.schema import decode_copy, encode_segment
from nightferry.errors import CatalogError
from nightferry.model.records import Event
from tests.support.damage import damaged
from tests.support.written_catalog import written_catalog

AT = datetime(2026, 11, 10, 21, tzinfo=UTC)


def read(data: bytes) -> Catalog:
    return Catalog.from_export(data, MemoryStorage(), node="n", name="the copy")


def test_a_copy_is_proved_by_a_digest_that_b3sum_gives_too(tmp_path: Path) -> None:
    data, digest = written_catalog().export("ab" * 32)
    proved = decode_copy(data, "the copy")
    assert (proved.digest, proved.before) == (digest, "ab" * 32)
    (place,) = re.finditer(rb"nightferry\.digest..([0-9a-f]{64})", data, re.S)
    zeroed = tmp_path / "zeroed"
    zeroed.write_bytes(data[: place.start(1)] + b"0" * 64 + data[place.end(1) :])
    try:
        said = subprocess.run(["b3sum", zeroed], capture_output=True, text=True, check=True).stdout.split()[0]
    except FileNotFoundError:
        pytest.skip("there is no b3sum here")
    assert said == digest


def test_no_damaged_copy_is_believed() -> None:
    data, _ = written_catalog().export()
    chance = random.Random(11)
    for number in range(150):
        hurt = damaged(data, chance)
        with pytest.raises(CatalogError, match="the copy"):
            raise AssertionError(f"number {number} was believed: {read(hurt).last}")


def test_a_copy_of_an_older_release_has_no_digest_and_can_be_read() -> None:
    catalog = written_catalog()
    found = decode_copy(encode_segment(catalog._log.rows()), "the copy")
    assert (found.digest, found.before) == ("", "")
    assert read(encode_segment(found.rows)).runs() == catalog.runs()


def test_a_record_that_is_not_of_its_kind_makes_a_copy_useless() -> None:
    """An event of an image with a path of its own choice, or under another subject, is none."""
    catalog = written_catalog()
    rows = catalog._log.rows()
    at, image = next((i, row) for i, row in enumerate(rows) if row.kind == "image")
    for wrong in (
        image._replace(body=image.body.replace('"path":"SG1', '"path":"/etc/SG1')),
        image._replace(subject="20261110-TEX-BACK-1.SG1.other.L0"),
        image._replace(body="[]"),
        image._replace(at_us=1 << 62),
    ):
        with pytest.raises(CatalogError, match=f"event {image.sequence}"):
            read(encode_segment([*rows[:at], wrong, *rows[at + 1 :]]))
    assert isinstance(rows[at].event(), Event)
