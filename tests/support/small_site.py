"""A small real site in a folder: tiny stores, one BACK disk, a virtual tape library and an object folder."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.model.load import load_site
from nightferry.site.opened import OpenSite
from tests.support import toml

BACK_GROUP = "TEX-BACK-1"

_HEAD = """\
schema = 1

[site]
name = "TEX"
catalog = "{home}/catalog"
timezone = "UTC"

[cluster]
kind = "local"
nodes = ["TEX-ACTV-1", "TEX-PASS-1", "TEX-PASS-2"]

[staging]
verify = "sample:100%"
keep_free = "{keep_free}"

[[back_groups]]
name = "TEX-BACK-1"
path = "{back}"
on_overrun = "{on_overrun}"
{more}"""

_GROUP = f"""\
back_group = "{BACK_GROUP}"
tolerate = {{ vanished = "any", changed = 0, unreadable = 0 }}
"""


class HandClock:
    """Time that only passes when a test says so, or something waits."""

    def __init__(self, start: datetime = datetime(2026, 11, 10, 21, 0, tzinfo=UTC)) -> None:
        self.time = start

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.time.timestamp()

    def sleep(self, seconds: float) -> None:
        self.advance(timedelta(seconds=seconds))

    def advance(self, span: timedelta) -> None:
        self.time += span


@dataclass
class SmallSite:
    """Where everything of the site lies. ``stores``: storage group → stores, in the site file's order."""

    home: Path
    stores: dict[str, tuple[str, ...]] = field(default_factory=lambda: {"SG1": ("a", "b")})
    copies: tuple[str, ...] = ("tape", "folder")
    cartridge: str = "16 MiB"
    tape: str = ""
    """The tape library as TOML; a virtual one by default."""
    keep_free: str = "0 %"
    on_overrun: str = "drain"
    encode: str = ""
    """How the folder's copies are compressed."""
    back: Path | None = None
    sources: Path | None = None
    """Where the stores' folders lie; below ``home`` by default."""
    more: str = ""
    """TOML that goes before the storage groups."""

    @property
    def file(self) -> Path:
        return self.home / "nightferry.toml"

    @property
    def disk(self) -> Path:
        return self.back or self.home / "back"

    @property
    def objects(self) -> Path:
        return self.home / "objects"

    @property
    def library(self) -> Path:
        return self.home / "vtl"

    def store(self, name: str) -> Path:
        """``GROUP/STORE`` → its folder."""
        return (self.sources or self.home / "stores") / name

    @property
    def names(self) -> list[str]:
        """Every ``GROUP/STORE``."""
        return [f"{group}/{store}" for group, stores in self.stores.items() for store in stores]

    def build(self) -> SmallSite:
        """Writes the site file and fills the stores; what is there already is kept."""
        self.disk.mkdir(exist_ok=True)
        self.write_file()
        for number, name in enumerate(self.names):
            if not self.store(name).exists():
                fill(self.store(name), seed=number, big=(1 << 20) + 4321 if number == 0 else 30_000)
        return self

    def write_file(self, **changes: Any) -> None:
        """(Re)writes the site file, after changing fields of this object."""
        for key, value in changes.items():
            setattr(self, key, value)
        text = _HEAD.format(
            home=self.home,
            back=self.disk,
            keep_free=self.keep_free,
            on_overrun=self.on_overrun,
            more=self.more,
        )
        for group, stores in self.stores.items():
            text += toml.group(group, self.copies, start="20:00", more=_GROUP)
            text += "".join(toml.store(store, self.store(f"{group}/{store}")) for store in stores)
        virtual = toml.virtual(self.library, drives=2, slots=6, cartridge=self.cartridge)
        text += toml.tape(self.tape or virtual) if "tape" in self.copies else ""
        encode = f'encode = {{ compress = "{self.encode}" }}\n' if self.encode else ""
        text += toml.folder(self.objects, "folder", encode) if "folder" in self.copies else ""
        self.file.write_text(text)
        self.file.chmod(0o600)

    def open(self, clock: Clock = SYSTEM_CLOCK) -> OpenSite:
        return OpenSite(load_site(self.file), clock=clock)

    def staged(self) -> dict[str, tuple[int, int]]:
        """The images on staging: name → (inode, mtime in ns)."""
        found = {}
        for tar in sorted(self.disk.glob("*/*/*.tar")):
            status = tar.stat()
            found[tar.name.removesuffix(".tar")] = (status.st_ino, status.st_mtime_ns)
        return found


def fill(store: Path, *, seed: int = 0, big: int = (1 << 20) + 4321) -> None:
    """A store of four files, a folder and a symbolic link; one file has ``big`` bytes."""
    content = random.Random(seed)
    (store / "deep").mkdir(parents=True)
    (store / "big.bin").write_bytes(content.randbytes(big))
    (store / "deep" / "letter.txt").write_bytes(content.randbytes(700))
    (store / "empty").touch()
    (store / "link").symlink_to("deep/letter.txt")
    (store / "caf\udce9").write_bytes(b"not UTF-8 by name")
