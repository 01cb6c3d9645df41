"""Verbs that the contract names and a later release delivers: whatever their arguments, they say so."""

from __future__ import annotations

from typing import Annotated, NoReturn

from cyclopts import Parameter

from nightferry.errors import NotInThisRelease

Anything = Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]


def plan(*_: Anything) -> NoReturn:
    """Predicts tonight's window: finish per store, the bottleneck, restore time. Not in this release."""
    raise _later("plan")


def find(*_: Anything) -> NoReturn:
    """Says which images hold a path. Not in this release."""
    raise _later("find")


def mount(*_: Anything) -> NoReturn:
    """Shows images and nights as folders. Not in this release."""
    raise _later("mount")


def audit(*_: Anything) -> NoReturn:
    """Checks the signed records. Not in this release."""
    raise _later("audit")


def drill(*_: Anything) -> NoReturn:
    """Tries a restore. Not in this release."""
    raise _later("drill")


def key(*_: Anything) -> NoReturn:
    """Looks after the keys of encrypted copies. Not in this release."""
    raise _later("key")


def ndmp(*_: Anything) -> NoReturn:
    """Looks at a NAS that speaks NDMP. Not in this release."""
    raise _later("ndmp")


def log(*_: Anything) -> NoReturn:
    """Looks at a storage group's log. Not in this release."""
    raise _later("log")


def _later(verb: str) -> NotInThisRelease:
    return NotInThisRelease(f"`nightferry {verb}` is not in this release", subject=verb)
