"""SG_IO: the request as the kernel has it, and what its answers mean. The kernel is played."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nightferry.errors import DestinationError, Unavailable
from nightferry.scsi import cdb
from nightferry.scsi.sgio import SgIoHeader, SgTransport
from nightferry.scsi.transport import CHECK_CONDITION, GOOD, Indeterminate
from tests.support.scripted_library import sense

Kernel = Callable[[int, int, "bytearray | SgIoHeader"], None]


def transport(kernel: Kernel) -> SgTransport:
    return SgTransport(Path("/dev/null"), ioctl=kernel)


def test_the_request_is_laid_out_as_the_kernel_has_it() -> None:
    # struct sg_io_hdr on a 64-bit machine (Linux include/scsi/sg.h).
    assert ctypes.sizeof(SgIoHeader) == 88
    offsets = {
        name: getattr(SgIoHeader, name).offset for name in ("dxferp", "timeout", "status", "resid", "info")
    }
    assert offsets == {"dxferp": 16, "timeout": 40, "status": 64, "resid": 72, "info": 80}


def test_a_command_goes_out_with_its_data() -> None:
    seen: dict[str, object] = {}

    def kernel(fd: int, request: int, header: bytearray | SgIoHeader) -> None:
        assert isinstance(header, SgIoHeader)
        seen.update(
            request=request,
            interface=chr(header.interface_id),
            way=header.dxfer_direction,
            cdb=ctypes.string_at(header.cmdp, header.cmd_len),
            data=ctypes.string_at(header.dxferp, header.dxfer_len),
            timeout=header.timeout,
        )

    for data in (b"block", memoryview(bytearray(b"block")), memoryview(b"xblock")[1:]):
        answer = transport(kernel).execute(cdb.write_block(5), data_out=data, timeout_s=1.5)
        assert answer.status == GOOD
        assert seen == {
            "request": 0x2285,
            "interface": "S",
            "way": -2,
            "cdb": bytes.fromhex("0a0000000500"),
            "data": b"block",
            "timeout": 1500,
        }


def test_data_comes_in_with_sense_and_how_much_arrived() -> None:
    said = sense((0, 0, 0), information=60, ili=True)

    def kernel(fd: int, request: int, header: bytearray | SgIoHeader) -> None:
        assert isinstance(header, SgIoHeader)
        ctypes.memmove(header.dxferp, b"d" * 40, 40)
        ctypes.memmove(header.sbp, said, len(said))
        header.status, header.sb_len_wr, header.resid = CHECK_CONDITION, len(said), 60

    answer = transport(kernel).execute(cdb.read_block(100), data_in_len=100, timeout_s=1)
    assert (answer.status, answer.sense, answer.arrived) == (CHECK_CONDITION, said, 40)
    assert bytes(answer.data) == b"d" * 40 + bytes(60)


@pytest.mark.parametrize(
    ("host_status", "error"),
    [(0x01, Unavailable), (0x03, Indeterminate), (0x08, Indeterminate), (0x5A, Indeterminate)],
)
def test_a_command_that_the_host_adapter_lost_has_an_unknown_outcome(
    host_status: int, error: type[Exception]
) -> None:
    def kernel(fd: int, request: int, header: bytearray | SgIoHeader) -> None:
        assert isinstance(header, SgIoHeader)
        header.host_status = host_status

    with pytest.raises(error, match="/dev/null"):
        transport(kernel).execute(cdb.rewind(), timeout_s=1)


def test_what_the_kernel_refuses_was_not_sent() -> None:
    def kernel(fd: int, request: int, header: bytearray | SgIoHeader) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    with pytest.raises(Unavailable, match="Invalid argument"):
        transport(kernel).execute(cdb.rewind(), timeout_s=1)


def test_a_real_kernel_says_that_no_device_is_there(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="No such file"):
        SgTransport(tmp_path / "sg9").execute(cdb.rewind(), timeout_s=1)
    with pytest.raises(Unavailable, match="ioctl"):
        SgTransport(Path("/dev/null")).execute(cdb.rewind(), timeout_s=1)


def test_the_longest_transfer_is_asked_of_the_adapter() -> None:
    def kernel(fd: int, request: int, answer: bytearray | SgIoHeader) -> None:
        assert isinstance(answer, bytearray)
        answer[:] = (512 << 10).to_bytes(4, "little")

    assert transport(kernel).most_bytes == 512 << 10
    assert SgTransport(Path("/dev/null")).most_bytes == 1 << 20


def test_a_lent_descriptor_stays_open() -> None:
    fd = os.open("/dev/null", os.O_RDWR)
    try:
        SgTransport(Path("/dev/nst0"), fd=fd, ioctl=lambda *a: None).close()
        os.fstat(fd)
    finally:
        os.close(fd)


def test_a_reset_asks_for_the_device_alone_and_says_what_rights_it_needs() -> None:
    asked: list[tuple[int, bytes]] = []

    def kernel(fd: int, request: int, argument: bytearray | SgIoHeader) -> None:
        assert isinstance(argument, bytearray)
        asked.append((request, bytes(argument)))
        if len(asked) > 1:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    transport(kernel).reset(1)
    # SG_SCSI_RESET with SG_SCSI_RESET_DEVICE | SG_SCSI_RESET_NO_ESCALATE (Linux include/scsi/sg.h).
    assert asked == [(0x2284, (0x101).to_bytes(4, "little"))]
    with pytest.raises(DestinationError, match="/dev/null cannot be reset") as refused:
        transport(kernel).reset(1)
    assert "CAP_SYS_RAWIO" in refused.value.hint
