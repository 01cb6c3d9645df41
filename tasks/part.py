"""A part of the night as a subflow, or without one: the server shows the night, it does not carry it."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import prefect.exceptions
from prefect import Flow
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Completed, Failed

from nightferry.errors import NightferryError, PrefectRequired

log = logging.getLogger(__name__)

SERVER_AWAY = (httpx.TransportError, PrefectHTTPStatusError)
"""What Prefect's engine raises, past a flow's own state, when its server does not answer or cannot work."""


def refused(error: Exception) -> bool:
    """Whether the server answered, and will say the same again: the question was wrong, or is not allowed."""
    if not isinstance(error, PrefectHTTPStatusError):
        return False
    status = error.response.status_code
    return 400 <= status < 500 and status not in (408, 429)


def part(flow: Flow[..., Any], *arguments: Any, **options: Any) -> State[Any]:
    """Runs a subflow and returns its final state.

    When the server is away, Prefect can neither begin nor end a subflow. Then the same steps run as steps
    of the calling flow, with the subflow's own threads. What the subflow had done already is found in the
    records, as in every rerun.
    """
    try:
        # Called through Any: Flow's overloads do not see return_state behind unknown keywords.
        call: Any = flow
        state: State[Any] = call(*arguments, **options, return_state=True)
    except SERVER_AWAY as error:
        log.warning("the Prefect server is away (%s); %s continues without being shown", error, flow.name)
    else:
        return state
    calling = FlowRunContext.get()
    if calling is None:
        raise RuntimeError(f"{flow.name} is a part of a flow and was called outside of one")
    with flow.task_runner.duplicate() as runner, calling.model_copy(update={"task_runner": runner}):
        try:
            ended = flow.fn(*arguments, **options)
        except NightferryError as error:
            # As of a subflow, the failure is its state.
            return Failed(message=str(error), data=error)
    return ended if isinstance(ended, State) else Completed(message=f"{flow.name} ended")


def unexpected(kind: str, message: str) -> NightferryError:
    """The error for an exception that is none of ours, by the name of its class: Prefect's own, or a fault."""
    if hasattr(prefect.exceptions, kind) or hasattr(httpx, kind):
        return PrefectRequired(
            message, hint="look at the flow run in the Prefect UI; a rerun continues the night"
        )
    return NightferryError(message)


def why_failed(state: State[Any]) -> str:
    """What a run failed with, in our own error's words where it is one."""
    error = state.result(raise_on_failure=False)
    return error.message if isinstance(error, NightferryError) else str(state.message)


def require_success(state: State[Any]) -> None:
    """Raises what a part of the night failed with."""
    if not state.is_completed():
        state.result()


def as_own(state: State[Any]) -> State[Any]:
    """A part's end as the calling flow's own: Prefect would only count a child's state.

    Raises what the part failed with, if that is an error and no named outcome.
    """
    if not state.is_completed() and state.name in ("Failed", "Crashed", "Cancelled"):
        require_success(state)
    return State(type=state.type, name=state.name, message=state.message)
