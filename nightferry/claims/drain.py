"""Asking the run of a BACK group to make room: a file that it looks at between two images."""

from __future__ import annotations

from datetime import datetime

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from nightferry.catalog.storage import Storage, check_name
from nightferry.errors import CatalogError


class DrainRequest(BaseModel):
    """Somebody asks the run of a BACK group to end at the next image boundary.

    ``since`` says which run: it is the moment its holder took the lock, by that holder's own clock.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    by: str
    since: AwareDatetime


def request_drain(storage: Storage, back_group: str, by: str, since: datetime) -> None:
    """Asks the run of a BACK group that took its lock at ``since`` to end at its next image boundary; durable
    on return.

    Raises:
        CatalogError: the request cannot be written.
    """
    asked = DrainRequest(by=by, since=since)
    storage.replace(_drain_path(back_group), asked.model_dump_json().encode())


def drain_requested(storage: Storage, back_group: str, since: datetime) -> DrainRequest | None:
    """The request to drain, when there is one for the run that took the lock at ``since``.

    No clock is compared with another: both times are the holder's own.

    Raises:
        CatalogError: the request cannot be read.
    """
    path = _drain_path(back_group)
    text = storage.read(path)
    if text is None:
        return None
    try:
        request = DrainRequest.model_validate_json(text)
    except ValidationError as error:
        raise CatalogError(
            f"the drain request {path} in {storage} is garbled", hint="remove it", subject=back_group
        ) from error
    return request if request.since == since else None


def clear_drain(storage: Storage, back_group: str) -> None:
    """Takes the request back; none is fine.

    Raises:
        CatalogError: it cannot be removed.
    """
    storage.remove("locks", [f"{check_name(back_group)}.drain"])


def _drain_path(back_group: str) -> str:
    return f"locks/{check_name(back_group)}.drain"
