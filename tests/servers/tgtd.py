"""A real tape library on loopback for the tests: Debian's ``tgtd``, a StorageTek L700 with LTO drives behind iSCSI.

Needs root and the packages ``tgt`` and ``libiscsi7``; no kernel module. Its cartridges are plain files. Where
they are in the library lives in the daemon alone: after a restart all are back in their slots.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.servers.ports import free_port

TARGET = "iqn.2026-01.local.rig:vtl"
_STARTED_S = 20.0


@dataclass
class Tgtd:
    """A running library. ``cartridge_mib``: a cartridge's size; early warning comes close to it."""

    home: Path
    port: int
    control: int
    drives: int = 4
    tapes: int = 12
    slots: int = 20
    ports: int = 4
    cartridge_mib: int = 256
    user: str = ""
    password: str = ""
    address: str = "127.0.0.1"
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def portal(self) -> str:
        return f"{self.address}:{self.port}"

    @property
    def toml(self) -> str:
        """What a site file says of it."""
        return f'{{ kind = "iscsi", portal = "{self.portal}", target = "{TARGET}" }}'

    @property
    def serials(self) -> list[str]:
        return [f"HUDRIVE{number:03d}" for number in range(1, self.drives + 1)]

    @property
    def barcodes(self) -> list[str]:
        return [f"RIG{number:03d}L5" for number in range(1, self.tapes + 1)]

    @property
    def _environment(self) -> dict[str, str]:
        return os.environ | {"TGT_IPC_SOCKET": str(self.home / "tgtd.sock")}

    def cartridge(self, barcode: str) -> Path:
        """The file that holds a cartridge's blocks, to meddle with."""
        return self.home / "media" / barcode

    def reset(self, cartridge_mib: int | None = None) -> None:
        """As on the first day: every cartridge blank and in its slot, nobody logged in."""
        self.kill()
        self.cartridge_mib = cartridge_mib or self.cartridge_mib
        shutil.rmtree(self.home / "media")
        self.start()

    def restart(self) -> None:
        """Starts again after a kill; what is on the cartridges stays."""
        self.kill()
        self.start()

    def make_blank(self, barcode: str, mib: int | None = None) -> None:
        """Makes the cartridge again while it is in its slot."""
        self.cartridge(barcode).unlink()
        _make_cartridge(self.cartridge(barcode), barcode, "data", mib or self.cartridge_mib)

    def adm(self, *arguments: str) -> str:
        """``tgtadm``'s answer."""
        command = ["tgtadm", "-C", str(self.control), "--lld", "iscsi", *arguments]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, env=self._environment
        ).stdout

    def start(self) -> None:
        """Starts the daemon and builds the library; blank cartridges are made where there are none."""
        self._make_media()
        for stale in self.home.glob("tgtd.sock*"):
            stale.unlink()
        with (self.home / "tgtd.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["tgtd", "-f", "-C", str(self.control), "--iscsi", f"portal={self.address}:{self.port}"],
                stdout=log, stderr=log, env=self._environment,
            )  # fmt: skip
        deadline = time.monotonic() + _STARTED_S
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"tgtd does not start: see {self.home / 'tgtd.log'}")
            time.sleep(0.05)
        self._configure()

    def kill(self) -> None:
        """Kills the daemon as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stops answering without hanging up."""
        self._signal("STOP")

    def resume(self) -> None:
        self._signal("CONT")

    def sessions(self) -> dict[int, list[tuple[int, int]]]:
        """Who is logged in: the session → its connections, each with the session and its own number."""
        shown = self.adm("--op", "show", "--mode", "conn", "--tid", "1")
        found: dict[int, list[tuple[int, int]]] = {}
        session = 0
        for line in shown.splitlines():
            if match := re.search(r"Session: (\d+)", line):
                session = int(match.group(1))
            elif match := re.search(r"Connection: (\d+)", line):
                found.setdefault(session, []).append((session, int(match.group(1))))
        return found

    def cut_sessions(self) -> int:
        """Cuts every connection; returns how many there were."""
        connections = [pair for pairs in self.sessions().values() for pair in pairs]
        for session, connection in connections:
            self.adm(
                "--op", "delete", "--mode", "conn",
                "--tid", "1", "--sid", str(session), "--cid", str(connection),
            )  # fmt: skip
        return len(connections)

    def _signal(self, name: str) -> None:
        if self._process is not None:
            subprocess.run(["kill", f"-{name}", str(self._process.pid)], check=True)

    def _answers(self) -> bool:
        shown = subprocess.run(
            ["tgtadm", "-C", str(self.control), "--op", "show", "--mode", "sys"],
            capture_output=True,
            env=self._environment,
        )
        return shown.returncode == 0

    def _make_media(self) -> None:
        media = self.home / "media"
        media.mkdir(exist_ok=True, parents=True)
        (media / "smc").write_bytes(bytes(1024))
        wanted = [(f"notape{n}", "NOTAPE", "clean", 1) for n in range(1, self.drives + 1)]
        wanted += [(barcode, barcode, "data", self.cartridge_mib) for barcode in self.barcodes]
        for name, barcode, kind, size in wanted:
            if not (media / name).exists():
                _make_cartridge(media / name, barcode, kind, size)

    def _unit(self, op: str, lun: int, *arguments: str) -> None:
        self.adm("--mode", "logicalunit", "--op", op, "--tid", "1", "--lun", str(lun), *arguments)

    def _configure(self) -> None:
        changer = self.drives + 1
        media = self.home / "media"
        self.adm("--op", "new", "--mode", "target", "--tid", "1", "-T", TARGET)
        for number, serial in enumerate(self.serials, 1):
            self._unit("new", number, "-b", str(media / f"notape{number}"), "--device-type=tape")
            about = f"vendor_id=HP,product_id=Ultrium 5-SCSI,product_rev=Z23W,scsi_sn={serial},removable=1"
            self._unit("update", number, "--params", about)
            self._unit("update", number, "--params", "online=0")
        self._unit("new", changer, "-b", str(media / "smc"), "--device-type=changer")
        settings = [
            "vendor_id=STK,product_id=L700,product_rev=0001,scsi_sn=STKL700001",
            f"media_home={media}",
        ]
        ranges = {1: (1, 1), 2: (1000, self.slots), 3: (10, self.ports), 4: (500, self.drives)}
        settings += [f"element_type={k},start_address={a},quantity={q}" for k, (a, q) in ranges.items()]
        settings += [f"element_type=4,address={499 + n},tid=1,lun={n}" for n in range(1, self.drives + 1)]
        settings += [
            f"element_type=2,address={999 + n},barcode={barcode},sides=1"
            for n, barcode in enumerate(self.barcodes, 1)
        ]
        for setting in settings:
            self._unit("update", changer, "--params", setting)
        if self.user:
            self.adm("--op", "new", "--mode", "account", "--user", self.user, "--password", self.password)
            self.adm("--op", "bind", "--mode", "account", "--tid", "1", "--user", self.user)
        everyone = "127.0.0.1" if self.address == "127.0.0.1" else "ALL"
        self.adm("--op", "bind", "--mode", "target", "--tid", "1", "-I", everyone)


def _make_cartridge(path: Path, barcode: str, kind: str, mib: int) -> None:
    subprocess.run(
        [
            "tgtimg", "--op=new", "--device-type=tape", f"--barcode={barcode}", f"--size={mib}",
            f"--type={kind}", f"--file={path}",
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip


def require_tgtd() -> None:
    """Skips the test, visibly, where there can be no library; fails there with NIGHTFERRY_REQUIRE_SERVERS=1."""
    missing = [name for name in ("tgtd", "tgtadm", "tgtimg") if shutil.which(name) is None]
    if os.geteuid() != 0:
        missing.append("root")
    if missing:
        said = f"not on this machine: {', '.join(missing)} (package tgt)"
        if os.environ.get("NIGHTFERRY_REQUIRE_SERVERS") == "1":
            pytest.fail(said)
        pytest.skip(said)


@contextmanager
def serving(
    home: Path,
    *,
    drives: int = 4,
    tapes: int = 12,
    cartridge_mib: int = 256,
    user: str = "",
    password: str = "",
    address: str = "127.0.0.1",
) -> Iterator[Tgtd]:
    """A library of one's own with its state below ``home``; short paths, since its socket lies there."""
    require_tgtd()
    library = Tgtd(
        home, free_port(), random.randrange(1_000, 30_000), drives=drives, tapes=tapes,
        cartridge_mib=cartridge_mib, user=user, password=password, address=address,
    )  # fmt: skip
    try:
        library.start()
        yield library
    finally:
        library.kill()


@pytest.fixture(scope="session")
def tgtd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tgtd]:
    """One library of four drives for the session of this process; its cartridges are shared by its tests."""
    with serving(tmp_path_factory.mktemp("tgtd")) as library:
        yield library
