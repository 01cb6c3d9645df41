"""What the store's users feel: database-like reads and writes beside a stage-one copy, and beside cp.

fio does 8 KiB random I/O, 70 % reads, unbuffered, on the source's disk: alone, beside nightferry as fast as
it can, beside nightferry kept to a rate, beside cp. Claim: p99 read latency beside nightferry at that rate
is at most that beside cp. (At full speed nightferry moves several times cp's bytes, and the disk's users feel
each of them.)

    python -m bench.impact [--seconds 30] [--size "2 GiB"] [--rounds 3] [--rate "200 MiB/s"]
"""

from __future__ import annotations

import contextlib
import json
import shutil
import statistics
import subprocess
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import blake3

from bench.common import Claim, arguments, command, cool, make_source, report, rotated, workspace
from nightferry.errors import Cancelled
from nightferry.progress import Cancel
from nightferry.transfer.direct import DirectWriter
from nightferry.transfer.meter import Meter
from nightferry.transfer.ring import RingSettings
from nightferry.transfer.throttle import Throttle
from nightferry.units import parse_rate


def fio(file: Path, seconds: int) -> dict[str, float]:
    """Percentiles of the database's latency in microseconds, and its rate."""
    argv = ["fio", "--name=database", f"--filename={file}", "--rw=randrw", "--rwmixread=70", "--bs=8k"]
    argv += ["--direct=1", "--ioengine=libaio", "--iodepth=4", "--time_based", f"--runtime={seconds}"]
    argv += ["--randrepeat=1", "--output-format=json"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    job: dict[str, Any] = json.loads(done.stdout)["jobs"][0]
    found = {"iops": job["read"]["iops"] + job["write"]["iops"]}
    for way in ("read", "write"):
        percentiles = job[way]["clat_ns"]["percentile"]
        found[f"{way}_p50_us"] = percentiles["50.000000"] / 1000
        found[f"{way}_p99_us"] = percentiles["99.000000"] / 1000
    return found


def stage(source: Path, image: Path, meter: Meter, rate: float | None, cancel: Cancel) -> None:
    """Stage-one copies until told to stop."""
    throttle = Throttle(rate) if rate else None
    with contextlib.suppress(Cancelled), open(source, "rb") as file:
        while True:
            size = source.stat().st_size
            writer = DirectWriter(
                image,
                settings=RingSettings(),
                expected_bytes=size,
                meter=meter,
                throttle=throttle,
                cancel=cancel,
            )
            try:
                writer.copy_from(file.fileno(), 0, size, blake3.blake3())
                writer.finish()
            finally:
                writer.abort()


def cp(source: Path, image: Path, meter: Meter, cancel: Cancel) -> None:
    """cp again and again until told to stop."""
    while not cancel.is_set():
        command("cp", "--reflink=never", source, image)
        meter.add(source.stat().st_size)
        image.unlink()


def beside(work: Callable[[Meter, Cancel], None] | None, file: Path, seconds: int) -> dict[str, float]:
    """fio's figures while ``work`` goes on in a thread; the work's rate beside them."""
    if work is None:
        return fio(file, seconds)
    meter, cancel = Meter(), Cancel()
    thread = threading.Thread(target=work, args=(meter, cancel))
    thread.start()
    try:
        found = fio(file, seconds)
        found["copy_mb_per_s"] = meter.sample().rate_bytes_per_s / 1e6
    finally:
        cancel.set("fio has ended")
        thread.join()
    return found


def main() -> int:
    parser = arguments(__doc__ or "", size="2 GiB", rounds=3)
    parser.add_argument("--seconds", type=int, default=30, help="of each measurement (default 30)")
    parser.add_argument("--rate", type=parse_rate, default=parse_rate("200 MiB/s"), help="default 200 MiB/s")
    options = parser.parse_args()
    if shutil.which("fio") is None:
        raise SystemExit("fio is not installed: there is nothing to measure with")
    runs: dict[str, list[dict[str, float]]] = {}
    with workspace(options.dir) as folder:
        source, image = make_source(folder / "source", options.size), folder / "image"
        database = make_source(folder / "database", options.size // 2)
        contenders: dict[str, Callable[[Meter, Cancel], None] | None] = {
            "idle": None,
            "nightferry": lambda meter, cancel: stage(source, image, meter, None, cancel),
            "nightferry at a rate": lambda meter, cancel: stage(source, image, meter, options.rate, cancel),
            "cp": partial(cp, source, image),
        }
        runs = {name: [] for name in contenders}
        for number in range(options.rounds):
            for name in rotated(list(contenders), number):
                cool(source)
                runs[name].append(beside(contenders[name], database, options.seconds))
                image.unlink(missing_ok=True)
    fields = ["read_p50_us", "read_p99_us", "write_p50_us", "write_p99_us", "iops", "copy_mb_per_s"]
    lines = [f"| beside | {' | '.join(fields)} |", "|---" * (len(fields) + 1) + "|"]
    for name, found in runs.items():
        values = [statistics.median(run.get(field, 0.0) for run in found) for field in fields]
        lines.append(f"| {name} | {' | '.join(f'{value:.0f}' for value in values)} |")
    ratio = statistics.median(
        ours["read_p99_us"] / theirs["read_p99_us"]
        for ours, theirs in zip(runs["nightferry at a rate"], runs["cp"], strict=True)
    )
    claims = [Claim("p99 read beside nightferry at a rate by that beside cp", ratio, 1.0)]
    data = {"size_bytes": options.size, "rate_bytes_per_s": options.rate, "rounds": runs}
    report("impact", options.results, claims, "\n".join(lines), data)
    return 0 if all(claim.holds for claim in claims) else 1


if __name__ == "__main__":
    raise SystemExit(main())
