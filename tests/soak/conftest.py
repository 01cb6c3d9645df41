"""What the long tests share with the integration tests."""

from tests.integration.conftest import kept_night

__all__ = ["kept_night"]
