"""What nodes see is told by text, and where they do not agree is found."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from nightferry.errors import IntegrityError
from nightferry.health.everywhere import (
    NodeAnswer,
    NodeState,
    compare,
    dump_findings,
    inspect_here,
    load_findings,
)
from nightferry.model.findings import Finding
from tests.support.small_site import SmallSite

NOW = datetime(2026, 11, 30, 20, 0, tzinfo=UTC)
WARNING = Finding("NF-STAGE-003", "warn", "a disk", "another disk")
SEEN = NodeState("0.1.0", "3.11", "a" * 64, NOW, "20261101-TEX-BACK-1 of 2026-11-01", (WARNING,))


def answer(node: str, **changes: object) -> NodeAnswer:
    return NodeAnswer(node, replace(SEEN, **changes), NOW - timedelta(seconds=9), NOW + timedelta(seconds=2))


def ids(*answers: NodeAnswer) -> list[str]:
    return [f.id for f in compare(list(answers)) if f != WARNING and f.id != WARNING.id]


def test_what_a_node_sees_is_the_same_at_the_other_end() -> None:
    assert NodeState.load(SEEN.dump()) == SEEN
    assert load_findings(dump_findings([WARNING])) == [WARNING]
    for text in ("", "[]", "{}", "null", '{"findings": 3}', SEEN.dump()[:-5]):
        with pytest.raises(IntegrityError):
            NodeState.load(text)
    with pytest.raises(IntegrityError):
        load_findings('{"a": 1}')


def test_nodes_that_agree_tell_only_what_each_one_found() -> None:
    found = compare([answer("A"), answer("B")])
    assert [f.text for f in found] == ["A: a disk", "B: a disk"]


def test_nodes_that_do_not_agree_are_named() -> None:
    assert ids(answer("A"), answer("B", version="0.2.0")) == ["NF-NODE-002"]
    assert ids(answer("A"), answer("B", site_digest="b" * 64)) == ["NF-NODE-003"]
    assert ids(answer("A"), answer("B", catalog="other")) == ["NF-NODE-006"]
    assert ids(answer("A"), answer("B", catalog="")) == ["NF-NODE-005"]
    (silent,) = [
        f
        for f in compare([answer("A"), NodeAnswer("B", None, NOW, NOW, "no worker")])
        if f.id == "NF-NODE-001"
    ]
    assert silent.text == "B does not answer: no worker"


def test_a_clock_may_be_off_by_as_long_as_the_answer_took_and_five_minutes_more() -> None:
    assert ids(answer("A", at=NOW + timedelta(minutes=5))) == []
    assert ids(answer("A", at=NOW - timedelta(minutes=5))) == []
    (off,) = [f for f in compare([answer("A", at=NOW + timedelta(minutes=31))]) if f.id == "NF-NODE-004"]
    assert "the clock of A is 30" in off.text
    assert ids(answer("A", at=NOW - timedelta(minutes=31))) == ["NF-NODE-004"]


def test_a_node_without_its_catalog_still_tells(tmp_path) -> None:
    site = SmallSite(tmp_path).build()
    with site.open() as opened:
        loaded = opened.loaded
        seen = inspect_here(loaded)
        assert (seen.catalog, seen.site_digest) == ("new", loaded.digest)
    (tmp_path / "catalog").rename(tmp_path / "away")
    (site.disk / ".nightferry").mkdir(exist_ok=True)
    away = inspect_here(loaded)
    assert away.catalog == ""
    assert "NF-CAT-001" in {f.id for f in away.findings}
