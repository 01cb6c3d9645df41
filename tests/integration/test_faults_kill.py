"""kill -9 at a few commits of a night and of an expiry; then the same again, or the next night.

At all of them: tests/soak.
"""

from __future__ import annotations

import pytest

from tests.support.sweeping import require_right_after_every_kill

COMMITS = {
    "second": (
        r"rename .*\.tar$",
        r"link .*result seal",
        r"link .*result owner TEX-PASS-2",
        r"write .*cartridges/.*/marks",
        r"rename /objects/.*/meta\.json",
        r"link .*result copy verified tape",
        r"link .*result freed",
    ),
    "first": (r"link .*being labelled",),
    "abandoned": (r"link .*result image whole",),
}


@pytest.mark.parametrize("sweep", COMMITS)
def test_a_night_killed_at_a_commit_is_finished_right(sweep: str) -> None:
    """What is looked at: ``tests/support/kill_sweep.py``."""
    require_right_after_every_kill("kill_sweep.py", sweep, commits=COMMITS[sweep], points="commits")


def test_an_expiry_killed_at_a_commit_offers_nothing_half_and_is_finished_by_the_next() -> None:
    """What is looked at: ``tests/support/expire_sweep.py``."""
    commits = (r"result copy expiring folder", r"result cartridge expired tape being labelled")
    require_right_after_every_kill("expire_sweep.py", commits=commits, points="commits")
