"""A file system whose every answer a test decides, spoken over /dev/fuse by a process of its own.

(In a thread of the test it would hang as soon as a call into the system keeps the interpreter's lock.) Source:
``<linux/fuse.h>``, protocol 7.31; fuse(4). Read only. ``tests.support.fuse_disk`` mounts it.
"""

from __future__ import annotations

import errno
import os
import pickle
import stat
import struct
import sys
from dataclasses import dataclass, field

_FORGET, _INTERRUPT, _BATCH_FORGET = 2, 36, 42
_DIRECT_IO = 1


@dataclass
class Node:
    """A file (``data``) or a directory (``names``). ``announced`` is the size stat sees; ``fails`` maps ``lookup``,
    ``getattr``, ``open``, ``read``, ``opendir``, ``readdir``, ``listxattr`` or ``getxattr`` to an errno; the first
    ``fails_after`` such calls succeed."""

    data: bytes = b""
    names: dict[str, Node] | None = None
    announced: int | None = None
    endless: bool = False
    xattrs: dict[bytes, bytes] = field(default_factory=dict)
    fails: dict[str, int] = field(default_factory=dict)
    fails_after: int = 0
    number: int = 0

    def attributes(self) -> bytes:
        is_directory = self.names is not None
        size = len(self.data) if self.announced is None else self.announced
        mode = stat.S_IFDIR | 0o755 if is_directory else stat.S_IFREG | 0o644
        return struct.pack(
            "<6Q10I", self.number, size, -(-size // 512), *(10**9,) * 3, 0, 0, 0, mode, 2 if is_directory else 1,
            0, 0, 0, 4096, 0,
        )  # fmt: skip


class FuseDisk:
    """Serves a tree until it is unmounted."""

    def __init__(self, fd: int, top: Node) -> None:
        self._fd = fd
        self._nodes: dict[int, Node] = {}
        self._number(top)

    def serve(self) -> None:
        while True:
            try:
                request = os.read(self._fd, 1 << 20)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    continue
                return  # ENODEV: unmounted
            _, opcode, unique, number = struct.unpack_from("<2I2Q", request)
            if opcode in (_FORGET, _BATCH_FORGET, _INTERRUPT):
                continue
            try:
                answer, code = self._answer(opcode, self._nodes[number or 1], request[40:]), 0
            except OSError as error:
                answer, code = b"", error.errno or errno.EIO
            try:
                os.write(self._fd, struct.pack("<IiQ", 16 + len(answer), -code, unique) + answer)
            except OSError as error:
                if error.errno != errno.ENOENT:  # the caller was interrupted
                    return

    def _number(self, node: Node) -> int:
        if not node.number:
            node.number = len(self._nodes) + 1
            self._nodes[node.number] = node
        return node.number

    def _fail(self, node: Node, call: str) -> None:
        if call not in node.fails:
            return
        if node.fails_after:
            node.fails_after -= 1
        else:
            raise OSError(node.fails[call], os.strerror(node.fails[call]))

    def _answer(self, opcode: int, node: Node, body: bytes) -> bytes:
        match opcode:
            case 26:  # INIT
                return struct.pack("<4I2H2I2H8I", 7, 31, 0, 0, 16, 12, 1 << 17, 1, 0, 0, *(0,) * 8)
            case 1:  # LOOKUP
                child = (node.names or {}).get(os.fsdecode(body.rstrip(b"\0")))
                if child is None:
                    raise OSError(errno.ENOENT, "")
                self._fail(child, "lookup")
                return struct.pack("<4Q2I", self._number(child), 0, 0, 0, 0, 0) + child.attributes()
            case 3:  # GETATTR
                self._fail(node, "getattr")
                return struct.pack("<Q2I", 0, 0, 0) + node.attributes()
            case 14:  # OPEN
                self._fail(node, "open")
                return struct.pack("<Q2I", 1, _DIRECT_IO, 0)
            case 27:  # OPENDIR
                self._fail(node, "opendir")
                return struct.pack("<Q2I", 1, 0, 0)
            case 15:  # READ
                self._fail(node, "read")
                offset, size = struct.unpack_from("<QI", body, 8)
                return b"e" * size if node.endless else node.data[offset : offset + size]
            case 28:  # READDIR
                self._fail(node, "readdir")
                offset, size = struct.unpack_from("<QI", body, 8)
                return self._entries(node, offset, size)
            case 23:  # LISTXATTR
                self._fail(node, "listxattr")
                return _sized(b"".join(name + b"\0" for name in node.xattrs), body)
            case 22:  # GETXATTR
                name = body[8:].split(b"\0")[0]
                if name not in node.xattrs:
                    raise OSError(errno.ENODATA, "")
                self._fail(node, "getxattr")
                return _sized(node.xattrs[name], body)
            case 17:  # STATFS
                return struct.pack("<5Q4I24x", 1, 1, 1, 1, 1, 4096, 255, 4096, 0)
            case 18 | 25 | 29:  # RELEASE, FLUSH, RELEASEDIR
                return b""
            case _:
                raise OSError(errno.ENOSYS, "")

    def _entries(self, node: Node, offset: int, size: int) -> bytes:
        out = b""
        for place, (name, child) in enumerate((node.names or {}).items(), 1):
            if place <= offset:
                continue
            raw = os.fsencode(name)
            kind = 4 if child.names is not None else 8
            entry = struct.pack("<2Q2I", self._number(child), place, len(raw), kind) + raw
            entry += bytes(-len(entry) % 8)
            if len(out) + len(entry) > size:
                break
            out += entry
        return out


def _sized(value: bytes, body: bytes) -> bytes:
    size = struct.unpack_from("<I", body)[0]
    if size == 0:
        return struct.pack("<2I", len(value), 0)
    if len(value) > size:
        raise OSError(errno.ERANGE, "")
    return value


if __name__ == "__main__":
    FuseDisk(int(sys.argv[1]), pickle.load(sys.stdin.buffer)).serve()  # noqa: S301 - from our own test
