from __future__ import annotations

import pytest

from nightferry.catalog.memory import MemoryStorage
from nightferry.catalog.query import Catalog
from nightferry.claims.heartbeat import LEASE_S
from nightferry.claims.log import LogShared
from nightferry.errors import BusyError, CatalogError
from nightferry.model.records import FreedRecord
from tests.support.small_site import HandClock
from tests.unit.claims.test_claims_log import Watching

GROUP = "TEX-BACK-1"


@pytest.fixture
def place() -> MemoryStorage:
    return MemoryStorage()


def at(place: MemoryStorage, node: str, clock: HandClock | None = None) -> LogShared:
    clock = clock or HandClock()
    return LogShared(Catalog(place, node=node, clock=clock), GROUP, clock)


def test_readers_share_the_disk_and_are_named(place: MemoryStorage) -> None:
    one, two = at(place, "TEX-PASS-1"), at(place, "TEX-PASS-2")
    with one.read("stage two"), two.read("restore of SG1/a"):
        assert [(r.who, r.host) for r in two.readers()] == [
            ("stage two", "TEX-PASS-1"),
            ("restore of SG1/a", "TEX-PASS-2"),
        ]
    assert one.readers() == []
    with one.exclusive():
        pass
    assert place.names("locks") == []


def test_the_disk_does_not_move_under_a_living_reader(place: MemoryStorage) -> None:
    reading = Catalog(place, node="TEX-PASS-1", clock=HandClock())
    with LogShared(reading, GROUP, HandClock()).read("stage two"):
        (fence,) = reading._fences
        clock = Watching(fence.heartbeat)
        mover = at(place, "TEX-ACTV-1", clock)
        with pytest.raises(BusyError, match="is read by stage two") as refused, mover.exclusive():
            pass
        assert refused.value.exit_code == 10
        assert clock.waited < LEASE_S


def test_nobody_reads_while_it_moves_and_nobody_moves_it_twice(place: MemoryStorage) -> None:
    moving = Catalog(place, node="TEX-ACTV-1", clock=HandClock())
    with LogShared(moving, GROUP, HandClock()).exclusive():
        (fence,) = moving._fences
        with (
            pytest.raises(BusyError, match="about to move"),
            at(place, "n", Watching(fence.heartbeat)).read("x"),
        ):
            pass
        with (
            pytest.raises(BusyError, match="about to move"),
            at(place, "n", Watching(fence.heartbeat)).exclusive(),
        ):
            pass
        assert at(place, "n").readers() == []
    with at(place, "n").read("x"):
        pass


def test_a_reader_that_comes_between_the_movers_look_and_its_lease_is_seen(place: MemoryStorage) -> None:
    mover, reader = at(place, "TEX-ACTV-1"), at(place, "TEX-PASS-1")
    real = mover._held
    looks: list[str] = []
    held = reader.read("quick")

    def look_and_lose(what: str) -> list[object]:
        found = real(what)
        if not looks:
            looks.append(what)
            held.__enter__()
        return found  # type: ignore[return-value]

    mover._held = look_and_lose  # type: ignore[method-assign,assignment]
    with pytest.raises(BusyError, match="is read by quick"), mover.exclusive():
        pass
    held.__exit__(None, None, None)


def test_the_dead_hold_nobody_up_for_longer_than_a_lease(place: MemoryStorage) -> None:
    dead = Catalog(place, node="TEX-PASS-1", clock=HandClock())
    reading = LogShared(dead, GROUP, HandClock()).read("stage two")
    reading.__enter__()
    clock = Watching()
    with at(place, "TEX-ACTV-1", clock).exclusive():
        assert LEASE_S <= clock.waited <= 1.1 * LEASE_S
        with pytest.raises(BusyError, match="no longer held by this run"):
            dead.append(FreedRecord(image=f"20261110-{GROUP}.SG1.i.L0", reason="late", at=HandClock().now()))
    moving = at(place, "TEX-ACTV-1").exclusive()
    moving.__enter__()
    clock = Watching()
    with at(place, "TEX-PASS-2", clock).read("restore"):
        assert clock.waited >= LEASE_S


class Unwritable(MemoryStorage):
    """A place that may be read only."""

    read_only = False

    def create(self, path: str, data: bytes) -> bool:
        if self.read_only:
            raise CatalogError("the bucket refuses to be written")
        return super().create(path, data)


def test_a_restore_reads_where_no_lease_can_be_written() -> None:
    place = Unwritable()
    readers = at(place, "TEX-PASS-1")
    place.read_only = True
    with pytest.raises(CatalogError, match="refuses"), readers.read("stage two"):
        pass
    said: list[str] = []
    with readers.read("restore of a", warn=said.append) as reader:
        assert (reader.who, reader.host) == ("restore of a", "TEX-PASS-1")
        assert said == ["no lease for the restore of a: the bucket refuses to be written"]
    # What the block itself raises is none of the lease's business.
    with pytest.raises(CatalogError, match="of the block"), readers.read("restore", warn=said.append):
        raise CatalogError("of the block")
