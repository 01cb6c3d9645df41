"""The iSCSI transport against a real target: logins, deadlines, cut sessions, lost answers."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightferry.errors import ConfigError, DestinationError, Unavailable
from nightferry.scsi import cdb, libiscsi
from nightferry.scsi.iscsi import IscsiTransport, Portal, own_initiator
from nightferry.scsi.sense import UNIT_ATTENTION, parse_sense
from nightferry.scsi.transport import CHECK_CONDITION, GOOD, Indeterminate
from tests.servers.tgtd import TARGET, Tgtd, serving
from tests.servers.wire import wire_to

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("tgtd")]

QUICK_S = 10.0
DRIVE = 1


@pytest.fixture
def drive(tgtd: Tgtd) -> Iterator[IscsiTransport]:
    transport = IscsiTransport(Portal(tgtd.portal, TARGET), DRIVE)
    yield transport
    tgtd.resume()
    transport.close()


def is_attention(transport: IscsiTransport) -> bool:
    answer = transport.execute(cdb.test_unit_ready(), timeout_s=QUICK_S)
    return answer.status == CHECK_CONDITION and parse_sense(answer.sense).key == UNIT_ATTENTION


def test_every_session_begins_with_a_unit_attention_that_reaches_us(drive: IscsiTransport) -> None:
    assert is_attention(drive)
    assert not is_attention(drive)
    drive.close()
    assert is_attention(drive)


def test_a_reset_is_told_to_everybody_and_ends_what_others_prevented(
    drive: IscsiTransport, tgtd: Tgtd
) -> None:
    other = IscsiTransport(Portal(tgtd.portal, TARGET), DRIVE)
    changer = IscsiTransport(Portal(tgtd.portal, TARGET), tgtd.drives + 1)
    into, out = cdb.move_medium(1, 1000, 500), cdb.move_medium(1, 500, 1000)
    try:
        for each in (drive, other, changer):
            is_attention(each)
            assert not is_attention(each)
        assert changer.execute(into, timeout_s=QUICK_S).status == GOOD
        assert other.execute(cdb.prevent_removal(True), timeout_s=QUICK_S).status == GOOD
        refused = changer.execute(out, timeout_s=QUICK_S)
        assert parse_sense(refused.sense).code == (0x53, 0x02)
        drive.reset(QUICK_S)
        for each in (drive, other):
            assert is_attention(each)
            assert not is_attention(each)
        assert changer.execute(out, timeout_s=QUICK_S).status == GOOD
    finally:
        for each in (other, changer):
            each.close()
        tgtd.reset()


def test_a_reset_that_does_not_reach_the_target_was_not_sent(drive: IscsiTransport, tgtd: Tgtd) -> None:
    is_attention(drive)
    tgtd.pause()
    with pytest.raises(Unavailable, match="does not answer: no answer in time"):
        drive.reset(0.3)
    tgtd.resume()
    assert is_attention(drive)
    assert not is_attention(drive)


def test_a_silent_session_is_kept_alive_and_sends_small_packets_at_once(drive: IscsiTransport) -> None:
    """Asked of the system after the login: it is the connection itself that the library has again."""
    is_attention(drive)
    assert drive._context is not None
    fd = libiscsi.library().iscsi_get_fd(drive._context)
    with socket.socket(fileno=os.dup(fd)) as connection:
        assert connection.family == socket.AF_INET
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_who_a_device_is_can_be_asked(drive: IscsiTransport, tgtd: Tgtd) -> None:
    answer = drive.execute(cdb.inquiry(), data_in_len=96, timeout_s=QUICK_S)
    assert answer.status == GOOD
    assert cdb.parse_inquiry(bytes(answer.data)).product == "Ultrium 5-SCSI"
    serial = drive.execute(cdb.inquiry(252, cdb.SERIAL_PAGE), data_in_len=252, timeout_s=QUICK_S)
    assert cdb.parse_serial(bytes(serial.data)) == tgtd.serials[0]


def test_a_command_without_an_answer_in_time_is_indeterminate_and_its_session_gone(
    drive: IscsiTransport, tgtd: Tgtd
) -> None:
    is_attention(drive)
    tgtd.pause()
    began = time.monotonic()
    with pytest.raises(Indeterminate, match="no answer in time"):
        drive.execute(cdb.test_unit_ready(), timeout_s=0.3)
    assert time.monotonic() - began < 2
    tgtd.resume()
    assert is_attention(drive)


def test_a_target_that_dies_with_a_command_under_way_is_noticed_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, drives=1, tapes=1, cartridge_mib=1) as server:
        transport = IscsiTransport(Portal(server.portal, TARGET), DRIVE)
        is_attention(transport)
        server.pause()
        timer = threading.Timer(0.2, server.kill)
        timer.start()
        began = time.monotonic()
        with pytest.raises(Indeterminate, match="cut off"):
            transport.execute(cdb.test_unit_ready(), timeout_s=60)
        assert time.monotonic() - began < 10
        timer.join()
        with pytest.raises(Unavailable, match="does not answer"):
            transport.execute(cdb.test_unit_ready(), timeout_s=60)
        transport.close()


def test_a_session_cut_while_nothing_was_under_way_is_opened_anew(drive: IscsiTransport, tgtd: Tgtd) -> None:
    is_attention(drive)
    assert tgtd.cut_sessions() >= 1
    # Either the cut was seen before anything was sent, or the command's outcome is unknown: never silence.
    try:
        assert is_attention(drive)
    except Indeterminate:
        assert is_attention(drive)


def test_an_answer_that_is_lost_leaves_the_outcome_unknown(tgtd: Tgtd) -> None:
    with wire_to(tgtd.port) as wire:
        transport = IscsiTransport(Portal(f"127.0.0.1:{wire.port}", TARGET), DRIVE)
        is_attention(transport)
        wire.cut_before_answer()
        with pytest.raises(Indeterminate):
            transport.execute(cdb.test_unit_ready(), timeout_s=QUICK_S)
        assert wire.lost == 1
        assert is_attention(transport)
        transport.close()


def test_an_interrupt_while_a_command_is_under_way_ends_its_session(
    drive: IscsiTransport, tgtd: Tgtd, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_attention(drive)

    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(drive, "_poll", interrupted)
    with pytest.raises(KeyboardInterrupt):
        drive._command(drive._context or 0, cdb.test_unit_ready(), None, 0, time.monotonic() + 9)
    monkeypatch.undo()
    assert is_attention(drive)


def test_a_target_that_does_not_exist_is_refused_by_name(tgtd: Tgtd) -> None:
    transport = IscsiTransport(Portal(tgtd.portal, "iqn.2026-01.local.rig:nobody"), DRIVE)
    with pytest.raises(DestinationError, match="rig:nobody"):
        transport.execute(cdb.test_unit_ready(), timeout_s=QUICK_S)


def test_a_port_where_nothing_listens_is_away() -> None:
    transport = IscsiTransport(Portal("127.0.0.1:9", TARGET), DRIVE)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9"):
        transport.execute(cdb.test_unit_ready(), timeout_s=QUICK_S)


def test_chap_lets_in_who_knows_the_secret_and_shows_it_nowhere(tmp_path: Path) -> None:
    with serving(
        tmp_path, drives=1, tapes=1, cartridge_mib=1, user="backup", password="sesame-4711-open"
    ) as server:
        right = Portal(server.portal, TARGET, "backup", "sesame-4711-open")
        transport = IscsiTransport(right, DRIVE)
        assert is_attention(transport)
        transport.close()
        for user, password in (("backup", "sesame-4711-shut"), ("somebody", "sesame-4711-open"), ("", "")):
            wrong = IscsiTransport(Portal(server.portal, TARGET, user, password), DRIVE)
            with pytest.raises(DestinationError, match="refuses the login") as refused:
                wrong.execute(cdb.test_unit_ready(), timeout_s=QUICK_S)
            assert not isinstance(refused.value, Unavailable)
            assert "4711" not in f"{refused.value!r} {refused.value.hint} {right!r}"


def test_without_libiscsi_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    libiscsi.library.cache_clear()
    monkeypatch.setattr(libiscsi, "SONAME", "libiscsi.so.0-not-there")
    try:
        with pytest.raises(ConfigError, match="not-there") as refused:
            IscsiTransport(Portal("127.0.0.1", TARGET), 0)
    finally:
        monkeypatch.undo()
        libiscsi.library.cache_clear()
    assert "libiscsi7" in refused.value.hint


def test_a_host_has_a_name_of_its_own() -> None:
    assert own_initiator().startswith("iqn.")
