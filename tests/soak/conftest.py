"""All tests of this folder are long ones; what they share with the integration tests."""

from pathlib import Path

import pytest

from tests.integration.conftest import kept_night

__all__ = ["kept_night"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.soak)
