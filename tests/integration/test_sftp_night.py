"""Whole nights to a real OpenSSH server, and back."""

from __future__ import annotations

import logging
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nightferry.copies import verify
from nightferry.errors import ConfigError, DestinationError, Unavailable
from nightferry.health.check import check
from nightferry.model.findings import Finding
from nightferry.progress import QUIET, Cancel
from nightferry.restore import restore
from nightferry.site.destinations import destination_of
from nightferry.site.opened import OpenSite
from nightferry.staging.images import staged_path
from tests.servers.sshd import Sshd, require_sshd, serving
from tests.support import night
from tests.support.brought import bring_back, states
from tests.support.command_site import Command
from tests.support.outside import compare_tree
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("sshd")]

MakeSite = Callable[..., SmallSite]

REMOTE = """
[[destinations]]
name = "remote"
kind = "fsspec"
url = "{url}"
options = {{ {options} }}
{more}
"""


class RemoteSite:
    """A small site whose copies go to another machine; ``copies`` is the folder there."""

    def __init__(self, site: SmallSite, server: Sshd, more: str = "", **options: str) -> None:
        self.site = site
        self.copies = server.folder() / "copies"
        said = ", ".join(f'{key} = "{value}"' for key, value in (server.options | options).items())
        remote = REMOTE.format(url=server.url(self.copies), options=said, more=more)
        site.write_file(copies=(*site.copies, "remote"), more=remote)

    def data(self, image: str, name: str = "data") -> Path:
        return self.copies / "images" / image / name


def findings(opened: OpenSite) -> list[Finding]:
    return [f for f in check(opened.loaded) if f.id.startswith(("NF-DEST", "NF-FS"))]


def test_a_night_goes_there_and_files_and_stores_come_back(
    make_site: MakeSite, sshd: Sshd, tmp_path: Path
) -> None:
    remote = RemoteSite(make_site(copies=()), sshd)
    with remote.site.open(HandClock()) as opened:
        assert findings(opened) == []
        assert night.night(opened, BACK_GROUP).result == "whole"
        image = restore.find_image(opened, "SG1", "a")
        assert states(opened, image.image) == {"remote": "verified"}
        bring_back(opened, tmp_path / "one", ("deep/letter.txt",), "remote")
        bring_back(opened, tmp_path / "back", copy="remote")
    letter = "deep/letter.txt"
    assert (tmp_path / "one" / letter).read_bytes() == (remote.site.store("SG1/a") / letter).read_bytes()
    assert compare_tree(remote.site.store("SG1/a"), tmp_path / "back") == ""
    there = {p.relative_to(remote.copies).as_posix() for p in remote.copies.rglob("*") if p.is_file()}
    names = ("origin.json", "data", "index", "chunks", "copy.json", "meta.json")
    assert {n for n in there if image.image in n} == {f"images/{image.image}/{n}" for n in names}
    for path in remote.copies.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)


def test_a_copy_there_is_brought_back_by_sftp_and_tar_alone(
    make_site: MakeSite, sshd: Sshd, tmp_path: Path
) -> None:
    remote = RemoteSite(make_site(copies=()), sshd, more='encode = { compress = "zstd:1" }')
    letter = remote.site.store("SG1/a") / "deep" / "letter.txt"
    letter.write_text("dear reader\n" * 300_000)
    with remote.site.open(HandClock()) as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
        image = restore.find_image(opened, "SG1", "a").image
        assert states(opened, image) == {"remote": "verified"}
        bring_back(opened, tmp_path / "one", ("deep/letter.txt",), "remote")
    assert (tmp_path / "one" / "deep" / "letter.txt").read_bytes() == letter.read_bytes()
    target = tmp_path / "back"
    target.mkdir()
    subprocess.run(
        [
            "sftp", "-q", "-P", str(sshd.port), "-i", sshd.client_key,
            "-o", f"UserKnownHostsFile={sshd.known_hosts}", "-o", "IdentitiesOnly=yes",
            f"{sshd.user}@127.0.0.1:{remote.data(image, 'data.zst')}", tmp_path / "data.zst",
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    plain = subprocess.run(["zstd", "-dc", tmp_path / "data.zst"], check=True, capture_output=True).stdout
    command = ["tar", "--xattrs", "--acls", "--exclude=.nightferry", "-C", str(target), "-xpf", "-"]
    subprocess.run(command, input=plain, check=True)
    assert compare_tree(remote.site.store("SG1/a"), target) == ""


def test_a_lost_destination_is_refilled_and_a_damaged_copy_there_is_found(
    make_site: MakeSite, sshd: Sshd, tmp_path: Path
) -> None:
    remote = RemoteSite(make_site(copies=("folder",)), sshd)
    with remote.site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
        image = restore.find_image(opened, "SG1", "a")
        data = remote.data(image.image)
        data.write_bytes(data.read_bytes()[:-1])
        checked = {
            c.copy.image: c.error
            for c in verify.verify_copies(opened, "remote", progress=QUIET, cancel=Cancel())
        }
        assert "bytes were recorded" in checked[image.image] or "were recorded" in checked[image.image]
        assert states(opened, image.image)["remote"] == "damaged"
        missing = verify.missing_copies(opened, "remote")
        assert [m.image for m in missing] == [image.image]
        staged_path(opened, image).unlink()
        made = verify.remake_copy(opened, image, "remote", progress=QUIET, cancel=Cancel())
        assert made.state == "verified"
        shutil.rmtree(remote.site.objects)
        bring_back(opened, tmp_path / "back")
    assert compare_tree(remote.site.store("SG1/a"), tmp_path / "back") == ""


def test_a_new_machine_is_filled_from_the_folder_on_the_command_line(
    make_site: MakeSite, sshd: Sshd, tmp_path: Path, nightferry: Command
) -> None:
    site = make_site(copies=("folder",))
    with site.open() as opened:
        night.night(opened, BACK_GROUP)
        for image in opened.catalog.images():
            staged_path(opened, image).unlink()
    RemoteSite(site, sshd)
    ran = nightferry(site.file, "copy", "--missing", "--to", "remote", "--json")
    assert ran.code == 0, ran.err
    assert [c["state"] for c in ran.document["copies"]] == ["verified", "verified"]
    ran = nightferry(
        site.file, "restore", "store", "SG1/a", "--copy", "remote", "--to", str(tmp_path / "back"), "--json"
    )
    assert ran.code == 0, ran.err
    assert compare_tree(site.store("SG1/a"), tmp_path / "back") == ""


class Unplug:
    """Does something to the server when so many bytes of a stream are under way."""

    def __init__(self, fault: Callable[[], None], at_bytes: int) -> None:
        self.fault, self.at_bytes, self.done = fault, at_bytes, False

    def begin(self, subject: str, phase: str, total_bytes: int | None = None) -> None: ...

    def advance(self, subject: str, done_bytes: int, current: str = "") -> None:
        if "remote" in subject and done_bytes >= self.at_bytes and not self.done:
            self.done = True
            self.fault()

    def end(self, subject: str, result: str) -> None: ...
    def say(self, text: str, subject: str = "") -> None: ...


@pytest.fixture
def own_sshd(tmp_path: Path) -> Iterator[Sshd]:
    """A server that a test may kill."""
    home = tmp_path / "sshd"
    home.mkdir()
    with serving(require_sshd(), home) as server:
        yield server


@pytest.mark.parametrize("mib", [1, 5, 9])
def test_a_server_killed_in_the_middle_leaves_no_copy_and_the_rerun_makes_one(
    make_site: MakeSite, own_sshd: Sshd, tmp_path: Path, mib: int
) -> None:
    remote = RemoteSite(make_site(copies=()), own_sshd)
    (remote.site.store("SG1/a") / "big.bin").write_bytes(bytes(range(256)) * (9 << 12))
    with remote.site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        unplug = Unplug(own_sshd.kill, mib << 20)
        with pytest.raises(Unavailable):
            night.stage_two(opened, record, unplug)
        assert unplug.done
        image = restore.find_image(opened, "SG1", "a").image
        assert not remote.data(image, "meta.json").exists()
        assert not remote.data(image).exists()
        own_sshd.start()
        left = destination_of(opened, "remote").orphans(datetime.max.replace(tzinfo=UTC) - timedelta(days=1))
        assert [(one.what, one.image) for one in left] == [("unfinished", image)]
        assert night.night(opened, BACK_GROUP).result == "whole"
        assert states(opened, image) == {"remote": "verified"}
        assert sorted(p.name for p in remote.data(image).parent.iterdir()) == sorted(
            ["origin.json", "data", "index", "chunks", "copy.json", "meta.json"]
        )
        bring_back(opened, tmp_path / "back", copy="remote")
    assert compare_tree(remote.site.store("SG1/a"), tmp_path / "back") == ""


def test_a_server_that_falls_silent_is_given_up(
    make_site: MakeSite, own_sshd: Sshd, capfd: pytest.CaptureFixture[str]
) -> None:
    remote = RemoteSite(make_site(copies=()), own_sshd)
    text = remote.site.file.read_text()
    remote.site.file.write_text(
        text.replace("options = {", "options = { keepalive_interval = 1, connect_timeout = 1,")
    )
    (remote.site.store("SG1/a") / "big.bin").write_bytes(bytes(range(256)) * (9 << 12))
    with remote.site.open(HandClock()) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        with pytest.raises(Unavailable) as caught:
            night.stage_two(opened, record, Unplug(lambda: own_sshd.signal(signal.SIGSTOP), 2 << 20))
        assert caught.value.retryable
        own_sshd.kill()
        own_sshd.start()
        assert night.night(opened, BACK_GROUP).result == "whole"
    assert capfd.readouterr().err == ""


def test_a_server_away_at_a_restore_lets_the_next_copy_give_it_back(
    make_site: MakeSite, own_sshd: Sshd, tmp_path: Path
) -> None:
    remote = RemoteSite(make_site(copies=("tape",)), own_sshd)
    with remote.site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
        staged_path(opened, restore.find_image(opened, "SG1", "a")).unlink()
        own_sshd.kill()
        done = bring_back(opened, tmp_path / "back")
        assert (done.copy, done.damaged) == ("tape", ("remote",))
        assert states(opened, done.plan.image.image)["remote"] == "verified"  # away is not damaged
    assert compare_tree(remote.site.store("SG1/a"), tmp_path / "back") == ""


def test_who_may_not_log_in_is_told_so(make_site: MakeSite, sshd: Sshd) -> None:
    remote = RemoteSite(make_site(copies=()), sshd, client_keys=f"file:{sshd.other_key}")
    with remote.site.open(HandClock()) as opened:
        (finding,) = findings(opened)
        assert (finding.id, finding.severity) == ("NF-DEST-001", "fail")
        assert "refuses the login" in finding.text
        assert "authorized_keys" in finding.fix
        with pytest.raises(DestinationError, match="refuses the login") as caught:
            night.night(opened, BACK_GROUP)
        assert not caught.value.retryable


def test_an_unknown_host_is_never_trusted(make_site: MakeSite, sshd: Sshd, tmp_path: Path) -> None:
    other = tmp_path / "known_hosts"
    other.write_text(f"elsewhere.example {sshd.known_hosts.read_text().split(maxsplit=1)[1]}")
    remote = RemoteSite(make_site(copies=()), sshd, known_hosts=str(other))
    with remote.site.open(HandClock()) as opened:
        (finding,) = findings(opened)
        assert f"port {sshd.port} is not in {other}" in finding.text
        assert f"ssh-keyscan -p {sshd.port} 127.0.0.1" in finding.fix
        with pytest.raises(DestinationError, match="the host key"):
            night.night(opened, BACK_GROUP)
    assert not remote.copies.exists()


def test_a_host_with_another_key_is_never_trusted(make_site: MakeSite, sshd: Sshd, tmp_path: Path) -> None:
    other = tmp_path / "known_hosts"
    key = " ".join((sshd.home / "other_key.pub").read_text().split()[:2])
    other.write_text(f"[127.0.0.1]:{sshd.port} {key}\n")
    remote = RemoteSite(make_site(copies=()), sshd, known_hosts=str(other))
    with remote.site.open(HandClock()) as opened:
        (finding,) = findings(opened)
        assert f"does not match {other}" in finding.text
        assert "another machine may be answering" in finding.fix
    assert not remote.copies.exists()


def test_without_a_file_of_known_hosts_nothing_is_sent(
    make_site: MakeSite, sshd: Sshd, tmp_path: Path
) -> None:
    remote = RemoteSite(make_site(copies=()), sshd, known_hosts=str(tmp_path / "none"))
    with remote.site.open(HandClock()) as opened:
        (finding,) = findings(opened)
        assert "no known host keys" in finding.text
        with pytest.raises(ConfigError):
            destination_of(opened, "remote")


def test_a_place_that_may_only_be_read_is_found_by_check(make_site: MakeSite, tmp_path: Path) -> None:
    home = tmp_path / "sshd"
    home.mkdir()
    with serving(require_sshd(), home, sftp="-R") as server:
        remote = RemoteSite(make_site(copies=()), server)
        remote.copies.mkdir()
        with remote.site.open(HandClock()) as opened:
            (finding,) = findings(opened)
            assert (finding.id, finding.severity) == ("NF-DEST-002", "fail")
            assert "write permission" in finding.fix
            with pytest.raises(DestinationError) as caught:
                night.night(opened, BACK_GROUP)
            assert not caught.value.retryable
    assert list(remote.copies.iterdir()) == []


def test_a_folder_that_is_gone_is_never_made_anew(make_site: MakeSite, sshd: Sshd) -> None:
    remote = RemoteSite(make_site(copies=()), sshd)
    with remote.site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
    remote.copies.rename(remote.copies.with_name("unmounted"))
    for stand_in in (False, True):
        if stand_in:
            remote.copies.mkdir()
        with remote.site.open(HandClock()) as opened:
            (finding,) = findings(opened)
            assert (finding.id, finding.severity) == ("NF-DEST-001", "fail")
            assert "is not there" in finding.text
    assert list(remote.copies.iterdir()) == []


def test_a_password_is_nowhere_after_a_login_that_was_refused(
    make_site: MakeSite, sshd: Sshd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    planted = "sesame-91b7e2"
    monkeypatch.setenv("NF_TEST_PASSWORD", planted)
    monkeypatch.setenv("HOME", str(sshd.home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    caplog.set_level(logging.DEBUG)
    remote = RemoteSite(make_site(copies=()), sshd, password="env:NF_TEST_PASSWORD")
    text = remote.site.file.read_text()
    remote.site.file.write_text(text.replace(f'client_keys = "file:{sshd.client_key}", ', ""))
    with remote.site.open(HandClock()) as opened:
        (finding,) = findings(opened)
        assert "refuses the login" in finding.text
        with pytest.raises(DestinationError, match="refuses the login") as caught:
            night.night(opened, BACK_GROUP)
    shown = "".join(traceback.format_exception(caught.value))
    kept = b"".join(p.read_bytes() for p in remote.site.home.rglob("*") if p.is_file())
    assert planted not in f"{finding} {shown} {caplog.text}"
    assert planted.encode() not in kept


def test_a_node_without_the_package_restores_from_the_next_copy(
    make_site: MakeSite, sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = RemoteSite(make_site(copies=("tape",)), sshd)
    with remote.site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
        staged_path(opened, restore.find_image(opened, "SG1", "a")).unlink()
    monkeypatch.setitem(sys.modules, "sshfs", None)
    with remote.site.open(HandClock()) as opened:
        (finding,) = findings(opened)
        assert "needs the package sshfs" in finding.text
        assert "nightferry[sftp]" in finding.fix
        assert bring_back(opened, tmp_path / "back").copy == "tape"
    assert compare_tree(remote.site.store("SG1/a"), tmp_path / "back") == ""
