"""Two hosts on one tape library whose site has its catalog in a bucket: drives are leased in the log, and a host that
overslept its lease writes nothing more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nightferry.claims import heartbeat
from nightferry.destination.base import Receipt
from nightferry.health.status import status
from nightferry.model.claim_records import DriveLeaseRecord
from nightferry.site import destinations
from tests.servers.seaweed import Seaweed
from tests.servers.tgtd import Tgtd, serving
from tests.support import night
from tests.support.bucket_catalog import move_catalog
from tests.support.leased_host import content, open_as, tape_of
from tests.support.outgoing import PlainImage, put, read_all
from tests.support.small_site import BACK_GROUP, SmallSite
from tests.support.tape_dump import dump, whole_copies

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("seaweed")]


@pytest.fixture(autouse=True)
def _this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``open_as`` sets in this process holds for one test."""
    monkeypatch.setattr(destinations, "HOST_LOCKS", destinations.HOST_LOCKS)
    monkeypatch.setattr(heartbeat, "LEASE_S", heartbeat.LEASE_S)


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Tgtd]:
    with serving(tmp_path / "t", drives=1, tapes=4, cartridge_mib=64) as server:
        yield server


@pytest.fixture
def site(library: Tgtd, seaweed: Seaweed, make_site: Callable[..., SmallSite]) -> SmallSite:
    made = make_site(tape=library.toml, copies=("tape",), stores={"SG1": ("a",)})
    move_catalog(made.file, seaweed)
    made.file.write_text(made.file.read_text().replace('wait_for_media = "1s"', 'wait_for_media = "60s"'))
    return made


class Host:
    """A host that is a process of its own."""

    def __init__(
        self, site: SmallSite, name: str, *, images: int = 1, mib: int = 12, pause: int = -1
    ) -> None:
        self.name = name
        self.locks = site.home / name
        command = [
            sys.executable, "-m", "tests.support.leased_host", str(site.file), str(self.locks), name,
            str(images), str(mib), str(pause),
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def until_paused(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "paused\n"

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def ended(self) -> list[str]:
        """What it said, to the end."""
        out, err = self.process.communicate("go on\n", timeout=120)
        assert self.process.returncode == 0, err
        return out.splitlines()


@pytest.fixture
def host(site: SmallSite) -> Iterator[Callable[..., Host]]:
    started: list[Host] = []

    def start(name: str, **options: int) -> Host:
        started.append(Host(site, name, **options))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


def test_two_hosts_take_turns_at_one_drive(site: SmallSite, library: Tgtd, host: Callable[..., Host]) -> None:
    hosts = [host(name, images=3, mib=3) for name in ("one", "two")]
    written = {each.name: [json.loads(line) for line in each.ended()] for each in hosts}
    with open_as(site.file, site.home / "reader", "reader") as opened:
        leases = {r.serial: r for r in opened.catalog.all(DriveLeaseRecord)}
        assert {serial: r.state for serial, r in leases.items()} == {library.serials[0]: "free"}
        assert not [name for name in opened.catalog.storage.names("locks") if name.startswith("drives.")]
        for name, images in written.items():
            assert [number for number, _ in images] == [0, 1, 2]
            for number, location in images:
                assert read_all(tape_of(opened), Receipt(location, 0)) == content(name, number, 3)
    copies = whole_copies(dump(library, site.home / "one"))
    assert copies == {f"20261130-TEX-BACK-1.{name}.s{n}.L0": 1 for name in ("one", "two") for n in range(3)}


def test_whole_nights_go_through_leased_drives_and_check_has_nothing_against_them(
    site: SmallSite, library: Tgtd
) -> None:
    def leased() -> list[tuple[str, str, str]]:
        return [(r.serial, r.node, r.state) for r in opened.catalog.all(DriveLeaseRecord)]

    with open_as(site.file, site.home / "one", "one") as opened:
        # No heartbeat comes that would give back, between two images, what is only kept.
        opened.lease_s = 3600.0
        assert night.night(opened, BACK_GROUP).result == "whole"
        assert "NF-TAPE-012" not in {finding.id for finding in tape_of(opened).check()}
        assert leased() == [(library.serials[0], "one", "held")]
    with open_as(site.file, site.home / "two", "two") as opened:
        assert leased() == [(library.serials[0], "one", "free")]
        assert night.night(opened, BACK_GROUP, new=True).result == "whole"
        assert [each.colour for each in status(opened)] == ["green"]
    copies = whole_copies(dump(library, site.home / "one"))
    assert sorted(copies.values()) == [1, 1]


def test_a_host_that_overslept_its_lease_writes_nothing_more(
    site: SmallSite, library: Tgtd, host: Callable[..., Host]
) -> None:
    sleeper = host("sleeper", mib=48, pause=40)
    sleeper.until_paused()
    sleeper.signal(signal.SIGSTOP)
    with open_as(site.file, site.home / "taker", "taker") as opened:
        tape = tape_of(opened)
        mine = content("taker", 0, 3)
        first = put(tape, PlainImage("20261130-TEX-BACK-1.taker.s0.L0", mine))
        # The sleeper wakes while the other writes, through the drive that it takes for its own.
        woken: list[str] = []

        def wake(number: int) -> None:
            if number == 2:
                sleeper.signal(signal.SIGCONT)
                woken.extend(sleeper.ended())

        second = put(
            tape, PlainImage("20261130-TEX-BACK-1.taker.s1.L0", content("taker", 1, 4), on_chunk=wake)
        )
        assert read_all(tape, first) == mine
        assert read_all(tape, second) == content("taker", 1, 4)
    (said,) = woken
    assert said.startswith("failed")
    assert "taken over by process" in said
    assert "on taker" in said
    assert whole_copies(dump(library, site.home / "taker")) == {
        "20261130-TEX-BACK-1.taker.s0.L0": 1,
        "20261130-TEX-BACK-1.taker.s1.L0": 1,
    }


def test_a_dead_process_of_the_same_host_is_not_waited_for(
    site: SmallSite, library: Tgtd, host: Callable[..., Host]
) -> None:
    dead = host("same", mib=12, pause=8)
    dead.until_paused()
    dead.process.kill()
    dead.process.wait()
    with open_as(site.file, dead.locks, "same") as opened:
        leases = opened.catalog.all(DriveLeaseRecord)
        assert [lease.state for lease in leases] == ["held"]
        data = content("same", 1, 2)
        assert (
            read_all(
                tape_of(opened), put(tape_of(opened), PlainImage("20261130-TEX-BACK-1.same.s1.L0", data))
            )
            == data
        )
