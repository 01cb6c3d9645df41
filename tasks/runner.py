"""Task runners with a bounded number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from prefect.context import FlowRunContext
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner


def threads(workers: int) -> TaskRunner[PrefectFuture[Any]]:
    """A thread pool of ``workers``. Prefect's own default is unbounded."""
    return cast(TaskRunner[PrefectFuture[Any]], ThreadPoolTaskRunner(max_workers=max(1, workers)))


@contextmanager
def at_once(workers: int) -> Iterator[None]:
    """Within the block, at most ``workers`` of the tasks that the current flow submits run at once.

    For flows whose number of threads only the site file knows, and that may be started by a deployment.
    """
    calling = FlowRunContext.get()
    if calling is None:
        raise RuntimeError("tasks are submitted inside a flow")
    with threads(workers) as runner, calling.model_copy(update={"task_runner": runner}):
        yield
