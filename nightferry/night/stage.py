"""Stage one of one store: source → image on staging → read back → record.

The order of the commits makes every crash harmless. ``<image>.tar.partial`` grows; when it is whole and on
the disk, its side files are written, then it is renamed, then a sample is read back, and only then the
catalog gets its record. A rerun returns a recorded image, adopts a renamed one after checking every byte, and
removes a partial.
"""

from __future__ import annotations

import logging
import os
from contextlib import closing
from pathlib import Path
from typing import assert_never

from nightferry import __version__
from nightferry.cluster.disk import OwnerToken
from nightferry.copies.origin import new_line, origin_now, suspicion
from nightferry.errors import (
    Cancelled,
    ConfigError,
    NightferryError,
    NotInThisRelease,
    NotOwner,
    StagingFull,
)
from nightferry.image.format import ImageHeader
from nightferry.image.writer import ImageSummary, ImageWriter
from nightferry.model.names import image_name
from nightferry.model.records import FailureRecord, ImageRecord, RunRecord
from nightferry.model.stores import (
    CommandStore,
    FilesStore,
    NdmpStore,
    PostgresStore,
    SqliteStore,
    Store,
    StoreRef,
)
from nightferry.progress import Cancel, Progress
from nightferry.site.nodes import require_here, working_on
from nightferry.site.opened import OpenSite
from nightferry.site.throttles import staging_throttle
from nightferry.source.base import Estimate, StoreSource
from nightferry.staging.adoption import adopt_image, prove_chunks, record_image, state_of
from nightferry.staging.images import is_kept, may_come_whole
from nightferry.staging.ownership import confirm, watching_disk
from nightferry.staging.room import free_room, free_staging, room_lock
from nightferry.staging.scratch import scratch_folder
from nightferry.staging.staged_files import StagedFiles
from nightferry.transfer.direct import DirectWriter
from nightferry.transfer.files import NO_SPACE
from nightferry.transfer.meter import Meter, to_json_lines
from nightferry.transfer.ring import RingSettings
from nightferry.units import counted, format_size

log = logging.getLogger(__name__)

MEMBER_OVERHEAD_BYTES = 4096
"""Room for one member's headers, its padding and its index row: a few blocks for most, and a page for a large
member's alignment."""

IMAGE_OVERHEAD_BYTES = 1 << 20
"""Room for the first and last members and the index's own header."""


def stage_store(
    site: OpenSite, run: RunRecord, group: str, store: str, *, progress: Progress, cancel: Cancel
) -> ImageRecord:
    """Brings one store of a run onto staging, unless it is there already; a partial or suspect image is tried again.

    Memory: one ring (``staging.buffers`` × ``staging.buffer_bytes``) and the image's index rows.

    Raises:
        ConfigError: the store is not in the site file any more, or its path is missing.
        StoreUnreadable: it cannot be read for now (retryable).
        StagingFull: it does not fit; its partial is gone.
        NotOwner: this node does not own the BACK disk, or lost it meanwhile.
        IntegrityError: what was written does not read back.
        GroupStopping: the cluster takes the store's or the disk's group away; nothing whole was left.
        Cancelled: stopped between two buffers; nothing whole was left.
    """
    definition = _defined(site, group, store)
    with (
        working_on(site, group=group, back_group=run.back_group, cancel=cancel) as narrower,
        watching_disk(site, run.back_group, narrower, require_owner(site, run)) as owned,
    ):
        return _stage(site, run, definition, progress=progress, cancel=owned)


def _stage(
    site: OpenSite,
    run: RunRecord,
    definition: StoreRef,
    *,
    progress: Progress,
    cancel: Cancel,
) -> ImageRecord:
    group, store = definition.group.name, definition.store.name
    image = image_name(run.run, group, store, run.level)
    known = site.catalog.latest(ImageRecord, image)
    again = known is not None and may_come_whole(site, known)
    if known is not None and not again and is_kept(site, known):
        progress.say(f"{group}/{store} is already staged", subject=f"{group}/{store}")
        return known
    target = StagedFiles(Path(site.file.back_group(run.back_group).path), image)
    target.make_folder(0o700 if site.file.staging.restricted else 0o750)
    if target.size_bytes() is not None and not again:
        adopted = adopt_image(site, target, progress, cancel)
        if adopted is not None:
            return adopted
    record, summary = _write(site, run, definition, target, progress=progress, cancel=cancel)
    prove_chunks(target, summary.chunks, site.file.staging.verify_share, cancel=cancel)
    confirm(site, run.back_group)
    record_image(site, record, summary.index, summary.chunks)
    return record


def _defined(site: OpenSite, group: str, store: str) -> StoreRef:
    try:
        return site.file.store(f"{group}/{store}")
    except ConfigError as error:
        raise ConfigError(
            f"store {group}/{store} is in the fixed selection but no longer in the site file",
            hint=f"put it back into the site file; or run `nightferry selection fix {group}`, then use --new",
            subject=f"{group}/{store}",
        ) from error


def require_owner(site: OpenSite, run: RunRecord) -> OwnerToken:
    """The BACK disk's token, which names the run's node.

    Raises:
        NotOwner: it names another node, or this is another one.
    """
    require_here(site, run.node, f"stage one of {run.run}")
    token = site.disk(run.back_group).owner()
    if token is None or token.node != run.node:
        owner = token.node if token else "nobody"
        raise NotOwner(
            f"{run.node} does not own the disk of {run.back_group}: its token names {owner}",
            subject=run.back_group,
        )
    return token


def _write(
    site: OpenSite,
    run: RunRecord,
    definition: StoreRef,
    target: StagedFiles,
    *,
    progress: Progress,
    cancel: Cancel,
) -> tuple[ImageRecord, ImageSummary]:
    """Writes the image and gives it its name; when that fails, nothing of it is left, except on a disk that
    is not ours any more: that one is left as it is, and its half-written image has no name."""
    _discard(target)
    try:
        return _write_image(site, run, definition, target, progress=progress, cancel=cancel)
    except BaseException as error:
        progress.end(definition.name, "cancelled" if isinstance(error, Cancelled) else "failed")
        # What fails on a disk that was lost failed because of that, and there is nothing of ours to clear.
        confirm(site, run.back_group)
        _discard(target)
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            raise StagingFull(
                f"no space left on {site.file.back_group(run.back_group).path} for {definition.name}",
                subject=definition.name,
            ) from error
        raise


def _give_up(site: OpenSite, run: RunRecord, sink: DirectWriter, target: StagedFiles) -> None:
    """Takes a half-written image away; on a disk that is not ours any more nothing is changed."""
    try:
        confirm(site, run.back_group)
    except NotOwner:
        sink.abandon()
        raise
    sink.abort()
    target.remove(".tar.partial")


def _discard(target: StagedFiles) -> None:
    """Removes what an unfinished writing left; an image that has its name keeps its side files."""
    target.remove(".tar.partial")
    if target.size_bytes() is None:
        target.remove(".chunks", ".meta.json")


def _write_image(
    site: OpenSite,
    run: RunRecord,
    definition: StoreRef,
    target: StagedFiles,
    *,
    progress: Progress,
    cancel: Cancel,
) -> tuple[ImageRecord, ImageSummary]:
    subject = definition.name
    group, store = definition
    started = site.clock.now()
    times = os.times()
    source = open_source(store, scratch_folder(site, run.back_group))
    try:
        estimate = source.estimate()
        origin = origin_now(definition)
        progress.begin(subject, "stage", estimate.bytes)
        with Meter() as meter:
            sink = _reserve(site, run, target, expected_bytes(estimate), meter, cancel, subject)
            try:
                header = ImageHeader(
                    image=target.image,
                    run=run.run,
                    group=group.name,
                    store=store.name,
                    level=run.level,
                    source_kind=store.kind,
                    source=source.description | _described(definition),
                    node=run.node,
                    started=started,
                    nightferry=__version__,
                )
                scratch = scratch_folder(site, run.back_group)
                with closing(ImageWriter(sink, header, spill_directory=scratch)) as writer:
                    source.write(writer, progress=progress, cancel=cancel, subject=subject)
                    summary = writer.finish()
            except BaseException:
                _give_up(site, run, sink, target)
                raise
    finally:
        source.close()
    ended = site.clock.now()
    used = os.times()
    seconds = max((ended - started).total_seconds(), 1e-6)
    state = state_of(summary.outcomes, definition.tolerate)
    begins = new_line(site, definition, header.image)
    record = ImageRecord(
        image=header.image,
        run=run.run,
        group=group.name,
        store=store.name,
        source_kind=store.kind,
        level=run.level,
        state=state,
        size_bytes=summary.size_bytes,
        payload_bytes=summary.payload_bytes,
        files=summary.files,
        outcomes=summary.outcomes,
        digest=summary.digest,
        index_offset=summary.index_offset,
        index_bytes=summary.index_bytes,
        index_digest=summary.index_digest,
        path=f"{group.name}/{store.name}/{target.image}.tar",
        node=run.node,
        started=started,
        ended=ended,
        degraded=meter.is_degraded,
        unbuffered=sink.unbuffered,
        rate_bytes_per_s=summary.size_bytes / seconds,
        cpu_s=used.user - times.user + used.system - times.system,
        cpu_system_s=used.system - times.system,
        notes=(*summary.notes, *([begins] if begins else [])),
        origin=origin,
        policy=group.copies,
        at_least=group.at_least,
    )
    if state == "whole":
        record = _doubted(site, definition, record)
    for note in record.notes:
        progress.say(f"{subject}: {note}", subject=subject)
    if meter.is_degraded:
        progress.say(f"{subject} slowed down by more than 10 % over 20 minutes: degraded", subject=subject)
    confirm(site, run.back_group)
    site.catalog.keep_samples(record.image, to_json_lines(meter.samples))
    target.replace(".chunks", summary.chunks)
    target.replace(".meta.json", record.model_dump_json(indent=1).encode() + b"\n")
    target.rename(".tar.partial", ".tar")
    progress.advance(subject, summary.payload_bytes)
    progress.end(subject, record.state)
    return record, summary


def _doubted(site: OpenSite, definition: StoreRef, record: ImageRecord) -> ImageRecord:
    """The record of a whole image: as it is, or suspect and why."""
    why = suspicion(site, definition, record)
    return record.model_copy(update={"state": "suspect", "suspect": why}) if why else record


def expected_bytes(estimate: Estimate) -> int:
    """How large an image will be at most, unless the store grows: content, tar headers, index, alignment."""
    return estimate.bytes + estimate.files * MEMBER_OVERHEAD_BYTES + IMAGE_OVERHEAD_BYTES


def _described(definition: StoreRef) -> dict[str, str]:
    """The operator's own words for the store, else for its storage group."""
    words = definition.store.description or definition.group.description
    return {"description": words} if words else {}


def _reserve(
    site: OpenSite,
    run: RunRecord,
    target: StagedFiles,
    size_bytes: int,
    meter: Meter,
    cancel: Cancel,
    subject: str,
) -> DirectWriter:
    """Looks at the free room and takes it in one step, so that two stores never count on the same room."""
    with room_lock(site, run.back_group):
        room = free_room(site, run.back_group)
        if size_bytes > room:
            freed = free_staging(site, run.back_group, needed_bytes=size_bytes - room)
            log.info("freed %s to make space for %s", counted(len(freed), "image"), subject)
            room = free_room(site, run.back_group)
        if size_bytes > room:
            disk = site.file.back_group(run.back_group).path
            raise StagingFull(
                f"{subject} needs {format_size(size_bytes)} on {disk}, "
                f"{format_size(max(room, 0))} may be used",
                subject=subject,
            )
        fd = target.create(".tar.partial", 0o600 if site.file.staging.restricted else 0o640)
        try:
            return DirectWriter(
                f"{target.tar}.partial",
                settings=_ring_settings(site),
                expected_bytes=size_bytes,
                meter=meter,
                throttle=staging_throttle(site),
                cancel=cancel,
                fd=fd,
            )
        finally:
            os.close(fd)


def record_failure(
    site: OpenSite, run: RunRecord, group: str, store: str, error: BaseException, attempts: int
) -> FailureRecord:
    """Remembers why a store of this run is not staged, for the gate and the report."""
    known = isinstance(error, NightferryError)
    failure = FailureRecord(
        run=run.run,
        group=group,
        store=store,
        error=str(error) if known else f"{type(error).__name__}: {error}",
        hint=error.hint if isinstance(error, NightferryError) else "",
        exit_code=error.exit_code if isinstance(error, NightferryError) else 1,
        attempts=attempts,
        at=site.clock.now(),
    )
    site.catalog.append(failure)
    return failure


def _ring_settings(site: OpenSite) -> RingSettings:
    """How one stream of stage one moves bytes; all streams together hold at most twice ``buffers``."""
    staging = site.file.staging
    share = max(2, min(staging.buffers, 2 * staging.buffers // staging.streams))
    return RingSettings(buffer_bytes=staging.buffer_bytes, buffers=share, unbuffered=staging.unbuffered)


def open_source(store: Store, scratch: Path) -> StoreSource:
    """Opens the store for reading.

    Args:
        store: As the site file says.
        scratch: A folder on staging for what must become a file before it becomes a member.

    Raises:
        ConfigError: the store's path is not there.
        StoreUnreadable: it cannot be read for now.
        NotInThisRelease: a later release reads this kind.
    """
    match store:
        case FilesStore():
            from nightferry.source.files import FilesSource

            return FilesSource(store.path, exclude=store.exclude)
        case SqliteStore():
            from nightferry.source.sqlite import SqliteSource

            return SqliteSource(store.path, scratch)
        case PostgresStore() | CommandStore() | NdmpStore():
            raise NotInThisRelease(
                f"stores of kind {store.kind!r} are not in this release", subject=store.name
            )
        case _:
            assert_never(store)
