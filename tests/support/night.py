"""A whole night at the ops layer, without Prefect: what the flows do, in one thread."""

from __future__ import annotations

from nightferry.errors import NightferryError
from nightferry.model.records import RunRecord
from nightferry.ops import gate, move, room, run, stage, stream
from nightferry.ops.opened import OpenSite
from nightferry.progress import QUIET, Cancel


def stage_one(opened: OpenSite, back_group: str, **options: object) -> RunRecord:
    """Begins or continues the run, stages every due store, seals; failures are recorded, not raised."""
    cancel = Cancel()
    with run.run_lock(opened, back_group, progress=QUIET, cancel=cancel):
        begun = run.begin_run(opened, back_group, **options)  # type: ignore[arg-type]
        record = begun.run
        if begun.finished or gate.look(opened, record).state == "open":
            return record
        move.to_active(opened, record, progress=QUIET, cancel=cancel)
        for group, store in run.due_stores(record):
            try:
                stage.stage_store(opened, record, group, store, progress=QUIET, cancel=cancel)
            except NightferryError as error:
                stage.record_failure(opened, record, group, store, error, 1)
        gate.write_seal(opened, record)
        return opened.catalog.run(record.run)


def stage_two(opened: OpenSite, record: RunRecord) -> None:
    """Gate, move, every owed copy, free."""
    cancel = Cancel()
    with run.run_lock(opened, record.back_group, progress=QUIET, cancel=cancel):
        move.to_passive(opened, record, progress=QUIET, cancel=cancel)
        with opened.disk(record.back_group).read_lease("stage two"):
            for owed in stream.owed(opened, record.back_group):
                stream.stream_image(opened, owed.image, owed.destination, progress=QUIET, cancel=cancel)
            room.free_staging(opened, record.back_group)
        run.end_run(opened, record, "whole")


def night(opened: OpenSite, back_group: str, **options: object) -> RunRecord:
    """Both stages."""
    record = stage_one(opened, back_group, **options)
    if record.state != "ended":
        stage_two(opened, record)
    return opened.catalog.run(record.run)
