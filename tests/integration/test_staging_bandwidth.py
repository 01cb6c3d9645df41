"""Stage one keeps to its bandwidth, however many streams there are."""

from __future__ import annotations

from pathlib import Path

from tests.support.night import stage_one
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite, fill

MIB = 1 << 20


def test_all_streams_of_stage_one_share_one_bandwidth(tmp_path: Path) -> None:
    site = SmallSite(tmp_path, copies=("folder",))
    for number, name in enumerate(site.names):
        fill(site.store(name), seed=number, big=8 * MIB)
    site.build()
    site.file.write_text(
        site.file.read_text().replace("[staging]\n", '[staging]\nbandwidth = ["00:00 4 MiB/s"]\n')
    )
    clock = HandClock()
    began = clock.time
    with site.open(clock) as opened:
        stage_one(opened, BACK_GROUP)
    waited = (clock.time - began).total_seconds()
    staged = sum(tar.stat().st_size for tar in site.disk.glob("*/*/*.tar"))
    assert staged > 16 * MIB
    assert staged / (4 * MIB) - 0.5 <= waited <= staged / (4 * MIB) + 0.5
