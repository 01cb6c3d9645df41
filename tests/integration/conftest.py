"""A small site for every test that asks for one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.small_site import SmallSite


@pytest.fixture
def make_site(tmp_path: Path) -> Callable[..., SmallSite]:
    """Builds one below ``tmp_path``; keywords are ``SmallSite``'s."""

    def make(**options: Any) -> SmallSite:
        home = tmp_path / "site"
        home.mkdir()
        return SmallSite(home, **options).build()

    return make
