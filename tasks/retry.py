"""The one table of Prefect's delays: how often and how long after what a task is tried again.

Longer waits than these do not belong into a retry: what is owed is delivered by the next run.
"""

from __future__ import annotations

import os
from typing import Any

from prefect import Task
from prefect.client.schemas.objects import State, TaskRun

from nightferry.errors import NightferryError

STORE_RETRIES = 2
COPY_RETRIES = 3


def delays(retries: int) -> list[float]:
    """Seconds before each retry, growing, at most 5; none when ``NIGHTFERRY_NO_DELAYS`` is set (tests)."""
    if os.environ.get("NIGHTFERRY_NO_DELAYS"):
        return [0.0] * retries
    return [min(5.0, 0.5 * 2**n) for n in range(retries)]


def retryable(task: Task[Any, Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Prefect's ``retry_condition_fn``: only an error whose class says that another try can help."""
    try:
        state.result()
    except NightferryError as error:
        return error.retryable
    except Exception:  # noqa: BLE001 - an error we did not foresee is not made better by repeating it
        return False
    return False
