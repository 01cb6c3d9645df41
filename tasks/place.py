"""Where a flow runs: here, or on another node by a deployment of its own. The only place that chooses.

A run on another node is a child of the calling flow in Prefect's graph. It is found again by an idempotency key, so
that a rerun never starts a second one beside it; it is told to stop when the caller is; it ends by itself when the
lock of its night is gone (`nightferry.night.run.run_lock`).
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling, Crashed, Failed, Running

from blocks.site import Site, deployment_name, document_name, pool_name
from nightferry import errors
from nightferry.errors import (
    Cancelled,
    ClusterError,
    ConfigError,
    NightferryError,
    NodeAway,
    PartFailed,
    PrefectRequired,
)
from nightferry.site.opened import OpenSite
from nightferry.units import format_duration
from tasks.bridge import CANCEL, PrefectProgress, opened
from tasks.heartbeat import Heartbeats
from tasks.part import SERVER_AWAY, part, refused, unexpected

log = logging.getLogger(__name__)

POLL_RUN_S = 1.0
LATE_S = 15.0
"""A run that no worker took in this time is waited for by name."""

SERVER_AWAY_S = 900.0
"""How long a server may be away while a node works; the work itself goes on meanwhile."""

STOPPING_S = 120.0
"""How long a node may take to stop what it was asked to stop."""

LOST_S = 60.0
"""How long after it was lost to the cluster a node may still end its run."""

WAITING = "WaitingForWorker"
"""The calling flow's state while nobody takes its child run."""

_RAISED = re.compile(r"exception: (\w+): (.*)", re.DOTALL)


def runs_here(here: OpenSite, node: str) -> bool:
    """Whether this process may do the node's work: it is the node's, or one machine plays every node."""
    return here.local_node in (None, node)


def run_on(node: str, flow: Flow[..., Any], site: Site, /, key: str, **parameters: Any) -> State[Any]:
    """Runs a flow on a node and returns its final state.

    Here it is a plain subflow. On another node it is a run of the deployment FLOW/SITE-NODE, which that node's worker
    takes from its own queue. While no worker does, the calling flow is in the state ``WaitingForWorker``.

    Args:
        node: Where.
        flow: What; on another node its own task runner counts, not one given by ``with_options``.
        site: The site.
        key: What this work is, the same in every try: the run it belongs to. Names the child run.
        parameters: The flow's, without the site. Plain values.

    Returns:
        The final state. What failed on another node carries our own error, as one that failed here does; so the
        command line ends with the same exit code.

    Raises:
        ConfigError: the site is not published as it is here.
        NodeAway: no worker took the run in time, the cluster lost the node that did, or its process never began or
            sent no heartbeat any more; the run was taken back.
        PrefectRequired: the server stayed away.
        Cancelled: a stop was asked for; the node has stopped.
    """
    here = opened(site)
    if runs_here(here, node):
        return part(flow, site, **parameters)
    require_published(here, site)
    return _Elsewhere(here, node, flow, key, parameters).state()


def require_published(here: OpenSite, site: Site) -> None:
    """Looks before the first step, where a later one will be another node's.

    Raises:
        ConfigError: the site is not published as it is here.
    """
    name = document_name(here.file)
    if Site.of(name).digest != site.digest:
        raise ConfigError(
            f"the published site {name} is not the site file of this run",
            hint="run `nightferry deploy`, so that every node uses the same one",
            subject=name,
        )


class _Elsewhere:
    """One piece of work on another node, from its start to its end."""

    def __init__(
        self, here: OpenSite, node: str, flow: Flow[..., Any], key: str, parameters: dict[str, Any]
    ) -> None:
        self._here = here
        self._node = node
        self._flow = flow
        self._key = key
        self._parameters = parameters
        self._deployment = f"{flow.name}/{deployment_name(here.file, node)}"
        self._deadline_s = here.file.cluster.worker_deadline
        self._queue = node.lower()

    def state(self) -> State[Any]:
        for attempt in range(1000):
            run = self._start(attempt)
            if run.state is not None and run.state.is_final():
                continue  # of an earlier try; what it did is found in the records
            ours = run.parameters.get("lock") == self._parameters.get("lock")
            ended = self._wait(run)
            if ours:
                return with_own_error(self._flow.name, self._node, ended)
            # A run that a killed caller left: it ended, or was ended, because that one's lock is gone.
        raise NodeAway(f"{self._deployment} was tried too many times", subject=self._node)

    def _start(self, attempt: int) -> FlowRun:
        """The child run of this try; one that is there already is only found. A server that is away is waited for.

        Raises:
            ConfigError: there is no such deployment.
            PrefectRequired: the server stayed away.
        """
        began = time.monotonic()
        while True:
            try:
                # `run_deployment` is async where an event loop runs; flows are not.
                started: Any = run_deployment(
                    self._deployment,
                    parameters=self._parameters,
                    timeout=0,
                    idempotency_key=f"{self._key}/{self._node}/{attempt}",
                )
            except ObjectNotFound as error:
                raise ConfigError(
                    f"there is no deployment {self._deployment}",
                    hint="run `nightferry deploy` against this Prefect server",
                    subject=self._deployment,
                ) from error
            except SERVER_AWAY as error:
                if refused(error):
                    raise
                self._wait_for_server(error, began, f"{self._flow.name} was not started on {self._node}")
                continue
            run: FlowRun = started
            return run

    def _wait_for_server(self, error: Exception, since: float, what: str) -> None:
        """Waits a moment for a server that is away.

        Raises:
            PrefectRequired: it has been away for too long.
            Cancelled: a stop was asked for meanwhile.
        """
        if time.monotonic() - since > SERVER_AWAY_S:
            raise PrefectRequired(
                f"the Prefect server is away; {what}",
                hint="rerun when the server is back: what was done is in the records",
            ) from error
        log.warning("the Prefect server is away (%s); %s", error, what)
        CANCEL.wait(POLL_RUN_S)

    def _wait(self, run: FlowRun) -> State[Any]:
        began = time.monotonic()
        answered = began
        lost_since: float | None = None
        announced = False
        heartbeats = Heartbeats(run.id)
        with get_client(sync_client=True) as client, _waiting(client) as waiting:
            while True:
                if CANCEL.is_set():
                    self._stop(client, run.id)
                    CANCEL.check()
                now = time.monotonic()
                try:
                    state = client.read_flow_run(run.id).state
                    taken = state is not None and not state.is_scheduled() and not state.is_final()
                    silent_s = heartbeats.silent_s(client) if taken else 0.0
                    answered = now
                except SERVER_AWAY as error:
                    with suppress(Cancelled):  # told to the node above
                        self._wait_for_server(
                            error, answered, f"{self._node} continues {self._flow.name} on its own"
                        )
                    continue
                if state is not None and state.is_final():
                    return state
                if taken:
                    waiting("")
                    if silent_s > heartbeats.patience_s:
                        raise self._given_up(client, run.id, self._silent(heartbeats, silent_s))
                    if not self._is_lost():
                        lost_since = None
                    elif now - (lost_since := lost_since or now) > LOST_S:
                        raise self._given_up(client, run.id, f"{self._node} was lost to the cluster")
                elif now - began > LATE_S:
                    if not announced:
                        announced = True
                        PrefectProgress().say(
                            f"waiting for a worker on {self._node} (queue {self._queue}) to take {self._flow.name}",
                            subject=self._node,
                        )
                    waiting(f"no worker on {self._node} (queue {self._queue}) takes {self._flow.name}")
                    if now - began > self._deadline_s:
                        self._stop(client, run.id, patience_s=0)
                        raise self._no_worker()
                with suppress(Cancelled):  # told to the node above
                    CANCEL.wait(POLL_RUN_S)

    def _silent(self, heartbeats: Heartbeats, silent_s: float) -> str:
        for_so_long = format_duration(silent_s)
        if heartbeats.began:
            return f"{self._node} sent no heartbeat for {for_so_long}"
        return f"{self._node} took the run, but did not start it within {for_so_long}"

    def _no_worker(self) -> NodeAway:
        pool = pool_name(self._here.file)
        return NodeAway(
            f"no worker on {self._node} took {self._flow.name} within {format_duration(self._deadline_s)}",
            hint=f"start one there: `prefect worker start --pool {pool} --work-queue {self._queue}`; then rerun",
            subject=self._node,
        )

    def _given_up(self, client: SyncPrefectClient, run: UUID, why: str) -> NodeAway:
        """The run is nobody's any more. Should its process live after all, it ends as soon as it finds the night's
        lock gone: so it does not matter when the server cannot be told."""
        crashed: State[Any] = Crashed(message=why)
        try:
            client.set_flow_run_state(run, crashed, force=True)
        except SERVER_AWAY as error:
            log.warning("the Prefect server is away (%s): %s stays as it is shown", error, run)
        return NodeAway(
            f"{why} while it ran {self._flow.name}",
            hint="make sure that the node and its worker are up, then rerun: what was done is in the records",
            subject=self._node,
        )

    def _is_lost(self) -> bool:
        """Whether the cluster says that the node is gone: then its worker will not tell."""
        try:
            view = self._here.cluster.view().node(self._node)
        except Cancelled:
            return False  # told to the node by who waits for it
        except ClusterError as error:
            log.warning("the cluster does not say whether %s is there: %s", self._node, error.message)
            return False
        return view is not None and not view.online

    def _stop(self, client: SyncPrefectClient, run: UUID, patience_s: float | None = None) -> None:
        """Asks the node to stop and waits until it has; a run that nobody took is gone at once. While the server is
        away it is asked again; a node that it never reaches stops when it finds the night's lock gone."""
        ends = time.monotonic() + (STOPPING_S if patience_s is None else patience_s)
        stop_requested = False
        while True:
            try:
                if not stop_requested:
                    stopping: State[Any] = Cancelling(message="the night that this is a part of was stopped")
                    client.set_flow_run_state(run, stopping)
                    stop_requested = True
                state = client.read_flow_run(run).state
                if state is not None and state.is_final():
                    return
            except SERVER_AWAY as error:
                log.warning("the Prefect server is away (%s); %s is not stopped yet", error, self._node)
            if time.monotonic() >= ends:
                return
            time.sleep(POLL_RUN_S)


def with_own_error(flow: str, node: str, state: State[Any]) -> State[Any]:
    """A child's final state as the caller's own subflow would have left it: with our error where it failed."""
    if state.is_completed():
        return state
    message = state.message or state.name or "it failed"
    raised = _RAISED.search(message)
    if raised is None:
        kind: type[NightferryError] = Cancelled if state.is_cancelled() else PartFailed
        error = kind(f"{flow} on {node} ended {state.name}: {message}", subject=node)
    elif (known := _of_ours(raised[1])) is not None:
        message = raised[2]
        error = known(message, subject=node)
    else:
        error = unexpected(raised[1], f"{flow} on {node} ended {state.name}: {raised[1]}: {raised[2]}")
    return Failed(name=state.name, message=message, data=error)


def _of_ours(name: str) -> type[NightferryError] | None:
    kind = getattr(errors, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, NightferryError) else None


@contextmanager
def _waiting(client: SyncPrefectClient) -> Iterator[Callable[[str], None]]:
    """Names the calling flow's state while it waits for a worker; an empty reason ends that."""
    calling = FlowRunContext.get()
    shown = ""

    def show(reason: str) -> None:
        nonlocal shown
        if calling is None or calling.flow_run is None or reason == shown:
            return
        named: State[Any] = Running(name=WAITING, message=reason) if reason else Running()
        try:
            client.set_flow_run_state(calling.flow_run.id, named, force=True)
        except SERVER_AWAY as error:
            log.warning("the Prefect server is away (%s): the state is not shown", error)
        else:
            shown = reason

    try:
        yield show
    finally:
        show("")
