"""SCSI through the Linux kernel: the SG_IO request on ``/dev/sg*`` (and on ``/dev/nst*``, which takes it too)."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Callable
from ctypes import c_byte, c_int, c_ubyte, c_uint, c_ushort, c_void_p
from pathlib import Path

from nightferry.errors import DestinationError, Unavailable
from nightferry.scsi.cdb import LONGEST_BLOCK
from nightferry.scsi.transport import CLEARED_BYTES, Answer, Indeterminate

SG_IO = 0x2285
BLKSECTGET = 0x1267
"""On a generic device: the most bytes of one transfer (Linux ``drivers/scsi/sg.c``)."""
SG_SCSI_RESET = 0x2284
_RESET_UNIT = 0x101
"""The device only, and nothing more if that fails (``SG_SCSI_RESET_DEVICE``, ``SG_SCSI_RESET_NO_ESCALATE``)."""
_TO_DEVICE, _FROM_DEVICE, _NO_DATA = -2, -3, -1
_SENSE_BYTES = 252
_HOST_OK, _HOST_NO_CONNECT = 0x00, 0x01
_HOST_STATUS = {
    0x01: "no connection",
    0x02: "bus busy",
    0x03: "time out",
    0x04: "bad target",
    0x05: "abort",
    0x06: "parity error",
    0x07: "error",
    0x08: "reset",
    0x0B: "soft error",
    0x0E: "transport disrupted",
    0x0F: "transport failed fast",
}
"""``host_status`` (Linux ``include/scsi/scsi_status.h``)."""
_MOST_IF_UNKNOWN = 1 << 20


class SgIoHeader(ctypes.Structure):
    """``struct sg_io_hdr`` (Linux ``include/scsi/sg.h``)."""

    _fields_ = (
        ("interface_id", c_int),
        ("dxfer_direction", c_int),
        ("cmd_len", c_ubyte),
        ("mx_sb_len", c_ubyte),
        ("iovec_count", c_ushort),
        ("dxfer_len", c_uint),
        ("dxferp", c_void_p),
        ("cmdp", c_void_p),
        ("sbp", c_void_p),
        ("timeout", c_uint),
        ("flags", c_uint),
        ("pack_id", c_int),
        ("usr_ptr", c_void_p),
        ("status", c_ubyte),
        ("masked_status", c_ubyte),
        ("msg_status", c_ubyte),
        ("sb_len_wr", c_ubyte),
        ("host_status", c_ushort),
        ("driver_status", c_ushort),
        ("resid", c_int),
        ("duration", c_uint),
        ("info", c_uint),
    )


Ioctl = Callable[[int, int, bytearray | SgIoHeader], None]
"""Descriptor, request, and what it reads and changes. May raise ``OSError``."""


def _kernel(fd: int, request: int, argument: bytearray | SgIoHeader) -> None:
    fcntl.ioctl(fd, request, argument)


class SgTransport:
    """See ``Transport``. Opens the device at the first command.

    Args:
        path: ``/dev/sg*`` or ``/dev/nst*``.
        fd: The device already open, which stays its owner's; None: it is opened here.
        ioctl: The system call; tests give their own.
    """

    def __init__(self, path: Path, *, fd: int | None = None, ioctl: Ioctl | None = None) -> None:
        self._path = path
        self._ioctl: Ioctl = ioctl or _kernel
        self._lent = fd is not None
        self._fd = -1 if fd is None else fd
        self._most_bytes: int | None = None
        self._buffer = bytearray()

    @property
    def name(self) -> str:
        return str(self._path)

    @property
    def most_bytes(self) -> int:
        if self._most_bytes is None:
            answer = bytearray(4)
            try:
                self._ioctl(self._open(), BLKSECTGET, answer)
                (most,) = struct.unpack("=i", answer)
            except OSError:
                # Not a generic device: what every host adapter carries.
                most = _MOST_IF_UNKNOWN
            self._most_bytes = min(most, LONGEST_BLOCK)
        return self._most_bytes

    def execute(
        self,
        cdb: bytes,
        *,
        data_out: bytes | memoryview | None = None,
        data_in_len: int = 0,
        timeout_s: float,
    ) -> Answer:
        fd = self._open()
        command = (c_ubyte * len(cdb)).from_buffer_copy(cdb)
        sense = (c_ubyte * _SENSE_BYTES)()
        data, kept, size, way = self._data(data_out, data_in_len)
        header = SgIoHeader(
            interface_id=ord("S"),
            dxfer_direction=way,
            cmd_len=len(cdb),
            mx_sb_len=_SENSE_BYTES,
            dxfer_len=size,
            dxferp=data,
            cmdp=ctypes.cast(command, c_void_p),
            sbp=ctypes.cast(sense, c_void_p),
            timeout=int(timeout_s * 1000),
        )
        try:
            self._ioctl(fd, SG_IO, header)
        except OSError as error:
            # The kernel refuses the request before the device sees it: length, rights, device gone.
            raise Unavailable(f"{self.name}: {error.strerror}", subject=self.name) from error
        finally:
            del kept
        self._require_delivered(header, cdb[0])
        answered = memoryview(self._buffer)[:data_in_len].toreadonly() if data_in_len else b""
        arrived = max(data_in_len - header.resid, 0)
        return Answer(header.status, bytes(sense[: header.sb_len_wr]), answered, arrived)

    def reset(self, timeout_s: float) -> None:
        # The kernel has time limits of its own for this.
        try:
            self._ioctl(self._open(), SG_SCSI_RESET, bytearray(struct.pack("=i", _RESET_UNIT)))
        except OSError as error:
            raise DestinationError(
                f"{self.name} cannot be reset: {error.strerror}",
                hint="resetting a device needs root, or CAP_SYS_ADMIN and CAP_SYS_RAWIO",
                subject=self.name,
            ) from error

    def close(self) -> None:
        if self._fd >= 0 and not self._lent:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> int:
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                raise Unavailable(
                    f"cannot open {self._path}: {error.strerror}",
                    hint="check that the device is there and that this user may use it (group tape)",
                    subject=self.name,
                ) from error
        return self._fd

    def _data(
        self, data_out: bytes | memoryview | None, data_in_len: int
    ) -> tuple[int | None, object, int, int]:
        """The buffer of a transfer: its address, what keeps it there, its length and the direction."""
        if data_out is not None:
            view = memoryview(data_out).cast("B")
            if view.readonly:
                whole = data_out if isinstance(data_out, bytes) else view.tobytes()
                address = ctypes.cast(ctypes.c_char_p(whole), c_void_p).value
                return address, whole, len(whole), _TO_DEVICE
            held = (c_byte * len(view)).from_buffer(view)
            return ctypes.addressof(held), held, len(view), _TO_DEVICE
        if data_in_len:
            if len(self._buffer) < data_in_len:
                self._buffer = bytearray(data_in_len)
            held = (c_byte * len(self._buffer)).from_buffer(self._buffer)
            if data_in_len <= CLEARED_BYTES:
                ctypes.memset(held, 0, data_in_len)
            return ctypes.addressof(held), held, data_in_len, _FROM_DEVICE
        return None, None, 0, _NO_DATA

    def _require_delivered(self, header: SgIoHeader, code: int) -> None:
        host = int(header.host_status)
        if host == _HOST_OK:
            return
        said = _HOST_STATUS.get(host, f"host status {host:02x}h")
        if host == _HOST_NO_CONNECT:
            raise Unavailable(f"{self.name} is not connected: {said}", subject=self.name)
        raise Indeterminate(f"{self.name}: command {code:02x}h: {said}", subject=self.name)
