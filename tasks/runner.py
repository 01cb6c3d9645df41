"""Task runners with a bounded number of threads."""

from __future__ import annotations

from typing import Any, cast

from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner


def threads(workers: int) -> TaskRunner[PrefectFuture[Any]]:
    """A thread pool of ``workers``. Prefect's own default is unbounded."""
    return cast(TaskRunner[PrefectFuture[Any]], ThreadPoolTaskRunner(max_workers=max(1, workers)))
