"""Compressing a copy: nightferry's zstd frames against ``zstd -1``.

Claims (text like a database dump, cold source, fsync included): nightferry compresses at least 0.9 of the
bytes ``zstd -1`` does in a CPU second, its chunk digests and the seek table included, and the file is at
most 1 % longer. The decoded file is compared with the source by ``cmp``, outside the timing.

    python -m bench.encode [--size "1 GiB"] [--rounds 7] [--dir FOLDER]
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
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
    paired,
    report,
    rotated,
    sync_file,
    table,
    workspace,
)
from nightferry.image.frames import FramedReader, encode
from nightferry.transfer.base import CHUNK_BYTES
from nightferry.transfer.digest import chunk_digest
from nightferry.transfer.reading import FileReader

LEVEL = 1


def make_dump(path: Path, size: int) -> Path:
    """Rows of a table as text, on the disk. They repeat after 16 MiB: neither looks back so far."""
    content = random.Random(1)
    words = [
        "".join(content.choices("abcdefghijklmnopqrstuvwxyz", k=content.randint(3, 11))) for _ in range(4000)
    ]
    lines = []
    left = 16 << 20
    while left > 0:
        said = " ".join(content.choices(words, k=content.randint(4, 20)))
        lines.append(
            f"{content.getrandbits(31)}\t{said}\t2026-11-{content.randint(1, 30):02d} "
            f"{content.randint(0, 23):02d}:00:00\t{content.random():.6f}\n"
        )
        left -= len(lines[-1])
    block = "".join(lines).encode()
    with open(path, "wb") as file:
        while (written := file.tell()) < size:
            file.write(block[: size - written])
        file.flush()
        os.fsync(file.fileno())
    return path


def frames(source: Path, target: Path) -> None:
    """As a copy goes out: read, each chunk digested, framed, written, fsynced."""
    with FileReader(source) as reader, open(target, "wb", buffering=0) as file:

        def proved() -> Iterator[memoryview]:
            for piece in reader.stream(0, reader.size_bytes):
                for at in range(0, len(piece), CHUNK_BYTES):
                    chunk_digest(piece[at : at + CHUNK_BYTES])
                yield piece

        for piece in encode(proved(), LEVEL):
            file.write(piece)
        os.fsync(file.fileno())


def zstd(source: Path, target: Path) -> None:
    command("zstd", "-q", "-f", f"-{LEVEL}", source, "-o", target)
    sync_file(target)


def decoded(encoded: Path, size: int, target: Path) -> None:
    """Every byte back through the reader that restores use."""
    with FileReader(encoded) as reader, open(target, "wb") as file:
        for piece in FramedReader(reader, size).stream(0, size):
            file.write(piece)


def main() -> int:
    options = arguments(__doc__ or "", size="1 GiB").parse_args()
    contenders: dict[str, Callable[[Path, Path], None]] = {"nightferry": frames, "zstd -1": zstd}
    names = list(contenders)
    costs: dict[str, list[Cost]] = {name: [] for name in names}
    sizes: dict[str, int] = {}
    with workspace(options.dir) as folder:
        source = make_dump(folder / "source", options.size)
        for number in range(options.rounds):
            for name in rotated(names, number):
                target = folder / "encoded"
                cool(source)
                costs[name].append(cost_of(partial(contenders[name], source, target)))
                sizes[name] = target.stat().st_size
                if name == "nightferry" and number == 0:
                    decoded(target, options.size, folder / "back")
                    subprocess.run(["cmp", source, folder / "back"], check=True)
                    (folder / "back").unlink()
                target.unlink()
    claims = [
        Claim("CPU of zstd -1", paired(costs, "nightferry", "zstd -1", lambda c: c.cpu), 1 / 0.9),
        Claim("length of zstd -1's file", sizes["nightferry"] / sizes["zstd -1"], 1.01),
    ]
    shown = table(costs, options.size)
    ratios = ", ".join(f"{name} {options.size / size:.2f}" for name, size in sizes.items())
    shown += f"\n\nratio: {ratios}"
    report("encode", options.results, claims, shown, {"rounds": as_data(costs), "sizes": sizes})
    return 0 if all(claim.holds for claim in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
