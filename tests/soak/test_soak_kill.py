"""kill -9 between any two commits of a night; then the night again, or the next one."""

from __future__ import annotations

import pytest

from tests.support.sweeping import require_right_after_every_kill

COMMITS = {
    "second": (
        r"replace /catalog-cluster.json",
        r"link .*/owner.# TEX-ACTV-1",
        r"link .*result owner TEX-ACTV-1",
        r"open .*\.tar\.partial",
        r"re(name|place) .*\.chunks",
        r"re(name|place) .*\.meta\.json",
        r"rename .*\.tar$",
        r"replace .*indexes/.*\.parquet",
        r"link .*result image whole",
        r"link .*/seal\.#\.json",
        r"link .*result seal",
        r"link .*/owner.# TEX-PASS-2",
        r"link .*result owner TEX-PASS-2",
        r"link .*intent copy writing tape",
        r"link .*being written",
        r"write .*cartridges/.*\.tape",
        r"write .*cartridges/.*/marks",
        r"link .*result copy whole tape",
        r"link .*result copy verified tape",
        r"link .*intent copy writing folder",
        r"rename /objects/.*/data",
        r"rename /objects/.*/meta\.json",
        r"link .*result copy whole folder",
        r"link .*result copy verified folder",
        r"link .*result freed",
        r"unlink /back/.*\.tar$",
        r"unlink /back/.*\.chunks",
        r"link .*result run ended",
    ),
    "first": (r"link .*result selection", r"replace /vtl/library.json", r"link .*being labelled"),
    "abandoned": (
        r"rename .*\.tar$",
        r"link .*result image whole",
        r"result copy whole tape",
        r"result freed",
    ),
}
"""What each sweep must have killed at."""


@pytest.mark.parametrize("sweep", COMMITS)
def test_a_night_killed_at_any_call_is_finished_right(sweep: str) -> None:
    """What is looked at: ``tests/support/kill_sweep.py``."""
    require_right_after_every_kill("kill_sweep.py", sweep, commits=COMMITS[sweep], points="all")
