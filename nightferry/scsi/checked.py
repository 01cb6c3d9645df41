"""The part of an iSCSI session in which the library must not be handed whatever the target answers.

libiscsi 1.19 takes an answer for what its opcode says, not for what was asked: data or a status in answer to a login,
or to a reset, are stored through a null pointer, and the process ends by SIGSEGV. While one of those is under way the
library therefore holds one end of a socket pair in the place of its connection. What it sends is passed on as it is;
of what the target sends each PDU is read exactly to its end, looked at, and only then handed over. Afterwards the
library has its connection back: commands and their data never pass through here.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import termios
from dataclasses import dataclass

_HEADER_BYTES = 48
_LONGEST_BYTES = 1 << 20
"""Data and additional headers of one PDU. A login answer is a few hundred bytes of text; libiscsi offers 256 KiB."""
_PASSED_BYTES = 64 << 10
_NOP_IN, _RESET_ANSWER, _LOGIN_ANSWER, _MESSAGE, _REJECT = 0x20, 0x22, 0x23, 0x32, 0x3F


@dataclass(frozen=True, slots=True)
class Expected:
    """What may come. Source: RFC 7143 §11.2.1.2."""

    opcodes: frozenset[int]
    header_digest: bool = False
    """Whether a login may agree on one: what follows it is then another format."""


LOGIN = Expected(frozenset({_NOP_IN, _LOGIN_ANSWER, _MESSAGE, _REJECT}), header_digest=True)
LOGIN_WITHOUT_DIGEST = Expected(LOGIN.opcodes)
RESET = Expected(frozenset({_NOP_IN, _RESET_ANSWER, _MESSAGE, _REJECT}))
"""While a logical unit is reset and nothing else is under way."""
_REDIRECTION = 0x01
"""Status class of a login answer by which the target is elsewhere (RFC 7143 §11.13.5)."""
_HEADER_DIGEST = b"HeaderDigest=CRC32C"
_SEND_S = 10.0


class AnswerRefused(Exception):
    """What the target answered is not handed on: why."""


class CheckedConnection:
    """Stands between the library and its connection until it is closed.

    Args:
        fd: The library's descriptor: connected, and the library is between two PDUs. Without header digests.
        expected: What may come.
    """

    def __init__(self, fd: int, expected: Expected) -> None:
        self._fd = fd
        self._expected = expected
        self._far = socket.socket(fileno=os.dup(fd))
        theirs, self._near = socket.socketpair()
        with theirs:
            theirs.setblocking(False)
            os.dup2(theirs.fileno(), fd, inheritable=False)
        self._far.setblocking(False)
        self._near.setblocking(False)
        self._answer = bytearray()
        self._has_ended = False

    @property
    def fd(self) -> int:
        """The library's descriptor."""
        return self._fd

    def close(self, *, give_back: bool) -> None:
        """Ends the checking.

        Args:
            give_back: Puts the connection where the library's descriptor is; it must be the library's still.
        """
        if give_back:
            os.dup2(self._far.fileno(), self._fd, inheritable=False)
        self._far.close()
        self._near.close()

    def register(self, poll: select.poll) -> None:
        """Adds what ``carry`` waits for: the target is heard only when the library has taken what came before."""
        poll.register(self._near, select.POLLIN)
        if not self._has_ended and not self._untaken():
            poll.register(self._far, select.POLLIN)

    def carry(self) -> None:
        """Passes on what there is, of the target's one PDU at most.

        Raises:
            Refused: the target sent what the library must not see.
            OSError: the connection broke.
        """
        sent = _received(self._near, _PASSED_BYTES)
        if sent:
            _send(self._far, sent)
        if not self._has_ended and not self._untaken() and self._read():
            self._require_allowed()
            _send(self._near, self._answer)
            self._answer.clear()

    def _untaken(self) -> bool:
        """Whether the library has not yet taken all of the last PDU: only then is it known whether checking ends."""
        (count,) = struct.unpack("i", fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4)))
        return bool(count)

    def _read(self) -> bool:
        """Whether a whole PDU is there."""
        while len(self._answer) < self._wanted():
            piece = _received(self._far, self._wanted() - len(self._answer))
            if piece is None:
                return False
            if not piece:
                self._has_ended = True
                self._near.shutdown(socket.SHUT_WR)
                return False
            self._answer += piece
        return True

    def _wanted(self) -> int:
        """Bytes of the PDU that begins with what is there, as far as they are known (RFC 7143 §11.2.1)."""
        if len(self._answer) < _HEADER_BYTES:
            return _HEADER_BYTES
        additional, data = 4 * self._answer[4], int.from_bytes(self._answer[5:8], "big")
        if additional or data > _LONGEST_BYTES:
            raise AnswerRefused(f"it sends {additional or data} bytes where a short text is due")
        return _HEADER_BYTES + data + -data % 4

    def _require_allowed(self) -> None:
        opcode, is_login = self._answer[0] & 0x3F, self._answer[0] & 0x3F == _LOGIN_ANSWER
        if opcode not in self._expected.opcodes:
            raise AnswerRefused(
                f"it sends a PDU of opcode {opcode:02x}h, which is not an answer to what was asked"
            )
        if is_login and self._answer[36] == _REDIRECTION:
            raise AnswerRefused("it sends us to another portal")
        if is_login and not self._expected.header_digest and _HEADER_DIGEST in self._answer:
            raise AnswerRefused("it agrees on a header digest that was not offered")


def _received(source: socket.socket, length: int) -> bytes | None:
    """Empty at the end; None when there is nothing yet."""
    try:
        return source.recv(length)
    except BlockingIOError:
        return None


def _send(target: socket.socket, data: bytes | bytearray) -> None:
    """All of it: requests of a login or a reset, and answers to them, which the system takes at once."""
    target.settimeout(_SEND_S)
    try:
        target.sendall(data)
    finally:
        target.setblocking(False)
