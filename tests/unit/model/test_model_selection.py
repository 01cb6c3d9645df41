"""Fixed selections."""

from nightferry.model.selection import diff, listed_stores, rule
from nightferry.model.stores import Group


def group(*names):
    stores = [{"name": name, "kind": "files", "path": f"/srv/{name}"} for name in names]
    return Group.model_validate(
        {"name": "SG1", "back_group": "TEX-BACK-1", "start": "20:00", "copies": [], "stores": stores}
    )


def test_the_difference_names_what_came_and_went():
    now = listed_stores(group("a", "c", "b"))
    assert now == ("a", "c", "b")
    change = diff(["a", "x", "b"], now)
    assert (change.added, change.removed) == (("c",), ("x",))
    assert change
    assert not diff(["b", "a", "c"], now)


def test_only_a_group_of_all_databases_fixes_the_rule():
    assert rule(group("a")) == "list"
    everything = Group.model_validate(
        {
            "name": "PG1",
            "back_group": "TEX-BACK-1",
            "start": "20:00",
            "copies": [],
            "postgres": {"dsn": "host=/run/postgresql", "databases": "all"},
        }
    )
    assert rule(everything) == "all"
