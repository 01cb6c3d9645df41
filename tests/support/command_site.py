"""A small real site: two storage groups on one BACK group, a virtual tape library, an object folder."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nightferry.model.load import load_site
from nightferry.model.records import RunRecord
from nightferry.site.opened import OpenSite
from tests.support import night, toml

BACK = "TEX-BACK-1"
SOURCES = Path(__file__).parents[2]

HEAD = """\
schema = 1
[site]
name = "TEX"
catalog = "{root}/catalog"
timezone = "America/Chicago"
restore_roots = ["{root}/restored"]

[cluster]
kind = "local"
nodes = ["TEX-ACTV-1", "TEX-PASS-1", "TEX-PASS-2"]

[staging]
path = "{root}/backup"
keep_free = "1 %"
"""
COPIES = ("tape", "objects")


@dataclass(frozen=True)
class CommandSite:
    """The site below ``root``; ``file`` is its site file."""

    root: Path

    @property
    def file(self) -> Path:
        return self.root / "nightferry.toml"

    @property
    def priv1(self) -> Path:
        return self.root / "stores" / "priv1"

    @property
    def ledger(self) -> Path:
        return self.root / "stores" / "ledger.csv"

    @property
    def mailbox(self) -> Path:
        return self.root / "stores" / "mailbox.db"

    @property
    def ledger_toml(self) -> str:
        """What the site file says of the store SG1/ledger."""
        return toml.store("ledger", self.ledger)

    @property
    def sg2_toml(self) -> str:
        """What it says of the storage group SG2."""
        return toml.group("SG2", COPIES) + toml.store("mailbox", self.mailbox, "sqlite")

    @property
    def objects_toml(self) -> str:
        """What it says of the destination ``objects``."""
        return toml.folder(self.root / "objects")

    def opened(self) -> OpenSite:
        """The site as the verbs see it."""
        return OpenSite(load_site(self.file))

    def night(self, **options: object) -> RunRecord:
        """Both stages, without Prefect."""
        with self.opened() as here:
            return night.night(here, BACK, **options)

    def edit(self, old: str, new: str) -> None:
        """Replaces a text of the site file, which must be there."""
        text = self.file.read_text()
        assert old in text
        self.file.write_text(text.replace(old, new))

    def image(self, store: str) -> str:
        """The newest image of a store, by its name."""
        with self.opened() as here:
            return here.catalog.images(*store.split("/"))[0].image


def build_site(root: Path, *, tolerate: str = "") -> CommandSite:
    """Writes the site file and its stores; nothing is backed up yet."""
    site = CommandSite(root)
    for folder in ("stores", "backup", "objects", "restored", "catalog"):
        (root / folder).mkdir(parents=True, mode=0o755)
    site.file.write_text(
        HEAD.format(root=root)
        + toml.group("SG1", COPIES, more=f"{tolerate}\n" if tolerate else "")
        + toml.store("priv1", site.priv1, more='  exclude = ["*.tmp"]\n')
        + site.ledger_toml
        + site.sg2_toml
        + toml.tape(toml.virtual(root / "vtl"))
        + site.objects_toml
    )
    site.file.chmod(0o600)
    bytes_of = random.Random(7)
    (site.priv1 / "in" / "deep").mkdir(parents=True)
    (site.priv1 / "in" / "letter.txt").write_text("dear reader\n")
    (site.priv1 / "in" / "deep" / "large.bin").write_bytes(bytes_of.randbytes(3_000_001))
    (site.priv1 / "note.md").write_text("# note\n")
    (site.priv1 / "scrap.tmp").write_text("not kept\n")
    site.ledger.write_text("day,sum\n1,100\n")
    with sqlite3.connect(site.mailbox) as database:
        database.execute("create table mail (id integer primary key, body text)")
        database.executemany(
            "insert into mail (body) values (?)", [(f"message {n}" * 20,) for n in range(500)]
        )
    database.close()
    return site


@dataclass(frozen=True)
class Ran:
    """What one command said."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout; anything else there fails."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    @property
    def error(self) -> dict[str, Any]:
        """The error document; its exit code is the process's."""
        error = self.document["error"]
        assert set(error) >= {"exit_code", "message", "hint", "subject"}
        assert error["exit_code"] == self.code
        assert error["message"]
        assert error["hint"]
        return dict(error)


Command = Callable[..., Ran]


def process(site: Path | None, *arguments: str, **options: Any) -> Ran:
    """One command as a process of its own."""
    named = ["--site", str(site)] if site else []
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from nightferry.cli.app import main; sys.exit(main())",
            *named,
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(SOURCES), **options.pop("env", {})},
        **options,
    )
    return Ran(done.returncode, done.stdout, done.stderr)
