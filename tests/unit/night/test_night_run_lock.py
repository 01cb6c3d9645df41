"""A part of a night on another node works under the lock of the process that sent it there."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightferry.claims.drain import request_drain
from nightferry.errors import BusyError
from nightferry.night.run import HeldLocks, lock_key, must_drain, run_lock
from nightferry.progress import QUIET, Cancel
from tests.support.prefect_site import until
from tests.support.small_site import BACK_GROUP, SmallSite


@pytest.fixture
def site(tmp_path: Path) -> SmallSite:
    return SmallSite(tmp_path).build()


def test_a_part_works_under_its_nights_lock_and_hears_its_drain_request(site: SmallSite) -> None:
    with (
        site.open() as night,
        site.open() as part,
        run_lock(night, BACK_GROUP, progress=QUIET, cancel=Cancel()) as lock,
    ):
        key = lock_key(night, BACK_GROUP)
        with run_lock(part, BACK_GROUP, progress=QUIET, cancel=Cancel(), under=key):
            assert not must_drain(part, BACK_GROUP)
            request_drain(night.catalog.storage, BACK_GROUP, "the next window", lock.since)
            assert must_drain(part, BACK_GROUP)
        assert part.part(HeldLocks) == {}
        assert night.claims.exclusive(BACK_GROUP).holder() is not None


def test_a_part_of_a_night_that_has_ended_does_not_begin(site: SmallSite) -> None:
    with site.open() as night, site.open() as part:
        with run_lock(night, BACK_GROUP, progress=QUIET, cancel=Cancel()):
            key = lock_key(night, BACK_GROUP)
        with (
            pytest.raises(BusyError, match="has ended"),
            run_lock(part, BACK_GROUP, progress=QUIET, cancel=Cancel(), under=key),
        ):
            pass
        with pytest.raises(BusyError, match="has ended"):
            lock_key(night, BACK_GROUP)
        # Nor does the part of another night that runs now.
        with (
            run_lock(night, BACK_GROUP, progress=QUIET, cancel=Cancel()),
            pytest.raises(BusyError, match="has ended"),
            run_lock(part, BACK_GROUP, progress=QUIET, cancel=Cancel(), under=key),
        ):
            pass


def test_a_part_is_told_to_stop_when_its_nights_process_is_gone(site: SmallSite) -> None:
    cancel = Cancel()
    with site.open() as night, site.open() as part:
        part.recheck_s = 0.02
        holding = run_lock(night, BACK_GROUP, progress=QUIET, cancel=Cancel())
        holding.__enter__()
        with run_lock(part, BACK_GROUP, progress=QUIET, cancel=cancel, under=lock_key(night, BACK_GROUP)):
            assert not cancel.is_set()
            holding.__exit__(None, None, None)
            until(cancel.is_set, 10)
