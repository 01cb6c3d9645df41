"""A real OpenSSH server on loopback for the tests, with keys and configuration of its own and SFTP alone."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.servers.ports import free_port

_STARTED_S = 20
_CONFIG = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {home}/host_key
PidFile {home}/sshd.pid
AuthorizedKeysFile {home}/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
AllowTcpForwarding no
X11Forwarding no
MaxStartups 50
Subsystem sftp internal-sftp {sftp}
ForceCommand internal-sftp {sftp}
"""


@dataclass
class Sshd:
    """A running server; ``client_key`` may log in, ``other_key`` may not."""

    home: Path
    port: int
    program: str
    sftp: str = ""
    _process: subprocess.Popen[bytes] | None = None
    _numbers: Iterator[int] = field(default_factory=lambda: iter(range(1, 1 << 30)))

    @property
    def client_key(self) -> Path:
        return self.home / "client_key"

    @property
    def other_key(self) -> Path:
        return self.home / "other_key"

    @property
    def known_hosts(self) -> Path:
        """With this server's key in it."""
        return self.home / "known_hosts"

    @property
    def user(self) -> str:
        return getpass.getuser()

    def folder(self) -> Path:
        """A new folder that the server can serve: it serves this machine's own files."""
        folder = self.home / f"t{next(self._numbers)}"
        folder.mkdir()
        return folder

    def url(self, folder: Path) -> str:
        return f"sftp://{self.user}@127.0.0.1:{self.port}{folder}"

    @property
    def options(self) -> dict[str, str]:
        """What a site file would say."""
        return {"client_keys": f"file:{self.client_key}", "known_hosts": str(self.known_hosts)}

    def start(self) -> None:
        """Starts it; returns when it answers."""
        config = self.home / "sshd_config"
        config.write_text(_CONFIG.format(home=self.home, port=self.port, sftp=self.sftp))
        with (self.home / "sshd.out").open("ab") as out:
            self._process = subprocess.Popen(
                [self.program, "-D", "-e", "-f", str(config)], stdout=out, stderr=out, start_new_session=True
            )
        deadline = time.monotonic() + _STARTED_S
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = (self.home / "sshd.out").read_text(errors="replace")
                raise RuntimeError(f"sshd does not start: {said[-2000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kills it and all its sessions, as a crash would."""
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to it and all its sessions."""
        assert self._process is not None
        for pid in [*_below(self._process.pid), self._process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _below(pid: int) -> list[int]:
    """Every process that descends from one: sshd gives each session a session of its own."""
    try:
        children = [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []
    return [descendant for child in children for descendant in (*_below(child), child)]


def sshd_program() -> str | None:
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """One server for the session of this process."""
    with serving(require_sshd(), tmp_path_factory.mktemp("sshd")) as server:
        yield server


def require_sshd() -> str:
    """The program; without it the test is skipped, or fails where servers are required."""
    program = sshd_program()
    if program is None:
        missing = "not on this machine: sshd (apt-get install openssh-server)"
        if os.environ.get("NIGHTFERRY_REQUIRE_SERVERS") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    return program


@contextmanager
def serving(program: str, home: Path, *, sftp: str = "") -> Iterator[Sshd]:
    """A server of one's own with its state below ``home``; ``sftp``: options of its SFTP server."""
    for name in ("host_key", "client_key", "other_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(home / name)], check=True)
    shutil.copyfile(home / "client_key.pub", home / "authorized_keys")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    server = Sshd(home, free_port(), program, sftp)
    key = (home / "host_key.pub").read_text().split()[:2]
    server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {' '.join(key)}\n")
    server.start()
    try:
        yield server
    finally:
        server.kill()
