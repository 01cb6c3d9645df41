"""kill -9 between any two commits of an expiry, and while a cartridge is written over; then both again."""

from __future__ import annotations

from tests.support.sweeping import require_right_after_every_kill

COMMITS = (
    r"intent expiry",
    r"result copy expiring tape",
    r"result copy expired tape",
    r"result copy expiring folder",
    r"unlink /objects/images/.*/meta.json",
    r"rmdir /objects/images/",
    r"result copy expired folder",
    r"result expiry",
    r"result cartridge expired tape$",
    r"result cartridge expired tape being labelled",
    r"replace /vtl/cartridges/.*/marks",
    r"unlink /vtl/cartridges/.*tape",
    r"write /vtl/cartridges/.*tape",
    r"write /vtl/cartridges/.*/marks",
)
"""What the sweep must have killed at."""


def test_an_expiry_killed_at_any_commit_offers_nothing_half_and_is_finished_by_the_next() -> None:
    """What is looked at: ``tests/support/expire_sweep.py``."""
    require_right_after_every_kill("expire_sweep.py", commits=COMMITS)
