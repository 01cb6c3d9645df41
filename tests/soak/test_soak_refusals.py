"""Processes end with their exit code, however often."""

from __future__ import annotations

from tests.support.command_site import CommandSite
from tests.support.refusals import refusals


def test_five_hundred_refusals_end_with_their_exit_code(kept_night: CommandSite) -> None:
    """An Arrow thread that outlived its reader ended one in a hundred of them by SIGABRT."""
    assert refusals(kept_night, 500) == {2: 500}
