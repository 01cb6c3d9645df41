"""One large copy: nightferry's ring against dd, cp and a buffered read, hash and write.

Claims (2 GiB, cold source, fsync included): io_uring takes at most 0.95 of the time of ``dd`` with O_DIRECT
and 0.72 of the buffered loop's; threads at most 1.08 and 0.80; with all digests at most 0.40 CPU s/GB; at
most 1 MiB of source and image is left in the page cache; the ring is at most 64 MiB. Reading the image back
against its chunk table is timed apart.

    python -m bench.copy [--size "2 GiB"] [--rounds 7] [--dir FOLDER]
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import blake3

from bench.common import (
    Claim,
    Cost,
    arguments,
    as_data,
    cached_bytes,
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
from nightferry.transfer.base import CHUNK_BYTES
from nightferry.transfer.digest import check_chunk
from nightferry.transfer.engines import why_not
from nightferry.transfer.reading import FileReader
from nightferry.transfer.ring import RingSettings


def buffered(source: Path, image: Path) -> None:
    """What a plain program does: read, hash, write through the page cache, fsync."""
    hasher = blake3.blake3()
    with open(source, "rb", buffering=0) as reading, open(image, "wb", buffering=0) as writing:
        buffer = memoryview(bytearray(1 << 20))
        while count := reading.readinto(buffer):
            hasher.update(buffer[:count])
            writing.write(buffer[:count])
        os.fsync(writing.fileno())


def cp(source: Path, image: Path) -> None:
    command("cp", "--reflink=never", source, image)
    sync_file(image)


def dd(source: Path, image: Path) -> None:
    command("dd", f"if={source}", f"of={image}", "iflag=direct", "oflag=direct", "bs=1M", "conv=fsync")


def read_back(image: Path, chunks: bytes) -> None:
    """Every byte against the chunk table, as the passive node does."""
    with FileReader(image) as reader:
        number = 0
        for piece in reader.stream(0, reader.size_bytes):
            for at in range(0, piece.nbytes, CHUNK_BYTES):
                check_chunk(chunks, number, piece[at : at + CHUNK_BYTES])
                number += 1


def hash_cost() -> float:
    """BLAKE3 alone on one core here and now, in CPU s/GB: the floor below ours."""
    data = memoryview(bytearray(256 << 20))
    hasher = blake3.blake3()
    began = time.process_time()
    for at in range(0, data.nbytes, 2 << 20):
        hasher.update(data[at : at + (2 << 20)])
    return (time.process_time() - began) / data.nbytes * 1e9


def main() -> int:
    parser = arguments(__doc__ or "", size="2 GiB")
    parser.add_argument("--buffers", type=int, default=16)
    parser.add_argument("--buffer", type=int, default=2, help="MiB of one buffer")
    options = parser.parse_args()
    ring = RingSettings(options.buffer << 20, options.buffers, engine="threads")
    contenders: dict[str, Callable[[Path, Path], object]] = {
        "threads": lambda source, image: product(source, image, ring),
        "dd direct 1 MiB": dd,
        "buffered read, hash, write": buffered,
        "cp": cp,
    }
    reason = why_not()
    if reason:
        print(f"without io_uring: {reason}", file=sys.stderr)
    else:
        uring = replace(ring, engine="io_uring")
        contenders = {"io_uring": lambda source, image: product(source, image, uring)} | contenders
    costs: dict[str, list[Cost]] = {name: [] for name in contenders}
    back: list[Cost] = []
    hashing: list[float] = []
    with workspace(options.dir) as folder:
        source, image = make_source(folder / "source", options.size), folder / "image"
        for number in range(options.rounds):
            for name in rotated(list(contenders), number):
                cool(source)
                cost = cost_of(partial(contenders[name], source, image))
                costs[name].append(
                    replace(cost, cached_source=cached_bytes(source), cached_image=cached_bytes(image))
                )
                image.unlink()
            hashing.append(hash_cost())
            chunks = product(source, image, ring)
            cool(image)
            back.append(cost_of(partial(read_back, image, chunks)))
            image.unlink()
    claims = []
    limits = {"io_uring": (0.95, 0.72), "threads": (1.08, 0.80)}
    for engine in (name for name in ("io_uring", "threads") if name in costs):
        by_dd, by_buffered = limits[engine]
        claims += [
            Claim(f"{engine}: time by dd direct", paired(costs, engine, "dd direct 1 MiB", seconds), by_dd),
            Claim(
                f"{engine}: time by buffered",
                paired(costs, engine, "buffered read, hash, write", seconds),
                by_buffered,
            ),
            Claim(
                f"{engine}: CPU s/GB",
                statistics.median(run.cpu for run in costs[engine]) / options.size * 1e9,
                0.40,
            ),
            Claim(
                f"{engine}: CPU s/GB beyond BLAKE3's own",
                statistics.median(
                    run.cpu / options.size * 1e9 - alone
                    for run, alone in zip(costs[engine], hashing, strict=True)
                ),
                0.16,
            ),
            Claim(
                f"{engine}: MiB left in the page cache",
                max(run.cached_source + run.cached_image for run in costs[engine]) / (1 << 20),
                1.0,
            ),
        ]
    claims.append(Claim("ring in MiB", ring.memory_bytes / (1 << 20), 64))
    shown = table(costs | {"read back (chunk table)": back}, options.size)
    alone = statistics.median(hashing)
    shown += f"\n\nBLAKE3 alone takes {alone:.3f} CPU s/GB on one core here; 0.24 where the limits were set."
    data = {
        "size_bytes": options.size,
        "rounds": as_data(costs | {"read back": back}),
        "blake3_cpu_s_per_gb": hashing,
    }
    report("copy", options.results, claims, shown, data)
    return 0 if all(claim.holds for claim in claims) else 1


def seconds(cost: Cost) -> float:
    return cost.seconds


if __name__ == "__main__":
    raise SystemExit(main())
