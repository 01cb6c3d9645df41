"""The newest of everything: what the log says about each subject right now.

Bodies are parsed only when somebody asks for their kind, so that a look at tonight's run does not pay for
years of copies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pydantic import ValidationError

from nightferry.catalog.schema import Row
from nightferry.errors import CatalogError
from nightferry.model.claim_records import OwnerRecord
from nightferry.model.record import Record
from nightferry.model.records import RECORDS

R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class Placed(Generic[R]):
    """A record, the sequence of the event that holds it, and of the first event about its subject."""

    sequence: int
    record: R
    first: int


def parse_row(cls: type[R], row: Row) -> R:
    """The record of a row.

    Raises:
        CatalogError: the body is not a record of this kind.
    """
    try:
        return cls.model_validate_json(row.body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CatalogError(
            f"event {row.sequence} is not a {row.kind} record: {where}: {first['msg'].lower()}",
            hint="read the catalog with the release that wrote it, or a newer one",
            subject=row.subject,
        ) from error


def require_sound(rows: Iterable[Row], name: str) -> None:
    """Every row is an event that can be read as what it says it is; kinds of a newer release are left as they are.

    Raises:
        CatalogError: one is not.
    """
    for row in rows:
        try:
            row.event()
        except (ValueError, OverflowError, RecursionError) as error:
            raise CatalogError(
                f"{name}: event {row.sequence} cannot be read: {error}", subject=row.subject
            ) from error
        if row.kind in RECORDS:
            record = parse_row(RECORDS[row.kind], row)
            if record.subject != row.subject:
                raise CatalogError(
                    f"{name}: event {row.sequence} is about {record.subject}, but is filed under {row.subject!r}",
                    subject=row.subject,
                )


class Shelf(Generic[R]):
    """The newest events of one kind, by subject."""

    def __init__(self, cls: type[R]) -> None:
        self._cls = cls
        self._newest: dict[str, Row] = {}
        self._results: dict[str, Row] = {}
        self._parsed: dict[str, Placed[R]] = {}
        self._first: dict[str, int] = {}

    def put(self, row: Row) -> None:
        """Takes the next event of this kind in."""
        if self._cls is OwnerRecord and self._is_outdated_owner(row):
            return
        self._first.setdefault(row.subject, row.sequence)
        self._newest[row.subject] = row
        if row.phase == "result":
            # The order of a shelf is that of the newest results, not of the first ones.
            self._results.pop(row.subject, None)
            self._results[row.subject] = row
            self._parsed.pop(row.subject, None)

    def newest(self, subject: str) -> Row | None:
        """The newest event of a subject, of either phase."""
        return self._newest.get(subject)

    def result(self, subject: str) -> Placed[R] | None:
        """The newest result of a subject."""
        row = self._results.get(subject)
        return None if row is None else self._place(row)

    def results(self, **fields: str | None) -> Iterator[Placed[R]]:
        """The newest results in the log's order: of all subjects, or those with such fields (None: any)."""
        for row in list(self._results.values()):
            if row.may_say(**fields):
                placed = self._place(row)
                if all(value in (None, getattr(placed.record, name)) for name, value in fields.items()):
                    yield placed

    def pending(self) -> Iterator[Placed[R]]:
        """Intents that no result of the same subject followed, in the log's order."""
        rows = sorted((r for r in self._newest.values() if r.phase == "intent"), key=lambda r: r.sequence)
        return (Placed(row.sequence, parse_row(self._cls, row), self._first[row.subject]) for row in rows)

    def _place(self, row: Row) -> Placed[R]:
        placed = self._parsed.get(row.subject)
        if placed is None:
            placed = self._parsed[row.subject] = Placed(
                row.sequence, parse_row(self._cls, row), self._first[row.subject]
            )
        return placed

    def _is_outdated_owner(self, row: Row) -> bool:
        # A node that was cut off may write its old epoch late; the highest epoch wins, not the last word.
        known = self._newest.get(row.subject)
        return known is not None and parse_row(OwnerRecord, row).epoch < parse_row(OwnerRecord, known).epoch


@dataclass(slots=True)
class CopyIndex:
    """Which copies each image has or was about to have."""

    _subjects: dict[str, list[str]] = field(default_factory=dict)
    _epochs: dict[tuple[str, str], int] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)
    _unread: list[Row] = field(default_factory=list)

    def put(self, row: Row) -> None:
        """Takes the next event of a copy in, of either phase."""
        if row.subject not in self._known:
            self._known.add(row.subject)
            self._unread.append(row)

    def subjects(self, image: str) -> list[str]:
        """The subjects of the image's copies."""
        self._read()
        return self._subjects.get(image, [])

    def epoch(self, image: str, destination: str) -> int:
        """The highest epoch begun of this copy; 0 when none was."""
        self._read()
        return self._epochs.get((image, destination), 0)

    def _read(self) -> None:
        # Image, destination and epoch are what a copy's subject is made of, so the first event tells them for
        # good.
        for row in self._unread:
            copy = json.loads(row.body)
            key = (copy["image"], copy["destination"])
            self._subjects.setdefault(copy["image"], []).append(row.subject)
            self._epochs[key] = max(copy["epoch"], self._epochs.get(key, 0))
        self._unread.clear()
