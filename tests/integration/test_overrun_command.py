"""A window that begins while the last one still streams, on a cluster driven by command: each step in a process of the
node whose work it is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.night import move
from nightferry.progress import QUIET, Cancel
from nightferry.site.opened import OpenSite
from tests.support import night
from tests.support.cluster_site import Yesterday
from tests.support.fake_cluster import ACTIVE, ALTERNATE, BACK, FakeCluster
from tests.support.outside import folder_copies, tape_copies
from tests.support.placed_site import as_toml
from tests.support.small_site import SmallSite

ROOT = Path(__file__).parents[2]


class Nodes:
    """The site's nodes: processes that differ by their name."""

    def __init__(self, site: SmallSite, patch: pytest.MonkeyPatch) -> None:
        self.site = site
        self._patch = patch
        self.cluster = FakeCluster(site.home / "cluster")
        lines = "\n".join(f"{key} = {as_toml(value)}" for key, value in self.cluster.settings().items())
        self.edit('kind = "local"\n', lines + "\n")

    def edit(self, old: str, new: str) -> None:
        text = self.site.file.read_text()
        assert old in text
        self.site.file.write_text(text.replace(old, new, 1))

    def opened(self, node: str, clock: Clock = SYSTEM_CLOCK) -> OpenSite:
        """The site as a node sees it, in this process."""
        self._patch.setenv("NIGHTFERRY_NODE", node)
        return self.site.open(clock)

    def step(self, node: str, *words: str) -> subprocess.Popen[str]:
        """One step of a night on a node; see ``tests/support/cluster_site.py``."""
        return subprocess.Popen(
            [sys.executable, str(ROOT / "tests/support/cluster_site.py"), str(self.site.file), *words],
            env=os.environ | {"PYTHONPATH": str(ROOT), "NIGHTFERRY_NODE": node},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def moves(self) -> object:
        return self.cluster.state["moves"]


def ended(step: subprocess.Popen[str], code: int = 0) -> str:
    """What a step still says, to its end."""
    said, _ = step.communicate("\n", timeout=60)
    assert step.returncode == code, said
    return said


def until(step: subprocess.Popen[str], wanted: str) -> str:
    """What a step says, up to the line with ``wanted``."""
    assert step.stdout is not None
    said = ""
    for line in step.stdout:
        said += line
        if wanted in line:
            return said
    raise AssertionError(f"it ended without {wanted!r}: {said}")


@pytest.fixture
def nodes(make_site: Callable[..., SmallSite], monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """The site with last night sealed and moved."""
    made = Nodes(make_site(on_overrun="drain"), monkeypatch)
    with made.opened(ACTIVE, Yesterday()) as here:
        record = night.stage_one(here, BACK)
        move.to_passive(here, record, progress=QUIET, cancel=Cancel())
    return made


def windows(site: SmallSite) -> list[str]:
    """The run of each copy on tape, in the order in which they were written there."""
    return [copy.image.split(".")[0] for copy in tape_copies(site.library)]


def end_both(nodes: Nodes, first: str, newest: str) -> None:
    """The newer window streams too: what is owed of the older one goes first, and everything is there once."""
    with nodes.opened(ACTIVE) as here:
        move.to_passive(here, here.catalog.run(newest), progress=QUIET, cancel=Cancel())
    with nodes.opened(ALTERNATE) as here:
        night.stage_two(here, here.catalog.run(newest))
    assert windows(nodes.site) == [first] * 2 + [newest] * 2
    assert len(folder_copies(nodes.site.objects)) == 4
    assert nodes.moves == [[BACK, ALTERNATE], [BACK, ACTIVE], [BACK, ALTERNATE]]


def test_drain_ends_the_older_window_after_its_image_and_takes_the_disk_back(nodes: Nodes) -> None:
    with nodes.step(ALTERNATE, "last-two", "copy written") as older:
        until(older, "stopped before copy written")
        with nodes.step(ACTIVE, "one") as newer:
            assert "to drain" in until(newer, "waiting for run")
            assert nodes.moves == [[BACK, ALTERNATE]], "nothing moves under the one that reads"
            assert "ended drained" in ended(older)
            assert f"said moving {BACK} from {ALTERNATE} to {ACTIVE}" in ended(newer)
    with nodes.site.open() as here:
        newest, first = here.catalog.runs(BACK)
    assert first.result == "partial"
    assert len(windows(nodes.site)) + len(folder_copies(nodes.site.objects)) == 1
    end_both(nodes, first.run, newest.run)


def test_skip_leaves_the_older_window_alone_and_hold_waits_for_all_of_it(nodes: Nodes) -> None:
    with nodes.step(ALTERNATE, "last-two", "copy written") as older:
        until(older, "stopped before copy written")
        nodes.edit('on_overrun = "drain"', 'on_overrun = "skip"')
        assert f"{BACK} is busy: run" in ended(nodes.step(ACTIVE, "one"), 10)
        nodes.edit('on_overrun = "skip"', 'on_overrun = "hold"')
        with nodes.step(ACTIVE, "one") as newer:
            assert "to drain" not in until(newer, "waiting for run")
            assert nodes.moves == [[BACK, ALTERNATE]]
            assert "ended ended" in ended(older)
            assert f"said moving {BACK} from {ALTERNATE} to {ACTIVE}" in ended(newer)
    with nodes.site.open() as here:
        newest, first = here.catalog.runs(BACK)
    assert first.result == "whole"
    assert windows(nodes.site) == [first.run] * 2
    end_both(nodes, first.run, newest.run)
