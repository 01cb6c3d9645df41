"""A store's size does not show in the memory of the process that carries it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.small_site import SmallSite

MIB = 1 << 20
STORE_BYTES = 256 * MIB
RING_BYTES = 32 * MIB
"""Sixteen buffers of 2 MiB, the defaults."""

ROOT = Path(__file__).parents[2]

PROGRAM = """
import json, sys
from pathlib import Path
from nightferry.model.load import load_site
from nightferry.site.opened import OpenSite
from nightferry.night import run
from tests.support import night
from tests.support.peak import peak_bytes
from tests.support.small_site import BACK_GROUP, HandClock

clock = HandClock()
with OpenSite(load_site(Path(sys.argv[1])), clock=clock) as opened:
    night.night(opened, BACK_GROUP, stores=["SG1/small"])     # everything is imported and warm
    before = peak_bytes()
    record = night.stage_one(opened, BACK_GROUP, new=True, stores=["SG1/big"])
    staged = peak_bytes()
    night.stage_two(opened, record)
    json.dump({"before": before, "staged": staged, "streamed": peak_bytes()}, sys.stdout)
"""


def test_staging_and_streaming_a_large_store_take_the_ring_and_little_more(
    make_site: Callable[..., SmallSite],
) -> None:
    site = make_site(stores={"SG1": ("small", "big")}, cartridge="512 MiB", copies=("tape", "folder"))
    with (site.store("SG1/big") / "huge.bin").open("wb") as huge:
        block = os.urandom(8 * MIB)
        for number in range(STORE_BYTES // len(block)):
            huge.write(number.to_bytes(8, "big") + block[8:])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, site.file],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    peak = json.loads(done.stdout)
    (tar,) = site.disk.glob("SG1/big/*.tar")
    assert tar.stat().st_size > STORE_BYTES
    assert peak["staged"] - peak["before"] < RING_BYTES + 32 * MIB, peak
    assert peak["streamed"] - peak["before"] < RING_BYTES + 32 * MIB, peak
