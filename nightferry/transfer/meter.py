"""How fast it goes and what it costs, once a second; and whether it is getting slower."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from nightferry.clock import SYSTEM_CLOCK, Clock

SAMPLE_S = 1.0
WINDOW_MINUTES = 20
"""A copy is judged by its last 20 minutes: shorter dips are the disk's own."""

DEGRADED = -0.10
"""A fall by more than this share over the window is what the buffered process showed before it stood
still.
"""

KEPT_SAMPLES = 24 * 3600


@dataclass(frozen=True, slots=True)
class Sample:
    """One second of a transfer.

    Attributes:
        at_s: Seconds since the meter began.
        bytes_total: Bytes counted since then.
        rate_bytes_per_s: Rate since the sample before.
        cpu_total: CPU seconds of this process since the meter began, in user and system mode.
        cpu_system: Those of them in system mode.
        machine_system: Share (0 to 1) of all processors' time spent in system mode since the sample before,
            all processes together; None where /proc/stat cannot tell.
        psi_io_some_avg10: Percent of the last ten seconds in which some process waited for a disk; None
            where the kernel does not say.
    """

    at_s: float
    bytes_total: int
    rate_bytes_per_s: float
    cpu_total: float
    cpu_system: float
    machine_system: float | None
    psi_io_some_avg10: float | None


class Meter:
    """Counts bytes and samples once a second while it is entered (``with meter:``).

    ``add`` may be called from any thread. The last 24 hours of samples are kept.

    Args:
        clock: Where time comes from. A test calls ``sample`` itself instead of entering.
        proc: Where the kernel's files are.
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK, proc: Path = Path("/proc")) -> None:
        self._clock = clock
        self._proc = proc
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._samples: deque[Sample] = deque(maxlen=KEPT_SAMPLES)
        self._bytes = 0
        self._began = clock.monotonic()
        self._cpu_began = os.times()
        self._last = (0.0, 0)
        self._machine = self._read_machine()

    def __enter__(self) -> Self:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="nightferry-meter", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
            self.sample()

    def add(self, count: int) -> None:
        """``count`` more bytes went through."""
        with self._lock:
            self._bytes += count

    @property
    def samples(self) -> list[Sample]:
        """The samples so far, oldest first."""
        with self._lock:
            return list(self._samples)

    @property
    def is_degraded(self) -> bool:
        """Whether the rate fell by more than 10 % over the last 20 minutes."""
        return is_degraded(self.samples)

    def sample(self) -> Sample:
        """Takes one sample now and keeps it."""
        cpu, machine, pressure = os.times(), self._read_machine(), self._read_pressure()
        with self._lock:
            at = self._clock.monotonic() - self._began
            since, before = self._last
            taken = Sample(
                at_s=at,
                bytes_total=self._bytes,
                rate_bytes_per_s=(self._bytes - before) / (at - since) if at > since else 0.0,
                cpu_total=(cpu.user - self._cpu_began.user) + (cpu.system - self._cpu_began.system),
                cpu_system=cpu.system - self._cpu_began.system,
                machine_system=_share(self._machine, machine),
                psi_io_some_avg10=pressure,
            )
            self._last = (at, self._bytes)
            self._machine = machine
            self._samples.append(taken)
        return taken

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self.sample()

    def _read_machine(self) -> tuple[int, int] | None:
        """Ticks of all processors since boot: in system mode (interrupts included), in all modes."""
        try:
            first = (self._proc / "stat").read_text("ascii").split("\n", 1)[0].split()
        except OSError:
            return None
        # proc(5): cpu user nice system idle iowait irq softirq steal guest guest_nice; guests are within
        # user.
        ticks = [int(field) for field in first[1:9]]
        return ticks[2] + ticks[5] + ticks[6], sum(ticks)

    def _read_pressure(self) -> float | None:
        try:
            some = (self._proc / "pressure" / "io").read_text("ascii").split("\n", 1)[0]
        except OSError:
            return None
        return float(dict(field.split("=", 1) for field in some.split()[1:])["avg10"])


def slope(samples: Sequence[Sample], minutes: float = WINDOW_MINUTES) -> float | None:
    """The relative change of the throughput over the last ``minutes``: −0.1 is a fall by 10 %.

    It is taken on the least-squares line through the rates, from the line's value at the window's start to
    that at its end. None while the samples span less than the window, and when the line starts at nothing.
    """
    if not samples:
        return None
    end = samples[-1].at_s
    start = end - minutes * 60
    if samples[0].at_s > start + SAMPLE_S:
        return None
    points = [(sample.at_s - start, sample.rate_bytes_per_s) for sample in samples if sample.at_s >= start]
    if len(points) < 2:
        return None
    mean_at = sum(at for at, _ in points) / len(points)
    mean_rate = sum(rate for _, rate in points) / len(points)
    spread = sum((at - mean_at) ** 2 for at, _ in points)
    if spread == 0:
        return None
    gradient = sum((at - mean_at) * (rate - mean_rate) for at, rate in points) / spread
    first = mean_rate - gradient * mean_at
    return gradient * minutes * 60 / first if first > 0 else None


def is_degraded(samples: Sequence[Sample]) -> bool:
    """Whether the rate fell by more than 10 % over the last 20 minutes; False while that is unknown."""
    change = slope(samples)
    return change is not None and change < DEGRADED


def to_json_lines(samples: Sequence[Sample]) -> str:
    """One JSON object a line, with the names of ``Sample``; empty for no samples."""
    return "".join(json.dumps(asdict(sample)) + "\n" for sample in samples)


def _share(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])
