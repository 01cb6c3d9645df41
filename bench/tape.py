"""The virtual tape library: one large image beside ``dd bs=1M`` of the same bytes, and a thousand small ones.

Claims: writing and reading at least 0.9 × as fast as ``dd``; a thousand images of 1 MiB take at most 5 s more than one
image of as many bytes. Every image goes through the whole layer: chunks checked, ring, records, trailer, catalog.

    python -m bench.tape [--size "2 GiB"] [--rounds 7] [--images 1000]

``dd`` writes with ``conv=fsync``: the library's last filemark is on the disk too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
    report,
    rotated,
    table,
    workspace,
)
from nightferry.catalog.query import Catalog
from nightferry.destination.base import Encoding, Receipt
from nightferry.destination.tape.library.destination import TapeDestination
from nightferry.destination.tape.library.pool import Pool
from nightferry.destination.tape.library.virtual import VirtualLibrary, create
from nightferry.progress import QUIET, Cancel
from nightferry.site.destinations import CatalogRegister
from nightferry.transfer.base import CHUNK_BYTES
from nightferry.transfer.digest import check_chunk, chunk_digest
from nightferry.transfer.reading import FileReader
from nightferry.units import MIB


class Staged:
    """A file as an image on its way out, each chunk proved as stage two does it."""

    encoding: Encoding = ""
    digest = "0" * 64

    def __init__(self, name: str, path: Path, table: bytes) -> None:
        self.image, self._path, self._table = name, path, table
        self.size_bytes = path.stat().st_size
        self.side_files: Mapping[str, bytes] = {"index": bytes(4096), "chunks": table, "meta.json": b"{}"}

    def chunks(self, first_chunk: int = 0) -> Iterator[memoryview]:
        number, offset = first_chunk, first_chunk * CHUNK_BYTES
        with FileReader(self._path) as reader:
            for piece in reader.stream(offset, self.size_bytes - offset):
                for start in range(0, len(piece), CHUNK_BYTES):
                    chunk = piece[start : start + CHUNK_BYTES]
                    check_chunk(self._table, number, chunk)
                    number += 1
                    yield chunk


def table_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return b"".join(chunk_digest(chunk) for chunk in iter(lambda: file.read(CHUNK_BYTES), b""))


@contextmanager
def library(root: Path, cartridge_bytes: int) -> Iterator[TapeDestination]:
    """A fresh library of one drive with a real catalog."""
    root.mkdir()
    create(root / "vtl", 1, 1, cartridge_bytes)
    register = CatalogRegister(Catalog.create(root / "catalog", node="bench"), "tape")
    tape = TapeDestination("tape", VirtualLibrary(root / "vtl"), Pool("bench", wait_for_media_s=0), register)
    try:
        yield tape
    finally:
        tape.close()
        shutil.rmtree(root)


def put(tape: TapeDestination, image: Staged) -> Receipt:
    with tape.lane(progress=QUIET, cancel=Cancel()) as lane:
        return lane.put(image, 1, progress=QUIET, cancel=Cancel())


def read(tape: TapeDestination, receipt: Receipt, table: bytes) -> None:
    with tape.open(receipt.location) as reader:
        for number, chunk in enumerate(reader.stream(0, reader.size_bytes)):
            check_chunk(table, number, chunk)


def main() -> int:
    parser = arguments(__doc__ or "", size="2 GiB")
    parser.add_argument("--images", type=int, default=1000, help="small images (default 1000)")
    options = parser.parse_args()
    costs: dict[str, list[Cost]] = {}
    small: dict[str, list[Cost]] = {}
    with workspace(options.dir) as root:
        source = make_source(root / "image", options.size)
        digests = table_of(source)
        little = make_source(root / "little", MIB)
        little_digests = table_of(little)
        together = make_source(root / "together", options.images * MIB)
        together_digests = table_of(together)
        for number in range(options.rounds):
            with library(root / "large", 4 * options.size) as tape:
                receipts: list[Receipt] = []
                work = {
                    "dd, writing": lambda: command(
                        "dd", f"if={source}", f"of={root}/dd", "bs=1M", "conv=fsync"
                    ),
                    "tape, writing": lambda: receipts.append(put(tape, Staged("i", source, digests))),  # noqa: B023
                }
                for name in rotated(list(work), number):
                    cool(source)
                    costs.setdefault(name, []).append(cost_of(work[name]))
                work = {
                    "dd, reading": lambda: command("dd", f"if={root}/dd", "of=/dev/null", "bs=1M"),
                    "tape, reading": lambda: read(tape, receipts[0], digests),  # noqa: B023
                }
                for name in rotated(list(work), number):
                    cool(root / "dd")
                    costs.setdefault(name, []).append(cost_of(work[name]))
                os.unlink(root / "dd")
            with library(root / "small", 4 * options.images * MIB) as tape:
                for n in range(2):
                    put(tape, Staged(f"warm {n}", little, little_digests))

                def many() -> None:
                    for n in range(options.images):
                        put(tape, Staged(f"i{n}", little, little_digests))

                work = {
                    "small images": many,
                    "one of as many bytes": lambda: put(tape, Staged("one", together, together_digests)),
                }
                for name in rotated(list(work), number):
                    cool(little)
                    small.setdefault(name, []).append(cost_of(work[name]))
    more = sorted(
        a.seconds - b.seconds
        for a, b in zip(small["small images"], small["one of as many bytes"], strict=True)
    )
    claims = [
        Claim(
            "writing: time of dd", paired(costs, "tape, writing", "dd, writing", lambda c: c.seconds), 1 / 0.9
        ),
        Claim(
            "reading: time of dd", paired(costs, "tape, reading", "dd, reading", lambda c: c.seconds), 1 / 0.9
        ),
        Claim(f"{options.images} images of 1 MiB: s more than their bytes", more[len(more) // 2], 5.0),
    ]
    shown = table(costs, options.size) + "\n\n" + table(small, options.images * MIB)
    report("tape", options.results, claims, shown, {"rounds": as_data(costs), "small": as_data(small)})
    return 0 if all(claim.holds for claim in claims) else 1


if __name__ == "__main__":
    raise SystemExit(main())
