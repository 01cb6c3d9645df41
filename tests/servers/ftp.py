"""A real FTP server on loopback: the plainest driver fsspec has, one connection a thread, no word for anything."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

USER, PASSWORD = "copies", "ftpsecret-20d7"


@dataclass
class Ftp:
    """A running server; ``home`` is what it serves."""

    home: Path
    port: int
    cuts: dict[str, bool] = field(default_factory=dict)
    """``listings``: whether the server's listings break off after their first entry."""
    _numbers: Iterator[int] = field(default_factory=lambda: iter(range(1, 1 << 30)))

    def folder(self) -> Path:
        folder = self.home / f"t{next(self._numbers)}"
        folder.mkdir()
        return folder

    def url(self, folder: Path) -> str:
        return f"ftp://{USER}@127.0.0.1:{self.port}/{folder.relative_to(self.home)}"


@pytest.fixture(scope="session")
def ftp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ftp]:
    """One server for the session of this process, in a thread of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it stands on asyncore
        from pyftpdlib.authorizers import DummyAuthorizer
        from pyftpdlib.filesystems import AbstractedFS
        from pyftpdlib.handlers import FTPHandler
        from pyftpdlib.servers import ThreadedFTPServer

    home = tmp_path_factory.mktemp("ftp")
    users = DummyAuthorizer()
    users.add_user(USER, PASSWORD, str(home), perm="elradfmwMT")

    cuts = {"listings": False}

    class Files(AbstractedFS):  # type: ignore[misc]  # pyftpdlib has no types
        def format_mlsx(self, *args: Any, **options: Any) -> Iterator[bytes]:
            for entry in super().format_mlsx(*args, **options):
                yield entry
                if cuts["listings"]:
                    raise RuntimeError("the disk is gone")

    class Handler(FTPHandler):  # type: ignore[misc]  # pyftpdlib has no types
        authorizer = users
        abstracted_fs = Files

        def log(self, *_: object, **__: object) -> None:
            """Says nothing."""

        logline = logerror = log

    server = ThreadedFTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Ftp(home, server.socket.getsockname()[1], cuts)
    finally:
        server.close_all()
