"""Stage one's tasks: one per store; small stores share one."""

from __future__ import annotations

from collections.abc import Sequence

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import task_run

from blocks.site import Site
from nightferry.errors import Cancelled, NightferryError
from nightferry.model.records import RunRecord
from nightferry.night import stage
from nightferry.site.opened import OpenSite
from tasks.bridge import CANCEL, PrefectProgress, opened
from tasks.retry import STORE_RETRIES, delays, retryable


@task(
    name="stage",
    task_run_name="stage {group}/{store}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=STORE_RETRIES,
    retry_delay_seconds=delays(STORE_RETRIES),
    retry_condition_fn=retryable,
)
def stage_store_task(site: Site, run: str, group: str, store: str, delay_s: float = 0.0) -> str:
    """Brings one store onto staging; returns the image's name.

    ``delay_s`` staggers the storage groups: it waits until the group's own start.
    """
    here = opened(site)
    CANCEL.wait(delay_s)
    record = here.catalog.run(run)
    attempt = task_run.run_count or 1
    try:
        image = stage.stage_store(here, record, group, store, progress=PrefectProgress(), cancel=CANCEL)
    except Cancelled:
        raise
    except Exception as error:
        if not (isinstance(error, NightferryError) and error.retryable and attempt <= STORE_RETRIES):
            stage.record_failure(here, record, group, store, error, attempt)
        raise
    return image.image


@task(
    name="stage small stores",
    task_run_name="stage {count} small stores of {group}",
    cache_policy=NO_CACHE,
    persist_result=False,
)
def stage_batch(
    site: Site, run: str, group: str, stores: Sequence[str], count: int, delay_s: float = 0.0
) -> list[str]:
    """Several small stores in one task; each is retried on its own inside. Returns the stores that failed."""
    here = opened(site)
    CANCEL.wait(delay_s)
    record = here.catalog.run(run)
    failed = []
    for store in stores:
        if not _stage_with_retries(here, record, group, store):
            failed.append(store)
    return failed


def _stage_with_retries(here: OpenSite, record: RunRecord, group: str, store: str) -> bool:
    for attempt, delay_s in enumerate([*delays(STORE_RETRIES), None], start=1):
        try:
            stage.stage_store(here, record, group, store, progress=PrefectProgress(), cancel=CANCEL)
        except Cancelled:
            raise
        except NightferryError as error:
            if error.retryable and delay_s is not None:
                CANCEL.wait(delay_s)
                continue
            stage.record_failure(here, record, group, store, error, attempt)
            return False
        except Exception as error:  # noqa: BLE001 - one store's fault must not stop the batch; it is recorded
            stage.record_failure(here, record, group, store, error, attempt)
            return False
        return True
    return False
