"""A site on the live Pacemaker cluster: its stores on the MAIL group's disk, staging on the BACK group's.

Run as a program on a node it does one step of a night at the ops layer, as the flows do there:
``python cluster_site.py SITE_FILE one|two|new|parallel|last-one|last-two [POINT]``; ``last-one`` and ``last-two`` are
those of the night before, ``parallel`` is ``one`` with all stores at once. With a point it stops before the one of that
name (``HOOKS``), says so, and goes on at a line on its standard input; ``kill:POINT`` ends itself there as kill -9
does, ``slow:POINT`` waits there for a moment, each time.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from nightferry.clock import SYSTEM_CLOCK, SystemClock
from nightferry.cluster.disk import BackDisk
from nightferry.cluster.pacemaker import PacemakerCluster
from nightferry.cluster.tools import CrmTools
from nightferry.copies import stream
from nightferry.errors import NightferryError
from nightferry.model.load import load_site
from nightferry.night import gate, move, stage
from nightferry.progress import Quiet
from nightferry.site.opened import CatalogConstraints, OpenSite
from nightferry.staging import adoption
from tests.servers.pacemaker import ACTIVE, ALTERNATE, BACK, MAIL, MOUNTS, PacemakerServer
from tests.support import night, toml
from tests.support.outside import compare_tree

ROOT = Path(__file__).parents[2]
CLI = "from nightferry.cli.app import main; raise SystemExit(main())"

HEAD = """\
schema = 1
[site]
name = "TEX"
catalog = "{root}/catalog"
timezone = "America/Chicago"
restore_roots = ["{root}"]

[cluster]
kind = "pacemaker"
nodes = ["TEX-ACTV-1", "TEX-PASS-1", "TEX-PASS-2"]
{cluster}

[staging]
keep_free = "1 %"
{staging}

[[back_groups]]
name = "{back}"
path = "{staging_path}"
"""

LEDGER = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as database:
    database.execute("create table entries (n integer, words text)")
    database.executemany("insert into entries values (?, ?)", [(n, "entry %d" % n) for n in range(500)])
"""


class ClusterSite:
    """A site below ``root``, on fresh disks."""

    def __init__(
        self, server: PacemakerServer, root: Path, *, cluster: str = "", staging: str = "", docs_mib: int = 2
    ) -> None:
        self.server = server
        self.root = root
        self.file = root / "nightferry.toml"
        head = HEAD.format(root=root, cluster=cluster, staging=staging, staging_path=MOUNTS[BACK], back=BACK)
        self.file.write_text(
            head
            + toml.group("SG1", ("tape", "objects"), mail_group=MAIL, more=f'back_group = "{BACK}"\n')
            + toml.store("docs", MOUNTS[MAIL] / "docs")
            + toml.store("ledger", MOUNTS[MAIL] / "ledger.db", "sqlite")
            + toml.tape(toml.virtual(root / "vtl"))
            + toml.folder(root / "objects")
        )
        self.file.chmod(0o644)
        for mount in MOUNTS.values():
            server.shell(
                ACTIVE, f"find {mount} -mindepth 1 -maxdepth 1 ! -name lost+found -exec rm -rf {{}} +"
            )
        docs = MOUNTS[MAIL] / "docs"
        server.shell(
            ACTIVE,
            f"mkdir -p {docs}/deep && head -c {docs_mib}M /dev/urandom > {docs}/big.bin && "
            f"cp -r /etc/apt {docs}/deep && ln -s big.bin {docs}/link",
        )
        server.done(ACTIVE, sys.executable, "-c", LEDGER, str(MOUNTS[MAIL] / "ledger.db"))
        # What is to come back, kept where no node's fate touches it.
        server.shell(ACTIVE, f"cp -a {docs} {MOUNTS[MAIL]}/ledger.db {root}/")

    def nightferry(self, node: str, *words: str) -> subprocess.CompletedProcess[str]:
        """The command line on a node."""
        return self.server.run(node, *self.command(), *words)

    def command(self) -> list[str]:
        """The command line's argument list, without its words."""
        return [*self._python(), "-c", CLI, "--site", str(self.file)]

    def asked(self, node: str, *words: str) -> Any:
        """The JSON that the command line answers on a node."""
        answer = self.nightferry(node, *words, "--json")
        return json.loads(answer.stdout)

    def step(self, node: str, *words: str) -> subprocess.CompletedProcess[str]:
        """One step of a night on a node, to its end."""
        return self.server.run(node, *self._step(words))

    @contextmanager
    def led_step(self, node: str, *words: str) -> Iterator[subprocess.Popen[str]]:
        """One step of a night on a node, beside the test; it is killed where the test fails."""
        pipe = subprocess.PIPE
        options: dict[str, Any] = {"stdin": pipe, "stdout": pipe, "stderr": subprocess.STDOUT}
        with self.server.start(node, *self._step(words), **options) as step:
            try:
                yield step
            except BaseException:
                step.kill()
                raise

    def require_whole(self, node: str = ALTERNATE) -> None:
        """Everything is green, and comes back from the destinations as it was."""
        shown = self.nightferry(node, "status")
        assert shown.returncode == 0, shown.stdout
        back = self.root / "back"
        shutil.rmtree(back, ignore_errors=True)
        for store, destination in (("docs", "tape"), ("ledger", "objects")):
            words = ("restore", "store", f"SG1/{store}", "--copy", destination, "--to", str(back / store))
            restored = self.nightferry(node, *words)
            assert restored.returncode == 0, restored.stderr
        assert compare_tree(back / "docs", self.root / "docs") == ""
        asked = "select count(*), sum(n), max(words) from entries"
        answers = {
            subprocess.run(["sqlite3", path, asked], capture_output=True, text=True, check=True).stdout
            for path in (back / "ledger/ledger.db", self.root / "ledger.db")
        }
        assert len(answers) == 1

    def edit(self, old: str, new: str) -> None:
        """Changes the site file."""
        text = self.file.read_text()
        assert old in text
        self.file.write_text(text.replace(old, new))

    def opened(self) -> OpenSite:
        """The site as this machine, which is no node, sees it: for its catalog."""
        return OpenSite(load_site(self.file))

    def _step(self, words: tuple[str, ...]) -> list[str]:
        return [*self._python(), __file__, str(self.file), *words]

    @staticmethod
    def _python() -> list[str]:
        return ["env", f"PYTHONPATH={ROOT}", sys.executable]


def _before(owner: Any, name: str, happens: Callable[[], None]) -> None:
    call = getattr(owner, name)

    def hooked(*args: Any, **kwargs: Any) -> Any:
        happens()
        return call(*args, **kwargs)

    setattr(owner, name, hooked)


HOOKS = {
    "constraint recorded": (CatalogConstraints, "place"),
    "constraint placed": (CrmTools, "place"),
    "constraint replaced": (CrmTools, "replace"),
    "move watched": (PacemakerCluster, "_watch"),
    "disk taken": (BackDisk, "take"),
    "owner recorded": (move, "_remember"),
    "constraint released": (CrmTools, "take_back"),
    "release recorded": (CatalogConstraints, "take_back"),
    "image written": (stage, "_write_image"),
    "image recorded": (stage, "record_image"),
    "chunk checked": (adoption, "check_chunk"),
    "sealed": (gate, "write_seal"),
    "copy written": (stream, "_put"),
}
"""Point → the call it lies before."""


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Yesterday(SystemClock):
    def now(self) -> datetime:
        return super().now() - timedelta(days=1)


class _Told(Quiet):
    def say(self, text: str, subject: str = "") -> None:
        say(f"said {text}")


def main(site_file: str, step: str, point: str = "") -> int:
    kill, slow = point.startswith("kill:"), point.startswith("slow:")
    stops = point.removeprefix("kill:").removeprefix("slow:")

    def stop() -> None:
        nonlocal stops
        if not stops:
            return
        if slow:
            say(f"slow before {stops}")
            time.sleep(0.2)
            return
        if kill:
            os.kill(os.getpid(), signal.SIGKILL)
        say(f"stopped before {stops}")
        stops = ""
        sys.stdin.readline()

    if stops:
        _before(*HOOKS[stops], stop)
    clock = Yesterday() if step.startswith("last-") else SYSTEM_CLOCK
    step = step.removeprefix("last-")
    with OpenSite(load_site(Path(site_file)), clock=clock) as opened:
        try:
            if step == "two":
                record = opened.catalog.runs(BACK)[0]
                night.stage_two(opened, record, _Told())
            elif step == "parallel":
                record = night.stage_at_once(opened, BACK, _Told())
            else:
                record = night.stage_one(opened, BACK, _Told(), new=step == "new")
        except NightferryError as error:
            say(f"failed {error}")
            return error.exit_code
        for failure in opened.catalog.failures(record.run):
            say(f"failed {failure.store}: {failure.error}")
        say(f"ended {opened.catalog.run(record.run).state}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
