"""Several processes and several hosts on one tape library: nobody writes into another's tape file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from nightferry.catalog.query import Catalog
from nightferry.clock import SYSTEM_CLOCK
from nightferry.destination.base import Receipt
from tests.conftest import needs
from tests.servers.tgtd import Tgtd, require_tgtd, serving
from tests.support.tape_dump import dump, whole_copies
from tests.support.tape_host import content, open_as
from tests.support.tapes import read_all

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("tgtd")]

EVERYWHERE = "0.0.0.0"  # noqa: S104 - both networks of the test
IMAGES, MIB_EACH = 3, 3


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    path = tmp_path / "catalog"
    Catalog.create(path, node="test", clock=SYSTEM_CLOCK)
    (path / "locks").mkdir(exist_ok=True)
    return path


def start(server: Tgtd, catalog: Path, locks: Path, name: str, before: list[str]) -> subprocess.Popen[str]:
    locks.mkdir(exist_ok=True)
    command = [
        *before, sys.executable, "-m", "tests.support.tape_host", server.portal, str(catalog), str(locks),
        name, str(IMAGES), str(MIB_EACH),
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(processes: dict[str, subprocess.Popen[str]]) -> dict[str, list[Receipt]]:
    """What each of them wrote; every one must end well."""
    found: dict[str, list[Receipt]] = {}
    for name, process in processes.items():
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        found[name] = [Receipt(location, 0) for _, location in map(json.loads, out.splitlines())]
    return found


def prove(server: Tgtd, catalog: Path, written: dict[str, list[Receipt]], locks: Path) -> None:
    """Every image reads back as it was, each is on tape once, and no cartridge was given up for what is on it."""
    tape = open_as(server.portal, catalog, locks, "reader")
    for name, receipts in written.items():
        assert len(receipts) == IMAGES
        for number, receipt in enumerate(receipts):
            assert read_all(tape, receipt) == content(name, number, MIB_EACH)
    states = {view.state for view in tape.inventory()}
    tape.close()
    assert states <= {"appendable", "full", "unknown"}
    copies = whole_copies(dump(server, locks))
    assert copies == {f"20261130-TEX-BACK-1.{name}.s{n}.L0": 1 for name in written for n in range(IMAGES)}


def test_one_drive_is_handed_from_process_to_process(tmp_path: Path, catalog: Path) -> None:
    with serving(tmp_path / "t", drives=1, tapes=4, cartridge_mib=64) as server:
        locks = tmp_path / "locks"
        processes = {name: start(server, catalog, locks, name, []) for name in ("one", "two")}
        prove(server, catalog, ended(processes), locks)


@contextmanager
def network(number: int) -> Iterator[tuple[str, list[str]]]:
    """A network of two: our address, and what a command is put behind to run as the other host."""
    name, ours, theirs = f"nftape{number}", f"10.213.{number}.1", f"10.213.{number}.2"

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    ip("netns", "add", name)
    try:
        ip("link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name)
        ip("addr", "add", f"{ours}/24", "dev", f"{name}a")
        ip("link", "set", f"{name}a", "up")
        ip("-n", name, "addr", "add", f"{theirs}/24", "dev", f"{name}b")
        ip("-n", name, "link", "set", f"{name}b", "up")
        yield ours, ["ip", "netns", "exec", name]
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


@needs("ip")
def test_two_hosts_share_two_drives_by_the_locks_in_the_catalog(tmp_path: Path, catalog: Path) -> None:
    """Two network namespaces, each with lock files of its own; only the catalog's folder is common."""
    require_tgtd()
    numbers = [os.getpid() % 100, 100 + os.getpid() % 100]
    with ExitStack() as stack:
        networks = [stack.enter_context(network(number)) for number in numbers]
        server = stack.enter_context(
            serving(tmp_path / "t", drives=2, tapes=6, cartridge_mib=64, address=EVERYWHERE)
        )
        processes = {}
        for number, (ours, before) in enumerate(networks):
            server.address = ours
            name = f"host{number}"
            processes[name] = start(server, catalog, tmp_path / name, name, before)
        server.address = "127.0.0.1"
        prove(server, catalog, ended(processes), tmp_path / "host0")
