import pytest

from nightferry.errors import ConfigError
from nightferry.plan.balance import longest_first, predict_finish
from nightferry.plan.batches import batches
from nightferry.units import MIB


def test_the_longest_comes_first_and_equal_ones_by_name() -> None:
    assert longest_first({"b": 2, "a": 2, "c": 9, "d": 0}) == ["c", "a", "b", "d"]


def test_each_free_lane_takes_the_largest_left() -> None:
    forecast = predict_finish({"a": 70, "b": 60, "c": 50, "d": 40, "e": 30}, lanes=2, rate=10)
    assert forecast.lanes == (("a", "d", "e"), ("b", "c"))
    assert forecast.finish_s == {"a": 7.0, "b": 6.0, "c": 11.0, "d": 11.0, "e": 14.0}
    assert forecast.seconds == 14.0
    assert predict_finish({}, lanes=3, rate=1).seconds == 0.0


def test_a_prediction_without_lanes_or_rate_is_refused() -> None:
    for lanes, rate in ((0, 1.0), (1, 0.0), (1, float("nan"))):
        with pytest.raises(ConfigError):
            predict_finish({"a": 1}, lanes=lanes, rate=rate)


def test_large_and_unknown_stores_are_tasks_of_their_own() -> None:
    sizes = {"big": 900 * MIB, "edge": 64 * MIB, "small": 64 * MIB - 1, "tiny": 0, "new": None}
    assert batches(sizes, few=0) == [("new",), ("big",), ("edge",), ("small", "tiny")]


def test_few_small_stores_are_tasks_of_their_own() -> None:
    sizes = {f"s{i:03}": i for i in range(16)}
    assert batches(sizes) == [(name,) for name in sorted(sizes, reverse=True)]
    assert len(batches(sizes | {"s016": 16})) == 1


def test_small_stores_are_batched_evenly_up_to_fifty() -> None:
    tasks = batches({f"s{i:03}": i for i in range(101)})
    assert [len(task) for task in tasks] == [34, 34, 33]
    assert batches({}) == []
    assert [len(task) for task in batches({f"s{i:03}": i for i in range(50)})] == [50]
