"""What every record of the catalog is."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Base of all records. ``kind`` names the catalog's stream it belongs to; ``subject`` its key there."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: ClassVar[str]

    @property
    def subject(self) -> str:
        raise NotImplementedError
