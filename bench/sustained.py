"""The long night: throughput and system CPU over 20 minutes and more, buffered against unbuffered.

Both arms copy the same large file again and again, with all digests, by the same code and the same ring; only
``unbuffered`` differs. Each runs in a memory control group of 1 GiB, so that the page cache is as short as it
is on a server whose memory belongs to its users. Claims: unbuffered falls by at most 10 % over the window and
takes at most half of buffered's system CPU per GB.

    python -m bench.sustained [--minutes 20] [--size "4 GiB"] [--memory "1 GiB"] [--dir FOLDER]

Needs root, for the control group (version 1 or 2, by its files).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import blake3

from bench.common import Claim, arguments, cool, make_source, report, workspace
from nightferry.transfer.direct import DirectWriter
from nightferry.transfer.meter import Meter, slope
from nightferry.transfer.ring import RingSettings
from nightferry.units import parse_size

CGROUPS = Path("/sys/fs/cgroup")
NO_CGROUP = 3
"""Exit code when no memory control group can be had."""


@contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """A new memory control group; processes join by its ``cgroup.procs``. Gone afterwards.

    Raises:
        OSError: none can be had; the text says why.
    """
    if (CGROUPS / "memory" / "memory.limit_in_bytes").exists():
        parent, file = CGROUPS / "memory", "memory.limit_in_bytes"
    elif (CGROUPS / "cgroup.controllers").exists():
        parent, file = CGROUPS, "memory.max"
        if "memory" not in (parent / "cgroup.controllers").read_text().split():
            raise OSError("the version 2 hierarchy has no memory controller")
        if "memory" not in (parent / "cgroup.subtree_control").read_text().split():
            (parent / "cgroup.subtree_control").write_text("+memory")
    else:
        raise OSError(f"no memory control group is mounted below {CGROUPS}")
    group = parent / f"nightferry-bench-{os.getpid()}"
    group.mkdir()
    try:
        (group / file).write_text(str(limit))
        yield group
    finally:
        group.rmdir()


def arm(source: Path, folder: Path, unbuffered: bool, minutes: float) -> dict[str, Any]:
    """Copies until the time is over; what the meter saw."""
    image = folder / f"image-{os.getpid()}"
    settings = RingSettings(unbuffered=unbuffered)
    fd = os.open(source, os.O_RDONLY)
    size = os.fstat(fd).st_size
    end = time.monotonic() + minutes * 60 + 2
    with Meter() as meter:
        while time.monotonic() < end:
            writer = DirectWriter(image, settings=settings, expected_bytes=size, meter=meter)
            try:
                writer.copy_from(fd, 0, size, blake3.blake3())
                writer.finish()
            finally:
                writer.abort()
    os.close(fd)
    samples = meter.samples
    shares = [sample.machine_system for sample in samples if sample.machine_system is not None]
    copied = samples[-1].bytes_total
    return {
        "slope": slope(samples, minutes),
        "bytes": copied,
        "seconds": samples[-1].at_s,
        "cpu_s_per_gb": samples[-1].cpu_total / copied * 1e9,
        "system_s_per_gb": samples[-1].cpu_system / copied * 1e9,
        "machine_system_share": statistics.mean(shares) if shares else None,
        "rates": [round(sample.rate_bytes_per_s) for sample in samples],
    }


def run_arm(group: Path, source: Path, folder: Path, unbuffered: bool, minutes: float) -> dict[str, Any]:
    """The arm in a process of its own, which joins the group before it starts."""
    cool(source)
    words = ["--arm", "unbuffered" if unbuffered else "buffered", "--minutes", str(minutes)]
    argv = [sys.executable, "-m", "bench.sustained", *words, "--dir", str(folder), "--group", str(group)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> int:
    parser = arguments(__doc__ or "", size="4 GiB")
    parser.add_argument("--minutes", type=float, default=20.0, help="of each arm (default 20)")
    parser.add_argument("--memory", type=parse_size, default=parse_size("1 GiB"), help="limit of the group")
    parser.add_argument("--arm", choices=("buffered", "unbuffered"), help="(internal) run one arm here")
    parser.add_argument("--group", type=Path, help="(internal) the control group to join")
    options = parser.parse_args()
    if options.arm:
        (options.group / "cgroup.procs").write_text(str(os.getpid()))
        found = arm(options.dir / "source", options.dir, options.arm == "unbuffered", options.minutes)
        json.dump(found, sys.stdout)
        return 0
    arms: dict[str, dict[str, Any]] = {}
    try:
        with memory_group(options.memory) as group, workspace(options.dir) as folder:
            source = make_source(folder / "source", options.size)
            for name in ("unbuffered", "buffered"):
                arms[name] = run_arm(group, source, folder, name == "unbuffered", options.minutes)
    except OSError as error:
        print(f"no memory control group, so nothing was measured: {error}", file=sys.stderr)
        return NO_CGROUP
    lines = [
        f"| over {options.minutes:g} min | MB/s | slope | CPU s/GB | system s/GB | machine's system share |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in arms.items():
        change = "–" if found["slope"] is None else f"{found['slope']:+.1%}"
        lines.append(
            f"| {name} | {found['bytes'] / found['seconds'] / 1e6:.0f} | {change} "
            f"| {found['cpu_s_per_gb']:.3f} | {found['system_s_per_gb']:.3f} "
            f"| {found['machine_system_share'] or 0:.1%} |"
        )
    ours, theirs = arms["unbuffered"], arms["buffered"]
    fall = float("inf") if ours["slope"] is None else -ours["slope"]
    claims = [
        Claim("unbuffered: fall over the window", fall, 0.10),
        Claim("system CPU per GB by buffered", ours["system_s_per_gb"] / theirs["system_s_per_gb"], 0.5),
    ]
    data = {
        "size_bytes": options.size,
        "minutes": options.minutes,
        "memory_bytes": options.memory,
        "arms": arms,
    }
    report("sustained", options.results, claims, "\n".join(lines), data)
    return 0 if all(claim.holds for claim in claims) else 1


if __name__ == "__main__":
    raise SystemExit(main())
