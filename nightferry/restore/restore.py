"""Bringing back: which image, from which copy, which files, where to.

The copies are tried in the order of their expected time. One that turns out damaged is marked, said, and the
next one goes on with the files that are not restored yet; nothing half-written is ever left under a real
name.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from nightferry.copies.accept import warn_unaccepted
from nightferry.copies.read_back import mark_damaged
from nightferry.copies.side_files import side_files
from nightferry.copies.sources import Turns, archived_at, nowhere, open_image_from, sources_of
from nightferry.copies.stream import describe_location
from nightferry.errors import (
    BusyError,
    ConfigError,
    DestinationError,
    GroupStopping,
    IntegrityError,
    MediumDamaged,
    NeedsRecall,
    NightferryError,
    worst_exit_code,
)
from nightferry.image.index import Index, IndexRow
from nightferry.image.reader import ImageReader
from nightferry.model.patterns import Matcher
from nightferry.model.records import ImageRecord
from nightferry.model.text import safe
from nightferry.plan.restore_order import Choice, recalled_last
from nightferry.progress import Cancel, Progress
from nightferry.restore.extract import extract
from nightferry.restore.tree import AS_NEW, RestoreReport, TargetTree, Writing
from nightferry.site.nodes import require_store, working_on
from nightferry.site.opened import OpenSite
from nightferry.staging.images import back_group_of
from nightferry.transfer.reading import FileReader
from nightferry.units import counted, format_duration

log = logging.getLogger(__name__)


class Absent(NamedTuple):
    """A path that the image knows only by name. ``tolerated``: the restore is complete without it."""

    path: bytes
    why: str
    tolerated: bool


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What a restore would do: shown by ``--dry-run``, followed without it."""

    image: ImageRecord
    sources: tuple[Choice, ...]
    rows: tuple[IndexRow, ...]
    target: Path
    absent: tuple[Absent, ...] = ()
    """What was asked for and the image does not hold."""

    @property
    def bytes_wanted(self) -> int:
        return sum(row.payload_length for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        first = self.sources[0] if self.sources else None
        parts = first.copy.location.get("parts", []) if first and first.copy else []
        return {
            "image": self.image.image,
            "copy": first.source if first else None,
            "fallbacks": [p.source for p in self.sources[1:]],
            "sources": [place.as_json() for place in self.sources],
            "needs_recall": [p.source for p in self.sources if p.needs_recall],
            "cartridges": [p["barcode"] for p in parts],
            "location": describe_location(first.copy) if first and first.copy else str(self.image.path),
            "files": len(self.rows),
            "bytes": self.bytes_wanted,
            "predicted_s": round(first.expected_s, 1) if first else None,
            "to": str(self.target),
        }


def find_image(
    site: OpenSite, group: str, store: str, *, as_of: datetime | None = None, image: str | None = None
) -> ImageRecord:
    """The named image, or the newest one whose start is not later than ``as_of``.

    Newest is by the catalog's order; where an image from before it is stamped later, that is said.

    Raises:
        ConfigError: no such store or image, or none that early.
    """
    site.catalog.refresh()
    warn_unaccepted(site)
    require_store(site, f"{group}/{store}")
    if image is not None:
        found = site.catalog.image(image)
        if f"{group}/{store}" not in (f"{found.group}/{found.store}", site.catalog.line_of(found)):
            raise ConfigError(
                f"image {image} belongs to {found.group}/{found.store}, not to {group}/{store}",
                hint=f"`nightferry images --store {group}/{store}` lists the images of this store",
                subject=image,
            )
        return found
    newest = site.catalog.image_as_of(group, store, as_of)
    if newest is None:
        raise ConfigError(
            f"no whole image of {group}/{store}"
            + (f" began by {as_of.isoformat(timespec='seconds')}" if as_of is not None else ""),
            hint=f"`nightferry images --store {group}/{store}` lists its images; --image names a partial one",
            subject=f"{group}/{store}",
        )
    place = site.catalog.place_in_log(newest.image)
    later = [
        i
        for i in site.catalog.images(group, store)
        if i.started > newest.started
        and site.catalog.place_in_log(i.image) < place
        and not site.catalog.expired(i.image)
    ]
    if later:
        site.progress.say(
            f"{newest.image} was recorded last; {counted(len(later), 'older image')} of {group}/{store} "
            f"{'is' if len(later) == 1 else 'are'} stamped later, by a clock that was wrong: {later[0].image}",
            subject=f"{group}/{store}",
        )
    return newest


def plan_restore(
    site: OpenSite,
    image: ImageRecord,
    patterns: Sequence[str],
    target: Path,
    *,
    copy: str | None = None,
) -> RestorePlan:
    """Chooses sources and rows.

    Raises:
        ConfigError: a pattern matches nothing.
        CopyMissing: no readable copy.
    """
    chosen = [row for row in matching_rows(site, image, patterns) if not row.deleted]
    rows = tuple(row for row in chosen if row.stored or row.type == "socket")
    sources = sources_of(site, image, copy, wanted_bytes=sum(row.payload_length for row in rows))
    return RestorePlan(image, sources, rows, target, tuple(_absent(image, chosen, named=bool(patterns))))


def look_for_recalls(site: OpenSite, plan: RestorePlan) -> RestorePlan:
    """The plan in the order in which it would be followed: asks each destination whether its copy must be
    recalled. One that does not answer keeps its place."""
    away = []
    for place in plan.sources:
        try:
            if place.copy is not None and archived_at(site, place.copy) is not None:
                away.append(place.source)
        except NightferryError as error:
            log.info("%s cannot be queried for %s: %s", place.source, plan.image.image, error)
    return replace(plan, sources=tuple(recalled_last(plan.sources, away)))


def _absent(image: ImageRecord, chosen: Sequence[IndexRow], *, named: bool) -> Iterator[Absent]:
    """What a whole image lacks was tolerated, what vanished was not there; who names files wants those."""
    reasons = {"vanished": "it vanished before it was read", "unreadable": "it could not be read"}
    for row in chosen:
        if not row.stored and row.type != "socket":
            tolerated = not named and (image.state != "partial" or row.outcome == "vanished")
            yield Absent(row.path, f"not in the image: {reasons.get(row.outcome, row.outcome)}", tolerated)


def _report_absent(plan: RestorePlan, tree: TargetTree) -> None:
    for path, why, tolerated in plan.absent:
        (tree.lose if tolerated else tree.refuse)(path, why)


def _may_match(chosen: Matcher, single: Mapping[str, Matcher], path: bytes) -> bool:
    """Whether a row of this path, a directory or not, could be asked for: the path does not tell which."""
    return any(
        matcher.matches(path, directory=directory)
        for matcher in (chosen, *single.values())
        for directory in (True, False)
    )


def matching_rows(site: OpenSite, image: ImageRecord, patterns: Sequence[str]) -> Iterator[IndexRow]:
    """The index rows that the patterns choose; all of them without a pattern.

    Raises:
        ConfigError: a pattern chooses nothing.
    """
    chosen = Matcher(patterns)
    unmatched = {pattern: Matcher([pattern.removeprefix("!")]) for pattern in patterns}
    index = Index(side_files(site, image).index)
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


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did."""

    plan: RestorePlan
    copy: str
    """The source that the last file came from."""
    report: RestoreReport
    damaged: tuple[str, ...] = ()
    """Sources that were tried before and found damaged or away."""
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
    site: OpenSite,
    plan: RestorePlan,
    *,
    writing: Writing = AS_NEW,
    progress: Progress,
    cancel: Cancel,
) -> Restored:
    """Follows a plan, place after place until every row is back; what lies in an archive is recalled only when
    nothing else could be read.

    Raises:
        IntegrityError: no place could give it back, one of them because of wrong bytes; what was wrong was
            not left looking whole.
        DestinationError, BusyError: no place could be read.
        GroupStopping: the cluster takes the service's disks away.
        Cancelled: between two pieces.
    """
    subject = f"{plan.image.group}/{plan.image.store}"
    damaged: list[str] = []
    errors: list[NightferryError] = []
    with (
        # The target may lie on the service's own disks, or on any other group's.
        working_on(site, group=plan.image.group, at=plan.target, cancel=cancel, if_here=True) as stop,
        writing.into(plan.target) as tree,
    ):
        _require_no_journals(plan)
        _report_absent(plan, tree)
        done: set[bytes] = set()
        turns = Turns(site, plan.sources)
        for place in turns:
            try:
                progress.say(_describe_source(plan, place), subject=subject)
                turns.ready(place, progress=progress, cancel=stop)
                with (
                    working_on(
                        site,
                        back_group=back_group_of(site, plan.image) if place.copy is None else "",
                        cancel=stop,
                    ) as narrower,
                    open_image_from(site, plan.image, place) as reader,
                ):
                    # The index at hand: on tape the one at the image's end is a long way off and back.
                    index = side_files(site, plan.image).index
                    image = ImageReader(reader, index=index)
                    report = extract(
                        image,
                        plan.rows,
                        tree,
                        done=done,
                        progress=progress,
                        cancel=narrower,
                        subject=subject,
                    )
            except (IntegrityError, DestinationError, BusyError, GroupStopping) as error:
                if isinstance(error, NeedsRecall) and turns.postpone(place, error, progress):
                    continue
                errors.append(error)
                damaged.append(place.source)
                progress.say(f"cannot read {plan.image.image} from {place.source}: {error}", subject=subject)
                if place.copy is not None and isinstance(error, IntegrityError | MediumDamaged):
                    mark_damaged(site, place.copy, error, must_record=False)
                continue
            return Restored(plan, place.source, report, tuple(damaged))
    if not errors:
        raise nowhere(site, plan.image, None)
    gravest = worst_exit_code(error.exit_code for error in errors)
    raise next(error for error in errors if error.exit_code == gravest)


def _describe_source(plan: RestorePlan, place: Choice) -> str:
    """Which way was chosen, and what the others would have taken."""
    others = [f"{p.source} {format_duration(p.expected_s)}" for p in plan.sources if p is not place]
    away = f", {', '.join(place.offsite)} must be brought back first" if place.offsite else ""
    return f"from {place.source}, about {format_duration(place.expected_s)}{away}" + (
        f" (else {', '.join(others)})" if others else ""
    )


def forecast(
    site: OpenSite,
    plan: RestorePlan,
    *,
    writing: Writing = AS_NEW,
    cancel: Cancel,
) -> RestoreReport:
    """What a restore would do to the target; reads no copy and writes nothing."""
    with (
        _nothing_to_read(site, plan.image) as reader,
        writing.into(plan.target) as tree,
    ):
        _require_no_journals(plan)
        _report_absent(plan, tree)
        return extract(reader, plan.rows, tree, dry_run=True, cancel=cancel)


@contextmanager
def _nothing_to_read(site: OpenSite, image: ImageRecord) -> Iterator[ImageReader]:
    """The catalog's index as if it were the image: enough for a dry run, which reads no payload."""
    index = side_files(site, image).index
    with FileReader(os.devnull) as reader:
        yield ImageReader(reader, index=index)


def _require_no_journals(plan: RestorePlan) -> None:
    """A journal that lies where a database is restored to is another one's, and would be replayed onto it.

    Raises:
        ConfigError: one is there.
    """
    if plan.image.source_kind != "sqlite":
        return
    for row in plan.rows:
        for suffix in ("-wal", "-journal") if row.type == "file" else ():
            journal = plan.target / os.fsdecode(row.path + suffix.encode())
            if os.path.lexists(journal):
                raise ConfigError(
                    f"{journal} would be replayed onto the restored {safe(row.path)}: "
                    "it belongs to another database",
                    hint="move it away together with its database, or restore elsewhere with --to",
                    subject=str(journal),
                )
