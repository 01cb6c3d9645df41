"""Thousands of damaged copies of a catalog: none is believed."""

from __future__ import annotations

import random

import pytest

from nightferry.catalog.memory import MemoryStorage
from nightferry.catalog.query import Catalog
from nightferry.errors import CatalogError
from tests.support.damage import damaged
from tests.support.written_catalog import written_catalog


@pytest.mark.parametrize("seed", range(4))
def test_none_of_five_thousand_damaged_copies_is_believed(seed: int) -> None:
    data, _ = written_catalog().export()
    chance = random.Random(seed)
    for _ in range(5000):
        hurt = damaged(data, chance)
        with pytest.raises(CatalogError):
            Catalog.from_export(hurt, MemoryStorage(), node="n")
