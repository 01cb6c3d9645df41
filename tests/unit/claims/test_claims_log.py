from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from nightferry.catalog.memory import MemoryStorage
from nightferry.catalog.query import Catalog
from nightferry.claims.drain import drain_requested, request_drain
from nightferry.claims.heartbeat import HEARTBEATS, LEASE_S
from nightferry.claims.log import LogClaim
from nightferry.errors import BusyError, Cancelled, CatalogError
from nightferry.model.claim_records import LeaseRecord
from nightferry.model.records import FreedRecord
from nightferry.progress import Cancel
from tests.support.small_site import HandClock

GROUP = "TEX-BACK-1"
RUN, WINDOW = "20261110-TEX-BACK-1", "20261110"


class Watching(HandClock):
    """Time passes only where somebody waits; ``meanwhile`` is what others do in that time."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None, ahead: timedelta = timedelta()) -> None:
        super().__init__()
        self.ahead = ahead
        self.waited = 0.0
        self.meanwhile = meanwhile

    def now(self) -> datetime:
        return super().now() + self.ahead

    def sleep(self, seconds: float) -> None:
        self.waited += seconds
        super().sleep(seconds)
        self.meanwhile()


@pytest.fixture
def place() -> MemoryStorage:
    return MemoryStorage()


def node(place: MemoryStorage, name: str) -> Catalog:
    return Catalog(place, node=name, clock=HandClock())


def lock(catalog: Catalog, clock: HandClock | None = None) -> LogClaim:
    return LogClaim(catalog, GROUP, clock=clock or HandClock())


def note(image: str) -> FreedRecord:
    return FreedRecord(image=f"20261110-{GROUP}.SG1.{image}.L0", reason="test", at=HandClock().now())


def test_a_living_holder_is_named_at_its_next_heartbeat(place: MemoryStorage) -> None:
    one = lock(node(place, "TEX-ACTV-1")).acquire("", WINDOW)
    one.name_run(RUN)
    clock = Watching(one.heartbeat)
    two = lock(node(place, "TEX-PASS-1"), clock)
    said: list[str] = []
    with pytest.raises(BusyError, match=f"{GROUP} is busy: run {RUN} on node TEX-ACTV-1") as caught:
        two.acquire("", WINDOW, say=said.append)
    assert caught.value.exit_code == 10
    assert clock.waited <= LEASE_S / HEARTBEATS
    assert len(said) == 1
    assert "TEX-ACTV-1" in said[0]
    holder = two.holder()
    assert holder is not None
    assert holder.run == RUN
    one.release()
    one.release()
    assert two.holder() is None
    before = clock.waited
    with two.acquire(RUN, WINDOW):
        assert clock.waited == before
        assert two.held
    assert place.names("locks") == []


def test_a_dead_holders_lease_is_taken_over_after_its_time_and_that_is_said(place: MemoryStorage) -> None:
    lock(node(place, "TEX-ACTV-1")).acquire(RUN, WINDOW)
    clock = Watching()
    said: list[str] = []
    with lock(node(place, "TEX-PASS-1"), clock).acquire(RUN, WINDOW, say=said.append) as two:
        assert LEASE_S <= clock.waited <= LEASE_S * 1.1
        assert [("no heartbeat" in text, "TEX-ACTV-1" in text) for text in said] == [(True, True)] * 2
        assert two.held
        assert len(place.names("locks")) == 1, "what the dead one left is cleared away"


@pytest.mark.parametrize("ahead", [timedelta(minutes=31), timedelta(minutes=-31)])
def test_clocks_that_differ_harm_nothing(place: MemoryStorage, ahead: timedelta) -> None:
    one = lock(node(place, "TEX-ACTV-1"), Watching(ahead=ahead)).acquire(RUN, WINDOW)
    clock = Watching(one.heartbeat)
    with pytest.raises(BusyError):
        lock(node(place, "TEX-PASS-1"), clock).acquire("", WINDOW)
    request_drain(place, GROUP, "the next night", one.since)
    assert drain_requested(place, GROUP, one.since) is not None
    clock.meanwhile = lambda: None
    waited = clock.waited
    with lock(node(place, "TEX-PASS-1"), clock).acquire("", WINDOW) as two:
        assert clock.waited - waited >= LEASE_S
        assert drain_requested(place, GROUP, two.since) is None


def test_an_overtaken_holder_records_nothing_more_and_takes_nothing_away(place: MemoryStorage) -> None:
    old = node(place, "TEX-ACTV-1")
    overtaken = lock(old).acquire(RUN, WINDOW)
    old.append(note("before"))
    new = node(place, "TEX-PASS-1")
    with lock(new, Watching()).acquire(RUN, WINDOW) as taker:
        assert overtaken.held, "it does not know yet"
        for attempt in (lambda: old.append(note("late")), lambda: old.keep_index("i", b"late", b"late")):
            with pytest.raises(BusyError, match=r"TEX-PASS-1.* took it over"):
                attempt()
        overtaken.heartbeat()  # a late request of it changes its own file only
        overtaken.release()
        assert taker.holder() is not None
        new.append(note("after"))
        taker.require()
    assert new.all(FreedRecord) == [note("before"), note("after")]
    old.append(note("as-anybody"))  # no holder any more: what it may do is what everybody may
    with pytest.raises(CatalogError):
        new.index("i")


def test_an_overtaken_holder_is_told_at_its_next_heartbeat(place: MemoryStorage) -> None:
    told = threading.Event()
    catalog = node(place, "TEX-ACTV-1")
    quick = LogClaim(catalog, GROUP, lease_s=0.06)
    reasons: list[str] = []

    def lost(reason: str) -> None:
        reasons.append(reason)
        told.set()

    quick.acquire(RUN, WINDOW, lost=lost)
    # The taker's own watch would see the heartbeats: somebody else's lease is put into the log instead.
    other = node(place, "TEX-PASS-1")
    lease = other.latest(LeaseRecord, GROUP)
    assert lease is not None
    other.append(lease.model_copy(update={"node": "TEX-PASS-1"}))
    assert told.wait(10)
    assert "TEX-PASS-1" in reasons[0]


def test_beats_are_given_while_the_lease_is_held_and_end_with_it(place: MemoryStorage) -> None:
    quick = LogClaim(node(place, "TEX-ACTV-1"), GROUP, lease_s=0.06)
    with quick.acquire(RUN, WINDOW):
        (name,) = place.names("locks")
        first = place.read(f"locks/{name}")
        while place.read(f"locks/{name}") == first:
            quick.require()
    assert place.names("locks") == []


def test_of_two_takers_one_wins(place: MemoryStorage) -> None:
    lock(node(place, "TEX-ACTV-1")).acquire(RUN, WINDOW)
    slow = Watching()
    second = lock(node(place, "TEX-PASS-2"), slow)
    first = lock(node(place, "TEX-PASS-1"), Watching())

    def overtake() -> None:
        if slow.waited >= LEASE_S and not first.held:
            first.acquire(RUN, WINDOW)
        elif first.held:
            first.heartbeat()

    slow.meanwhile = overtake
    with pytest.raises(BusyError, match="node TEX-PASS-1"):
        second.acquire(RUN, WINDOW)
    assert first.held
    assert not second.held


def test_waiting_ends_at_a_stop(place: MemoryStorage) -> None:
    lock(node(place, "TEX-ACTV-1")).acquire(RUN, WINDOW)
    cancel = Cancel()
    clock = Watching(lambda: cancel.set("enough"))
    with pytest.raises(Cancelled, match="enough"):
        lock(node(place, "TEX-PASS-1"), clock).acquire(RUN, WINDOW, cancel=cancel)
    assert clock.waited < LEASE_S


def test_a_lock_that_is_not_held_is_no_lock(place: MemoryStorage) -> None:
    here = lock(node(place, "TEX-ACTV-1"))
    for attempt in (lambda: here.name_run(RUN), here.heartbeat, lambda: here.since):
        with pytest.raises(BusyError, match="not locked by this object"):
            attempt()
    with here.acquire(RUN, WINDOW), pytest.raises(BusyError, match="already locked by this process"):
        here.acquire(RUN, WINDOW)
    other = LogClaim(Catalog(place, node="n"), "B2")
    with here.acquire(RUN, WINDOW), other.acquire("r", WINDOW):
        pass
