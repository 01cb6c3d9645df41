"""Verbs that the contract names and a later release delivers: whatever their arguments, they say so."""

from __future__ import annotations

from typing import Annotated, NoReturn

from cyclopts import Parameter

from nightferry.errors import NotInThisRelease

Anything = Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]


def plan(*_: Anything) -> NoReturn:
    """Predicts tonight's window: finish per store, the bottleneck, restore time. Not in this release."""
    raise _later("plan")


def ndmp(*_: Anything) -> NoReturn:
    """Looks at a NAS that speaks NDMP. Not in this release."""
    raise _later("ndmp")


def log(*_: Anything) -> NoReturn:
    """Looks at a storage group's log. Not in this release."""
    raise _later("log")


def _later(verb: str) -> NotInThisRelease:
    return NotInThisRelease(f"`nightferry {verb}` is not in this release", subject=verb)
