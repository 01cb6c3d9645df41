"""The C library libiscsi as ctypes sees it: the functions and structures that ``iscsi`` uses, each declared."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint16, c_uint32, c_void_p
from functools import cache

from nightferry.errors import ConfigError

SONAME = "libiscsi.so.7"
NONE, READ, WRITE = 0, 1, 2
"""Directions of a transfer."""
NORMAL_SESSION = 2
HEADER_DIGEST_NONE, HEADER_DIGEST_OFFERED = 0, 1
FUNCTION_COMPLETE = 0
"""The response to a task management function that was done (RFC 7143 §11.6.1)."""
RESIDUAL_UNDERFLOW = 1
"""``residual_status``: ``residual`` bytes of the transfer were not sent."""
OWN_STATUS = 0x0F000000
"""From here on a status is the library's own (cancelled, error, timeout), not the device's."""

Callback = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_void_p, c_void_p)
"""Context, status, command data, private data."""


class SenseStruct(ctypes.Structure):
    """``struct scsi_sense``; only its size matters: it lacks the stream bits. C packs its three flags and
    ``bit_pointer`` into one word."""

    _fields_ = (
        ("error_type", c_ubyte),
        ("key", c_uint),
        ("ascq", c_int),
        ("flags", c_ubyte),
        ("bit_pointer", c_ubyte),
        ("field_pointer", c_uint16),
    )


class Data(ctypes.Structure):
    """``struct scsi_data``."""

    _fields_ = (("size", c_int), ("data", c_void_p))


class Task(ctypes.Structure):
    """The head of ``struct scsi_task``, as far as it is read."""

    _fields_ = (
        ("status", c_int),
        ("cdb_size", c_int),
        ("xfer_dir", c_int),
        ("expxferlen", c_int),
        ("cdb", c_ubyte * 16),
        ("residual_status", c_int),
        ("residual", c_size_t),
        ("sense", SenseStruct),
        ("datain", Data),
    )


class OutData(ctypes.Structure):
    """``struct iscsi_data``."""

    _fields_ = (("size", c_size_t), ("data", c_void_p))


class IoVec(ctypes.Structure):
    """``struct scsi_iovec``."""

    _fields_ = (("base", c_void_p), ("length", c_size_t))


_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "iscsi_create_context": (c_void_p, [c_char_p]),
    "iscsi_destroy_context": (c_int, [c_void_p]),
    "iscsi_set_noautoreconnect": (None, [c_void_p, c_int]),
    "iscsi_set_targetname": (c_int, [c_void_p, c_char_p]),
    "iscsi_set_session_type": (c_int, [c_void_p, c_int]),
    "iscsi_set_header_digest": (c_int, [c_void_p, c_int]),
    "iscsi_set_initiator_username_pwd": (c_int, [c_void_p, c_char_p, c_char_p]),
    "iscsi_set_tcp_keepalive": (c_int, [c_void_p, c_int, c_int, c_int]),
    "iscsi_full_connect_async": (c_int, [c_void_p, c_char_p, c_int, Callback, c_void_p]),
    "iscsi_get_fd": (c_int, [c_void_p]),
    "iscsi_which_events": (c_int, [c_void_p]),
    "iscsi_service": (c_int, [c_void_p, c_int]),
    "iscsi_get_error": (c_char_p, [c_void_p]),
    "scsi_create_task": (c_void_p, [c_int, c_char_p, c_int, c_int]),
    "scsi_free_scsi_task": (None, [c_void_p]),
    "scsi_task_set_iov_in": (None, [c_void_p, POINTER(IoVec), c_int]),
    "iscsi_scsi_command_async": (c_int, [c_void_p, c_int, c_void_p, Callback, POINTER(OutData), c_void_p]),
    "iscsi_task_mgmt_lun_reset_async": (c_int, [c_void_p, c_uint32, Callback, c_void_p]),
}


@cache
def library() -> ctypes.CDLL:
    """The library, loaded once.

    Raises:
        ConfigError: it is not on this machine.
    """
    try:
        loaded = ctypes.CDLL(SONAME)
    except OSError as error:
        raise ConfigError(
            f"libraries behind iSCSI need {SONAME}, which is not on this machine: {error}",
            hint="apt install libiscsi7 (Debian, Ubuntu), or libiscsi of your distribution",
            subject=SONAME,
        ) from error
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded
