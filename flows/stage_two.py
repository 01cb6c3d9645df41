"""Stage two: what staging owes, to every destination at once."""

from __future__ import annotations

import contextvars
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture, wait
from prefect.states import Completed, Failed

from blocks.site import Site
from nightferry.copies.stream import note_away, note_there
from nightferry.errors import NightferryError
from nightferry.model.records import ImageRecord
from nightferry.night.hooks import hooked
from nightferry.night.move import require_handed_over, take_over
from nightferry.night.report import expectation
from nightferry.night.run import run_lock
from nightferry.plan.balance import lane_order
from nightferry.progress import Cancel
from nightferry.site.destinations import close_destination, destination_of
from nightferry.site.marker import require_ours
from nightferry.site.opened import OpenSite
from nightferry.staging.owed import owed
from nightferry.staging.ownership import watching_disk
from nightferry.units import counted
from tasks.bridge import CANCEL, PrefectProgress, at_work, opened
from tasks.part import as_own, part, require_success, why_failed
from tasks.place import run_on, runs_here
from tasks.runner import threads
from tasks.stream import deliver_catalog_task, free_staging_task, stream_image_task

COPY_MISSING = "CopyMissing"


@flow(name="stage-two", flow_run_name="stage two of {back_group}", persist_result=False)
def stage_two(site: Site, back_group: str, run: str | None = None, lock: str | None = None) -> State[Any]:
    """One subflow per destination, each with its own threads, so that a slow one never starves another.

    Args:
        site: The site.
        back_group: Whose staging is streamed; what older runs still owe goes first.
        run: Only for the name in the UI.
        lock: The lock of the night that this is a part of; filled in by it.

    Raises:
        GateClosed: the disk is still with the node that staged last.
        NotOwner: the disk went to somebody else meanwhile.
    """
    with at_work():
        here = opened(site)
        owner = here.cluster.where(back_group)
        if not runs_here(here, owner):
            return as_own(
                run_on(owner, stage_two, site, key=f"by hand/{uuid4()}", back_group=back_group, run=run)
            )
        policy = {name for group in here.file.groups_of(back_group) for name in group.copies}
        # A storage group that went to another BACK group may still owe copies from this one.
        names = sorted(
            policy | {each.destination for each in owed(here, back_group) if not each.undeliverable}
        )
        with ExitStack() as stack:
            progress = PrefectProgress()
            stack.enter_context(run_lock(here, back_group, progress=progress, cancel=CANCEL, under=lock))
            take_over(here, back_group, progress=progress, cancel=CANCEL)
            stack.enter_context(here.claims.shared(back_group).read(f"stage two of {run or back_group}"))
            require_handed_over(here, back_group)
            with hooked(
                here,
                "stage-two",
                back_group,
                run=run or "",
                node=here.cluster.where(back_group),
                progress=progress,
                cancel=CANCEL,
            ) as around:
                with watching_disk(here, back_group, CANCEL) as owned:
                    states = _deliver(site, here, back_group, names, owned)
                around.result = "whole" if all(state.is_completed() for state in states) else "partial"
        failed = [name for name, state in zip(names, states, strict=True) if not state.is_completed()]
        if failed:
            return Failed(name=COPY_MISSING, message=f"copies are missing at {', '.join(failed)}")
        return Completed(message=f"{', '.join(names) or 'nothing'} done")


def _deliver(
    site: Site, here: OpenSite, back_group: str, names: list[str], cancel: Cancel
) -> list[State[Any]]:
    with ThreadPoolExecutor(max_workers=max(1, len(names)), thread_name_prefix="to") as pool:
        states = _all_destinations(pool, site, back_group, names)
    cancel.check()
    freed = free_staging_task(site, back_group, return_state=True)
    for name in names:
        # When all have ended and staging is freed, so that every copy of the catalog knows all copies of the night, and
        # what staging no longer has; also where copies are still owed: what was marked by hand since the last
        # night must be known there.
        delivered = deliver_catalog_task(site, name, return_state=True)
        if not delivered.is_completed():
            PrefectProgress().say(
                f"no copy of the catalog delivered to {name}: {why_failed(delivered)}", subject=name
            )
        close_destination(here, name)
    require_success(freed)
    return states


def _all_destinations(
    pool: ThreadPoolExecutor, site: Site, back_group: str, names: list[str]
) -> list[State[Any]]:
    # The flow's context goes along, so that these runs are its children in the graph.
    futures = [
        pool.submit(contextvars.copy_context().run, _to_destination, site, back_group, name) for name in names
    ]
    return [future.result() for future in futures]


def _to_destination(site: Site, back_group: str, destination: str) -> State[Any]:
    here = opened(site)
    try:
        require_ours(here, destination, marking=True)
        lanes = destination_of(here, destination).lanes
        note_there(here, destination)
    except NightferryError as error:
        PrefectProgress().say(f"it cannot be opened: {error}", subject=destination)
        note_away(here, destination, error)
        return Failed(name=COPY_MISSING, message=str(error))
    return part(to_destination.with_options(task_runner=threads(lanes)), site, back_group, destination)


@flow(name="to-destination", flow_run_name="{back_group} to {destination}", persist_result=False)
def to_destination(site: Site, back_group: str, destination: str) -> State[Any]:
    """A task per image, as many at once as the destination has lanes; the longest of a run first."""
    with at_work():
        here = opened(site)
        try:
            futures = _submit(here, site, back_group, destination)
            wait(futures)
            CANCEL.check()
            copies = counted(len(futures), "copy", "copies")
            failed = [f for f in futures if f.state.is_failed()]
        finally:
            close_destination(here, destination)
        if failed:
            return Failed(name=COPY_MISSING, message=f"{len(failed)} of {copies} failed")
        return Completed(message=copies)


def _in_order(images: list[ImageRecord], lanes: int) -> list[ImageRecord]:
    """Drives that take the images in this order end as close together as can be."""
    by_name = {image.image: image for image in images}
    return [by_name[name] for name in lane_order({i.image: i.size_bytes for i in images}, lanes)]


def _submit(here: OpenSite, site: Site, back_group: str, destination: str) -> list[PrefectFuture[Any]]:
    mine = [o.image for o in owed(here, back_group) if o.destination == destination]
    by_run: dict[str, list[ImageRecord]] = {}
    for image in mine:
        by_run.setdefault(image.run, []).append(image)
    lanes = destination_of(here, destination).lanes
    ordered = [image for images in by_run.values() for image in _in_order(images, lanes)]
    expected = expectation(here, ordered, destination)
    if expected:
        PrefectProgress().say(expected, subject=destination)
    return [
        stream_image_task.submit(site, image.image, image.group, image.store, destination)
        for image in ordered
    ]
