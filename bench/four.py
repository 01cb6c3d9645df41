"""Four copies at once against ``rclone copy --transfers 4``.

Claim: at most the time of rclone, at most 0.4 of its CPU. Ours hash (BLAKE3 and the chunk table) and pass the
page cache by, 8 buffers of 2 MiB each; rclone is told not to hash (``--ignore-checksum``), its fastest way.

    python -m bench.four [--size "2 GiB"] [--rounds 7] [--engine auto]
"""

from __future__ import annotations

import shutil
import statistics
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from bench.common import (
    Claim,
    Cost,
    arguments,
    as_data,
    command,
    cool,
    cost_of,
    make_source,
    paired,
    product,
    report,
    rotated,
    sync_file,
    table,
    workspace,
)
from nightferry.transfer.ring import RingSettings

COPIES = 4


def ours(sources: Path, images: Path, settings: RingSettings) -> None:
    """One process, four writers, each with its ring."""
    with ThreadPoolExecutor(COPIES) as pool:
        list(pool.map(lambda path: product(path, images / path.name, settings), sorted(sources.iterdir())))


def rclone(sources: Path, images: Path) -> None:
    words = ("--config", "", "--transfers", str(COPIES), "--ignore-checksum")
    command("rclone", "copy", *words, sources, images)
    for path in images.iterdir():
        sync_file(path)


def cp(sources: Path, images: Path) -> None:
    """Four cp, as a script would start them."""

    def one(path: Path) -> None:
        command("cp", "--reflink=never", path, images / path.name)
        sync_file(images / path.name)

    with ThreadPoolExecutor(COPIES) as pool:
        list(pool.map(one, sorted(sources.iterdir())))


def main() -> int:
    parser = arguments(__doc__ or "", size="2 GiB")
    parser.add_argument("--engine", choices=("auto", "threads", "io_uring"), default="auto")
    options = parser.parse_args()
    if shutil.which("rclone") is None:
        raise SystemExit("rclone is not installed: there is nothing to compare with")
    settings = RingSettings(buffers=8, engine=options.engine)
    contenders = {
        "nightferry": lambda sources, images: ours(sources, images, settings),
        "rclone --transfers 4": rclone,
        "4 × cp": cp,
    }
    costs: dict[str, list[Cost]] = {name: [] for name in contenders}
    with workspace(options.dir) as folder:
        sources, images = folder / "sources", folder / "images"
        sources.mkdir()
        for number in range(COPIES):
            make_source(sources / f"store{number}", options.size // COPIES)
        for number in range(options.rounds):
            for name in rotated(list(contenders), number):
                images.mkdir()
                cool(*sources.iterdir())
                costs[name].append(cost_of(partial(contenders[name], sources, images)))
                shutil.rmtree(images)
    by_time = paired(costs, "nightferry", "rclone --transfers 4", lambda cost: cost.seconds)
    by_cpu = paired(costs, "nightferry", "rclone --transfers 4", lambda cost: cost.cpu)
    claims = [Claim("time by rclone", by_time, 1.0), Claim("CPU by rclone", by_cpu, 0.4)]
    rates = {
        name: options.size / statistics.median(run.seconds for run in runs) for name, runs in costs.items()
    }
    data = {
        "size_bytes": options.size,
        "rounds": as_data(costs),
        "engine": options.engine,
        "bytes_per_s": rates,
    }
    report("four", options.results, claims, table(costs, options.size), data)
    return 0 if all(claim.holds for claim in claims) else 1


if __name__ == "__main__":
    raise SystemExit(main())
