"""One host of a site whose catalog is in a bucket: ``python -m tests.support.leased_host``.

Arguments: the site file, this host's lock folder, its name, how many images, of how many MiB, and before which
chunk of the first image to say ``paused`` and wait for a line (-1: never). Prints each image's number and place as a
line of JSON, or ``failed`` and why.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from nightferry.claims import heartbeat
from nightferry.destination.tape.library.destination import TapeDestination
from nightferry.errors import DestinationError
from nightferry.model.load import load_site
from nightferry.site import destinations
from nightferry.site.destinations import destination_of
from nightferry.site.opened import OpenSite
from tests.support.outgoing import MIB, PlainImage, put

LEASE_S = 3.0
"""How long the hosts of a test wait for a heartbeat."""


def content(host: str, number: int, mib: int) -> bytes:
    """The bytes of a host's image."""
    return random.Random(f"{host} {number}").randbytes(mib * MIB - 7)


def open_as(site: Path, host_locks: Path, name: str) -> OpenSite:
    """The site as a process of this host opens it."""
    host_locks.mkdir(exist_ok=True)
    destinations.HOST_LOCKS = host_locks
    heartbeat.LEASE_S = LEASE_S
    opened = OpenSite(load_site(site))
    opened.catalog.node = name
    return opened


def tape_of(opened: OpenSite) -> TapeDestination:
    """Its library."""
    tape = destination_of(opened, "tape")
    assert isinstance(tape, TapeDestination)
    return tape


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(site: str, host_locks: str, name: str, count: str, mib: str, pause: str) -> None:
    def on_chunk(number: int) -> None:
        if number == int(pause):
            say("paused")
            sys.stdin.readline()

    with open_as(Path(site), Path(host_locks), name) as opened:
        tape = tape_of(opened)
        for number in range(int(count)):
            image = PlainImage(f"20261130-TEX-BACK-1.{name}.s{number}.L0", content(name, number, int(mib)))
            if number == 0:
                image.on_chunk = on_chunk
            try:
                say(json.dumps([number, put(tape, image).location]))
            except DestinationError as error:
                say(f"failed {type(error).__name__} {error} {getattr(error, '__notes__', '')}")


if __name__ == "__main__":
    main(*sys.argv[1:])
