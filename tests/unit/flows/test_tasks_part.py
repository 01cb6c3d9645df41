"""A part of a night as its caller sees it."""

from __future__ import annotations

import pytest
from prefect.states import Failed

from nightferry.errors import NoScratch
from tasks.part import why_failed


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NoScratch("no scratch cartridge in pool daily"), "no scratch cartridge in pool daily"),
        (ValueError("odd"), "Task run encountered an exception ValueError: odd"),
    ],
)
def test_a_failure_is_told_in_our_own_words_where_it_is_ours(error: Exception, said: str) -> None:
    message = f"Task run encountered an exception {type(error).__name__}: {error}"
    assert why_failed(Failed(message=message, data=error)) == said
