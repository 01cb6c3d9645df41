"""An SFTP server on loopback that takes a password, and may say after the login what it was told."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

USER = "copies"


@dataclass
class RepeatingSftp:
    """A running server of this machine's own files. ``repeats``: every request ends with the password in its error,
    or in the last words of the connection."""

    known_hosts: Path
    port: int = 0
    repeats: Literal["", "errors", "last words"] = ""
    logins: int = 0

    def url(self, folder: Path) -> str:
        return f"sftp://{USER}@127.0.0.1:{self.port}{folder}"


@contextmanager
def repeating_sftp(home: Path, password: str) -> Iterator[RepeatingSftp]:
    """A server in a thread of this process, with its host key below ``home``."""
    import asyncssh

    key = home / "host_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    server = RepeatingSftp(home / "known_hosts")

    class Login(asyncssh.SSHServer):
        def begin_auth(self, username: str) -> bool:
            return True

        def public_key_auth_supported(self) -> bool:
            return True

        def validate_public_key(self, username: str, key: Any) -> bool:
            return False  # the password is asked for next

        def password_auth_supported(self) -> bool:
            return True

        def validate_password(self, username: str, given: str) -> bool:
            server.logins += given == password
            return username == USER and given == password

    class Files(asyncssh.SFTPServer):
        def __init__(self, channel: Any) -> None:
            self._connection = channel.get_connection()
            super().__init__(channel)

        def _say(self) -> None:
            if not server.repeats:
                return
            said = f"{USER} came with {password}"
            if server.repeats == "last words":
                self._connection.disconnect(asyncssh.DISC_BY_APPLICATION, said)
            raise asyncssh.SFTPFailure(said)

        def stat(self, path: bytes) -> Any:
            self._say()
            return super().stat(path)

        def lstat(self, path: bytes) -> Any:
            self._say()
            return super().lstat(path)

        def open(self, path: bytes, pflags: int, attrs: Any) -> Any:
            self._say()
            return super().open(path, pflags, attrs)

        def mkdir(self, path: bytes, attrs: Any) -> Any:
            self._say()
            return super().mkdir(path, attrs)

        def scandir(self, path: bytes) -> Any:
            self._say()
            return super().scandir(path)

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def listen() -> Any:
        return await asyncssh.listen(
            "127.0.0.1", 0, server_host_keys=[str(key)], server_factory=Login, sftp_factory=Files
        )

    listener = asyncio.run_coroutine_threadsafe(listen(), loop).result(20)
    server.port = listener.get_port()
    shown = key.with_suffix(".pub").read_text().split()[:2]
    server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {' '.join(shown)}\n")
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(listener.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
