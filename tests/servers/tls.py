"""TLS on loopback in front of a real server, with certificates of its own authority, which nobody else knows."""

from __future__ import annotations

import socket
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Authority:
    """A certificate authority in a folder."""

    home: Path

    @property
    def certificate(self) -> Path:
        return self.home / "ca.pem"

    @classmethod
    def make(cls, home: Path) -> Authority:
        made = cls(home)
        _openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", "/CN=a test's authority", "-keyout", home / "ca.key", "-out", made.certificate,
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip
        return made

    def issue(self, name: str) -> Path:
        """A file with key and certificate for ``IP:…`` or ``DNS:…``."""
        stem = self.home / name.replace(":", "-")
        key, request, certificate = (stem.with_suffix(end) for end in (".key", ".csr", ".crt"))
        _openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=a test's server",
            "-addext", f"subjectAltName={name}", "-keyout", key, "-out", request,
        )  # fmt: skip
        _openssl(
            "x509", "-req", "-in", request, "-days", "2", "-copy_extensions", "copyall", "-CAcreateserial",
            "-CA", self.certificate, "-CAkey", self.home / "ca.key", "-out", certificate,
        )  # fmt: skip
        both = stem.with_suffix(".pem")
        both.write_bytes(key.read_bytes() + certificate.read_bytes())
        return both


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


@contextmanager
def behind_tls(endpoint: str, key_and_certificate: Path) -> Iterator[str]:
    """The https endpoint that hands all it gets on to a plain one."""
    where = urlsplit(endpoint)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(key_and_certificate)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            # A client that does not trust us ends the handshake; one that has what it wants just goes.
            with (
                suppress(OSError),
                context.wrap_socket(self.request, server_side=True) as near,
                socket.create_connection((where.hostname or "", where.port or 80)) as far,
            ):
                other = threading.Thread(target=_pass_on, args=(far, near), daemon=True)
                other.start()
                _pass_on(near, far)
                other.join()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"https://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
