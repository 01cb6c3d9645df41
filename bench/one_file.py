"""One file of 1 MiB out of a large image, by direct access, beside GNU tar.

Claim: from staging and from a folder copy at most 4 MiB are read of the image. What the process reads is what the
kernel counts (``rchar`` of /proc/self/io), the catalog's own files included.

    python -m bench.one_file [--size "2 GiB"] [--rounds 7]
"""

from __future__ import annotations

import os
import shutil
import statistics
from pathlib import Path

from bench.common import Claim, Cost, arguments, as_data, command, cool, cost_of, report, table, workspace
from nightferry.model.load import load_site
from nightferry.ops import gate, move, restore, run, stage, stream
from nightferry.ops.opened import OpenSite
from nightferry.progress import QUIET, Cancel
from nightferry.units import MIB

SITE = """
schema = 1
[site]
name = "BENCH"
catalog = "{root}/catalog"
[cluster]
kind = "local"
nodes = ["BENCH-ACTV-1", "BENCH-PASS-1"]
[staging]
path = "{root}/staging"
keep_free = "1 %"
[[groups]]
name = "SG1"
back_group = "BENCH-BACK-1"
start = "00:00"
copies = ["folder"]
  [[groups.stores]]
  name = "store"
  kind = "files"
  path = "{root}/store"
[[destinations]]
name = "folder"
kind = "fsspec"
url = "file://{root}/folder"
"""


def rchar() -> int:
    """Bytes this process read so far."""
    words = Path("/proc/self/io").read_text().split()
    return int(words[words.index("rchar:") + 1])


def night(here: OpenSite) -> None:
    """One run up to the verified copy."""
    cancel = Cancel()
    with run.run_lock(here, "BENCH-BACK-1", progress=QUIET, cancel=cancel):
        record = run.begin_run(here, "BENCH-BACK-1").run
        move.to_active(here, record, progress=QUIET, cancel=cancel)
        stage.stage_store(here, record, "SG1", "store", progress=QUIET, cancel=cancel)
        gate.write_seal(here, record)
        move.to_passive(here, record, progress=QUIET, cancel=cancel)
        for owed in stream.owed(here, "BENCH-BACK-1"):
            stream.stream_image(here, owed.image, owed.destination, progress=QUIET, cancel=cancel)


def main() -> int:
    options = arguments(__doc__ or "", size="2 GiB").parse_args()
    with workspace(options.dir) as root:
        store = root / "store"
        store.mkdir()
        for number in range(max(1, options.size // (64 * MIB))):
            (store / f"part{number:03}.bin").write_bytes(os.urandom(64 * MIB))
        wanted = os.urandom(MIB)
        (store / "part015-wanted.bin").write_bytes(wanted)
        (root / "staging").mkdir()
        file = root / "nightferry.toml"
        file.write_text(SITE.format(root=root))
        file.chmod(0o600)
        read: dict[str, list[int]] = {}
        costs: dict[str, list[Cost]] = {}
        with OpenSite(load_site(file)) as here:
            night(here)
            image = restore.find_image(here, "SG1", "store")
            target = root / "out"

            def ours(place: str) -> None:
                plan = restore.plan_restore(here, image, ["part015-wanted.bin"], target, copy=place)
                restore.restore(here, plan, progress=QUIET, cancel=Cancel())

            for _ in range(options.rounds):
                for place in ("staging", "folder"):
                    cool()
                    before = rchar()
                    cost = cost_of(lambda: ours(place))  # noqa: B023
                    read.setdefault(place, []).append(rchar() - before)
                    costs.setdefault(f"nightferry from {place}", []).append(cost)
                    if (target / "part015-wanted.bin").read_bytes() != wanted:
                        raise SystemExit(f"what came back from {place} is wrong")
                    shutil.rmtree(target)
                cool()
                target.mkdir()
                tar = ("tar", "-xf", here.staged_path(image), "-C", target, "part015-wanted.bin")
                costs.setdefault("tar -x", []).append(cost_of(lambda: command(*tar)))  # noqa: B023
                shutil.rmtree(target)
    claims = [
        Claim(f"MiB read from {place}", statistics.median(counts) / MIB, 4.0)
        for place, counts in read.items()
    ]
    report("one_file", options.results, claims, table(costs, MIB), {"read": read, "rounds": as_data(costs)})
    return 0 if all(claim.holds for claim in claims) else 1


if __name__ == "__main__":
    raise SystemExit(main())
