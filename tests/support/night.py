"""A whole night at the ops layer, without Prefect: what the flows do, in one thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from nightferry.copies.verify import remake_copy
from nightferry.errors import NightferryError
from nightferry.model.records import RunRecord
from nightferry.night import gate, move, run, stage
from nightferry.night.report import night_result
from nightferry.night.run import must_drain
from nightferry.progress import QUIET, Cancel, Progress
from nightferry.site.nodes import active_node
from nightferry.site.opened import OpenSite
from nightferry.staging import images, owed, room
from tests.support.small_site import BACK_GROUP, HandClock


def stage_one(
    opened: OpenSite,
    back_group: str,
    progress: Progress = QUIET,
    cancel: Cancel | None = None,
    **options: object,
) -> RunRecord:
    """Begins or continues the run, stages every due store, seals; failures are recorded, not raised."""
    cancel = cancel or Cancel()
    with run.run_lock(opened, back_group, progress=progress, cancel=cancel) as lock:
        begun = run.begin_run(opened, back_group, **options)  # type: ignore[arg-type]
        record = begun.run
        lock.name_run(record.run)
        if begun.finished:
            return record
        if gate.evaluate(opened, record).state == "open" and not images.lost_images(opened, record):
            return record
        record = run.set_state(opened, record, node=active_node(opened, back_group))
        move.to_active(opened, record, progress=progress, cancel=cancel)
        record = run.set_state(opened, record, state="staging")
        for group, store in run.due_stores(record):
            try:
                stage.stage_store(opened, record, group, store, progress=progress, cancel=cancel)
            except NightferryError as error:
                stage.record_failure(opened, record, group, store, error, 1)
        gate.write_seal(opened, record)
        return opened.catalog.run(record.run)


def stage_at_once(opened: OpenSite, back_group: str, progress: Progress = QUIET) -> RunRecord:
    """As ``stage_one``, with a thread for each store, and without a seal."""
    with run.run_lock(opened, back_group, progress=progress, cancel=opened.cancel):
        record = run.begin_run(opened, back_group).run
        record = run.set_state(opened, record, node=active_node(opened, back_group))
        move.to_active(opened, record, progress=progress, cancel=opened.cancel)

        def stage_one_of(due: tuple[str, str]) -> None:
            try:
                stage.stage_store(opened, record, *due, progress=progress, cancel=opened.cancel)
            except NightferryError as error:
                stage.record_failure(opened, record, *due, error, 1)

        due = list(run.due_stores(record))
        with ThreadPoolExecutor(len(due)) as pool:
            list(pool.map(stage_one_of, due))
        return opened.catalog.run(record.run)


def stage_two(
    opened: OpenSite, record: RunRecord, progress: Progress = QUIET, cancel: Cancel | None = None
) -> None:
    """Gate, move, every owed copy, free. A copy that fails stops no other one.

    A request to drain ends it between two images. The run ends only when nothing of it is owed.

    Raises:
        NightferryError: the first copy's, when everything else is done.
    """
    cancel = cancel or Cancel()
    with run.run_lock(opened, record.back_group, progress=progress, cancel=cancel) as lock:
        lock.name_run(record.run)
        move.to_passive(opened, record, progress=progress, cancel=cancel)
        record = run.set_state(opened, record, state="streaming")
        failed: list[NightferryError] = []
        with opened.claims.shared(record.back_group).read("stage two"):
            for each in owed.owed(opened, record.back_group):
                if each.undeliverable:
                    continue
                if must_drain(opened, record.back_group):
                    break
                try:
                    remake_copy(opened, each.image, each.destination, progress=progress, cancel=cancel)
                except NightferryError as error:
                    failed.append(error)
            room.free_staging(opened, record.back_group)
        move.drop_move_constraint(opened, record.back_group, progress=progress)
        result = night_result(opened, record)
        if must_drain(opened, record.back_group):
            run.set_state(opened, record, state="drained", result="partial")
        elif not result.missing_copies:
            run.end_run(opened, record, result.run_result)
        if failed:
            raise failed[0]


def night(
    opened: OpenSite,
    back_group: str,
    progress: Progress = QUIET,
    cancel: Cancel | None = None,
    **options: object,
) -> RunRecord:
    """Both stages."""
    record = stage_one(opened, back_group, progress, cancel, **options)
    if record.state != "ended":
        stage_two(opened, record, progress, cancel)
    return opened.catalog.run(record.run)


def nights(opened: OpenSite, clock: HandClock, count: int) -> None:
    """Whole nights, a day apart."""
    for _ in range(count):
        assert night(opened, BACK_GROUP).result == "whole"
        clock.advance(timedelta(days=1))
