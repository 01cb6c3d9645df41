"""A year of an operator who does whatever comes to mind, on a site where whatever can break does.

The random steps are nights, kills in them, verbs in any order, damage, destinations that leave, renames, clocks and
rebuilds. What a night calls whole must come back from every copy as it was; what a restore gives back must be right
whatever happened before; what is somebody else's stays; and in the end the documented verbs bring the site back to a
night that is whole and a status that is green.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from nightferry.errors import NightferryError
from nightferry.model.names import parse_image_name
from tests.support import night
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

DAY = timedelta(days=1)
RETENTION = "[retention]\nkeep_last = 3\nkeep_daily = 4\n"
Tree = dict[bytes, bytes]
Say = Callable[..., tuple[int, dict[str, object]]]
"""Runs a command of the site: its exit code and its document."""

STEPS = {
    "next_night": 10,
    "same_night": 3,
    "killed_night": 3,
    "leave_or_return": 2,
    "damage_objects": 2,
    "damage_staging": 1.5,
    "damage_tape": 0.5,
    "expire": 4,
    "verify": 2,
    "copy_missing": 2,
    "restore_any": 5,
    "look": 2,
    "lay_foreign": 1,
    "hold": 1,
    "forget": 0.3,
    "erase_a_cartridge": 1,
    "run_the_clock_ahead": 0.3,
    "change_the_site_file": 0.6,
    "rebuild": 0.3,
}
"""How often each step is taken, beside the others."""


class Year:
    """One site and what became of it.

    Args:
        site: A new site of the storage groups SG1 (a, b) and SG2 (c), with copies at ``folder`` and ``tape``.
        clock: The one that the commands go by.
        say: Runs a command.
        seed: Of all that is random.
    """

    def __init__(self, site: SmallSite, clock: HandClock, say: Say, seed: int) -> None:
        self.site, self.clock, self.say = site, clock, say
        self.random = random.Random(seed)
        self.history: list[str] = []
        """What was done, for whoever reads a failure."""
        self._content: dict[str, Tree] = {}
        self._damaged: set[tuple[str, str]] = set()
        self._away: set[str] = set()
        self._foreign: list[Path] = []
        self._last: object = None

    def live(self, steps: int) -> None:
        """Takes steps, then settles."""
        self.next_night()
        for _ in range(steps):
            name = self.random.choices(list(STEPS), list(STEPS.values()))[0]
            self.history.append(f"{self.clock.now():%F} {name}")
            getattr(self, name)()
            self._require_foreign()
        self._settle()
        self._require_foreign()

    # -- nights

    def next_night(self) -> None:
        self.clock.advance(DAY)
        self.same_night()

    def same_night(self) -> None:
        self._write_to_stores()
        known = self._images()
        before = {name: tree_of(self.site.store(name)) for name in self.site.names}
        try:
            with self.site.open(self.clock) as opened:
                run = night.night(opened, BACK_GROUP, new=self.random.random() < 0.15)
        except NightferryError as error:
            self._last = f"{error} {error.hint}"
        else:
            self._last = run.result
        self.history.append(f"  {self._last}")
        self._learn(known, before)
        if self._last == "whole":
            self._require_whole(run.run)

    def killed_night(self) -> None:
        self.clock.advance(DAY * self.random.choice([0, 1]))
        known = self._images()
        before = {name: tree_of(self.site.store(name)) for name in self.site.names}
        pid = os.fork()
        if pid == 0:
            try:
                with self.site.open(self.clock) as opened:
                    night.night(opened, BACK_GROUP)
            finally:
                os._exit(0)
        time.sleep(self.random.random() * 0.6)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self._learn(known, before)

    def run_the_clock_ahead(self) -> None:
        days = self.random.choice([1, 30, 400]) * DAY
        self.clock.advance(days)
        self.same_night()
        self.clock.advance(-days)
        self.same_night()
        self.expire()
        self.clock.advance(timedelta(hours=1))
        with suppress(NightferryError), self.site.open(self.clock) as opened:
            night.night(opened, BACK_GROUP, clock_is_right="checked by phone")

    # -- what breaks

    def leave_or_return(self) -> None:
        name, path = self.random.choice([("folder", self.site.objects), ("tape", self.site.library)])
        if name in self._away:
            self._return(name, path)
        else:
            path.rename(path.with_suffix(".away"))
            self._away.add(name)

    def damage_objects(self) -> None:
        files = sorted(self.site.objects.glob("images/*.L0/*"))
        files = [file for file in files if file not in self._foreign]
        if files:
            file = self.random.choice(files)
            self._damaged.add((file.parent.name, "folder"))
            self._damage(file)

    def damage_staging(self) -> None:
        files = sorted(self.site.disk.glob("SG*/*/*"))
        if files:
            self._damage(self.random.choice(files))

    def damage_tape(self) -> None:
        files = [
            f for f in sorted(self.site.library.glob("cartridges/*/*.tape")) if f.stat().st_size > 200_000
        ]
        if files:
            self._damaged |= {(image, "tape") for image in self._images()}
            self._flip(self.random.choice(files))

    def lay_foreign(self) -> None:
        if "folder" not in self._away:
            name = self.random.choice(["holiday", ".cache", "x.L0", "20250101-TEX-BACK-1.SG1.a.L0"])
            path = self.site.objects / "images" / name / f"{self.random.randrange(99)}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"theirs")
            self._foreign.append(path)

    def change_the_site_file(self) -> None:
        stores = self.site.stores
        if "SG2" in stores and self.random.random() < 0.5:
            self.site.write_file(stores={"SG1": stores["SG1"]})
        elif "SG2" not in stores:
            self.site.write_file(stores={**stores, "SG2": ("c",)})
        else:
            old, new = ("a", "z") if "a" in stores["SG1"] else ("z", "a")
            self.site.store(f"SG1/{old}").rename(self.site.store(f"SG1/{new}"))
            self.site.write_file(stores={**stores, "SG1": (new, "b")})
            self._run("selection", "fix", "SG1")
            self._run("selection", "adopt", f"SG1/{old}", f"SG1/{new}")

    # -- verbs

    def expire(self) -> None:
        self._run("expire", *self.random.choice([(), ("--dry-run",)]))

    def verify(self) -> None:
        self._run("verify", *self.random.choice([(), ("--copy", "folder"), ("--copy", "tape")]))

    def copy_missing(self) -> None:
        self._run("copy", "--missing", "--to", self.random.choice(["folder", "tape"]))

    def restore_any(self) -> None:
        images = sorted(self._images())
        if images:
            source = self.random.choice(["", "folder", "tape", "staging"])
            self._restore(self.random.choice(images), source)

    def look(self) -> None:
        for verb in ("status", "check", "images"):
            self._run(verb)

    def hold(self) -> None:
        images = sorted(self._images())
        if images:
            verb = self.random.choice(["add", "remove"])
            self._run("hold", verb, self.random.choice(images), "--reason", "a test")

    def forget(self) -> None:
        images = sorted(self._images())
        if images:
            self._run("forget", self.random.choice(images), "--reason", "a test")

    def erase_a_cartridge(self) -> None:
        barcodes = sorted(path.name for path in self.site.library.glob("cartridges/*"))
        if barcodes:
            self._run("media", "erase", "--yes", self.random.choice(barcodes), "--reason", "a test")

    def rebuild(self) -> None:
        there = sorted({"folder", "tape"} - self._away)
        if not there:
            return
        catalog, aside = self.site.home / "catalog", self.site.home / "catalog.aside"
        shutil.rmtree(aside, ignore_errors=True)
        catalog.rename(aside)
        if self._run("catalog", "rebuild", "--copy", self.random.choice(there)) in (0, 3):
            self._run("catalog", "accept", "--yes", "--reason", "a test")
        else:
            shutil.rmtree(catalog, ignore_errors=True)
            aside.rename(catalog)

    # -- what must hold

    def _require_whole(self, run: str) -> None:
        for image in sorted(self._images()):
            if image.startswith(f"{run}."):
                for place in sorted(set(self.site.copies) - self._away):
                    if (image, place) not in self._damaged:
                        assert self._restore(image, place) == 0, self._told(
                            f"{image} at {place} is not restorable"
                        )

    def _restore(self, image: str, source: str) -> int:
        name = parse_image_name(image)
        target = self.site.home / "restored"
        shutil.rmtree(target, ignore_errors=True)
        only = ("--copy", source) if source else ()
        store = f"{name.group}/{name.store}"
        code = self._run("restore", "store", store, "--image", image, "--to", str(target), *only)
        if code == 0 and image in self._content:
            assert tree_of(target) == self._content[image], self._told(
                f"{image} came back wrong from {source}"
            )
        return code

    def _require_foreign(self) -> None:
        for path in self._foreign:
            there = Path(str(path).replace("/objects/", "/objects.away/")) if "folder" in self._away else path
            assert there.read_bytes() == b"theirs", self._told(f"{path} is gone")

    def _settle(self) -> None:
        """Everything is back; what the messages say is done, and nothing else."""
        for name, path in (("folder", self.site.objects), ("tape", self.site.library)):
            if name in self._away:
                self._return(name, path)
        self._run("verify")
        for destination in ("folder", "tape"):
            self._run("copy", "--missing", "--to", destination)
        for number in range(12):
            self._run("expire", "--yes", "--reason", "what had to go was looked at")
            self.next_night()
            lost = re.search(r"nightferry forget (\S+) --reason", str(self._last))
            if lost:
                self._run("forget", lost[1], "--reason", "it is lost")
            elif self._last == "whole" and number >= 2:
                break
        assert self._last == "whole", self._told("no night is whole again")
        assert self._run("status") == 0, self._told("the status is not green again")

    def _told(self, what: str) -> str:
        return "\n".join([what, *self.history])

    # -- how

    def _run(self, *arguments: str) -> int:
        code, document = self.say(*arguments)
        self.history.append(f"  {' '.join(arguments)}: {code}")
        error = document.get("error")
        told = str(error["message"]) if isinstance(error, dict) else ""
        assert code not in (1, 70), self._told(told)
        assert "unexpected" not in told, self._told(told)
        return code

    def _images(self) -> set[str]:
        try:
            with self.site.open(self.clock) as opened:
                known = {image.image for image in opened.catalog.images()}
        except NightferryError:
            known = set()
        return known | {path.name.removesuffix(".tar") for path in self.site.disk.glob("*/*/*.tar")}

    def _learn(self, known: set[str], before: dict[str, Tree]) -> None:
        """What the images of the last night hold: its stores stood still."""
        for image in self._images() - known - self._content.keys():
            name = parse_image_name(image)
            self._content[image] = before[f"{name.group}/{name.store}"]

    def _write_to_stores(self) -> None:
        for name in self.site.names:
            if self.random.random() < 0.6:
                path = self.site.store(name) / "deep" / f"f{self.random.randrange(6)}"
                path.write_bytes(self.random.randbytes(self.random.randrange(200_000)))
            elif self.random.random() < 0.2:
                hard = self.site.store(name) / "hard"
                hard.unlink(missing_ok=True)
                os.link(self.site.store(name) / "big.bin", hard)

    def _return(self, name: str, path: Path) -> None:
        path.with_suffix(".away").rename(path)
        self._away.discard(name)

    def _damage(self, file: Path) -> None:
        how = self.random.choice(["flip", "cut", "gone"])
        if how == "gone":
            file.unlink()
        elif how == "cut":
            os.truncate(file, file.stat().st_size // 2)
        else:
            self._flip(file)
        self.history.append(f"  {how} {file}")

    def _flip(self, file: Path) -> None:
        data = bytearray(file.read_bytes())
        if data:
            data[self.random.randrange(len(data))] ^= 0x41
            with file.open("r+b") as out:
                out.write(data)


def tree_of(path: Path) -> Tree:
    """Every name below a folder and what it is: a file's content, where a link leads."""
    found = {}
    for folder, folders, files in os.walk(os.fsencode(path)):
        for name in folders + files:
            each = os.path.join(folder, name)
            inside = os.path.relpath(each, os.fsencode(path))
            if os.path.islink(each):
                found[inside] = b"-> " + os.readlink(each)
            else:
                found[inside] = b"folder" if os.path.isdir(each) else Path(os.fsdecode(each)).read_bytes()
    return found
