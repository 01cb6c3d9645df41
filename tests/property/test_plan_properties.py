"""What holds for every night, every spread, every restore."""

import itertools
import random
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from nightferry.model.patterns import Matcher
from nightferry.plan.balance import (
    BATCH_STORES,
    SMALL_BYTES,
    LaneSpeed,
    batches,
    lane_order,
    longest_first,
    predict_finish,
)
from nightferry.plan.placement import Layout, place
from nightferry.plan.window import due_groups, next_run_name, start_delays, window_of, window_start

zones = st.sampled_from(
    ["America/Chicago", "Europe/Berlin", "UTC", "Australia/Lord_Howe", "Asia/Kathmandu"]
).map(ZoneInfo)
instants = st.datetimes(datetime(2024, 1, 1), datetime(2028, 1, 1), timezones=st.just(UTC))
starts = st.builds(time, st.integers(0, 23), st.integers(0, 59))
names = st.text("abcXYZ-019", min_size=1, max_size=6)
sizes = st.dictionaries(names, st.integers(0, 10**12), max_size=30)


@given(instants, starts, zones)
def test_a_window_holds_the_instant_it_was_found_for(now: datetime, start: time, zone: ZoneInfo) -> None:
    window = window_of(now, start, zone)
    begin = window_start(window, start, zone)
    after = datetime.strptime(window, "%Y%m%d") + timedelta(days=1)
    assert begin <= now < window_start(f"{after:%Y%m%d}", start, zone)
    assert window_of(begin, start, zone) == window
    assert f"{begin.astimezone(zone):%Y%m%d}" == window
    assert begin.astimezone(zone).time() >= start


@given(instants, starts, zones, st.floats(0, 72 * 3600))
def test_windows_never_go_back(now: datetime, start: time, zone: ZoneInfo, later: float) -> None:
    assert window_of(now, start, zone) <= window_of(now + timedelta(seconds=later), start, zone)


@given(st.dictionaries(names, starts, min_size=1, max_size=6), instants, zones)
def test_every_group_begins_within_its_night(groups: dict[str, time], now: datetime, zone: ZoneInfo) -> None:
    delays = start_delays(groups, now, zone)
    assert list(delays) == list(due_groups(groups))
    assert set(delays) == set(groups)
    assert all(0 <= delay <= 25 * 3600 for delay in delays.values())
    assert list(delays.values()) == sorted(delays.values())


@given(st.lists(st.sampled_from(["B", "B-2", "C"]), max_size=8))
def test_run_names_are_never_used_twice(groups: list[str]) -> None:
    used: list[str] = []
    for group in groups:
        used.append(next_run_name("20260308", group, used))
    assert len(set(used)) == len(used)


@given(sizes, st.integers(1, 8), st.floats(1, 1e9))
def test_the_order_is_never_worse_than_longest_first_nor_better_than_can_be(
    work: dict[str, int], count: int, rate: float
) -> None:
    lanes = LaneSpeed(count, rate)
    forecast = predict_finish(lane_order(work, count), work, lanes)
    assert sorted(name for lane in forecast.lanes for name in lane) == sorted(work)
    longest = predict_finish(longest_first(work), work, lanes)
    least = max([sum(work.values()) / count, *work.values()], default=0) / rate
    assert least * (1 - 1e-6) <= forecast.seconds <= longest.seconds * (1 + 1e-6)
    assert longest.seconds <= 2 * least * (1 + 1e-6)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=7), st.integers(1, 3))
def test_for_a_handful_of_images_the_order_is_as_good_as_trying_everything(
    all_sizes: list[int], count: int
) -> None:
    work = {f"i{n}": size for n, size in enumerate(all_sizes)}
    best = min(
        max(sum(s for s, lane in zip(all_sizes, chosen, strict=True) if lane == n) for n in range(count))
        for chosen in itertools.product(range(count), repeat=len(all_sizes))
    )
    assert predict_finish(lane_order(work, count), work, LaneSpeed(count, 1.0)).seconds <= best * 1.0001


@given(st.dictionaries(names, st.none() | st.integers(0, 2 * SMALL_BYTES), max_size=120))
def test_every_store_is_in_exactly_one_task(stores: dict[str, int | None]) -> None:
    tasks = batches(stores)
    assert sorted(name for task in tasks for name in task) == sorted(stores)
    for task in tasks:
        assert 1 <= len(task) <= BATCH_STORES
        assert len(task) == 1 or all(
            (stores[name] or SMALL_BYTES) < SMALL_BYTES or stores[name] == 0 for name in task
        )


parts = st.binary(min_size=1, max_size=6).filter(
    lambda name: not {0x2F, 0} & set(name) and name not in (b".", b"..")
)


@given(st.lists(parts, min_size=1, max_size=4))
def test_a_path_written_out_means_itself_and_all_below(path: list[bytes]) -> None:
    name = b"/".join(path)
    if name.startswith((b"!", b"./")) or name == b".":
        return
    matcher = Matcher([name.decode("utf-8", "surrogateescape")])
    assert matcher.matches(name)
    assert matcher.matches(name, directory=True)
    assert matcher.matches(name + b"/below")


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Layout, list[str], set[str], set[str]]:
    """A layout, its BACK groups, the usable passive nodes and those that serve users."""
    passive = [f"p{n}" for n in range(draw(st.integers(1, 6)))]
    layout = Layout(("a",), passive[0], tuple(passive[1:]))
    groups = [f"B{n}" for n in range(draw(st.integers(1, 8)))]
    usable = draw(st.sets(st.sampled_from(passive)))
    return layout, groups, usable, draw(st.sets(st.sampled_from(passive)))


@given(clusters(), st.randoms())
def test_groups_that_move_one_after_the_other_spread_whatever_their_order(
    cluster: tuple[Layout, list[str], set[str], set[str]], shuffle: random.Random
) -> None:
    layout, groups, usable, serving = cluster
    owners = dict.fromkeys(groups, "a")
    order = list(groups)
    shuffle.shuffle(order)
    for group in order:
        node = place(groups, layout, usable=usable, serving=serving, owners=owners)[group]
        assert (node is None) == (not usable)
        assert node is None or node in usable
        owners[group] = node or "a"
    best = [n for n in layout.alternates if n in usable - serving]
    loads = [list(owners.values()).count(node) for node in best]
    if best:
        assert sum(loads) == len(groups), "neither the primary nor a serving node while an alternate is free"
        assert max(loads) - min(loads) <= 1
    elif layout.primary in usable - serving:
        assert set(owners.values()) == {layout.primary}


@given(clusters())
def test_groups_that_are_decided_for_at_the_same_time_meet_only_where_they_must(
    cluster: tuple[Layout, list[str], set[str], set[str]],
) -> None:
    layout, groups, usable, serving = cluster
    # Each by a process of its own, which sees all groups where they were.
    seen = [place(groups, layout, usable=usable, serving=serving, owners={}) for _ in groups]
    chosen = [decision[group] for group, decision in zip(groups, seen, strict=True)]
    free = [n for n in layout.alternates if n in usable - serving]
    if free:
        assert len(set(chosen)) == min(len(groups), len(free))


@given(clusters(), st.data())
def test_a_node_that_goes_down_moves_only_its_own_groups(
    cluster: tuple[Layout, list[str], set[str], set[str]], data: st.DataObject
) -> None:
    layout, groups, usable, serving = cluster
    placed = place(groups, layout, usable=usable, serving=serving)
    owners = {group: node for group, node in placed.items() if node is not None and node not in serving}
    if not owners:
        return
    lost = data.draw(st.sampled_from(sorted(set(owners.values()))))
    again = place(groups, layout, usable=usable - {lost}, serving=serving, owners=owners)
    for group, node in owners.items():
        assert again[group] == node if node != lost else again[group] != lost
