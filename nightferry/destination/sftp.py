"""``sftp://``: sshfs over asyncssh, with host keys that are always checked.

sshfs trusts every host when it is not told which keys are known, and copies through a remote shell where a
server cannot rename over a file. Here the known keys are always given, and a rename is SFTP's own, which never
replaces.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from nightferry.destination.drivers import Driver, Opened
from nightferry.errors import ConfigError, DestinationError, MediumFull, Unavailable

log = logging.getLogger(__name__)

SFTP_CONNECT_TIMEOUT_S = 15.0
KEEPALIVE_S = 15.0
"""A peer that is silent for three of these is gone."""
CHANNELS = 8
"""Sessions of one connection; OpenSSH allows ten."""
CIPHERS = (
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "chacha20-poly1305@openssh.com",
    "aes256-ctr",
    "aes128-ctr",
)
"""The ones that processors do themselves come first: they cost two thirds of chacha20 here."""
OPTIONS = {
    "username",
    "port",
    "password",
    "client_keys",
    "passphrase",
    "known_hosts",
    "connect_timeout",
    "keepalive_interval",
    "max_sessions",
}
KNOWN_HOSTS = (Path("~/.ssh/known_hosts"), Path("/etc/ssh/ssh_known_hosts"))
_FOLDER_MODE = 0o700
_FILE_MODE = 0o600
_FULL_BYTES = 4 << 20
"""Version 3 of SFTP has no word for a full disk: a failed write is one when no more than this is free."""

T = TypeVar("T")


class OpenedSftp(Opened):
    """See ``Opened``. ``sftp`` is a channel of our own on sshfs's connection."""

    def __init__(self, fs: Any) -> None:
        super().__init__(fs)
        fs.loop.set_exception_handler(_heed)
        self._sftp = self._run(fs.client.start_sftp_client)

    @property
    def renames(self) -> bool:
        return True

    def rename(self, old: str, new: str) -> None:
        self._run(lambda: self._sftp.rename(old, new))

    def make_folder(self, path: str) -> None:
        self.fs.makedirs(path, exist_ok=True, permissions=_FOLDER_MODE)

    def open_new(self, path: str) -> Any:
        file = self.fs.open(path, "wb")
        self._run(lambda: self._sftp.chmod(path, _FILE_MODE))
        return file

    def sync(self, file: Any) -> bool:
        from asyncssh.sftp import SFTPOpUnsupported

        try:
            file.fsync()
        except SFTPOpUnsupported:
            return False
        return True

    def free_bytes(self, path: str) -> int | None:
        from asyncssh.sftp import SFTPOpUnsupported

        try:
            said = self._run(lambda: self._sftp.statvfs(path))
        except SFTPOpUnsupported:
            return None
        return int(said.bavail * said.frsize)

    def close(self) -> None:
        self.fs.loop.call_soon_threadsafe(self.fs.client.close)

    def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        from fsspec.asyn import sync

        async def awaited() -> T:
            return await work()

        result: T = sync(self.fs.loop, awaited)
        return result


def _heed(loop: Any, context: dict[str, Any]) -> None:
    """Of requests that a lost connection ends together asyncssh hands one error on, and leaves the others to the
    loop, which would print each of them."""
    import asyncssh

    if isinstance(context.get("exception"), asyncssh.Error):
        log.debug("sftp: %s", context["exception"])
    else:
        loop.default_exception_handler(context)


class SftpDriver(Driver):
    """See ``Driver``. Takes ``OPTIONS`` and no others.

    ``client_keys`` and ``password`` are references; ``client_keys`` leads to the text of a private key. With
    neither, the agent and the keys in ``~/.ssh`` are tried. No ssh_config is read.

    Raises:
        ConfigError: as ``Driver``; also when there is no file of known host keys.
    """

    def __init__(self, name: str, url: str, options: Mapping[str, Any], secrets: tuple[str, ...]) -> None:
        super().__init__(name, url, options, secrets)
        unknown = sorted({*options} - OPTIONS)
        if unknown:
            raise ConfigError(
                f"destination {name}: sftp:// knows no option {', '.join(unknown)}",
                hint=f"there are {', '.join(sorted(OPTIONS))}",
                subject=name,
            )
        if not self.root.startswith("/"):
            raise ConfigError(
                f"destination {name}: {url!r} names no folder",
                hint="write sftp://user@host/absolute/folder",
                subject=name,
            )
        self._known_hosts = self._find_known_hosts()
        self._arguments = self._connect_arguments()

    def open(self) -> Opened:
        from sshfs import SSHFileSystem

        where = urlsplit(self.url)
        named = {"username": where.username, "port": where.port}
        arguments = {key: value for key, value in named.items() if value is not None} | self._arguments
        try:
            fs = SSHFileSystem(where.hostname or "", **arguments, skip_instance_cache=True)
        except PermissionError as error:
            # sshfs turns a refused login into this; with errno it would be the local system's.
            if error.errno is not None:
                raise
            raise DestinationError(
                f"{self.name}: {where.hostname} refuses the login: {self.shown(error)}",
                subject=self.name,
                hint="check username, client_keys and password, and authorized_keys on the server",
            ) from None
        return OpenedSftp(fs)

    def meaning(self, error: Exception, opened: Opened | None) -> DestinationError | None:
        import asyncssh
        from asyncssh import sftp

        text = f"{self.name}: {self.shown(error)}"
        match error:
            case asyncssh.HostKeyNotVerifiable():
                return self._not_trusted()
            case asyncssh.PermissionDenied() | sftp.SFTPPermissionDenied() | sftp.SFTPWriteProtect():
                return DestinationError(
                    text, subject=self.name, hint="give the login user write permission there"
                )
            case sftp.SFTPNoSpaceOnFilesystem() | sftp.SFTPQuotaExceeded():
                return MediumFull(text, subject=self.name)
            case sftp.SFTPConnectionLost() | sftp.SFTPNoConnection() | sftp.SFTPEOFError():
                return Unavailable(text, subject=self.name)
            case sftp.SFTPFailure():
                return self._failure(text, opened)
            case asyncssh.DisconnectError() | asyncssh.ChannelOpenError():
                return Unavailable(text, subject=self.name)
            case _:
                return super().meaning(error, opened)

    def _failure(self, text: str, opened: Opened | None) -> DestinationError:
        """A refusal without a reason, which is what a full disk gets too."""
        free = None if opened is None else opened.free_bytes(self.root)
        if free is not None and free <= _FULL_BYTES:
            return MediumFull(f"{text}; {free} bytes are free there", subject=self.name)
        return DestinationError(text, subject=self.name)

    def _not_trusted(self) -> DestinationError:
        import asyncssh

        where = urlsplit(self.url)
        host, port = where.hostname or "", self._arguments.get("port") or where.port or 22
        known = asyncssh.match_known_hosts(self._known_hosts, host, "", port)
        shown = ", ".join(self._known_hosts)
        if any(known[:2]):
            return DestinationError(
                f"{self.name}: the host key of {host} does not match {shown}",
                subject=self.name,
                hint="another machine may be answering: find out why before you change known_hosts",
            )
        return DestinationError(
            f"{self.name}: the host key of {host} port {port} is not in {shown}",
            subject=self.name,
            hint=f"compare `ssh-keyscan -p {port} {host}` with the key on that machine, then add it there",
        )

    def _find_known_hosts(self) -> list[str]:
        given = self.options.get("known_hosts")
        places = KNOWN_HOSTS if given is None else (Path(str(given)),)
        found = [str(path.expanduser()) for path in places if path.expanduser().is_file()]
        if not found:
            raise ConfigError(
                f"destination {self.name}: no known host keys: {', '.join(map(str, places))} is not there",
                hint="write the server's key into known_hosts; an unknown server is never trusted",
                subject=self.name,
            )
        return found

    def _connect_arguments(self) -> dict[str, Any]:
        import asyncssh

        patience_s = self.options.get("connect_timeout", SFTP_CONNECT_TIMEOUT_S)
        arguments: dict[str, Any] = {
            "connect_timeout": patience_s,
            "login_timeout": patience_s,
            "keepalive_interval": KEEPALIVE_S,
            "max_sessions": CHANNELS,
            "encryption_algs": list(CIPHERS),
            **self.options,
            "known_hosts": self._known_hosts,
            "config": None,
        }
        text = arguments.get("client_keys")
        if text is not None:
            try:
                key = asyncssh.import_private_key(str(text), arguments.get("passphrase"))
            except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
                raise ConfigError(
                    f"destination {self.name}: client_keys is not a private key: {self.shown(error)}",
                    hint="give file:/PATH of the private key, and passphrase if it has one",
                    subject=self.name,
                ) from None
            arguments["client_keys"] = [key]
            # With a key of its own no other one is shown to the server.
            arguments["agent_path"] = None
        return arguments

    def _class(self) -> Any:
        try:
            from sshfs import SSHFileSystem
        except ImportError as error:
            raise ConfigError(
                f"destination {self.name}: {self.scheme}:// needs the package sshfs, which is not installed",
                hint="`pip install 'nightferry[sftp]'`, on every node that streams or restores",
                subject=self.name,
            ) from error
        return SSHFileSystem
