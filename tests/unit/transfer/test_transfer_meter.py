from __future__ import annotations

import json
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nightferry.transfer.meter import Meter, Sample, is_degraded, slope, to_json_lines


class FakeClock:
    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.time)

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def samples(rates: list[float], every_s: float = 1.0) -> list[Sample]:
    return [Sample(number * every_s, 0, rate, 0.0, 0.0, None, None) for number, rate in enumerate(rates)]


def falling(share: float, seconds: int = 1201) -> list[Sample]:
    """Rates on a line that loses ``share`` over 20 minutes."""
    return samples([100.0 * (1 - share * second / 1200) for second in range(seconds)])


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, -0.3])
def test_slope_is_the_change_of_the_line_over_the_window(share: float) -> None:
    assert slope(falling(share)) == pytest.approx(-share)


def test_only_the_last_twenty_minutes_count() -> None:
    history = [1.0] * 5000 + [100.0 - 20.0 * second / 1200 for second in range(1201)]
    assert slope(samples(history)) == pytest.approx(-0.2)


def test_noise_around_a_flat_line_is_flat() -> None:
    assert slope(samples([100.0, 90.0, 110.0] * 401)) == pytest.approx(0.0, abs=1e-3)


def test_shorter_than_the_window_cannot_be_told() -> None:
    assert slope(falling(0.5, 1190)) is None
    assert slope(falling(0.5, 601), minutes=10) == pytest.approx(-0.25)
    assert slope([]) is None


def test_line_that_starts_at_nothing_cannot_be_told() -> None:
    assert slope(samples([0.0] * 1201)) is None


def test_degraded_means_more_than_a_tenth() -> None:
    assert is_degraded(falling(0.101))
    assert not is_degraded(falling(0.099))
    assert not is_degraded(falling(0.9, 600))


def write_proc(proc: Path, system: int, idle: int, pressure: str | None) -> None:
    (proc / "pressure").mkdir(parents=True, exist_ok=True)
    (proc / "stat").write_text(f"cpu  0 0 {system} {idle} 0 0 0 0 7 7\ncpu0 1 1 1\nintr 5\n")
    if pressure is not None:
        some = f"some avg10={pressure} avg60=0.20 avg300=1.25 total=1\n"
        (proc / "pressure" / "io").write_text(some + "full avg10=9.00 avg60=0 avg300=0 total=1\n")


def test_sample_says_rate_machine_and_pressure(tmp_path: Path) -> None:
    clock = FakeClock()
    write_proc(tmp_path, 100, 900, "1.50")
    meter = Meter(clock=clock, proc=tmp_path)
    meter.add(500)
    meter.add(500)
    clock.time += 2
    write_proc(tmp_path, 130, 970, "2.50")
    taken = meter.sample()
    assert (taken.at_s, taken.bytes_total, taken.rate_bytes_per_s) == (2.0, 1000, 500.0)
    assert taken.machine_system == pytest.approx(0.3)
    assert taken.psi_io_some_avg10 == 2.5
    assert 0 <= taken.cpu_system <= taken.cpu_total
    clock.time += 1
    assert meter.sample().rate_bytes_per_s == 0.0
    assert [sample.at_s for sample in meter.samples] == [2.0, 3.0]
    assert not meter.is_degraded


def test_kernel_without_pressure_or_stat_is_no_error(tmp_path: Path) -> None:
    taken = Meter(clock=FakeClock(), proc=tmp_path).sample()
    assert taken.psi_io_some_avg10 is None
    assert taken.machine_system is None


def test_cpu_is_this_processes_own() -> None:
    meter = Meter()
    before = os.times()
    while (os.times().user - before.user) + (os.times().system - before.system) < 0.03:
        sum(range(10_000))
    taken = meter.sample()
    assert taken.cpu_total >= 0.02


def test_thread_ends_with_the_meter_and_leaves_a_last_sample() -> None:
    meter = Meter()
    with meter:
        assert "nightferry-meter" in {thread.name for thread in threading.enumerate()}
        meter.add(7)
    assert "nightferry-meter" not in {thread.name for thread in threading.enumerate()}
    assert meter.samples[-1].bytes_total == 7


def test_count_is_exact_from_many_threads() -> None:
    meter = Meter()
    threads = [threading.Thread(target=lambda: [meter.add(1) for _ in range(5000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert meter.sample().bytes_total == 20_000


def test_json_lines_carry_every_field() -> None:
    lines = to_json_lines(samples([1.0, 2.0])).splitlines()
    assert [json.loads(line)["rate_bytes_per_s"] for line in lines] == [1.0, 2.0]
    assert set(json.loads(lines[0])) == {
        "at_s",
        "bytes_total",
        "rate_bytes_per_s",
        "cpu_total",
        "cpu_system",
        "machine_system",
        "psi_io_some_avg10",
    }
    assert to_json_lines([]) == ""
