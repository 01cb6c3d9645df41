"""How long ``nightferry --help`` takes, beside an empty Python.

Claim: at most 200 ms.

    python -m bench.startup [--rounds 15]
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from bench.common import Claim, arguments, as_data, command, cost_of, report, rotated


def main() -> int:
    options = arguments(__doc__ or "", size="0", rounds=15).parse_args()
    program = Path(sys.executable).with_name("nightferry")
    contenders = {"nightferry --help": (program, "--help"), "python -c pass": (sys.executable, "-c", "pass")}
    costs = {name: [cost_of(lambda: command(*argv))] for name, argv in contenders.items()}  # noqa: B023
    for number in range(options.rounds):
        for name in rotated(list(contenders), number):
            costs[name].append(cost_of(lambda: command(*contenders[name])))  # noqa: B023
    medians = {name: statistics.median(c.seconds for c in runs[1:]) for name, runs in costs.items()}
    shown = "\n".join(
        ["| command | ms |", "|---|---|", *(f"| {name} | {s * 1e3:.0f} |" for name, s in medians.items())]
    )
    claims = [Claim("nightferry --help, s", medians["nightferry --help"], 0.200)]
    report("startup", options.results, claims, shown, {"rounds": as_data(costs)})
    return 0 if all(claim.holds for claim in claims) else 1


if __name__ == "__main__":
    raise SystemExit(main())
