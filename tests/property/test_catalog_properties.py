"""What holds for every event and every history."""

import tempfile
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightferry.catalog.events import EventLog
from nightferry.catalog.schema import Row, decode_event, decode_segment, encode_event, encode_segment
from nightferry.errors import CatalogError
from nightferry.model.records import Event

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
plain: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
instants = st.datetimes(
    min_value=datetime(1970, 1, 2), max_value=datetime(2199, 1, 1), timezones=st.sampled_from([UTC])
)
events = st.builds(
    Event,
    sequence=st.integers(1, 10**12 - 1),
    at=instants,
    writer=words,
    phase=st.sampled_from(["intent", "result"]),
    kind=words,
    subject=words,
    body=st.dictionaries(words, plain, max_size=4),
)


@given(events)
def test_an_event_survives_its_file(event: Event) -> None:
    row = Row.of(event)
    assert decode_event(encode_event(row), event.sequence, "x") == row
    assert row.event() == event


@given(st.lists(events, max_size=5), st.integers(1, 10**9))
@settings(max_examples=50)
def test_events_survive_a_segment(found: list[Event], first: int) -> None:
    rows = [Row.of(e.model_copy(update={"sequence": first + i})) for i, e in enumerate(found)]
    assert decode_segment(encode_segment(rows), "x") == rows


@given(events, st.data())
def test_a_cut_event_file_is_never_taken_for_an_event(event: Event, data: st.DataObject) -> None:
    whole = encode_event(Row.of(event)).rstrip()
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(CatalogError, match="event file x is garbled"):
        decode_event(cut, event.sequence, "x")


def test_other_zones_are_kept_as_utc() -> None:
    at = datetime(2026, 3, 8, 3, 0, tzinfo=timezone(timedelta(hours=1)))
    event = Event(sequence=1, at=at, writer="w", phase="result", kind="k", subject="s", body={})
    assert Row.of(event).at.utcoffset() == timedelta(0)
    assert Row.of(event).at == at


class _Instant:
    """A clock without waiting."""

    def now(self) -> datetime:
        return datetime(2026, 3, 8, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None: ...


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["append", "append", "refresh", "compact"])), max_size=14
    )
)
@settings(max_examples=25)
def test_any_interleaving_of_writers_and_compactions_is_one_history(deeds: list[tuple[int, str]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        seen: list[list[Row]] = [[], [], []]
        logs = [
            EventLog(Path(name), writer=f"w{i}", clock=_Instant(), observe=seen[i].append) for i in range(3)
        ]
        written: list[Event] = []
        for who, deed in deeds:
            if deed == "append":
                written.append(logs[who].append("k", f"s{len(written) % 3}", "result", {"n": len(written)}))
            elif deed == "refresh":
                logs[who].refresh()
            else:
                logs[who].compact()
        for log in logs:
            log.refresh()
        expected = [Row.of(event) for event in written]
        assert [row.sequence for row in expected] == list(range(1, len(written) + 1))
        assert seen == [expected] * 3
        assert EventLog(Path(name)).rows() == expected
