"""What every way to claim something promises between processes that race, die, are stopped and whose clocks jump."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from nightferry.catalog.query import Catalog
from nightferry.claims.base import Claims
from nightferry.claims.flock import FlockClaims
from nightferry.claims.log import LogClaims
from nightferry.clock import SYSTEM_CLOCK, Clock, SystemClock
from nightferry.errors import BusyError
from tests.support.small_site import HandClock

ROOT = Path(__file__).parents[2]
GROUP = "TEX-BACK-1"
RUN, WINDOW = "20261110-TEX-BACK-1", "20261110"
LEASE_S = 6.0
"""Real heartbeats come six times in it; only a clock set by hand waits for all of it."""
RACERS = 5

pytestmark = pytest.mark.soak

PROCESS = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from nightferry.catalog.query import Catalog
from nightferry.claims.flock import FlockClaims
from nightferry.claims.log import LogClaims
from nightferry.errors import BusyError
from nightferry.model.records import FreedRecord

def say(text):
    print(text, flush=True)
    return sys.stdin.readline()

kind, path, node, what, lease_s = sys.argv[1:]
catalog = Catalog(Path(path), node=node)
claims = FlockClaims(Path(path), node=node) if kind == "flock" else LogClaims(catalog, lease_s=float(lease_s))
say("ready")
try:
    if what == "read":
        with claims.shared("TEX-BACK-1").read(node):
            say("has it")
    else:
        with claims.exclusive("TEX-BACK-1").acquire("20261110-TEX-BACK-1", "20261110"):
            say("has it")
            catalog.append(FreedRecord(image="20261110-TEX-BACK-1.SG1.a.L0", reason="test", at=datetime.now(UTC)))
            say("recorded")
except BusyError as error:
    say(f"refused: {error.message}")
"""

Process = subprocess.Popen[str]


class Site:
    """A catalog's folder, and the claims that one kind keeps for it."""

    def __init__(self, kind: str, path: Path) -> None:
        self.kind = kind
        self._path = path
        Catalog.create(path, node="setup")

    def node(self, name: str, clock: Clock = SYSTEM_CLOCK) -> Claims:
        """The claims as this process makes them."""
        if self.kind == "flock":
            return FlockClaims(self._path, node=name, clock=clock)
        return LogClaims(Catalog(self._path, node=name), clock, lease_s=LEASE_S)

    @contextmanager
    def process(self, name: str, what: str = "run") -> Iterator[Process]:
        """A process that waits for a line before it claims; killed at the end of the block."""
        program = [sys.executable, "-c", PROCESS, self.kind, str(self._path), name, what, str(LEASE_S)]
        with subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
        ) as process:
            try:
                assert heard(process) == "ready"
                yield process
            finally:
                process.kill()


def heard(process: Process) -> str:
    """The next line it says; empty when it ended."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def tell(process: Process) -> None:
    """Lets it go on."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


class Jumping(SystemClock):
    """A time of day that is set again whenever somebody waits, while seconds pass as they do."""

    def __init__(self, jump: timedelta) -> None:
        self.jump = jump
        self.ahead = timedelta()

    def now(self) -> datetime:
        return super().now() + self.ahead

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.ahead += self.jump


@pytest.fixture(params=["flock", "log"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return Site(request.param, tmp_path / "catalog")


def test_of_processes_that_race_exactly_one_has_it(site: Site) -> None:
    with ExitStack() as stack:
        racers = [stack.enter_context(site.process(f"TEX-PASS-{number}")) for number in range(RACERS)]
        for racer in racers:
            tell(racer)
        answers = [heard(racer) for racer in racers]
        assert answers.count("has it") == 1, answers
        winner = f"node TEX-PASS-{answers.index('has it')} "
        assert sum(answer.startswith("refused") for answer in answers) == RACERS - 1, answers
        holder = site.node("TEX-ACTV-1").exclusive(GROUP).holder()
        assert winner in f"{holder}"


def test_a_dead_holders_claim_ends(site: Site) -> None:
    with site.process("TEX-ACTV-1") as process:
        tell(process)
        assert heard(process) == "has it"
        with pytest.raises(BusyError, match=f"node TEX-ACTV-1 .process {process.pid}"):
            site.node("TEX-PASS-1").exclusive(GROUP).acquire(RUN, WINDOW)
        process.kill()
        process.wait()
        with site.node("TEX-PASS-1", HandClock()).exclusive(GROUP).acquire(RUN, WINDOW) as claim:
            claim.require()
            holder = claim.holder()
            assert holder is not None
            assert (holder.node, holder.pid) == ("TEX-PASS-1", os.getpid())


def test_a_dead_readers_claim_ends(site: Site) -> None:
    with site.process("TEX-PASS-2", "read") as process:
        tell(process)
        assert heard(process) == "has it"
        shared = site.node("TEX-ACTV-1").shared(GROUP)
        assert [reader.pid for reader in shared.readers()] == [process.pid]
        with pytest.raises(BusyError, match=f"read by TEX-PASS-2 .pid {process.pid} on"), shared.exclusive():
            pass
        process.kill()
        process.wait()
        with site.node("TEX-ACTV-1", HandClock()).shared(GROUP).exclusive():
            assert shared.readers() == []


def test_a_holder_that_was_stopped_keeps_it_or_records_nothing_more(site: Site) -> None:
    with site.process("TEX-ACTV-1") as process:
        tell(process)
        assert heard(process) == "has it"
        process.send_signal(signal.SIGSTOP)
        claim = site.node("TEX-PASS-1", HandClock()).exclusive(GROUP)
        if site.kind == "flock":
            with pytest.raises(BusyError, match="node TEX-ACTV-1"):
                claim.acquire(RUN, WINDOW)
        else:
            claim.acquire(RUN, WINDOW)
        process.send_signal(signal.SIGCONT)
        tell(process)
        answer = heard(process)
        if claim.held:
            assert "no longer held by this run" in answer
            assert "TEX-PASS-1" in answer
            tell(process)
            assert process.wait(timeout=20) == 0, "it gives back what it does not have any more"
            claim.require()
            holder = claim.holder()
            assert holder is not None
            assert holder.node == "TEX-PASS-1"
            claim.release()
        else:
            assert answer == "recorded"


@pytest.mark.parametrize("jump", [timedelta(minutes=-31), timedelta(minutes=31), timedelta(days=400)])
def test_clocks_that_jump_end_no_claim_and_prolong_none(site: Site, jump: timedelta) -> None:
    mine, others = Jumping(jump), Jumping(jump)
    one, two = site.node("TEX-ACTV-1", mine), site.node("TEX-PASS-1", others)
    claim = one.exclusive(GROUP).acquire(RUN, WINDOW)
    since = claim.since
    with pytest.raises(BusyError, match="node TEX-ACTV-1"):
        two.exclusive(GROUP).acquire(RUN, WINDOW)
    assert others.ahead, "its clock jumped while it waited"
    mine.ahead += jump
    claim.require()
    assert claim.since == since
    claim.release()
    with two.exclusive(GROUP).acquire(RUN, WINDOW), pytest.raises(BusyError, match="node TEX-PASS-1"):
        one.exclusive(GROUP).acquire(RUN, WINDOW)
