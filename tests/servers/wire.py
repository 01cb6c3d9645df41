"""A wire to a server on loopback that can be cut when its answer is due: what was asked is done, and nobody hears."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Wire:
    """Passes every connection on to a port. ``cut_before_answer``: the next answer is lost, with its connection."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._cut = threading.Event()
        self.lost = 0
        """Answers that were lost."""
        threading.Thread(target=self._listen, daemon=True).start()

    def cut_before_answer(self) -> None:
        self._cut.set()

    def close(self) -> None:
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with near, socket.create_connection(("127.0.0.1", self._to)) as far:
            while True:
                ready, _, _ = select.select([near, far], [], [])
                try:
                    data = ready[0].recv(1 << 18)
                    if not data:
                        return
                    # A request for more data is 48 bytes that begin with 31h (R2T): it is not an answer yet.
                    if ready[0] is far and self._cut.is_set() and data[0] & 0x3F != 0x31:
                        self._cut.clear()
                        self.lost += 1
                        return
                    (near if ready[0] is far else far).sendall(data)
                except OSError:
                    return  # one end is gone


@contextmanager
def wire_to(port: int) -> Iterator[Wire]:
    wire = Wire(port)
    try:
        yield wire
    finally:
        wire.close()
