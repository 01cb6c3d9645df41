"""Kills ``expire`` and the night after it with SIGKILL at one commit after the other; says what was not right.

A program of its own for the reasons of ``kill_sweep``, whose hook it uses. ``python expire_sweep.py FOLDER``
writes one JSON object a point. The site has three cartridges, and copies of three nights on them and in a
folder; only the newest is to stay, so that the night which follows must write over a cartridge.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from nightferry.copies import verify
from nightferry.health.status import status
from nightferry.model.records import ExpiryRecord
from nightferry.progress import QUIET, Cancel
from nightferry.retention import expire
from tests.support.brought import bring_back
from tests.support.kill_sweep import Hook, in_child
from tests.support.night import night
from tests.support.outside import compare_tree, folder_copies, wrong_images
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite
from tests.support.sweeping import first_of_each

DAY = timedelta(days=1)
POINT = re.compile(
    r"link .*(expiry|result copy (expiring|expired)|result cartridge expired)"
    r"|(unlink|rmdir) /objects/images/\S*(L#|meta.json)$"
)
"""What of the calls is expiry's; the rest of the night is killed in ``kill_sweep``."""
RELABEL = re.compile(r"result cartridge expired tape being labelled")
LABELLED = re.compile(r"result cartridge appendable tape")
"""Between the two a cartridge's old contents are written over: each call is a point, of equal ones the first."""
IMAGES = [f"202611{day}-{BACK_GROUP}.SG1.{store}.L0" for day in (10, 11, 12, 13) for store in "ab"]


class Sweep:
    """The site, brought back to the same state before each kill."""

    def __init__(self, folder: Path) -> None:
        more = '[retention]\nkeep_last = 1\nat_most = "90 %"\n'
        self.site = SmallSite(folder / "site", cartridge="7 MiB", more=more)
        self.pristine = folder / "pristine"
        self.clock = HandClock()
        self.site.home.mkdir()
        self.site.build()
        self.site.file.write_text(self.site.file.read_text().replace("slots = 6", "slots = 3"))
        (self.site.store("SG1/a") / "large.bin").write_bytes(bytes(range(256)) * 4096 * 4)
        self._must(in_child(self._three_nights))
        self.clock.advance(3 * DAY)
        shutil.copytree(self.site.home, self.pristine, symlinks=True)

    def _three_nights(self) -> None:
        Hook(self.site.home).install()
        clock = HandClock()
        with self.site.open(clock) as opened:
            for _ in range(3):
                night(opened, BACK_GROUP)
                clock.advance(DAY)

    @staticmethod
    def _must(done: tuple[int, str]) -> str:
        if done[0] != 0:
            raise SystemExit(f"what nobody killed failed: {done[0]}")
        return done[1]

    def _reset(self) -> None:
        shutil.rmtree(self.site.home)
        shutil.copytree(self.pristine, self.site.home, symlinks=True)

    def calls(self) -> list[str]:
        self._reset()
        return list(json.loads(self._must(in_child(lambda: self._work(0)))))

    def _work(self, kill_at: int) -> list[str]:
        hook = Hook(self.site.home, kill_at)
        hook.install()
        with self.site.open(self.clock) as opened:
            expire.expire(opened, progress=QUIET, cancel=Cancel())
            night(opened, BACK_GROUP)
        return hook.met

    def kill_at(self, point: int) -> list[str]:
        """Kills there, looks at what is offered, does it again, and looks at everything."""
        self._reset()
        outcome, _ = in_child(lambda: self._work(point))
        if not os.WIFSIGNALED(outcome) or os.WTERMSIG(outcome) != signal.SIGKILL:
            return [f"it was not killed: {outcome}"]
        outcome, said = in_child(self._offered)
        problems = [f"after the kill: {wrong}" for wrong in json.loads(said or "[]")]
        outcome, said = in_child(lambda: self._again(point))
        if outcome != 0:
            return [*problems, f"the rerun failed: {outcome}"]
        return problems + json.loads(said) + self._outside()

    def _offered(self) -> list[str]:
        """Copies that a restore would be offered and that are not right."""
        Hook(self.site.home).install()
        with self.site.open(self.clock) as opened:
            return [
                f"{checked.copy.image} at {checked.copy.destination}: {checked.error}"
                for checked in verify.verify_copies(opened, progress=QUIET, cancel=Cancel())
                if checked.error
            ]

    def _again(self, point: int) -> list[str]:
        Hook(self.site.home).install()
        problems = []
        with self.site.open(self.clock) as opened:
            expire.expire(opened, progress=QUIET, cancel=Cancel(), reason="the rerun")
            record = night(opened, BACK_GROUP)
            if (record.state, record.result) != ("ended", "whole"):
                problems.append(f"the run is {record.state} {record.result}")
            expire.expire(opened, progress=QUIET, cancel=Cancel(), reason="the night after")
            problems += [
                f"{s.store} is {s.colour}: {s.reason}" for s in status(opened) if s.colour != "green"
            ]
            problems += [f"pending: {left.expiry}" for left in opened.catalog.pending(ExpiryRecord)]
            for image in IMAGES:
                states = {c.state for c in opened.catalog.all_copies(image)} - {"lost", "writing"}
                wanted = {"verified"} if image in IMAGES[-2:] else {"expired"}
                if states != wanted or opened.catalog.expired(image) != (wanted == {"expired"}):
                    problems.append(f"{image} is {states}")
            used = opened.catalog.cartridges("tape")
            problems += [f"{c.barcode} is {c.state}: {c.note}" for c in used if c.state == "foreign"]
            place = ("tape", "folder")[point % 2]
            for name in self.site.names:
                target = self.site.home / "restored" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                done = bring_back(opened, target, copy=place, store=name)
                if done.copy != place:
                    problems.append(f"{name} was restored from {done.copy}")
                problems += [d for d in [compare_tree(self.site.store(name), target)] if d]
        return problems

    def _outside(self) -> list[str]:
        """What stands at the folder and on staging."""
        there = folder_copies(self.site.objects)
        problems = wrong_images(there, self.site.home / "stores")
        folders = sorted(path.name for path in (self.site.objects / "images").iterdir())
        staged = sorted(self.site.staged())
        for what, found in (("copies", sorted(there)), ("folders", folders), ("staged", staged)):
            if found != IMAGES[-2:]:
                problems.append(f"{what}: {found}")
        return problems


def main(folder: str, *words: str) -> None:
    sweep = Sweep(Path(folder))
    seen: set[str] = set()
    relabelling, before = False, ""
    calls = sweep.calls()
    only = first_of_each(calls, words[1:]) if words[:1] == ("only",) else None
    for point, call in enumerate(calls, start=1):
        relabelling = bool(RELABEL.search(call)) or (relabelling and not LABELLED.search(call))
        writing_over = relabelling and call.startswith(
            ("replace /vtl", "unlink /vtl", "open /vtl", "write /vtl")
        )
        known = call in seen if not writing_over else call == before
        of_kinds = not known and (writing_over or RELABEL.search(call) or POINT.search(call))
        if point in only if only is not None else words[:1] == ("all",) or of_kinds:
            found: dict[str, Any] = {"point": point, "call": call, "problems": sweep.kill_at(point)}
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()
        seen.add(call)
        before = call


if __name__ == "__main__":
    main(*sys.argv[1:])
