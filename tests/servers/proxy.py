"""A proxy on loopback that stands before a real HTTP server and hurts what a rule picks."""

from __future__ import annotations

import http.client
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Ask:
    """A request as it arrives, before its body."""

    number: int
    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    length: int

    @property
    def is_part(self) -> bool:
        return self.method == "PUT" and "partNumber" in self.query

    @property
    def is_complete(self) -> bool:
        return self.method == "POST" and "uploadId" in self.query


@dataclass(frozen=True)
class Fault:
    """What happens to an exchange.

    ``cut_request`` and ``cut_answer``: the connection is reset after so many bytes of body. ``lose_answer``: the
    server does the work and nobody hears of it. ``stall``: silence. ``answer``: status, headers, body; the
    server never sees the request. ``spoil``: one bit of the request's body is flipped on the way. ``edit``: what
    becomes of the answer's body. ``endless``: an answer of 200 whose body, without a length, never ends.
    ``drop``: headers of the request, in lower case, that are lost on the way (its signature is then wrong).
    ``deaf``: no 100 Continue is ever said.
    """

    cut_request: int | None = None
    cut_answer: int | None = None
    lose_answer: bool = False
    stall: bool = False
    answer: tuple[int, Mapping[str, str], bytes] | None = None
    spoil: bool = False
    edit: Callable[[bytes], bytes] | None = None
    drop: frozenset[str] = frozenset()
    deaf: bool = False
    endless: bool = False


Rule = Callable[[Ask], Fault | None]


@dataclass
class Proxy:
    """``rule`` may be changed at any time. ``asked`` keeps every request."""

    endpoint: str
    rule: Rule = lambda ask: None
    asked: list[Ask] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    endless_bytes: int = 0
    """Sent of bodies without an end."""

    def count(self, wanted: Callable[[Ask], bool]) -> int:
        return sum(1 for ask in self.asked if wanted(ask))


@contextmanager
def proxied(upstream: str) -> Iterator[Proxy]:
    """A proxy before the server at this URL."""
    target = urlsplit(upstream).netloc

    class Handler(_Handler):
        pass

    with _Server(("127.0.0.1", 0), Handler) as server:
        proxy = Proxy(f"http://127.0.0.1:{server.server_address[1]}")
        Handler.proxy, Handler.target = proxy, target
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.ended.set()
            server.shutdown()
            thread.join()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64


class _Handler(socketserver.StreamRequestHandler):
    proxy: Proxy
    target: str

    def handle(self) -> None:
        try:
            while self._exchange():
                pass
        except (ConnectionError, http.client.HTTPException, TimeoutError):
            self._reset()

    def _exchange(self) -> bool:
        line = self.rfile.readline()
        if not line:
            return False
        method, target, _ = line.decode("latin-1").split(" ", 2)
        headers = http.client.parse_headers(self.rfile)
        parts = urlsplit(target)
        length = int(headers.get("Content-Length", 0))
        query = parse_qs(parts.query, keep_blank_values=True)
        ask = Ask(len(self.proxy.asked), method, parts.path, query, dict(headers.items()), length)
        self.proxy.asked.append(ask)
        fault = self.proxy.rule(ask) or Fault()
        if fault.stall:
            self.proxy.ended.wait()
            return False
        if headers.get("Expect", "").lower() == "100-continue" and not fault.deaf:
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if fault.cut_request is not None:
            self.rfile.read(min(length, fault.cut_request))
            return self._reset()
        body = bytearray(self.rfile.read(length))
        if fault.spoil and body:
            body[len(body) // 2] ^= 1
        if fault.answer is not None:
            return self._answer(method, *fault.answer)
        if fault.endless:
            return self._write_on()
        upstream = http.client.HTTPConnection(self.target, timeout=60)
        upstream.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            if name.lower() not in ("expect", "connection", *fault.drop):
                upstream.putheader(name, value)
        upstream.endheaders(bytes(body))
        answer = upstream.getresponse()
        content = answer.read()
        upstream.close()
        if fault.edit is not None:
            content = fault.edit(content)
            kept = {k: v for k, v in answer.getheaders() if k.lower() != "content-length"}
            return self._answer(method, answer.status, kept, content)
        if fault.lose_answer:
            return self._reset()
        if fault.cut_answer is not None:
            self._answer(method, answer.status, dict(answer.getheaders()), content, fault.cut_answer)
            return self._reset()
        return self._answer(method, answer.status, dict(answer.getheaders()), content)

    def _answer(
        self, method: str, status: int, headers: Mapping[str, str], body: bytes, cut: int | None = None
    ) -> bool:
        lines = [f"HTTP/1.1 {status} Whatever"]
        kept = {k: v for k, v in headers.items() if k.lower() not in ("transfer-encoding", "connection")}
        if not any(name.lower() == "content-length" for name in kept):
            kept["Content-Length"] = str(len(body))
        lines += [f"{name}: {value}" for name, value in kept.items()]
        shown = b"" if method == "HEAD" else body if cut is None else body[:cut]
        # In one piece: a second one would wait for the peer to acknowledge the first.
        self.wfile.write("\r\n".join([*lines, "", ""]).encode("latin-1") + shown)
        return True

    def _write_on(self) -> bool:
        """Sends chunks until the peer hangs up, or the test is over."""
        self.wfile.write(b"HTTP/1.1 200 Whatever\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"%x\r\n%s\r\n" % (1 << 16, b"{" * (1 << 16))
        while not self.proxy.ended.is_set():
            self.proxy.endless_bytes += 1 << 16
            self.wfile.write(chunk)
        return False

    def _reset(self) -> bool:
        """Closes at once with a reset, so that the peer sees a cut and no end."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        return False

    def finish(self) -> None:
        try:
            super().finish()
        except OSError:
            return
