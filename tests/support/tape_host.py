"""One host, or a process of it, that writes images to a shared library: ``python -m tests.support.tape_host``.

Arguments: portal, the catalog's folder, this host's lock folder, its name, how many images, of how many MiB. Prints
each image's number and place as a line of JSON.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from nightferry.catalog.query import Catalog
from nightferry.clock import SYSTEM_CLOCK
from nightferry.destination.tape.library.destination import TapeDestination
from nightferry.destination.tape.library.pool import Pool
from nightferry.destination.tape.library.scsi_open import Options, open_iscsi
from nightferry.scsi.iscsi import Portal
from nightferry.site.destinations import CatalogRegister
from tests.servers.tgtd import TARGET
from tests.support.outgoing import MIB, PlainImage, put


def content(host: str, number: int, mib: int) -> bytes:
    """The bytes of a host's image."""
    return random.Random(f"{host} {number}").randbytes(mib * MIB - 7)


def open_as(portal: str, catalog: Path, host_locks: Path, name: str) -> TapeDestination:
    """The library as a process of this host opens it."""
    locks = (host_locks, catalog / "locks")
    library = open_iscsi(Portal(portal, TARGET), (), Options(locks=locks), SYSTEM_CLOCK)
    register = CatalogRegister(Catalog(catalog, node=name, clock=SYSTEM_CLOCK), "tape")
    return TapeDestination("tape", library, Pool("daily", wait_for_media_s=60), register)


def main(portal: str, catalog: str, host_locks: str, name: str, count: str, mib: str) -> None:
    tape = open_as(portal, Path(catalog), Path(host_locks), name)
    for number in range(int(count)):
        image = PlainImage(f"20261130-TEX-BACK-1.{name}.s{number}.L0", content(name, number, int(mib)))
        receipt = put(tape, image)
        sys.stdout.write(json.dumps([number, receipt.location]) + "\n")
    tape.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
