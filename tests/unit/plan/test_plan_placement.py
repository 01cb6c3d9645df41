"""Roles of nodes, and which passive node takes which BACK group."""

import pytest

from nightferry.model.nodes import specify
from nightferry.plan.placement import Layout, place

NODES = ("TEX-PASS-2", "TEX-ACTV-1", "TEX-ACTV-3", "TEX-PASS-3", "TEX-ACTV-2", "TEX-PASS-1", "TEX-ACTV-4")
P1, P2, P3 = "TEX-PASS-1", "TEX-PASS-2", "TEX-PASS-3"
LAYOUT = Layout.of(specify(NODES, ()))
GROUPS = ["B1", "B2", "B3", "B4"]
ALL = {P1, P2, P3}


def test_four_active_nodes_a_primary_and_two_alternates():
    assert LAYOUT.pattern == "AAAAPpp"
    assert (LAYOUT.primary, LAYOUT.alternates, LAYOUT.passive) == (P1, (P2, P3), (P2, P3, P1))
    roles = [LAYOUT.role_of(n) for n in ("TEX-ACTV-4", P1, P3, "OTHER")]
    assert roles == ["active", "primary", "alternate", ""]


def test_a_site_without_a_passive_node_has_no_place():
    layout = Layout.of(specify(("TEX-ACTV-1",), ()))
    assert layout.pattern == "A"
    assert place(["B1"], layout, usable={"TEX-ACTV-1"}) == {"B1": None}


def test_the_alternates_share_and_the_primary_stays_free():
    assert place(GROUPS, LAYOUT, usable=ALL) == {"B1": P2, "B2": P3, "B3": P2, "B4": P3}


@pytest.mark.parametrize(
    ("usable", "expected"),
    [({P1, P3}, [P3] * 4), ({P1}, [P1] * 4), (set(), [None] * 4)],
    ids=["an alternate is down", "both are", "all are"],
)
def test_a_node_that_is_down_is_passed_over(usable, expected):
    assert list(place(GROUPS, LAYOUT, usable=usable).values()) == expected


def test_configured_targets_win_in_their_order():
    targets = {"B1": (P1, P2), "B3": (P3,)}
    assert place(GROUPS, LAYOUT, usable=ALL, targets=targets) == {"B1": P1, "B2": P2, "B3": P3, "B4": P3}
    assert place(GROUPS, LAYOUT, usable={P2}, targets=targets)["B1"] == P2
    assert place(GROUPS, LAYOUT, usable={P1, P2}, targets=targets)["B3"] is None


def test_a_node_that_serves_users_after_a_failover_comes_last():
    assert place(["B1"], LAYOUT, usable=ALL, serving={P2}) == {"B1": P3}
    assert place(["B1"], LAYOUT, usable=ALL, serving={P2, P3}) == {"B1": P1}
    assert place(["B1"], LAYOUT, usable={P2}, serving={P2}) == {"B1": P2}
    assert place(["B1"], LAYOUT, usable=ALL, serving={P2}, targets={"B1": (P2, P1)}) == {"B1": P1}


def test_a_disk_that_moved_already_stays_unless_its_node_cannot_keep_it():
    owners = {"B1": P3, "B2": "TEX-ACTV-2", "B3": P1}
    assert place(GROUPS, LAYOUT, usable=ALL, owners=owners) == {"B1": P3, "B2": P2, "B3": P1, "B4": P3}
    assert place(["B1"], LAYOUT, usable={P1, P2}, owners={"B1": P3}) == {"B1": P2}
    assert place(["B1"], LAYOUT, usable=ALL, owners={"B1": P3}, serving={P3}) == {"B1": P2}
    assert place(["B1"], LAYOUT, usable=ALL, owners={"B1": P1}, targets={"B1": (P2,)}) == {"B1": P2}
