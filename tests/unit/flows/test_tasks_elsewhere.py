"""Waiting for a part on another node: what becomes of it when nothing is heard, or the server is away."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from types import SimpleNamespace
from uuid import uuid4

import httpx
import pytest
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Completed, Pending, Running, Scheduled

from nightferry.errors import Cancelled, NodeAway, PrefectRequired
from nightferry.progress import Cancel
from tasks import heartbeat, place

NODE = "TEX-ACTV-1"
AWAY = httpx.ConnectError("connection refused")


def answered(status: int) -> PrefectHTTPStatusError:
    request = httpx.Request("POST", "http://127.0.0.1/api")
    response = httpx.Response(status, request=request, json={"detail": "no"})
    return PrefectHTTPStatusError("no", request=request, response=response)


class Server:
    """A Prefect server: the states of one run, one question after the other, and what it is told.

    An exception in the place of a state is what the client meets. The last one stays.
    """

    def __init__(self, *states, heartbeats=0):
        self.states = list(states)
        self.heartbeats = heartbeats
        self.told = []
        self.refuses: list[Exception] = []
        self.run = uuid4()

    def read_flow_run(self, run):
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(state, Exception):
            raise state
        return SimpleNamespace(state=state)

    def read_events(self, filter, limit):
        if self.heartbeats == 0:
            return SimpleNamespace(events=[])
        self.heartbeats -= 1
        return SimpleNamespace(events=[SimpleNamespace(id=uuid4())])

    def set_flow_run_state(self, run, state, force=False):
        if self.refuses:
            raise self.refuses.pop(0)
        self.told.append(state.type.value)
        if state.type.value == "CANCELLING":
            self.states = [Completed(message="it stopped")]


@pytest.fixture
def cancel(monkeypatch):
    cancel = Cancel()
    monkeypatch.setattr(place, "CANCEL", cancel)
    return cancel


@pytest.fixture
def elsewhere(monkeypatch, cancel):
    """The waiting for a part on another node, against a server; nothing waits longer than a moment."""
    monkeypatch.setattr(place, "POLL_RUN_S", 0.01)
    monkeypatch.setattr(place, "deployment_name", lambda site, node: f"tex-{node.lower()}")
    for name in ("HEARTBEAT_SILENT_S", "FIRST_HEARTBEAT_S"):
        monkeypatch.setattr(heartbeat, name, 0.1)
    site = SimpleNamespace(cluster=SimpleNamespace(worker_deadline=60.0))
    view = SimpleNamespace(node=lambda name: SimpleNamespace(online=True))
    here = SimpleNamespace(file=site, cluster=SimpleNamespace(view=lambda: view))

    def make(server, starts=()):
        @contextmanager
        def client(**_):
            yield server

        starts = list(starts)

        def run_deployment(*_, **__):
            if starts:
                raise starts.pop(0)
            return SimpleNamespace(id=server.run, state=Scheduled(), parameters={})

        monkeypatch.setattr(place, "get_client", client)
        monkeypatch.setattr(place, "run_deployment", run_deployment)
        return place._Elsewhere(here, NODE, SimpleNamespace(name="stage-one"), "key", {})

    return make


@pytest.mark.parametrize("state", [Pending(), Running()])
def test_a_run_that_was_taken_and_never_began_is_given_up_by_name(elsewhere, state):
    server = Server(state)
    with pytest.raises(
        NodeAway, match=f"{NODE} took the run, but did not start it within .* while it ran stage-one"
    ):
        elsewhere(server).state()
    assert server.told == ["CRASHED"]


def test_a_run_that_fell_silent_is_given_up_and_one_with_heartbeats_is_not(elsewhere):
    with pytest.raises(NodeAway, match=f"{NODE} sent no heartbeat for"):
        elsewhere(Server(Running(), heartbeats=3)).state()
    alive = Server(*[Running()] * 40, Completed(message="staged"), heartbeats=1000)
    assert elsewhere(alive).state().is_completed()


def test_a_run_that_nobody_took_is_not_judged_by_heartbeats(elsewhere):
    server = Server(*[Scheduled()] * 40, Completed(message="staged"))
    assert elsewhere(server).state().is_completed()


def test_what_is_given_up_is_so_also_when_the_server_cannot_be_told(elsewhere):
    server = Server(Running())
    server.refuses = [AWAY]
    with pytest.raises(NodeAway, match="did not start it"):
        elsewhere(server).state()


@pytest.mark.parametrize("error", [AWAY, httpx.ReadTimeout("slow"), answered(503), answered(429)])
def test_a_server_that_is_away_when_a_part_is_started_is_waited_for(elsewhere, error):
    assert elsewhere(Server(Completed(message="staged")), starts=[error, error]).state().is_completed()


def test_a_server_that_stays_away_when_a_part_is_started_ends_the_night_by_name(elsewhere, monkeypatch):
    monkeypatch.setattr(place, "SERVER_AWAY_S", 0.05)
    with pytest.raises(
        PrefectRequired, match=f"the Prefect server is away; stage-one was not started on {NODE}"
    ):
        elsewhere(Server(Completed()), starts=[AWAY] * 1000).state()


def test_a_question_that_the_server_refuses_is_not_asked_again(elsewhere):
    with pytest.raises(PrefectHTTPStatusError):
        elsewhere(Server(Completed()), starts=[answered(422)]).state()


def test_a_stop_reaches_the_node_as_soon_as_the_server_is_back(elsewhere, cancel):
    server = Server(Running(), heartbeats=10_000)
    waiting = elsewhere(server)
    server.refuses = [AWAY, answered(500)]
    threading.Timer(0.05, cancel.set, ["an operator"]).start()
    with pytest.raises(Cancelled, match="an operator"):
        waiting.state()
    assert server.told == ["CANCELLING"]


def test_a_stop_while_the_server_is_away_ends_in_time(elsewhere, cancel, monkeypatch):
    monkeypatch.setattr(place, "STOPPING_S", 0.1)
    server = Server(AWAY)
    server.refuses = [AWAY] * 1000
    threading.Timer(0.05, cancel.set, ["an operator"]).start()
    with pytest.raises(Cancelled, match="an operator"):
        elsewhere(server).state()


def test_a_stop_while_a_part_is_started_without_a_server_is_a_stop(elsewhere, cancel):
    threading.Timer(0.05, cancel.set, ["an operator"]).start()
    with pytest.raises(Cancelled, match="an operator"):
        elsewhere(Server(Completed()), starts=[AWAY] * 10_000).state()
