"""``python -m fuzz TARGET... --seconds N``: exit 1 when a fault was found. ``all`` is every target."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from fuzz import engine
from fuzz.targets import TARGETS


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("targets", nargs="+", choices=[*TARGETS, "all"], metavar="TARGET")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each target")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--replay", action="store_true", help="only decode what fuzz/corpus keeps")
    parser.add_argument("--found", type=Path, default=Path("fuzz-found"), help="where faults are written")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = list(TARGETS) if "all" in given.targets else given.targets
    seed = int(time.time()) if given.seed is None else given.seed
    if given.child is not None:
        return engine.child(TARGETS[names[0]], given.child, seed, given.seconds)
    failed = False
    for name in names:
        if given.replay:
            wrong = engine.replay(TARGETS[name])
            print(f"{name}: {len(engine.corpus(name))} kept, {len(wrong)} wrong", *wrong, sep="\n  ")
            failed |= bool(wrong)
            continue
        result = engine.fuzz(name, given.seconds, seed)
        print(
            f"{name}: {result.cases:,} cases, {result.refused:,} refused, {result.seconds:.0f} s, "
            f"{len(result.faults)} faults, seed {seed}",
            flush=True,
        )
        for why, data in result.faults:
            print(f"  {engine.keep(name, data, given.found)}: {why}")
        failed |= bool(result.faults) or not result.cases
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
