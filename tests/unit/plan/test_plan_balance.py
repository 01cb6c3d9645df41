import pytest

from nightferry.errors import ConfigError
from nightferry.plan.balance import (
    LaneSpeed,
    batches,
    lane_order,
    least_seconds,
    longest_first,
    predict_finish,
)
from nightferry.units import MIB


def test_the_longest_comes_first_and_equal_ones_by_name() -> None:
    assert longest_first({"b": 2, "a": 2, "c": 9, "d": 0}) == ["c", "a", "b", "d"]


def test_each_free_lane_takes_the_next_of_the_list() -> None:
    sizes = {"a": 70, "b": 60, "c": 50, "d": 40, "e": 30}
    forecast = predict_finish(longest_first(sizes), sizes, LaneSpeed(2, 10))
    assert forecast.lanes == (("a", "d", "e"), ("b", "c"))
    assert forecast.finish_s == pytest.approx({"a": 7.0, "b": 6.0, "c": 11.0, "d": 11.0, "e": 14.0})
    assert forecast.seconds == pytest.approx(14.0)
    assert predict_finish([], {}, LaneSpeed(3, 1)).seconds == 0.0


def test_the_order_ends_earlier_than_longest_first_where_that_is_not_the_best() -> None:
    sizes = {"a": 3, "b": 3, "c": 2, "d": 2, "e": 2}
    assert predict_finish(longest_first(sizes), sizes, LaneSpeed(2, 1)).seconds == pytest.approx(7)
    assert predict_finish(lane_order(sizes, 2), sizes, LaneSpeed(2, 1)).seconds == pytest.approx(6)
    assert lane_order({}, 3) == []


def test_the_arm_brings_one_cartridge_after_the_other_and_a_full_one_is_changed() -> None:
    sizes = {"a": 100, "b": 100}
    forecast = predict_finish(["a", "b"], sizes, LaneSpeed(2, 10, arm_s=5, load_s=2))
    assert forecast.finish_s == pytest.approx({"a": 17, "b": 22})
    changed = predict_finish(["a"], {"a": 100}, LaneSpeed(1, 10, arm_s=5, load_s=2, cartridge_bytes=60))
    assert changed.finish_s == pytest.approx({"a": 7 + 6 + 7 + 4})


def test_what_lanes_share_is_shared_fairly() -> None:
    sizes = {"a": 100, "b": 100, "c": 100}
    by_source = predict_finish(list(sizes), sizes, LaneSpeed(3, 10, source_rate=15))
    assert by_source.seconds == pytest.approx(20)
    # Two lanes on one adapter get half of it each; the third has its own to itself.
    by_adapter = predict_finish(list(sizes), sizes, LaneSpeed(3, 10, adapters=(0, 0, 1), adapter_rate=10))
    assert by_adapter.finish_s == pytest.approx({"a": 20, "b": 20, "c": 10})


def test_no_forecast_is_below_the_bound() -> None:
    sizes = {f"i{n}": 40 + 13 * n % 60 for n in range(30)}
    lanes = LaneSpeed(4, 10, source_rate=30, adapters=(0, 0, 1, 1), adapter_rate=18, arm_s=3, load_s=2)
    forecast = predict_finish(lane_order(sizes, 4), sizes, lanes)
    assert least_seconds(sizes, lanes) <= forecast.seconds <= 1.05 * least_seconds(sizes, lanes)
    assert least_seconds({}, lanes) == 0.0


def test_a_prediction_without_lanes_or_rate_is_refused() -> None:
    for count, rate in ((0, 1.0), (1, 0.0), (1, float("nan"))):
        with pytest.raises(ConfigError):
            LaneSpeed(count, rate)
    with pytest.raises(ConfigError):
        LaneSpeed(2, 1.0, adapters=(0,))
    with pytest.raises(ConfigError):
        lane_order({"a": 1}, 0)


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
