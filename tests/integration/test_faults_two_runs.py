"""Two processes and one BACK group: the same window twice, and a window that begins while stage two still runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from nightferry.claims.drain import drain_requested
from nightferry.errors import BusyError
from nightferry.health.status import status
from tests.support import night
from tests.support.night_process import NightProcess
from tests.support.outside import folder_copies, tape_copies
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

MakeSite = Callable[..., SmallSite]


class LeadingClock(HandClock):
    """The next evening's clock; what waits by it calls ``meanwhile`` instead of sleeping."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.advance(timedelta(days=1))
        self.meanwhile = meanwhile
        self.waits = 0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if seconds >= 1:
            self.waits += 1
            self.meanwhile()


def copies_by_age(site: SmallSite) -> list[str]:
    """Images on tape in the order in which they were written there (all of a small site fit on one cartridge)."""
    return [copy.image for copy in tape_copies(site.library)]


def test_the_same_window_twice_is_busy_at_once_and_free_after_a_kill(make_site: MakeSite) -> None:
    site = make_site()
    with NightProcess(site.file) as first, site.open(HandClock()) as opened:
        first.until("stage SG1/b")
        began = time.monotonic()
        with pytest.raises(BusyError, match="run 20261110-TEX-BACK-1 on node") as refused:
            night.night(opened, BACK_GROUP)
        assert refused.value.exit_code == 10
        assert time.monotonic() - began < 5
        assert str(first.process.pid) in refused.value.message
        first.process.kill()
        first.process.wait()
        record = night.night(opened, BACK_GROUP)
        assert (record.run, record.result) == ("20261110-TEX-BACK-1", "whole")
        assert len(opened.catalog.runs()) == 1


def test_drain_ends_the_older_stage_two_at_an_image_boundary(make_site: MakeSite) -> None:
    site = make_site(on_overrun="drain")
    with NightProcess(site.file) as older:
        older.until("stream SG1/a → tape")

        def meanwhile() -> None:
            older.go("on")
            assert older.line() == "ended drained"
            older.process.wait()

        clock = LeadingClock(meanwhile)
        with site.open(clock) as opened:
            # The image it was at is whole, the others are owed: nothing was cut off.
            owed_before: list[list[str]] = []
            record = night.night(opened, BACK_GROUP, progress=Watching(site, owed_before))
            assert clock.waits == 1
            assert owed_before == [["20261110-TEX-BACK-1.SG1.a.L0"]]
            assert (record.run, record.result) == ("20261111-TEX-BACK-1", "whole")
            assert [s.colour for s in status(opened)] == ["green", "green"]
            expected = [f"{run}-TEX-BACK-1.SG1.{s}.L0" for run in (20261110, 20261111) for s in ("a", "b")]
            assert copies_by_age(site) == expected
            assert sorted(folder_copies(site.objects)) == expected
            assert drain_requested(opened.catalog.storage, BACK_GROUP, HandClock().now()) is None


class Watching:
    """Keeps what is on tape when the newer window begins to stage."""

    def __init__(self, site: SmallSite, kept: list[list[str]]) -> None:
        self.site, self.kept = site, kept

    def begin(self, subject: str, phase: str, total_bytes: int | None = None) -> None:
        if phase == "stage" and not self.kept:
            self.kept.append(copies_by_age(self.site))

    def advance(self, subject: str, done_bytes: int, current: str = "") -> None: ...
    def end(self, subject: str, result: str) -> None: ...
    def say(self, text: str, subject: str = "") -> None: ...


def test_hold_waits_until_the_older_run_is_done(make_site: MakeSite) -> None:
    site = make_site(on_overrun="hold")
    with NightProcess(site.file) as older:
        older.until("stream SG1/a → tape")

        def meanwhile() -> None:
            older.go("on")
            assert older.line() == "ended ended"
            older.process.wait()

        with site.open(LeadingClock(meanwhile)) as opened:
            kept: list[list[str]] = []
            night.night(opened, BACK_GROUP, progress=Watching(site, kept))
            assert kept == [["20261110-TEX-BACK-1.SG1.a.L0", "20261110-TEX-BACK-1.SG1.b.L0"]]
            assert opened.catalog.run("20261110-TEX-BACK-1").result == "whole"


def test_skip_leaves_the_older_run_alone(make_site: MakeSite) -> None:
    site = make_site(on_overrun="skip")
    with NightProcess(site.file) as older:
        older.until("stream SG1/a → tape")
        clock = LeadingClock()
        with site.open(clock) as opened, pytest.raises(BusyError) as refused:
            night.night(opened, BACK_GROUP)
        assert (refused.value.exit_code, clock.waits) == (10, 0)
        older.go("on")
        assert older.line() == "ended ended"


def test_a_killed_older_run_does_not_stop_the_next_window(make_site: MakeSite) -> None:
    site = make_site(on_overrun="hold")
    with NightProcess(site.file) as older:
        older.until("stream SG1/b → tape")
        clock = LeadingClock(older.process.kill)
        with site.open(clock) as opened:
            assert night.night(opened, BACK_GROUP).result == "whole"
            assert [s.colour for s in status(opened)] == ["green", "green"]
        assert len(set(copies_by_age(site))) == len(copies_by_age(site)) == 4
        assert len(folder_copies(site.objects)) == 4
