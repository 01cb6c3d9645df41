"""A move for maintenance to a node that takes the disk only later: who and why is on record before anything moves."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightferry.errors import MoveFailed
from nightferry.model.load import load_site
from nightferry.night import move
from nightferry.progress import QUIET, Cancel
from nightferry.site.opened import NODE_VARIABLE, OpenSite
from tests.support import night
from tests.support.fake_cluster import ACTIVE, ALTERNATE, BACK
from tests.support.placed_site import PlacedSite


def test_the_reason_is_recorded_where_the_disk_is_not_taken_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = PlacedSite.create(tmp_path, "TEX")
    monkeypatch.setenv(NODE_VARIABLE, ACTIVE)
    with OpenSite(load_site(site.path)) as here:
        night.stage_one(here, BACK)
        site.cluster.write(refuse="the group is locked")
        with pytest.raises(MoveFailed):
            move.move_ungated(here, BACK, ALTERNATE, "new controller", progress=QUIET, cancel=Cancel())
        owner = here.catalog.owner(BACK)
        assert (owner.node, owner.epoch, "new controller" in owner.run) == (ACTIVE, 1, True)
        site.cluster.write(refuse="")
        move.move_ungated(here, BACK, ALTERNATE, "a second try", progress=QUIET, cancel=Cancel())
        owner = here.catalog.owner(BACK)
        assert (owner.node, owner.epoch, "a second try" in owner.run) == (ACTIVE, 1, True)
    assert site.cluster.state["groups"][BACK] == [ALTERNATE, "Online"]
    # The node that it came to takes it as ever.
    monkeypatch.setenv(NODE_VARIABLE, ALTERNATE)
    with OpenSite(load_site(site.path)) as there:
        move.take_over(there, BACK, progress=QUIET, cancel=Cancel())
        assert (there.catalog.owner(BACK).node, there.disk(BACK).owner().epoch) == (ALTERNATE, 2)
