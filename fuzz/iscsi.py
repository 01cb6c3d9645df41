"""An iSCSI target that answers what a case says: what libiscsi makes of it is seen in the fuzzer's own process.

A case is the PDUs of the answers in order (RFC 7143 §11): each gets the task tag of the request that it answers, and a
login answer the stages that were asked for, where the case has not changed them.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from random import Random

from fuzz import mutate

_HEADER = 48
_LOGIN, _STAGES = 0x23, 0x87
_WINDOW = bytes.fromhex("0000000100000040")
"""Stands for the window of command numbers that fits the request."""
_LAST = 0xFFFFFFFF


def _pdu(opcode: int, flags: int, data: bytes = b"", *, status: int = 0, number: int = 1) -> bytes:
    head = bytearray(_HEADER)
    head[0], head[1], head[3] = opcode, flags, status
    head[5:8] = len(data).to_bytes(3, "big")
    head[24:28] = number.to_bytes(4, "big")
    head[28:36] = _WINDOW
    return bytes(head) + data + bytes(-len(data) % 4)


def samples() -> tuple[bytes, ...]:
    """The answer to a login, data, an error with its sense; to another login, and to a reset."""
    inquiry = bytes.fromhex("0180050200000000") + b"HP      Ultrium 5-SCSI  Z64D"
    sense = bytes.fromhex("f000020000001e0a000000003a0000000000")
    keys = (
        b"TargetPortalGroupTag=1\0MaxRecvDataSegmentLength=65536\0ImmediateData=Yes\0"
        b"InitialR2T=No\0MaxBurstLength=65536\0HeaderDigest=None\0"
    )
    return (
        _pdu(_LOGIN, _STAGES, keys)
        + _pdu(0x25, 0x81, inquiry, number=2)
        + _pdu(0x21, 0x80, len(sense).to_bytes(2, "big") + sense, status=2, number=3)
        + _pdu(_LOGIN, _STAGES, keys)
        + _pdu(0x22, 0x80, number=2),
    )


def change(data: bytes, random: Random) -> bytes:
    """Bytes of one or more PDUs: two times in three of a header only."""
    pdus = _split(data)
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.randrange(len(pdus))
        head, body = pdus[at][:_HEADER], pdus[at][_HEADER:]
        match random.randrange(6):
            case 0:
                pdus[at] = head + mutate.change_bytes(body, random)
            case 1:
                body = mutate.change_bytes(body, random)
                pdus[at] = head[:5] + len(body).to_bytes(3, "big") + head[8:] + body + bytes(-len(body) % 4)
            case 2:
                pdus.insert(at, pdus[random.randrange(len(pdus))])
            case _:
                pdus[at] = mutate.change_bytes(head, random)[:_HEADER].ljust(_HEADER, b"\0") + body
    return b"".join(pdus)


def _split(data: bytes) -> list[bytes]:
    pdus = []
    while len(data) >= _HEADER:
        length = int.from_bytes(data[5:8], "big")
        end = _HEADER + length + -length % 4
        pdus.append(data[:end])
        data = data[end:]
    return pdus or [data.ljust(_HEADER, b"\0")]


def decode(data: bytes) -> None:
    """Logs in to a target that answers so, and sends two commands and a reset."""
    from nightferry.scsi import cdb, iscsi
    from nightferry.scsi.sense import parse_sense

    iscsi._CONNECT_S = 0.5
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_answer, args=(server, _split(data)), daemon=True).start()
        portal = iscsi.Portal(f"127.0.0.1:{server.getsockname()[1]}", "iqn.2026-01.local.rig:tape")
        transport = iscsi.IscsiTransport(portal, 0)
        try:
            answer = transport.execute(cdb.inquiry(), data_in_len=96, timeout_s=0.5)
            cdb.parse_inquiry(bytes(answer.data[: answer.arrived]))
            answer = transport.execute(cdb.test_unit_ready(), timeout_s=0.5)
            if answer.sense:
                str(parse_sense(answer.sense))
            transport.reset(0.5)
        finally:
            transport.close()


def _answer(server: socket.socket, pdus: list[bytes]) -> None:
    """Answers with the PDUs in order, over as many connections as are made."""
    server.settimeout(1.0)
    left = iter(pdus)
    with contextlib.suppress(OSError):
        pdu = next(left, None)
        while pdu is not None:
            peer, _ = server.accept()
            with peer, contextlib.suppress(OSError):
                peer.settimeout(1.0)
                while pdu is not None:
                    _answer_one(peer, pdu)
                    pdu = next(left, None)
                peer.shutdown(socket.SHUT_WR)
                peer.recv(1 << 16)


def _answer_one(peer: socket.socket, pdu: bytes) -> None:
    head = _exactly(peer, _HEADER)
    length = int.from_bytes(head[5:8], "big")
    _exactly(peer, length + -length % 4)
    out = bytearray(pdu)
    out[16:20] = head[16:20]
    if out[0] == _LOGIN and out[1] == _STAGES:
        out[1] = head[1]
        out[8:14] = head[8:14]
    if out[28:36] == _WINDOW:
        number = int.from_bytes(head[24:28], "big")
        number += not head[0] & 0x40  # an immediate one takes no number
        out[28:36] = (number & _LAST).to_bytes(4, "big") + (number + 64 & _LAST).to_bytes(4, "big")
    peer.sendall(out)


def _exactly(peer: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = peer.recv(length - len(data))
        if not piece:
            raise ConnectionError
        data += piece
    return data
