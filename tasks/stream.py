"""Stage two's tasks: one per image and destination."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from blocks.site import Site
from nightferry.copies import delivery
from nightferry.copies.verify import remake_copy
from nightferry.night.run import must_drain
from nightferry.staging import room
from nightferry.staging.images import back_group_of
from tasks.bridge import CANCEL, PrefectProgress, opened
from tasks.retry import COPY_RETRIES, delays, retryable


@task(
    name="stream",
    task_run_name="{group}/{store} to {destination}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=COPY_RETRIES,
    retry_delay_seconds=delays(COPY_RETRIES),
    retry_condition_fn=retryable,
)
def stream_image_task(site: Site, image: str, group: str, store: str, destination: str) -> str:
    """One verified copy; returns its state. A drain request is honoured here, between two images."""
    here = opened(site)
    record = here.catalog.image(image)
    if must_drain(here, back_group_of(here, record)):
        return "drained"
    copy = remake_copy(here, record, destination, progress=PrefectProgress(), cancel=CANCEL)
    return copy.state


@task(
    name="free staging",
    task_run_name="free staging of {back_group}",
    cache_policy=NO_CACHE,
    persist_result=False,
)
def free_staging_task(site: Site, back_group: str) -> int:
    """Frees what verified copies allow; returns how many images."""
    return len(room.free_staging(opened(site), back_group))


@task(
    name="deliver the catalog",
    task_run_name="catalog to {destination}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=1,
    retry_delay_seconds=delays(1),
    retry_condition_fn=retryable,
)
def deliver_catalog_task(site: Site, destination: str) -> str:
    """A copy of the catalog to a destination; returns its name there."""
    here = opened(site)
    return delivery.deliver_catalog(here, destination, here.clock.now())
