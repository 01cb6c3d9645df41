"""A tape library behind iSCSI: one and four drives beside bare loops that write records of the same size.

Claims: one drive at least 0.9 ×, four drives at least 0.95 × as fast as the bare loops. A bare loop sends WRITE after
WRITE through the same transport from memory, and a filemark: nothing is read, checked, buffered or recorded. Its memory
is more than the processor's caches hold: from one buffer the cache would feed the network, as no image ever does.
nightferry reads its image from a file and does all it does in a night: chunks checked, ring, records, trailer,
catalog. Mounting and labelling are in neither.

    python -m bench.tape_iscsi [--size "1 GiB"] [--rounds 7] [--cartridges /dev/shm]

Needs root and tgtd (package tgt). The cartridges lie in memory, so that no disk is measured but the one with the
image. The target takes its CPU time from the same cores as both contenders.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.common import (
    Claim,
    Cost,
    arguments,
    as_data,
    cost_of,
    make_source,
    paired,
    report,
    rotated,
    table,
    workspace,
)
from bench.tape import Staged, table_of
from nightferry.catalog.query import Catalog
from nightferry.clock import SYSTEM_CLOCK
from nightferry.destination.tape.library.changer import Address
from nightferry.destination.tape.library.destination import TapeDestination
from nightferry.destination.tape.library.pool import Pool
from nightferry.destination.tape.library.scsi_open import Options, open_iscsi
from nightferry.progress import QUIET, Cancel
from nightferry.scsi import cdb
from nightferry.scsi.iscsi import IscsiTransport, Portal
from nightferry.site.destinations import CatalogRegister
from nightferry.units import MIB
from tests.servers.tgtd import TARGET, Tgtd, serving

FOUR = 4
_POOL_RECORDS = 64
_WRITE_S = 600.0


def together(count: int, begin: Callable[[int], Iterator[None]]) -> Cost:
    """What the second step of ``count`` two-step works costs, each in a thread of its own, all at once."""
    start, end = threading.Barrier(count + 1), threading.Barrier(count + 1)
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            steps = begin(number)
            next(steps)
            start.wait()
            next(steps, None)
            end.wait()
        except BaseException as error:
            failed.append(error)
            start.abort()
            end.abort()
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    start.wait()
    cost = cost_of(end.wait)
    for thread in threads:
        thread.join()
    return cost


def bare(server: Tgtd, root: Path, count: int, size: int) -> Cost:
    """Cost of writing ``size`` bytes to each of ``count`` drives with nothing around it."""
    options = Options(locks=(root,))
    library = open_iscsi(Portal(server.portal, TARGET), (), options, SYSTEM_CLOCK)
    for number in range(count):
        library.changer.move(Address("slot", number), Address("drive", number))
        library.drives[number].load()
    library.close()
    pools = [memoryview(bytearray(os.urandom(_POOL_RECORDS * MIB))) for _ in range(count)]

    def write(number: int) -> Iterator[None]:
        transport = IscsiTransport(Portal(server.portal, TARGET), number + 1)
        transport.execute(cdb.test_unit_ready(), timeout_s=_WRITE_S)  # the session's unit attention
        yield
        for record in range(size // MIB):
            at = record % _POOL_RECORDS * MIB
            data = pools[number][at : at + MIB]
            answer = transport.execute(cdb.write_block(MIB), data_out=data, timeout_s=_WRITE_S)
            if answer.status:
                raise RuntimeError(f"WRITE ended with {answer.status}: {answer.sense.hex()}")
        transport.execute(cdb.write_filemarks(1, immediate=False), timeout_s=_WRITE_S)
        transport.close()

    return together(count, write)


@contextmanager
def destination(server: Tgtd, root: Path) -> Iterator[TapeDestination]:
    library = open_iscsi(Portal(server.portal, TARGET), (), Options(locks=(root,)), SYSTEM_CLOCK)
    register = CatalogRegister(Catalog.create(root / "catalog", node="bench"), "tape")
    tape = TapeDestination("tape", library, Pool("bench", wait_for_media_s=0), register)
    try:
        yield tape
    finally:
        tape.close()


def product(server: Tgtd, root: Path, count: int, image: Path, little: Path) -> Cost:
    """Cost of the same through nightferry, on cartridges that are mounted and labelled."""
    tables = table_of(image), table_of(little)
    with destination(server, root) as tape:

        def write(number: int) -> Iterator[None]:
            with tape.lane(progress=QUIET, cancel=Cancel()) as lane:
                small = Staged(f"warm.{number}", little, tables[1])
                lane.put(small, 1, progress=QUIET, cancel=Cancel())
                yield
                large = Staged(f"image.{number}", image, tables[0])
                lane.put(large, 1, progress=QUIET, cancel=Cancel())

        return together(count, write)


def main() -> int:
    parser = arguments(__doc__ or "", size="1 GiB")
    parser.add_argument("--cartridges", type=Path, default=Path("/dev/shm"), help="where tgtd keeps them")
    options = parser.parse_args()
    costs: dict[int, dict[str, list[Cost]]] = {1: {}, FOUR: {}}
    with ExitStack() as stack:
        root = stack.enter_context(workspace(options.dir))
        size = options.size
        image, little = make_source(root / "image", size), make_source(root / "little", MIB)
        memory = stack.enter_context(workspace(options.cartridges))
        server = stack.enter_context(
            serving(memory / "t", drives=FOUR, tapes=FOUR, cartridge_mib=size // MIB + 512)
        )
        for number in range(options.rounds):
            for count in costs:
                names = {1: "one drive", FOUR: f"{FOUR} drives"}[count]
                work: dict[str, Callable[[Path], Cost]] = {
                    f"bare loop, {names}": lambda at, n=count: bare(server, at, n, size),  # type: ignore[misc] # n has a default
                    f"nightferry, {names}": lambda at, n=count: product(server, at, n, image, little),  # type: ignore[misc] # n has a default
                }
                for name in rotated(list(work), number):
                    server.reset()
                    with workspace(root) as fresh:
                        costs[count].setdefault(name, []).append(work[name](fresh))
    claims = [
        Claim(
            f"{names}: time of bare loops",
            paired(costs[count], f"nightferry, {names}", f"bare loop, {names}", lambda c: c.seconds),
            limit,
        )
        for count, names, limit in ((1, "one drive", 1 / 0.9), (FOUR, f"{FOUR} drives", 1 / 0.95))
    ]
    shown = table(costs[1], size) + "\n\n" + table(costs[FOUR], FOUR * size)
    report(
        "tape_iscsi",
        options.results,
        claims,
        shown,
        {"one": as_data(costs[1]), "four": as_data(costs[FOUR])},
    )
    return 0 if all(claim.holds for claim in claims) else 1


if __name__ == "__main__":
    raise SystemExit(main())
