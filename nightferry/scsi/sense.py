"""Sense data (SPC-5 §4.4): what a device says when a command did not simply succeed."""

from __future__ import annotations

from dataclasses import dataclass

from nightferry.errors import ProtocolError

NO_SENSE, RECOVERED, NOT_READY, MEDIUM_ERROR, HARDWARE_ERROR = 0x0, 0x1, 0x2, 0x3, 0x4
ILLEGAL_REQUEST, UNIT_ATTENTION, DATA_PROTECT, BLANK_CHECK = 0x5, 0x6, 0x7, 0x8
ABORTED_COMMAND, VOLUME_OVERFLOW = 0xB, 0xD
"""Sense keys (SPC-5 table 57)."""

_KEYS = {
    NO_SENSE: "no sense",
    RECOVERED: "recovered error",
    NOT_READY: "not ready",
    MEDIUM_ERROR: "medium error",
    HARDWARE_ERROR: "hardware error",
    ILLEGAL_REQUEST: "illegal request",
    UNIT_ATTENTION: "unit attention",
    DATA_PROTECT: "data protect",
    BLANK_CHECK: "blank check",
    0x9: "vendor specific",
    0xA: "copy aborted",
    ABORTED_COMMAND: "aborted command",
    VOLUME_OVERFLOW: "volume overflow",
    0xE: "miscompare",
    0xF: "completed",
}
_CODES = {
    (0x00, 0x01): "filemark detected",
    (0x00, 0x02): "end of partition or medium",
    (0x00, 0x04): "beginning of partition or medium",
    (0x00, 0x05): "end of data",
    (0x00, 0x17): "cleaning requested",
    (0x04, 0x00): "not ready, cause not reportable",
    (0x04, 0x01): "becoming ready",
    (0x04, 0x02): "a load is required",
    (0x04, 0x03): "manual intervention required",
    (0x04, 0x04): "format in progress",
    (0x04, 0x05): "rebuild in progress",
    (0x04, 0x06): "recalculation in progress",
    (0x04, 0x07): "operation in progress",
    (0x04, 0x08): "long write in progress",
    (0x04, 0x09): "self-test in progress",
    (0x04, 0x0A): "asymmetric access state changes",
    (0x04, 0x0B): "target port in standby state",
    (0x04, 0x0C): "target port in unavailable state",
    (0x04, 0x0E): "security session in progress",
    (0x04, 0x10): "auxiliary memory not accessible",
    (0x04, 0x11): "waiting to be allowed to spin up",
    (0x04, 0x12): "offline",
    (0x04, 0x13): "SA creation in progress",
    (0x04, 0x14): "space allocation in progress",
    (0x04, 0x18): "a door is open",
    (0x04, 0x1A): "start or stop in progress",
    (0x04, 0x1B): "sanitize in progress",
    (0x04, 0x1C): "waiting for power",
    (0x04, 0x1D): "configuration in progress",
    (0x04, 0x24): "depopulation in progress",
    (0x04, 0x25): "depopulation restoration in progress",
    (0x09, 0x00): "track following error",
    (0x0C, 0x00): "write error",
    (0x11, 0x00): "unrecovered read error",
    (0x14, 0x00): "recorded entity not found",
    (0x14, 0x03): "end of data not found",
    (0x15, 0x01): "mechanical positioning error",
    (0x15, 0x02): "positioning error found by reading the medium",
    (0x20, 0x00): "command not supported",
    (0x21, 0x01): "no such element",
    (0x24, 0x00): "invalid field in the command",
    (0x25, 0x00): "no such logical unit",
    (0x26, 0x00): "invalid field in the parameters",
    (0x27, 0x00): "write protected",
    (0x28, 0x00): "the medium may have changed",
    (0x28, 0x01): "an import or export element was accessed",
    (0x29, 0x00): "power on, reset or new session",
    (0x2A, 0x01): "mode parameters changed",
    (0x2A, 0x03): "reservations preempted",
    (0x2F, 0x00): "commands were cleared by another initiator",
    (0x30, 0x00): "incompatible medium",
    (0x30, 0x03): "cleaning cartridge in the drive",
    (0x30, 0x07): "cleaning failed",
    (0x30, 0x0C): "WORM medium: it cannot be overwritten",
    (0x31, 0x00): "medium format corrupted",
    (0x33, 0x00): "tape length error",
    (0x3A, 0x00): "no medium in the drive",
    (0x3B, 0x00): "sequential positioning error",
    (0x3B, 0x0D): "destination element is full",
    (0x3B, 0x0E): "source element is empty",
    (0x3B, 0x11): "magazine is not accessible",
    (0x3B, 0x12): "magazine was removed",
    (0x3E, 0x00): "logical unit has not configured itself yet",
    (0x44, 0x00): "internal failure",
    (0x52, 0x00): "cartridge fault",
    (0x53, 0x00): "load or eject failed",
    (0x53, 0x02): "removal of the medium is prevented",
    (0x5A, 0x01): "operator asks for removal of the medium",
    (0x5D, 0x00): "failure predicted",
    (0x74, 0x00): "security error",
}
"""Additional sense codes (SPC-5 annex F) that tape libraries answer."""

_PASSES = {
    *((0x04, q) for q in (0x00, 0x01, *range(0x04, 0x0D), 0x0E, 0x10, 0x11, 0x13, 0x14, 0x18)),
    *((0x04, q) for q in (*range(0x1A, 0x1E), 0x24, 0x25)),
    (0x3E, 0x00),
}
"""NOT READY that ends without a hand on the device (SPC-5 annex F); an open door is closed by who opened it."""

_FIXED, _FIXED_DEFERRED, _DESCRIPTOR, _DESCRIPTOR_DEFERRED = 0x70, 0x71, 0x72, 0x73


@dataclass(frozen=True, slots=True)
class Sense:
    """Decoded sense data.

    ``deferred``: it speaks of an earlier command, and the one just sent was not done. ``information`` is
    signed; None when the device did not vouch for it. ``filemark``, ``end_of_medium`` and ``wrong_length``
    are the stream bits FM, EOM, ILI.
    """

    key: int
    asc: int = 0
    ascq: int = 0
    deferred: bool = False
    filemark: bool = False
    end_of_medium: bool = False
    wrong_length: bool = False
    information: int | None = None

    @property
    def code(self) -> tuple[int, int]:
        return self.asc, self.ascq

    @property
    def passes(self) -> bool:
        """Whether the device is not ready now and will be by itself: the command was not done, and may be sent
        again later."""
        return not self.deferred and self.key == NOT_READY and self.code in _PASSES

    def __str__(self) -> str:
        words = [_KEYS.get(self.key, f"key {self.key:x}")]
        if self.code in _CODES:
            words.append(_CODES[self.code])
        bits = [
            name
            for name, on in (
                ("FM", self.filemark),
                ("EOM", self.end_of_medium),
                ("ILI", self.wrong_length),
            )
            if on
        ]
        before = "deferred " if self.deferred else ""
        numbers = " ".join([f"{self.key:x}/{self.asc:02x}/{self.ascq:02x}", *bits])
        return f"{before}{', '.join(words)} ({numbers})"


def parse_sense(raw: bytes) -> Sense:
    """Decodes fixed (70h, 71h) and descriptor (72h, 73h) sense data.

    Raises:
        ProtocolError: it is neither, or too short to hold a sense key.
    """
    kind = raw[0] & 0x7F if raw else 0
    if kind in (_FIXED, _FIXED_DEFERRED):
        return _fixed(raw, kind == _FIXED_DEFERRED)
    if kind in (_DESCRIPTOR, _DESCRIPTOR_DEFERRED):
        return _descriptors(raw, kind == _DESCRIPTOR_DEFERRED)
    raise ProtocolError(f"sense data of an unknown form: {raw[:18].hex() or 'nothing'}")


def _fixed(raw: bytes, deferred: bool) -> Sense:
    if len(raw) < 3:
        raise ProtocolError(f"sense data cut short: {raw.hex()}")
    raw = raw.ljust(14, b"\0")
    flags = raw[2]
    return Sense(
        key=flags & 0x0F,
        asc=raw[12],
        ascq=raw[13],
        deferred=deferred,
        filemark=bool(flags & 0x80),
        end_of_medium=bool(flags & 0x40),
        wrong_length=bool(flags & 0x20),
        information=int.from_bytes(raw[3:7], "big", signed=True) if raw[0] & 0x80 else None,
    )


_INFORMATION_DESCRIPTOR, _STREAM_DESCRIPTOR = 0x00, 0x04
"""Descriptor types (SPC-5 table 32; stream: SSC-5 §4.2.23)."""


def _descriptors(raw: bytes, deferred: bool) -> Sense:
    if len(raw) < 8:
        raise ProtocolError(f"sense data cut short: {raw.hex()}")
    information: int | None = None
    flags = 0
    rest = raw[8 : 8 + raw[7]]
    while len(rest) >= 2:
        body, rest_after = rest[2 : 2 + rest[1]], rest[2 + rest[1] :]
        if rest[0] == _INFORMATION_DESCRIPTOR and len(body) >= 10 and body[0] & 0x80:
            information = int.from_bytes(body[2:10], "big", signed=True)
        elif rest[0] == _STREAM_DESCRIPTOR and len(body) >= 2:
            flags = body[1]
        rest = rest_after
    return Sense(
        key=raw[1] & 0x0F,
        asc=raw[2],
        ascq=raw[3],
        deferred=deferred,
        filemark=bool(flags & 0x80),
        end_of_medium=bool(flags & 0x40),
        wrong_length=bool(flags & 0x20),
        information=information,
    )
