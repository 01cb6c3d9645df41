"""What all benchmarks share: sources, cold caches, costs, paired rounds, and the table and JSON they end in.

Run each from the top of the repository with ``python -m bench.NAME``. Peer and product run in the same
rounds, in an order that rotates, and the claims are ratios within a round: a busy or slow machine then tells
the same as an idle one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import blake3

from nightferry.transfer.direct import DirectWriter, RingSettings
from nightferry.units import parse_size

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run of one contender took."""

    seconds: float
    cpu_user: float
    cpu_system: float
    cached_source: int = 0
    cached_image: int = 0

    @property
    def cpu(self) -> float:
        return self.cpu_user + self.cpu_system


@dataclass(frozen=True, slots=True)
class Claim:
    """A ratio or a figure, and the most it may be."""

    name: str
    value: float
    at_most: float

    @property
    def holds(self) -> bool:
        return self.value <= self.at_most


def arguments(description: str, *, size: str, rounds: int = 7) -> argparse.ArgumentParser:
    """The options every benchmark has."""
    parser = argparse.ArgumentParser(description=description.split("\n", 1)[0])
    parser.add_argument("--dir", type=Path, help="a folder on the disk to measure (default: a temporary one)")
    parser.add_argument("--size", type=parse_size, default=parse_size(size), help=f"default {size}")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"paired rounds (default {rounds})")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON goes")
    return parser


@contextmanager
def workspace(folder: Path | None) -> Iterator[Path]:
    """A folder of our own on the disk to measure; gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix="nightferry-bench-", dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def make_source(path: Path, size: int) -> Path:
    """A file of random bytes, on the disk."""
    with open(path, "wb") as file:
        left = size
        while left:
            left -= file.write(os.urandom(min(left, 16 << 20)))
        file.flush()
        os.fsync(file.fileno())
    return path


def cool(*paths: Path) -> None:
    """Empties the page cache: all of it as root, else what these files have in it."""
    os.sync()
    if os.geteuid() == 0:
        try:
            Path("/proc/sys/vm/drop_caches").write_text("1")
            return
        except OSError as error:
            print(f"drop_caches is refused ({error.strerror}); dropping the sources only", file=sys.stderr)
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def cached_bytes(path: Path) -> int:
    """Bytes of a file in the page cache, as fincore says."""
    command = ["fincore", "--bytes", "--noheadings", "--output", "RES", str(path)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def cost_of(work: Callable[[], object]) -> Cost:
    """Wall time and CPU time of this process and the children it waited for."""
    before = _used()
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    after = _used()
    return Cost(seconds, after[0] - before[0], after[1] - before[1])


def _used() -> tuple[float, float]:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + children.ru_utime, own.ru_stime + children.ru_stime


def command(*argv: str | Path) -> None:
    """Runs a peer to its end."""
    subprocess.run(
        [str(word) for word in argv], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def sync_file(path: Path) -> None:
    """What a peer that does not fsync still owes."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def product(source: Path, image: Path, settings: RingSettings) -> bytes:
    """One stage-one copy: allocation, ring, BLAKE3 of the payload, chunk table, fsync. Returns the table."""
    fd = os.open(source, os.O_RDONLY)
    size = os.fstat(fd).st_size
    writer = DirectWriter(image, settings=settings, expected_bytes=size)
    try:
        copied = writer.copy_from(fd, 0, size, blake3.blake3())
        if copied != size:
            raise SystemExit(f"{source} has only {copied} of {size} bytes")
        return writer.finish()
    except BaseException:
        writer.abort()
        raise
    finally:
        os.close(fd)


def rotated(names: Sequence[str], number: int) -> list[str]:
    """The contenders in this round's order."""
    shift = number % len(names)
    return [*names[shift:], *names[:shift]]


def paired(costs: Mapping[str, Sequence[Cost]], one: str, other: str, what: Callable[[Cost], float]) -> float:
    """The median over the rounds of ``one`` by ``other``, each ratio within one round."""
    return statistics.median(what(a) / what(b) for a, b in zip(costs[one], costs[other], strict=True))


def table(costs: Mapping[str, Sequence[Cost]], size: int) -> str:
    """A markdown table of medians."""
    lines = [
        "| contender | s | MB/s | CPU s/GB | system s/GB | cached source MiB | cached image MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, runs in costs.items():
        seconds = statistics.median(run.seconds for run in runs)
        cpu, system = (
            statistics.median(values) / size * 1e9
            for values in ([run.cpu for run in runs], [run.cpu_system for run in runs])
        )
        source = max(run.cached_source for run in runs) / (1 << 20)
        image = max(run.cached_image for run in runs) / (1 << 20)
        lines.append(
            f"| {name} | {seconds:.2f} | {size / seconds / 1e6:.0f} | {cpu:.3f} | {system:.3f} "
            f"| {source:.1f} | {image:.1f} |"
        )
    return "\n".join(lines)


def report(name: str, folder: Path, claims: Sequence[Claim], shown: str, data: Mapping[str, Any]) -> None:
    """Prints table and claims, and writes ``NAME.json``."""
    print(shown)
    print()
    print("| claim | measured | at most | holds |")
    print("|---|---|---|---|")
    for claim in claims:
        print(f"| {claim.name} | {claim.value:.3f} | {claim.at_most:g} | {'yes' if claim.holds else 'NO'} |")
    document = {
        "benchmark": name,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "kernel": platform.release(),
            "python": platform.python_version(),
            "processors": os.cpu_count(),
        },
        "claims": [asdict(claim) | {"holds": claim.holds} for claim in claims],
        **data,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")


def as_data(costs: Mapping[str, Sequence[Cost]]) -> dict[str, list[dict[str, float]]]:
    """The rounds, for the JSON."""
    return {name: [asdict(run) for run in runs] for name, runs in costs.items()}
