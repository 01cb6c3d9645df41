"""Kills nights with SIGKILL at one system call after the other, finishes each, and says what was not right.

A program of its own, so that it can fork: every night and every rerun is a fresh process that has nothing but
the imports in common with the one before. ``python kill_sweep.py FOLDER SWEEP [all | only PATTERN…]`` writes one
JSON object a point: ``{"point", "call", "problems"}``. The sweeps:

- ``second``: a site's second night, which also frees staging; the rerun is in the same window;
- ``first``: its first night, from nothing, at the calls the second night does not make;
- ``abandoned``: the second night again, but nobody reruns it: the next night comes.

Every call that changes a file's name or content is a point. Many of them are alike (an event of the log is
four calls whatever it says); without ``all`` one of each kind of commit is taken: same call, same file but
for numbers and store, same record. With ``only`` the first call that matches each pattern is a point.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from nightferry.health.status import status
from nightferry.night import gate
from nightferry.site.destinations import destination_of
from tests.support.brought import bring_back
from tests.support.night import night
from tests.support.outside import compare_tree, folder_copies, tape_copies, wrong_images
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite
from tests.support.sweeping import first_of_each

CALLS = (
    *("link", "rename", "replace", "unlink", "rmdir", "mkdir", "truncate", "ftruncate"),
    *("fsync", "fdatasync", "write", "open"),
)
UNNAMED = re.compile(
    r"fsync|fdatasync|(open|write|unlink) \S*(/\.|\.draft|\.lock)|(open|write) \S*\.(chunks|json)"
)
"""Calls that give or take no name that anybody looks at: left out without ``all``."""
ABANDONED = re.compile(
    r"open .*tar.partial|re(?:name|place) .*/back/SG|parquet|image whole|seal.#.json|result copy (writing|whole)"
    r"|write .*tape$|re(?:name|place) .*objects.*(data|meta.json)|freed|unlink .*/back/SG.*L#.(tar|chunks)$"
)
"""What is worth killing when nobody reruns the night."""
HELD = re.compile(rb"/proc/self/fd/[0-9]+")
UNFINISHED = re.compile(r"^\.tmp-|\.(draft|partial)$")
DAY = timedelta(days=1)


class Hook:
    """Stands before every call of ``CALLS``: counts and names it, kills the process at number ``kill_at``."""

    def __init__(self, home: Path, kill_at: int = 0) -> None:
        self.home = os.fsencode(home)
        self.kill_at = kill_at
        self.met: list[str] = []
        self.count = 0

    def install(self) -> None:
        for name in CALLS:
            setattr(os, name, self._before(name, getattr(os, name)))

    def _before(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def hooked(*args: Any, **kwargs: Any) -> Any:
            if self._counts(name, args):
                self.count += 1
                if self.count == self.kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                if not self.kill_at:
                    self.met.append(self._describe(name, args))
            # Against SIGKILL (unlike a power cut) the kernel keeps what was written: a sweep need not wait.
            return None if name in ("fsync", "fdatasync") else call(*args, **kwargs)

        return hooked

    def _path(self, args: tuple[Any, ...]) -> bytes:
        what = args[0]
        if isinstance(what, int):
            return os.fsencode(os.readlink(f"/proc/self/fd/{what}"))
        path = os.path.abspath(os.fsencode(what))
        opened = HELD.match(path)  # a name in a folder that is held by its descriptor
        return os.readlink(opened[0]) + path[opened.end() :] if opened else path

    def _counts(self, name: str, args: tuple[Any, ...]) -> bool:
        if name == "open" and not args[1] & os.O_CREAT:
            return False
        return self._path(args).startswith(self.home)

    def _describe(self, name: str, args: tuple[Any, ...]) -> str:
        last = args[1] if name in ("link", "rename", "replace") else args[0]
        path = self._path((last,))
        said = [name, os.fsdecode(path.removeprefix(self.home))]
        said[1] = re.sub(r"[0-9a-f]{8,}", "*", said[1])
        said[1] = re.sub(r"\d+", "#", said[1]).replace("SG#/b", "SG#/a").replace("SG#.b", "SG#.a")
        if name == "link" and b"/catalog/events/" in path:
            event = json.loads(Path(os.fsdecode(args[0])).read_bytes())
            body = event["body"]
            said += [event["phase"], event["kind"]]
            said += [str(body[key]) for key in ("state", "destination", "node") if key in body]
            said += [word for word in ("being labelled", "being written") if word in str(body.get("note"))]
        if name == "link" and b"/owner." in path:
            said += [json.loads(Path(os.fsdecode(args[0])).read_bytes())["node"]]
        return " ".join(said)


def in_child(work: Callable[[], Any]) -> tuple[int, str]:
    """Runs in a forked process; returns its wait status and what it returned, as JSON."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read)
            with open(write, "w") as out:
                json.dump(work(), out)
            code = 0
        except BaseException:  # noqa: BLE001 - the child ends here, whatever happened, and says why
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(write)
    with open(read) as lines:
        said = lines.read()
    return os.waitpid(pid, 0)[1], said


class Sweep:
    """One site, brought back to the same state before each kill."""

    def __init__(self, folder: Path, which: str) -> None:
        self.which = which
        self.site = SmallSite(folder / "site")
        self.pristine = folder / "pristine"
        self.clock = HandClock()
        for path in (self.site.home, self.pristine):
            shutil.rmtree(path, ignore_errors=True)
        self.site.home.mkdir()
        self.site.build()
        if which != "first":
            self._must(in_child(lambda: self._night(0)))
            self.clock.advance(DAY)
        shutil.copytree(self.site.home, self.pristine, symlinks=True)

    def calls(self) -> list[str]:
        """Every point of the night that would be killed, described."""
        self._reset()
        return list(json.loads(self._must(in_child(lambda: self._night(0)))))

    def kill_at(self, point: int) -> list[str]:
        """Kills a night there, finishes it (or lets the next one come) and returns what was wrong."""
        self._reset()
        outcome, _ = in_child(lambda: self._night(point))
        if not os.WIFSIGNALED(outcome) or os.WTERMSIG(outcome) != signal.SIGKILL:
            return [f"the night was not killed: {outcome}"]
        problems = [f"after the kill: {wrong}" for wrong in self._half_written()]
        before = self.site.staged()
        outcome, said = in_child(lambda: self._finish(point))
        if outcome != 0:
            return [*problems, f"the rerun failed: {outcome}"]
        found = json.loads(said)
        return problems + found["problems"] + self._look(before, found["images"], found["staged"])

    @staticmethod
    def _must(done: tuple[int, str]) -> str:
        if done[0] != 0:
            raise SystemExit(f"a night that nobody killed failed: {done[0]}")
        return done[1]

    def _reset(self) -> None:
        shutil.rmtree(self.site.home)
        shutil.copytree(self.pristine, self.site.home, symlinks=True)

    def _night(self, kill_at: int) -> list[str]:
        hook = Hook(self.site.home, kill_at)
        hook.install()
        with self.site.open(self.clock) as opened:
            night(opened, BACK_GROUP)
        return hook.met

    def _half_written(self) -> list[str]:
        """What looks whole and is not."""
        staged = {tar.name.removesuffix(".tar"): tar for tar in self.site.disk.glob("SG*/*/*.tar")}
        stores = self.site.home / "stores"
        tapes = tape_copies(self.site.library)
        return (
            wrong_images(staged, stores)
            + wrong_images(folder_copies(self.site.objects), stores)
            + wrong_images({copy.image: copy.data for copy in tapes}, stores)
        )

    def _finish(self, point: int) -> dict[str, Any]:
        """The night again, in a fresh process; then what the records say, and a restore of every store."""
        Hook(self.site.home).install()
        problems = []
        if self.which == "abandoned":
            self.clock.advance(DAY)
        with self.site.open(self.clock) as opened:
            record = night(opened, BACK_GROUP)
            if (record.state, record.result) != ("ended", "whole"):
                problems.append(f"the run is {record.state} {record.result}")
            if gate.evaluate(opened, record).state != "open":
                problems.append("the gate is shut")
            problems += [
                f"{s.store} is {s.colour}: {s.reason}" for s in status(opened) if s.colour != "green"
            ]
            place = ("tape", "folder", "staging")[point % 3]
            for name in self.site.names:
                target = self.site.home / "restored" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                done = bring_back(opened, target, copy=place, store=name)
                if done.copy != place or not done.is_complete:
                    problems.append(f"{name} was restored from {done.copy}: {done.report}")
                problems += [
                    f"restored {name}: {d}" for d in [compare_tree(self.site.store(name), target)] if d
                ]
            # A night that had nothing left to do did not use the library: what a kill while a drive was unloaded left
            # there goes when it is used next.
            destination_of(opened, "tape")
            images = [image.image for image in opened.catalog.images()]
            staged = [image for image in images if not opened.catalog.freed(image)]
        return {"problems": problems, "images": images, "staged": staged}

    def _look(self, before: dict[str, tuple[int, int]], images: list[str], staged: list[str]) -> list[str]:
        """What the finished night left, seen from outside.

        Args:
            before: The images the killed night had staged.
            images: All that are recorded; each must have one whole copy at each destination.
            staged: Those that the records say are on staging; nothing else may be there.
        """
        problems = self._half_written()
        nights = {"first": 1, "second": 2, "abandoned": 3}[self.which]
        expected = {
            f"{20261109 + n}-{BACK_GROUP}.{name.replace('/', '.')}.L0"
            for n in range(1, nights + 1)
            for name in self.site.names
        }
        if self.which == "abandoned":
            expected = {image for image in expected if not image.startswith("20261111") or image in images}
            problems += [f"{image} is lost" for image in before if image not in images]
        if set(images) != expected:
            problems.append(f"recorded: {sorted(images)}")
        after = self.site.staged()
        problems += [
            f"{image} was staged again"
            for image in before.keys() & after.keys()
            if before[image] != after[image]
        ]
        folder = folder_copies(self.site.objects)
        tape = [copy.image for copy in tape_copies(self.site.library)]
        if sorted(tape) != sorted(images) or sorted(folder) != sorted(images):
            problems.append(f"not one copy an image: tape {sorted(tape)}, folder {sorted(folder)}")
        problems += [
            f"left at the folder: {p}"
            for p in (self.site.objects / "images").iterdir()
            if p.name not in folder
        ]
        known = {f"{image}{suffix}" for image in staged for suffix in (".tar", ".chunks", ".meta.json")}
        there = {path.name for path in self.site.disk.glob("SG*/*/*")}
        problems += [f"left on staging: {name}" for name in there - known]
        problems += [f"not on staging: {name}" for name in known - there]
        problems += [f"left in scratch: {p}" for p in self.site.disk.glob(".nightferry/scratch/*")]
        problems += [f"left: {p}" for p in self.site.home.rglob("*") if UNFINISHED.search(p.name)]
        return problems


def main(folder: str, which: str, *words: str) -> None:
    seen: set[str] = set()
    if which == "first":
        seen.update(Sweep(Path(folder), "second").calls())
    sweep = Sweep(Path(folder), which)
    calls = sweep.calls()
    only = first_of_each(calls, words[1:]) if words[:1] == ("only",) else None
    for point, call in enumerate(calls, start=1):
        wanted = call not in seen and not UNNAMED.match(call)
        of_kinds = wanted and (which != "abandoned" or ABANDONED.search(call))
        if point in only if only is not None else words[:1] == ("all",) or of_kinds:
            problems = sweep.kill_at(point)
            sys.stdout.write(json.dumps({"point": point, "call": call, "problems": problems}) + "\n")
            sys.stdout.flush()
        seen.add(call)


if __name__ == "__main__":
    main(*sys.argv[1:])
