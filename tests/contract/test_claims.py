"""What every way to claim something promises: flock in a shared folder, and events of the log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nightferry.catalog.memory import MemoryStorage
from nightferry.catalog.query import Catalog
from nightferry.claims.base import Claims
from nightferry.claims.flock import FlockClaims
from nightferry.claims.log import LogClaims
from nightferry.errors import BusyError, CatalogError

GROUP = "TEX-BACK-1"
LEASE_S = 3.0
"""Real heartbeats come six times in it."""

Nodes = Callable[[str], Claims]


@pytest.fixture(params=["flock", "log"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Nodes:
    """The claims as a node of that name makes them."""
    place = MemoryStorage()
    if request.param == "flock":
        return lambda name: FlockClaims(tmp_path, node=name)
    return lambda name: LogClaims(Catalog(place, node=name), lease_s=LEASE_S)


def test_of_two_one_has_it_and_the_other_is_told_who(node: Nodes) -> None:
    one, two = node("TEX-ACTV-1").exclusive(GROUP), node("TEX-PASS-1").exclusive(GROUP)
    assert two.holder() is None
    with one.acquire("", "20261110"):
        one.name_run("20261110-TEX-BACK-1")
        with pytest.raises(BusyError, match="20261110-TEX-BACK-1 on node TEX-ACTV-1") as refused:
            two.acquire("", "20261110")
        assert refused.value.exit_code == 10
        assert (one.held, two.held) == (True, False)
        holder = two.holder()
        assert holder is not None
        assert (holder.node, holder.since) == ("TEX-ACTV-1", one.since)
        one.require()
    with two.acquire("20261111-TEX-BACK-1", "20261111"):
        assert (one.held, two.held) == (False, True)


def test_it_is_given_back_once(node: Nodes) -> None:
    one, two = node("TEX-ACTV-1").exclusive(GROUP), node("TEX-PASS-1").exclusive(GROUP)
    one.acquire("r", "20261110").release()
    with two.acquire("r", "20261110"):
        one.release()
        assert two.held
        assert one.holder() is not None


def test_what_is_not_held_is_neither_named_nor_taken_twice(node: Nodes) -> None:
    one = node("TEX-ACTV-1").exclusive(GROUP)
    for attempt in (lambda: one.name_run("r"), lambda: one.since):
        with pytest.raises(BusyError, match="not locked by this object"):
            attempt()
    with one.acquire("r", "20261110"), pytest.raises(BusyError, match="already locked by this process"):
        one.acquire("r", "20261110")


def test_names_do_not_meet(node: Nodes) -> None:
    here = node("TEX-ACTV-1")
    with (
        here.exclusive("A").acquire("r", "20261110"),
        here.exclusive("B").acquire("r", "20261110"),
        here.shared("A").read("a"),
        here.shared("B").exclusive(),
    ):
        assert [reader.who for reader in node("n").shared("A").readers()] == ["a"]


@pytest.mark.parametrize("name", ["../x", "", ".hidden", "a/b"])
def test_a_name_that_leads_elsewhere_is_refused(node: Nodes, name: str) -> None:
    for claim in (node("n").exclusive, node("n").shared):
        with pytest.raises(CatalogError, match="not a name"):
            claim(name)


def test_readers_share_the_disk_are_named_and_keep_it(node: Nodes) -> None:
    one, two, mover = (node(name).shared(GROUP) for name in ("TEX-PASS-1", "TEX-PASS-2", "TEX-ACTV-1"))
    with one.read("stage two"), two.read("restore of SG1/a"):
        assert [reader.who for reader in mover.readers()] == ["stage two", "restore of SG1/a"]
        with pytest.raises(BusyError, match="read by stage two"), mover.exclusive():
            pass
    assert mover.readers() == []
    with mover.exclusive():
        pass


def test_nobody_begins_to_read_while_it_moves(node: Nodes) -> None:
    mover, reader = node("TEX-ACTV-1").shared(GROUP), node("TEX-PASS-1").shared(GROUP)
    with mover.exclusive(), pytest.raises(BusyError, match="about to move"), reader.read("late"):
        pass
    with reader.read("in time"):
        pass
    reader.clear()


def test_running_a_group_and_reading_its_disk_are_two_things(node: Nodes) -> None:
    here, there = node("TEX-ACTV-1"), node("TEX-PASS-1")
    with here.exclusive(GROUP).acquire("r", "20261110"), there.shared(GROUP).read("restore"):
        assert [reader.who for reader in here.shared(GROUP).readers()] == ["restore"]
