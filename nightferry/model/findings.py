"""What `check` says: findings with a stable id, a severity and a fix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing `check` found.

    ``id`` is stable across releases (``NF-TAPE-007``); ``text`` names the thing; ``fix`` says what to do.
    """

    id: str
    severity: Literal["fail", "warn", "note"]
    text: str
    fix: str = ""
