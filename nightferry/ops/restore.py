"""Bringing back: which image, from which copy, which files, where to.

The copies are tried in the order of their expected time. One that turns out damaged is marked, said, and the
next one goes on with the files that are not restored yet; nothing half-written is ever left under a real
name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from nightferry.errors import (
    BusyError,
    ConfigError,
    CopyMissing,
    DestinationError,
    IntegrityError,
    MediumDamaged,
    NightferryError,
    NotInThisRelease,
    PartialResult,
    worst_exit_code,
)
from nightferry.image.chunks import CheckedReader
from nightferry.image.index import Index, IndexRow
from nightferry.image.reader import ImageReader
from nightferry.model.records import ImageRecord
from nightferry.model.stores import FilesStore, SqliteStore
from nightferry.model.text import safe
from nightferry.ops.extract import extract
from nightferry.ops.in_place import beside, in_place_exchange, store_in_use
from nightferry.ops.opened import OpenSite
from nightferry.ops.restored import RestoreReport
from nightferry.ops.stream import describe_location, mark_damaged
from nightferry.ops.tree import Overwrite, TargetTree
from nightferry.plan.match import Matcher
from nightferry.plan.restore_order import STAGING, Choice, choose_copies
from nightferry.progress import Cancel, Progress
from nightferry.transfer.base import ByteReader
from nightferry.transfer.reading import FileReader


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What a restore would do: shown by ``--dry-run``, followed without it."""

    image: ImageRecord
    places: tuple[Choice, ...]
    rows: tuple[IndexRow, ...]
    target: Path
    notes: tuple[str, ...] = field(default=())

    @property
    def bytes_wanted(self) -> int:
        return sum(row.payload_length for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        first = self.places[0] if self.places else None
        parts = first.copy.location.get("parts", []) if first and first.copy else []
        return {
            "image": self.image.image,
            "copy": first.source if first else None,
            "fallbacks": [p.source for p in self.places[1:]],
            "cartridges": [p["barcode"] for p in parts],
            "location": describe_location(first.copy) if first and first.copy else str(self.image.path),
            "files": len(self.rows),
            "bytes": self.bytes_wanted,
            "predicted_s": round(first.expected_s, 1) if first else None,
            "to": str(self.target),
        }


def find_image(
    opened: OpenSite, group: str, store: str, *, as_of: datetime | None = None, image: str | None = None
) -> ImageRecord:
    """The named image, or the newest one whose start is not later than ``as_of``.

    Raises:
        ConfigError: no such store or image, or none that early.
    """
    opened.site.store(f"{group}/{store}")
    opened.catalog.refresh()
    if image is not None:
        found = opened.catalog.image(image)
        if (found.group, found.store) != (group, store):
            raise ConfigError(f"image {image} is of {found.group}/{found.store}, not of {group}/{store}")
        return found
    when = as_of or opened.clock.now()
    newest = opened.catalog.image_as_of(group, store, when)
    if newest is None:
        raise ConfigError(
            f"no whole image of {group}/{store} began by {when.isoformat(timespec='seconds')}",
            hint=f"`nightferry images --store {group}/{store}` lists what there is; "
            "--image names a partial one",
            subject=f"{group}/{store}",
        )
    return newest


def places_of(
    opened: OpenSite, image: ImageRecord, only: str | None = None, *, wanted_bytes: int | None = None
) -> tuple[Choice, ...]:
    """Where the image can be read from, the nearest first.

    Raises:
        ConfigError: ``only`` is not the name of a destination.
        CopyMissing: there is no readable copy.
    """
    staged = not opened.catalog.freed(image.image) and opened.staged_path(image).exists()
    copies = opened.catalog.copies(image.image)
    if only == STAGING:
        copies = []
    elif only is not None:
        opened.site.destination(only)
        copies = [c for c in copies if c.destination == only]
        staged = False
    ordered = tuple(choose_copies(image, copies, staged, opened.speeds(), wanted_bytes=wanted_bytes))
    if not ordered:
        raise CopyMissing(
            f"no readable copy of image {image.image}" + (f" at {only}" if only else ""),
            hint=f"`nightferry copies {image.image}` shows where it was",
            subject=image.image,
        )
    return ordered


def plan_restore(
    opened: OpenSite,
    image: ImageRecord,
    patterns: Sequence[str],
    target: Path,
    *,
    copy: str | None = None,
) -> RestorePlan:
    """Chooses places and rows.

    Raises:
        ConfigError: a pattern matches nothing.
        CopyMissing: no readable copy.
    """
    rows = tuple(row for row in matching_rows(opened, image, patterns) if row.stored)
    places = places_of(opened, image, copy, wanted_bytes=sum(row.payload_length for row in rows))
    return RestorePlan(image, places, rows, target)


def _may_match(chosen: Matcher, single: Mapping[str, Matcher], path: bytes) -> bool:
    """Whether a row of this path, a directory or not, could be asked for: the path does not tell which."""
    return any(
        matcher.matches(path, directory=directory)
        for matcher in (chosen, *single.values())
        for directory in (True, False)
    )


def matching_rows(opened: OpenSite, image: ImageRecord, patterns: Sequence[str]) -> Iterator[IndexRow]:
    """The index rows that the patterns choose; all of them without a pattern.

    Raises:
        ConfigError: a pattern chooses nothing.
    """
    chosen = Matcher(patterns)
    unmatched = {pattern: Matcher([pattern.removeprefix("!")]) for pattern in patterns}
    index = Index(opened.catalog.index_path(image.image).read_bytes())
    for row in index.select(lambda path: _may_match(chosen, unmatched, path)) if patterns else index:
        is_directory = row.type == "directory"
        for pattern in [p for p, m in unmatched.items() if m.matches(row.path, directory=is_directory)]:
            del unmatched[pattern]
        if chosen.matches(row.path, directory=is_directory):
            yield row
    if unmatched:
        raise ConfigError(
            f"nothing in image {image.image} matches {', '.join(safe(p) for p in unmatched)}",
            hint=f"`nightferry files {image.image}` lists what is in it",
            subject=image.image,
        )


@contextmanager
def open_place(opened: OpenSite, image: ImageRecord, place: Choice) -> Iterator[ByteReader]:
    """The image's bytes at a place; each chunk is proved against the chunk table before it is handed out."""
    chunks = opened.catalog.chunks(image.image)
    if place.copy is None:
        back_group = opened.site.group(image.group).back_group
        with (
            opened.disk(back_group).read_lease(f"restore of {image.image}"),
            FileReader(opened.staged_path(image)) as reader,
        ):
            yield CheckedReader(reader, chunks)
    else:
        with opened.destination(place.copy.destination).open(place.copy.location) as reader:
            yield CheckedReader(reader, chunks)


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did."""

    plan: RestorePlan
    copy: str
    """The place the last file came from."""
    report: RestoreReport
    damaged: tuple[str, ...] = ()
    """Places that were tried before and found damaged or away."""
    previous: str = ""
    """After an in-place restore: where the old content lies."""

    @property
    def is_complete(self) -> bool:
        return self.report.complete

    def as_json(self) -> dict[str, Any]:
        return {
            "image": self.plan.image.image,
            "copy": self.copy,
            "to": str(self.plan.target),
            "damaged": list(self.damaged),
            "previous": self.previous or None,
            **self.report.as_json(),
        }


def restore(
    opened: OpenSite,
    plan: RestorePlan,
    *,
    below: Path | None = None,
    overwrite: Overwrite = "never",
    privileged: bool = False,
    map_owner: Mapping[str, str] | None = None,
    progress: Progress,
    cancel: Cancel,
) -> Restored:
    """Follows a plan, place after place until every row is back.

    With ``below`` the target is walked to from there without following a link.

    Raises:
        IntegrityError: no place could give it back, one of them because of wrong bytes; what was wrong was not
            left looking whole.
        DestinationError: no place could be read.
        Cancelled: between two pieces.
    """
    subject = f"{plan.image.group}/{plan.image.store}"
    damaged: list[str] = []
    errors: list[NightferryError] = []
    with TargetTree(
        plan.target, overwrite=overwrite, privileged=privileged, map_owner=map_owner, below=below
    ) as tree:
        done: set[bytes] = set()
        for place in plan.places:
            try:
                with open_place(opened, plan.image, place) as reader:
                    image = ImageReader(reader, None)
                    report = extract(
                        image,
                        plan.rows,
                        tree,
                        done=done,
                        progress=progress,
                        cancel=cancel,
                        subject=subject,
                    )
            except (IntegrityError, DestinationError) as error:
                errors.append(error)
                damaged.append(place.source)
                progress.say(f"{place.source} cannot give {plan.image.image} back: {error}", subject=subject)
                if place.copy is not None and isinstance(error, IntegrityError | MediumDamaged):
                    mark_damaged(opened, place.copy, error)
                continue
            return Restored(plan, place.source, report, tuple(damaged))
    if not errors:
        raise CopyMissing(f"no readable copy of image {plan.image.image}", subject=plan.image.image)
    gravest = worst_exit_code(error.exit_code for error in errors)
    raise next(error for error in errors if error.exit_code == gravest)


def forecast(
    opened: OpenSite,
    plan: RestorePlan,
    *,
    overwrite: Overwrite = "never",
    privileged: bool = False,
    map_owner: Mapping[str, str] | None = None,
    cancel: Cancel,
) -> RestoreReport:
    """What a restore would do to the target; reads no copy and writes nothing."""
    with (
        _nothing_to_read(opened, plan.image) as reader,
        TargetTree(plan.target, overwrite=overwrite, privileged=privileged, map_owner=map_owner) as tree,
    ):
        return extract(reader, plan.rows, tree, dry_run=True, cancel=cancel)


@contextmanager
def _nothing_to_read(opened: OpenSite, image: ImageRecord) -> Iterator[ImageReader]:
    """The catalog's index as if it were the image: enough for a dry run, which reads no payload."""
    path = opened.catalog.index_path(image.image)
    with FileReader(path) as reader:
        yield ImageReader(reader, index=path.read_bytes())


def plan_in_place(opened: OpenSite, image: ImageRecord, *, copy: str | None = None) -> RestorePlan:
    """The plan of an in-place restore: everything, beside the store.

    Raises:
        NotInThisRelease: the store's kind has no place on a file system.
    """
    path = _place_of(opened, image)
    return plan_restore(opened, image, [], beside(path, image.run), copy=copy)


def _place_of(opened: OpenSite, image: ImageRecord) -> Path:
    name = f"{image.group}/{image.store}"
    store = opened.site.store(name).store
    if not isinstance(store, FilesStore | SqliteStore):
        raise NotInThisRelease(
            f"in-place restores of {store.kind} stores are not in this release", subject=name
        )
    return store.path


def restore_in_place(
    opened: OpenSite,
    plan_for: ImageRecord,
    *,
    copy: str | None = None,
    privileged: bool = False,
    map_owner: Mapping[str, str] | None = None,
    progress: Progress,
    cancel: Cancel,
) -> Restored:
    """Restores a whole store beside itself, then exchanges the two by rename.

    Raises:
        BusyError: the store is in use; the message names the processes.
    """
    name = f"{plan_for.group}/{plan_for.store}"
    path = _place_of(opened, plan_for)
    use = store_in_use(path)
    if use.processes:
        raise BusyError(
            f"store {name} is in use by {', '.join(use.processes)}",
            hint="stop what uses it, then restore in place again; or restore elsewhere with --to",
            subject=name,
        )
    if use.unseen:
        progress.say(f"{use.unseen} processes could not be looked into: make sure none of them uses {path}")
    plan = plan_in_place(opened, plan_for, copy=copy)
    new = plan.target
    if new.exists():
        raise ConfigError(
            f"{new} is left over from an interrupted restore",
            hint="look at it, remove it, then restore again",
            subject=name,
        )
    done = restore(opened, plan, privileged=privileged, map_owner=map_owner, progress=progress, cancel=cancel)
    if not done.is_complete:
        raise PartialResult(
            f"store {name} was not exchanged: something could not be restored",
            hint=f"what was restored is at {new}; look at its report with --to",
            subject=name,
        )
    single = new / path.name
    is_file = [row.path for row in plan.rows] == [os.fsencode(path.name)] and not single.is_dir()
    if plan_for.source_kind == "sqlite":
        _set_journals_aside(path, plan_for.run)
    previous = in_place_exchange(path, single if is_file else new, plan_for.run)
    if is_file:
        new.rmdir()
    return replace(done, plan=replace(plan, target=path), previous=str(previous) if previous else "")


def _set_journals_aside(database: Path, run: str) -> None:
    """Takes an old database's journals out of the way before the exchange: replayed onto the new one they
    would destroy it. Nobody has the database open, so a journal is only there after its last user crashed."""
    for suffix in ("-wal", "-shm", "-journal"):
        journal = database.with_name(database.name + suffix)
        if journal.exists():
            journal.rename(journal.with_name(f"{journal.name}.before-{run}"))
