"""Leases on drives: who gets one, when a silent holder loses his, and who notices."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from nightferry.catalog.memory import MemoryStorage
from nightferry.catalog.query import Catalog
from nightferry.claims.drives import WATCH_PAUSE_S, DriveLeases
from nightferry.claims.heartbeat import LEASE_S
from nightferry.errors import CatalogError, DriveTaken, Unavailable
from nightferry.model.claim_records import DriveLeaseRecord
from nightferry.model.records import CartridgeRecord
from nightferry.site.destinations import CatalogRegister
from tests.support.small_site import HandClock

DRIVE = "HU1"
AT = datetime(2026, 11, 30, tzinfo=UTC)


class Away(MemoryStorage):
    """A place that may go away."""

    away = False

    def names(self, folder: str) -> list[str]:
        if self.away:
            raise CatalogError("the bucket is away", hint="check the network")
        return super().names(folder)


@pytest.fixture
def place() -> Away:
    return Away()


class Host:
    """A process on a host of its own."""

    def __init__(self, place: MemoryStorage, name: str) -> None:
        self.clock = HandClock()
        self.catalog = Catalog(place, node=name, clock=self.clock)
        self.said: list[str] = []
        self.leases = DriveLeases(self.catalog, say=self.said.append, clock=self.clock)

    def wait(self, seconds: float) -> None:
        self.clock.sleep(seconds)

    def take(self, dead: str = "") -> object:
        return self.leases.try_take(DRIVE, dead)


def cartridge() -> CartridgeRecord:
    return CartridgeRecord(barcode="A00001L9", destination="tape", pool="daily", state="appendable", at=AT)


def test_one_of_two_gets_a_drive_and_the_other_after_it_was_given_back(place: Away) -> None:
    one, two = Host(place, "one"), Host(place, "two")
    lease = one.leases.try_take(DRIVE, "")
    assert lease is not None
    assert not lease.untouched, "nobody knows who had it before the first lease"
    assert two.take() is None
    lease.release()
    one.leases.close()
    two.wait(WATCH_PAUSE_S)
    theirs = two.leases.try_take(DRIVE, "")
    assert theirs is not None
    assert not theirs.untouched
    assert [r.state for r in two.catalog.all(DriveLeaseRecord)] == ["held"]
    two.leases.close()
    assert place.names("locks") == []


def test_a_drive_that_was_released_is_kept_until_two_beats_went_by_without_use(place: Away) -> None:
    one = Host(place, "one")
    lease = one.leases.try_take(DRIVE, "")
    assert lease is not None
    events = one.catalog.last
    lease.release()
    again = one.leases.try_take(DRIVE, "")
    assert again is lease
    assert again.untouched
    assert one.catalog.last == events, "images that follow each other cost no event"
    assert one.take() is None, "two threads never have one drive"
    again.release()
    one.leases.heartbeat()
    assert one.catalog.last == events
    one.leases.heartbeat()
    assert [r.state for r in one.catalog.all(DriveLeaseRecord)] == ["free"]
    third = one.leases.try_take(DRIVE, "")
    assert third is not None
    assert third.untouched, "nobody else had it meanwhile"
    one.leases.close()


def test_a_holder_that_beats_keeps_its_drive_and_a_silent_one_loses_it_by_the_watchers_clock(
    place: Away,
) -> None:
    one, two = Host(place, "one"), Host(place, "two")
    one.wait(31 * 60)  # what its clock says is nobody's business
    lease = one.leases.try_take(DRIVE, "")
    assert lease is not None
    for _ in range(3):
        assert two.take() is None
        two.wait(LEASE_S - WATCH_PAUSE_S)
        one.leases.heartbeat()
    assert two.take() is None
    two.wait(LEASE_S - WATCH_PAUSE_S)
    assert two.take() is None
    two.wait(WATCH_PAUSE_S)
    theirs = two.leases.try_take(DRIVE, "")
    assert theirs is not None
    assert not theirs.untouched
    assert [("one" in text, "taken over" in text) for text in two.said] == [(True, True)] * 2
    lease.require()  # it does not know yet
    with pytest.raises(DriveTaken, match=r"the drive HU1 was taken over by process .* on two"):
        lease.confirm()
    with pytest.raises(DriveTaken):
        lease.require()
    theirs.confirm()
    one.leases.close()
    assert [r.node for r in two.catalog.all(DriveLeaseRecord) if r.state == "held"] == ["two"]


def test_an_overtaken_holder_learns_it_at_its_next_heartbeat(place: Away) -> None:
    one, two = Host(place, "one"), Host(place, "two")
    lease = one.leases.try_take(DRIVE, "")
    assert lease is not None
    assert two.take(dead=one.leases.token) is not None
    register = CatalogRegister(one.catalog, "tape", one.leases)
    for _ in range(3):
        one.leases.heartbeat()
        with pytest.raises(DriveTaken):
            lease.require()
        with pytest.raises(DriveTaken):
            register.record(cartridge())
    lease.release()
    one.leases.heartbeat()
    register.record(cartridge())
    one.wait(WATCH_PAUSE_S)
    assert one.take() is None
    assert place.names("locks") == [f"drives.{two.leases.token}.beat"]


def test_whoever_lost_a_drive_records_nothing_more_of_its_cartridge(place: Away) -> None:
    one, two = Host(place, "one"), Host(place, "two")
    lease = one.leases.try_take(DRIVE, "")
    other = one.leases.try_take("HU2", "")
    assert lease is not None
    assert other is not None
    register = CatalogRegister(one.catalog, "tape", one.leases)
    register.record(cartridge())
    assert two.take(dead=one.leases.token) is not None
    before = two.catalog.last
    with pytest.raises(DriveTaken):
        register.record(cartridge().model_copy(update={"state": "full"}))
    two.catalog.refresh()
    assert two.catalog.last == before
    lease.release()
    register.record(cartridge())  # with the drive that is left


def test_a_holder_known_to_be_dead_is_not_waited_for(place: Away) -> None:
    one, two = Host(place, "one"), Host(place, "two")
    assert one.take() is not None
    assert one.leases.try_take("HU2", "") is not None
    theirs = two.leases.try_take(DRIVE, one.leases.token)
    assert theirs is not None
    assert not theirs.untouched
    assert len(place.names("locks")) == 2, "the dead one's heartbeat is watched for its other drive"
    assert two.leases.try_take("HU2", one.leases.token) is not None
    assert len(place.names("locks")) == 1


def test_without_the_log_nobody_goes_on(place: Away) -> None:
    one = Host(place, "one")
    lease = one.leases.try_take(DRIVE, "")
    assert lease is not None
    place.away = True
    with pytest.raises(Unavailable, match="it is unknown whether the drive HU1 still belongs to this host"):
        lease.confirm()
    place.away = False
    lease.confirm()
    one.leases.close()


def test_a_drive_is_used_without_a_lease_where_none_can_be_recorded_until_another_records_one() -> None:
    class Unwritable(MemoryStorage):
        read_only = False

        def replace(self, path: str, data: bytes) -> None:
            if self.read_only:
                raise CatalogError("the bucket refuses to be written")
            super().replace(path, data)

    place = Unwritable()
    restoring, night = Host(place, "restoring"), Host(place, "night")
    theirs = night.leases.try_take(DRIVE, "")
    assert theirs is not None
    place.read_only = True
    assert restoring.take() is None, "a drive that another has stays his"
    place.read_only = False
    theirs.release()
    night.leases.close()
    place.read_only = True
    restoring.wait(WATCH_PAUSE_S)
    lease = restoring.leases.try_take(DRIVE, "")
    assert lease is not None
    assert not lease.untouched
    assert "cannot be recorded: the bucket refuses to be written" in restoring.said[-1]
    lease.confirm()

    place.read_only = False
    night.wait(WATCH_PAUSE_S)
    assert night.take() is not None, "who records a lease has the drive"
    with pytest.raises(DriveTaken, match="night"):
        lease.confirm()
    lease.release()
    restoring.leases.close()
    assert [r.state for r in night.catalog.all(DriveLeaseRecord)] == ["held"], "nobody else's is given back"
