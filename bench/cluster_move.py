"""What gate and move cost beyond the cluster's own stop and start.

A real three-node Pacemaker cluster in namespaces (root; packages: ``tests/servers/install.py``). In each round
nightferry moves the BACK group through its gate to a passive node and takes the disk there; then ``crm_resource``
moves it back, watched ten times a second by ``crm_mon``. Both stop and start the same members.

python -m bench.cluster_move [--rounds N]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.common import Claim, arguments, report, workspace
from nightferry.model.load import load_site
from nightferry.night import move
from nightferry.progress import QUIET, Cancel
from nightferry.site.opened import OpenSite
from tests.servers.pacemaker import ACTIVE, ALTERNATE, BACK, PacemakerServer, serving
from tests.support.cluster_site import ClusterSite

BARE = """
import subprocess, sys, time
import xml.etree.ElementTree as ET
group, node = sys.argv[1:]
began = time.monotonic()
subprocess.run(["crm_resource", "--move", "--resource", group, "--node", node], check=True, capture_output=True)
while True:
    seen = subprocess.run(["crm_mon", "-1", "--output-as=xml"], check=True, capture_output=True).stdout
    members = ET.fromstring(seen).findall(f"resources/group[@id='{group}']/resource")
    if all(m.get("role") == "Started" and m.find("node").get("name") == node for m in members):
        break
    time.sleep(0.1)
print(time.monotonic() - began)
"""


def on_node(site_file: str) -> None:
    """The gate, and the move or the taking of the disk, as a process on a node sees them."""
    with OpenSite(load_site(Path(site_file))) as opened:
        run = opened.catalog.runs(BACK)[0]
        began = time.monotonic()
        move.to_passive(opened, run, to=ALTERNATE, progress=QUIET, cancel=Cancel())
        print(time.monotonic() - began)
        if opened.local_node == ALTERNATE:
            move.drop_move_constraint(opened, BACK, progress=QUIET)


def ours(server: PacemakerServer, site: ClusterSite, node: str) -> float:
    python = ["env", f"PYTHONPATH={Path(__file__).parents[1]}", sys.executable]
    return float(server.done(node, *python, "-m", "bench.cluster_move", "on-node", str(site.file)))


def bare(server: PacemakerServer) -> float:
    seconds = float(server.done(ACTIVE, sys.executable, "-c", BARE, BACK, ACTIVE))
    server.done(ACTIVE, "crm_resource", "--clear", "--resource", BACK)
    return seconds


def main() -> int:
    if sys.argv[1:2] == ["on-node"]:
        on_node(sys.argv[2])
        return 0
    options = arguments(__doc__ or "", size="2 MiB").parse_args()
    rounds: dict[str, list[float]] = {"gate and move": [], "taking the disk": [], "crm_resource --move": []}
    with workspace(options.dir) as root, serving(root / "cluster") as server:
        (root / "site").mkdir()
        site = ClusterSite(server, root / "site")
        staged = site.step(ACTIVE, "one")
        if staged.returncode:
            raise subprocess.CalledProcessError(staged.returncode, "stage one", staged.stdout, staged.stderr)
        for _ in range(options.rounds):
            rounds["gate and move"].append(ours(server, site, ACTIVE))
            rounds["taking the disk"].append(ours(server, site, ALTERNATE))
            rounds["crm_resource --move"].append(bare(server))
    beyond = [a + b - c for a, b, c in zip(*rounds.values(), strict=True)]
    shown = ["| step | s, median | s, worst |", "|---|---|---|"]
    shown += [f"| {name} | {statistics.median(s):.2f} | {max(s):.2f} |" for name, s in rounds.items()]
    claims = [Claim("seconds beyond the cluster's own stop and start", statistics.median(beyond), 2.0)]
    report("cluster_move", options.results, claims, "\n".join(shown), {"rounds": rounds, "beyond": beyond})
    return 0 if all(claim.holds for claim in claims) else 1


if __name__ == "__main__":
    raise SystemExit(main())
