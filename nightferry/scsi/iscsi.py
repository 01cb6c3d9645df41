"""SCSI over iSCSI, through libiscsi: one session per logical unit, every wait with a deadline of our own.

The library's synchronous calls and its reconnecting are not used: the first crash on a dead target, the second
waits for minutes and sends commands twice. A session whose command did not end in time is destroyed; the next
command opens another, and the device then answers a unit attention.
"""

from __future__ import annotations

import ctypes
import re
import select
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

from nightferry.errors import DestinationError, NightferryError, Unavailable
from nightferry.model.redact import scrubbed
from nightferry.scsi import libiscsi
from nightferry.scsi.cdb import LONGEST_BLOCK
from nightferry.scsi.checked import (
    LOGIN,
    LOGIN_WITHOUT_DIGEST,
    RESET,
    AnswerRefused,
    CheckedConnection,
    Expected,
)
from nightferry.scsi.transport import CHECK_CONDITION, CLEARED_BYTES, GOOD, Answer, Indeterminate

_CONNECT_S = 20.0
_KEEPALIVE_S, _KEEPALIVE_TRIES = 30, 4
_NOTHING_TO_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Portal:
    """Where a target is, and who we are there. ``password`` is the CHAP secret itself."""

    address: str
    target: str
    user: str = ""
    password: str = field(default="", repr=False)
    initiator: str = ""

    @property
    def name(self) -> str:
        return f"{self.target} at {self.address}"


def own_initiator() -> str:
    """The name this host goes by: open-iscsi's when it has one, else one of our own."""
    try:
        text = Path("/etc/iscsi/initiatorname.iscsi").read_text(errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^InitiatorName=(\S+)", text, re.MULTILINE)
    host = re.sub(r"[^a-z0-9.-]", "-", socket.gethostname().lower())
    return found.group(1) if found else f"iqn.2026-11.io.nightferry:{host}"


class IscsiTransport:
    """See ``Transport``. Connects at the first command.

    Args:
        portal: The target.
        lun: The logical unit.
    """

    most_bytes = LONGEST_BLOCK

    def __init__(self, portal: Portal, lun: int) -> None:
        self._portal = portal
        self._lun = lun
        self._library = libiscsi.library()
        self._context: int | None = None
        self._connected: int | None = None
        self._ended: int | None = None
        # Both live as long as the session: the library may call them until it is destroyed.
        self._on_connect = libiscsi.Callback(self._note_connect)
        self._on_end = libiscsi.Callback(self._note_end)
        self._on_reset = libiscsi.Callback(self._note_reset)
        self._buffer = bytearray()
        self._checked: CheckedConnection | None = None

    @property
    def name(self) -> str:
        return f"logical unit {self._lun} of {self._portal.name}"

    def _note_connect(self, _context: int, status: int, _data: int, _private: int) -> None:
        if self._connected is None:
            self._connected = status

    def _note_reset(self, _context: int, status: int, data: int | None, _private: int) -> None:
        """Its data is the target's response, a 32-bit number."""
        answered = status == GOOD and data is not None
        self._ended = ctypes.c_uint32.from_address(data).value if answered and data else libiscsi.OWN_STATUS

    def _note_end(self, _context: int, status: int, _data: int, _private: int) -> None:
        self._ended = status

    def execute(
        self,
        cdb: bytes,
        *,
        data_out: bytes | memoryview | None = None,
        data_in_len: int = 0,
        timeout_s: float,
    ) -> Answer:
        context = self._ready()
        try:
            return self._command(context, cdb, data_out, data_in_len, time.monotonic() + timeout_s)
        except BaseException:
            # Whatever happened, the library still has our buffers: only its end gives them back.
            self.close()
            raise

    def reset(self, timeout_s: float) -> None:
        """See ``Transport.reset``. In a session of its own: what answers it is checked, as in a login."""
        self.close()
        deadline = time.monotonic() + timeout_s
        context = self._context = self._login(libiscsi.HEADER_DIGEST_NONE, min(timeout_s, _CONNECT_S))
        self._ended = None
        try:
            self._check(context, RESET)
            if self._library.iscsi_task_mgmt_lun_reset_async(context, self._lun, self._on_reset, None):
                raise Unavailable(f"{self.name} takes no reset: {self._error(context)}", subject=self.name)
            while self._ended is None:
                if not self._serve(context, deadline) and self._ended is None:
                    raise Indeterminate(f"{self.name}: the reset had no answer", subject=self.name)
            if self._ended >= libiscsi.OWN_STATUS:
                raise Indeterminate(
                    f"{self.name}: the reset was cut off: {self._error(context)}", subject=self.name
                )
        finally:
            self.close()
        if self._ended != libiscsi.FUNCTION_COMPLETE:
            raise DestinationError(
                f"{self.name} refuses to be reset (response {self._ended})", subject=self.name
            )

    def close(self) -> None:
        if self._context is not None:
            context, self._context = self._context, None
            self._destroy(context)

    def _ready(self) -> int:
        """A session that is logged in and was alive a moment ago."""
        if self._context is not None and not self._tend(self._context):
            self.close()
        if self._context is None:
            self._context = self._login(libiscsi.HEADER_DIGEST_OFFERED, _CONNECT_S)
        return self._context

    def _tend(self, context: int) -> bool:
        """Answers what the target sent in between; False: it has hung up."""
        while True:
            fd = self._library.iscsi_get_fd(context)
            if fd < 0:
                return False
            events = self._poll(fd, select.POLLIN, 0)
            if not events:
                return True
            if self._library.iscsi_service(context, events) < 0:
                return False

    def _login(self, header_digest: int, patience_s: float) -> int:
        library, portal = self._library, self._portal
        context: int | None = library.iscsi_create_context((portal.initiator or own_initiator()).encode())
        if context is None:
            raise DestinationError(f"libiscsi makes no session for {self.name}", subject=portal.target)
        try:
            library.iscsi_set_noautoreconnect(context, 1)
            library.iscsi_set_targetname(context, portal.target.encode())
            library.iscsi_set_session_type(context, libiscsi.NORMAL_SESSION)
            library.iscsi_set_header_digest(context, header_digest)
            if portal.user:
                library.iscsi_set_initiator_username_pwd(
                    context, portal.user.encode(), portal.password.encode()
                )
            self._connected = None
            # Logical unit -1: the library sends no TEST UNIT READY of its own and eats no unit attention.
            if library.iscsi_full_connect_async(context, portal.address.encode(), -1, self._on_connect, None):
                raise self._refused(context)
            deadline = time.monotonic() + patience_s
            if self._reaches(context, deadline):
                # Of no use before: the library sets it on the connection, and only there.
                library.iscsi_set_tcp_keepalive(context, _KEEPALIVE_S, _KEEPALIVE_TRIES, _KEEPALIVE_S)
                self._check(context, LOGIN if header_digest else LOGIN_WITHOUT_DIGEST)
            while self._connected is None:
                if not self._serve(context, deadline):
                    raise self._refused(context)
            if self._connected:
                raise self._refused(context)
        except BaseException:
            self._destroy(context)
            raise
        self._uncheck(context)
        return context

    def _reaches(self, context: int, deadline: float) -> bool:
        """Whether the connection is there; if not, the library says why when it is served."""
        fd = self._library.iscsi_get_fd(context)
        left = deadline - time.monotonic()
        return fd >= 0 and left > 0 and self._poll(fd, select.POLLOUT, left) == select.POLLOUT

    def _check(self, context: int, expected: Expected) -> None:
        """From now on the library sees only answers that are expected."""
        self._checked = CheckedConnection(self._library.iscsi_get_fd(context), expected)

    def _uncheck(self, context: int) -> None:
        """The library has its connection back."""
        if self._checked is not None:
            checked, self._checked = self._checked, None
            # Where the library has closed it, the number may be another file's by now.
            checked.close(give_back=self._library.iscsi_get_fd(context) == checked.fd)

    def _destroy(self, context: int) -> None:
        self._uncheck(context)
        self._library.iscsi_destroy_context(context)

    def _refused(self, context: int) -> NightferryError:
        said = self._error(context)
        status = re.search(r"\((\d+)\)", said)
        where = self._portal.name
        # RFC 7143 §11.13.5: class 02h, the initiator's fault.
        if status is not None and int(status.group(1)) >> 8 == 0x02:
            return DestinationError(
                f"the iSCSI target {where} refuses the login: {said}",
                hint="check target, user and password in the site file and what the target allows this initiator",
                subject=self._portal.target,
            )
        return Unavailable(
            f"the iSCSI target {where} does not answer: {said}",
            hint="check that the portal is right and reachable from this node",
            subject=self._portal.target,
        )

    def _error(self, context: int) -> str:
        said: bytes = self._library.iscsi_get_error(context) or b""
        text = "".join(c for c in said.decode("utf-8", "replace") if c.isprintable()).strip()
        if "reconnect" in text:
            return "the connection was refused, or broke"  # the library's word for not doing what it is told not to
        # It may be the target's words, which knows the password as we do.
        return scrubbed(text, [self._portal.password]) or "no answer in time"

    def _serve(self, context: int, deadline: float) -> bool:
        """Lets the library work until something happened; False: the time is up or the connection broke."""
        fd = self._library.iscsi_get_fd(context)
        left = deadline - time.monotonic()
        if fd < 0 or left <= 0:
            return False
        wanted = self._library.iscsi_which_events(context)
        if not wanted:
            left = min(left, _NOTHING_TO_POLL_S)
        events = self._poll(fd, wanted, left, self._checked)
        if self._checked is not None:
            try:
                self._checked.carry()
            except AnswerRefused as error:
                raise DestinationError(
                    f"the iSCSI target {self._portal.name} is refused: {error}",
                    hint="name the portal at which the target is; if it is this one, look at what answers there",
                    subject=self._portal.target,
                ) from error
            except OSError:
                return False
        return bool(self._library.iscsi_service(context, events) >= 0)

    @staticmethod
    def _poll(fd: int, wanted: int, seconds: float, checked: CheckedConnection | None = None) -> int:
        """Events at ``fd``; also returns when a checked connection has something to carry."""
        poll = select.poll()
        poll.register(fd, wanted)
        if checked is not None:
            checked.register(poll)
        return next((events for at, events in poll.poll(int(seconds * 1000 + 0.999)) if at == fd), 0)

    def _command(
        self, context: int, cdb: bytes, data_out: bytes | memoryview | None, data_in_len: int, deadline: float
    ) -> Answer:
        library = self._library
        size = len(data_out) if data_out is not None else data_in_len
        way = libiscsi.WRITE if data_out is not None else libiscsi.READ if data_in_len else libiscsi.NONE
        task = library.scsi_create_task(len(cdb), cdb, way, size)
        if task is None:
            raise DestinationError(f"libiscsi makes no command for {self.name}", subject=self.name)
        sent, kept_out = _outgoing(data_out)
        vector, kept_in = self._incoming(task, data_in_len)
        self._ended = None
        try:
            if library.iscsi_scsi_command_async(
                context, self._lun, task, self._on_end, ctypes.byref(sent) if sent else None, None
            ):
                raise Unavailable(f"{self.name} takes no command: {self._error(context)}", subject=self.name)
            while self._ended is None:
                if not self._serve(context, deadline) and self._ended is None:
                    late = deadline <= time.monotonic()
                    raise Indeterminate(
                        f"{self.name}: command {cdb[0]:02x}h "
                        + ("had no answer in time" if late else f"was cut off: {self._error(context)}"),
                        subject=self.name,
                    )
            if self._ended >= libiscsi.OWN_STATUS:
                raise Indeterminate(
                    f"{self.name}: command {cdb[0]:02x}h was cut off: {self._error(context)}",
                    subject=self.name,
                )
            answer = self._answer(task, self._ended, data_in_len)
        except BaseException:
            # Before the task goes: the session's end calls back for it.
            self.close()
            raise
        finally:
            library.scsi_free_scsi_task(task)
            del vector, kept_in, kept_out
        return answer

    def _incoming(self, task: int, length: int) -> tuple[object, object]:
        """Hands the session's own buffer to the library; what is returned keeps it alive."""
        if not length:
            return None, None
        if len(self._buffer) < length:
            self._buffer = bytearray(length)
        held = (ctypes.c_ubyte * len(self._buffer)).from_buffer(self._buffer)
        if length <= CLEARED_BYTES:
            ctypes.memset(held, 0, length)
        vector = libiscsi.IoVec(ctypes.addressof(held), length)
        self._library.scsi_task_set_iov_in(task, ctypes.byref(vector), 1)
        return vector, held

    def _answer(self, task: int, status: int, length: int) -> Answer:
        seen = libiscsi.Task.from_address(task)
        arrived = length
        if seen.residual_status == libiscsi.RESIDUAL_UNDERFLOW:
            arrived -= min(seen.residual, length)
        data = memoryview(self._buffer)[:length].toreadonly() if length else b""
        if status != CHECK_CONDITION:
            return Answer(status, b"", data, arrived)
        # The parsed sense lacks FM, EOM and ILI; the raw one follows two bytes of length (RFC 7143 §11.4.7.2).
        got = seen.datain
        raw = ctypes.string_at(got.data, got.size) if got.data and got.size > 2 else b""
        return Answer(status, raw[2 : 2 + int.from_bytes(raw[:2], "big")], data, arrived)


def _outgoing(data: bytes | memoryview | None) -> tuple[libiscsi.OutData | None, object]:
    """The bytes as the library wants them, and what keeps them where they are."""
    if data is None:
        return None, None
    view = memoryview(data).cast("B")
    if view.readonly:
        whole = data if isinstance(data, bytes) else view.tobytes()
        return libiscsi.OutData(len(whole), ctypes.cast(ctypes.c_char_p(whole), ctypes.c_void_p)), whole
    held = (ctypes.c_ubyte * len(view)).from_buffer(view)
    return libiscsi.OutData(len(view), ctypes.addressof(held)), held
