"""Stores that want to be trouble, through a whole night and back, compared by other tools."""

from __future__ import annotations

import os
import socket
import subprocess
from base64 import b64decode
from pathlib import Path

import pytest

from nightferry.image import writer
from nightferry.image.writer import ImageWriter
from nightferry.source import files as files_source
from tests.conftest import needs
from tests.support import night
from tests.support.command_site import Command, CommandSite, build_site, process

RAW = b"caf\xe9\xff"
LOUD = b"\x1b[31m[red]<b>**x**\n\xe2\x80\xaetxt"
TIMES_NS = {
    "t-1000": -1000 * 10**9,
    "t-1000.5": -1000 * 10**9 - 500_000_000,
    "t-late": (2**33 + 5) * 10**9,
    "t-ns": 1_700_000_000 * 10**9 + 645_903_343,
}


def tool(*arguments: str | bytes | Path, **options: object) -> bytes:
    return subprocess.run(arguments, check=True, capture_output=True, **options).stdout  # type: ignore[call-overload,no-any-return]


def inode_facts(top: Path) -> bytes:
    """Type, mode, owner, size, mtime in ns and link count of everything below, by GNU find."""
    facts = "%P %y %m %U %G %s %T@ %n %l\\0"
    listed = tool("find", ".", "-printf", facts, cwd=top, env={**os.environ, "TZ": "UTC"})
    rows = listed.split(b"\0")
    # A directory's size is its file system's affair.
    return b"\n".join(sorted(b" ".join(r.split(b" ")[:5]) if b" d " in r else r for r in rows))


def fill(top: Path) -> None:
    """The bad input of the house's list."""
    for name, when in TIMES_NS.items():
        (top / name).write_bytes(name.encode())
        os.utime(top / name, ns=(when, when))
    for name in (RAW, LOUD):
        with open(os.path.join(os.fsencode(top), name), "wb") as file:
            file.write(name)
    os.mkfifo(top / "fifo", 0o640)
    with (top / "sparse").open("wb") as file:
        file.truncate(100 << 20)
        file.seek(50 << 20)
        file.write(b"island")
    (top / "h1").write_bytes(b"two names, one file")
    os.link(top / "h1", top / "h2")
    (top / "odd").write_bytes(os.urandom(10_001))
    (top / "empty").write_bytes(b"")
    (top / "locked").mkdir()
    (top / "locked" / "inner").write_text("x")
    (top / "locked").chmod(0o500)
    (top / "link").symlink_to("nowhere/at all")
    (top / "own").write_text("attributes")
    tool("setfattr", "-n", "user.colour", "-v", "0x00ff41", top / "own")
    tool("setfacl", "-m", "u:65534:r,g:7:rw", top / "own")
    tool("setfacl", "-d", "-m", "u:65534:rwx", top / "in")


@pytest.fixture(scope="session")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> CommandSite:
    """A site whose store holds all of it, after a night."""
    site = build_site(tmp_path_factory.mktemp("troubled") / "site")
    fill(site.priv1)
    listener = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(site.priv1)  # a socket's name has 108 bytes, the path may have more
    listener.bind("sock")
    os.chdir(here)
    listener.close()
    assert site.night().result == "whole"
    return site


pytestmark = needs("getfattr", "getfacl", "setfattr", "setfacl", "tar", "find", "cmp", "diff")


def test_the_whole_store_comes_back_as_it_was(
    troubled: CommandSite, nightferry: Command, tmp_path: Path
) -> None:
    ran = nightferry(troubled, "restore", "store", "SG1/priv1", "--to", tmp_path / "r", "--json")
    assert ran.code == 0
    assert ran.document["losses"] == [
        {"path": "sock", "what": "a socket: the program that listens on it makes it again"}
    ]
    for left_out in ("sock", "scrap.tmp"):
        (troubled.priv1 / left_out).unlink(missing_ok=True)
    for top in (troubled.priv1, tmp_path / "r"):
        os.utime(top, ns=(0, 0))
    assert inode_facts(tmp_path / "r") == inode_facts(troubled.priv1)
    # diff would wait for ever at a FIFO; its type and mode were compared above.
    tool("diff", "-r", "--no-dereference", "--exclude=fifo", troubled.priv1, tmp_path / "r")
    for program in (("getfattr", "-d", "-h", "-P", "-m-", "-R", "."), ("getfacl", "-P", "-R", "-n", ".")):
        assert tool(*program, cwd=tmp_path / "r") == tool(*program, cwd=troubled.priv1)


def test_times_before_1970_after_2106_and_between_seconds_are_exact(
    troubled: CommandSite, nightferry: Command, tmp_path: Path
) -> None:
    assert nightferry(troubled, "restore", "files", "SG1/priv1", "t-*", "--to", tmp_path).code == 0
    said = {name: tool("stat", "-c", "%.9Y", tmp_path / name).strip() for name in TIMES_NS}
    assert said == {
        "t-1000": b"-1000.000000000",
        "t-1000.5": b"-1000.500000000",
        "t-late": b"8589934597.000000000",
        "t-ns": b"1700000000.645903343",
    }
    listed = nightferry(troubled, "files", troubled.image("SG1/priv1"), "t-*", "--json").document["files"]
    assert {f["path"]: f["mtime_ns"] for f in listed} == TIMES_NS


def test_a_name_that_is_not_utf8_is_listed_with_its_bytes_and_comes_back_by_them(
    troubled: CommandSite, tmp_path: Path
) -> None:
    raw = os.fsdecode(RAW)
    listed = process(troubled.file, "files", troubled.image("SG1/priv1"), raw, "--json").document["files"]
    assert [b64decode(f["path_b64"]) for f in listed] == [RAW]
    assert listed[0]["path"] == "caf\\xe9\\xff"
    assert process(troubled.file, "restore", "files", "SG1/priv1", raw, "--to", str(tmp_path)).code == 0
    assert os.listdir(os.fsencode(tmp_path)) == [RAW]
    again = process(troubled.file, "restore", "files", "SG1/priv1", raw, "--to", str(tmp_path), "--json")
    assert again.code == 3
    assert [b64decode(f["path_b64"]) for f in again.document["skipped"]] == [RAW]


def test_a_name_full_of_commands_for_the_terminal_is_shown_and_does_nothing(
    troubled: CommandSite, nightferry: Command, tmp_path: Path
) -> None:
    name = os.fsdecode(LOUD)
    image = troubled.image("SG1/priv1")
    shown = nightferry(troubled, "files", image)
    assert "\\x1b[31m[red]<b>**x**\\n\\u202etxt" in shown.out
    for ran in (
        shown,
        nightferry(troubled, "restore", "files", "SG1/priv1", "/" + name, "--to", tmp_path),
        nightferry(troubled, "restore", "files", "SG1/priv1", name, "--to", tmp_path),
        nightferry(troubled, "restore", "files", "SG1/priv1", name + "-", "--to", tmp_path),
        nightferry(troubled, "restore", "files", "SG1/" + name, "x", "--to", tmp_path),
        nightferry(troubled, "copies", name),
    ):
        assert "\x1b" not in ran.out + ran.err
        assert "\u202e" not in ran.out + ran.err
    assert os.listdir(os.fsencode(tmp_path)) == [LOUD]
    assert (tmp_path / name).read_bytes() == LOUD
    assert nightferry(troubled, "files", image, name, "--json").document["files"][0]["path"] == name


def test_a_sparse_file_takes_no_room_on_the_way_nor_at_the_end(
    troubled: CommandSite, nightferry: Command, tmp_path: Path
) -> None:
    image = nightferry(troubled, "images", "--store", "SG1/priv1", "--json").document["images"][0]
    assert image["size_bytes"] < 8 << 20
    ran = nightferry(troubled, "restore", "files", "SG1/priv1", "sparse", "--to", tmp_path, "--json")
    assert ran.document["size_bytes"] <= 1 << 20
    tool("cmp", troubled.priv1 / "sparse", tmp_path / "sparse")
    assert (tmp_path / "sparse").stat().st_blocks * 512 <= 1 << 20


def test_the_second_of_two_hard_links_comes_back_alone(
    troubled: CommandSite, nightferry: Command, tmp_path: Path
) -> None:
    ran = nightferry(troubled, "restore", "files", "SG1/priv1", "h2", "--to", tmp_path / "one", "--json")
    assert ran.code == 0
    assert os.listdir(tmp_path / "one") == ["h2"]
    tool("cmp", troubled.priv1 / "h2", tmp_path / "one" / "h2")
    assert nightferry(troubled, "restore", "files", "SG1/priv1", "h?", "--to", tmp_path / "two").code == 0
    assert (tmp_path / "two" / "h1").samefile(tmp_path / "two" / "h2")


def test_gnu_tar_lists_and_extracts_the_staged_image_without_a_word(
    troubled: CommandSite, nightferry: Command, tmp_path: Path
) -> None:
    staged = nightferry(troubled, "copies", troubled.image("SG1/priv1"), "--json").document["staged"]
    listed = subprocess.run(["tar", "tf", staged], capture_output=True, env={**os.environ, "LC_ALL": "C"})
    assert (listed.returncode, listed.stderr) == (0, b"")
    done = subprocess.run(
        ["tar", "xpf", staged, "--xattrs", "--acls", "-C", tmp_path, "--warning=no-timestamp"],
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    tool("diff", "-r", "--no-dereference", "--exclude=fifo", "--exclude=*.tmp", "--exclude=sock",
         "--exclude=.nightferry", troubled.priv1, tmp_path)  # fmt: skip


class TestWhileItIsRead:
    """What happens to files between the look at them and their reading."""

    def test_a_file_that_goes_before_it_is_opened_is_named_and_the_store_is_whole(
        self, site: CommandSite, nightferry: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        really = files_source.add_path

        def gone(image: ImageWriter, parent: int, name: bytes, *rest: object) -> None:
            if name == b"note.md":
                os.unlink(name, dir_fd=parent)
            really(image, parent, name, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(files_source, "add_path", gone)
        site.night()
        monkeypatch.undo()
        image = nightferry(site, "images", "--store", "SG1/priv1", "--json").document["images"][0]
        assert image["state"] == "whole"
        assert image["outcomes"]["vanished"] == 1
        told = nightferry(site, "files", image["image"], "--outcome", "--json").document["files"]
        assert [(f["path"], f["outcome"]) for f in told] == [("note.md", "vanished")]
        # The store as it was is complete without it; who asks for the file by name does not get it.
        whole = nightferry(site, "restore", "store", "SG1/priv1", "--to", tmp_path / "all", "--json")
        assert whole.code == 0
        assert [loss["path"] for loss in whole.document["losses"]] == ["note.md"]
        named = nightferry(
            site, "restore", "files", "SG1/priv1", "note.md", "--to", tmp_path / "one", "--json"
        )
        assert named.code == 3
        assert named.document["refused"] == [
            {"path": "note.md", "reason": "not in the image: it vanished before it was read"}
        ]
        assert not (tmp_path / "one" / "note.md").exists()

    def test_a_file_that_grows_while_it_is_read_makes_the_image_partial(
        self, site: CommandSite, nightferry: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        log = site.priv1 / "log"
        log.write_bytes(b"a" * 300_000)
        inode, really = log.stat().st_ino, writer.read_whole

        def growing(fd: int, announced: int, most: int) -> bytes:
            data = really(fd, announced, most)
            if os.fstat(fd).st_ino == inode:
                with log.open("ab") as file:
                    file.write(b"b" * 5_000)
            return data

        monkeypatch.setattr(writer, "read_whole", growing)
        with site.opened() as here:
            run = night.stage_one(here, "TEX-BACK-1")
        monkeypatch.undo()
        image = nightferry(site, "images", "--store", "SG1/priv1", "--json").document["images"][0]
        assert (image["state"], image["outcomes"]["changed"]) == ("partial", 1)
        gate = nightferry(site, "gate", "show", "--json")
        assert gate.code == 50
        assert gate.document["gates"][0]["missing"] == [
            {"store": "SG1/priv1", "state": "partial", "reason": "0 files vanished, 1 changed, 0 unreadable"}
        ]
        assert nightferry(site, "cluster", "move", "TEX-BACK-1", "--json").error["exit_code"] == 50
        # A partial image is never taken silently; named, its file is whole up to the size it was begun with.
        assert nightferry(site, "restore", "files", "SG1/priv1", "log", "--to", tmp_path).code == 2
        ran = nightferry(
            site,
            "restore",
            "files",
            "SG1/priv1",
            "log",
            "--to",
            tmp_path,
            "--image",
            image["image"],
            "--json",
        )
        assert ran.code == 0
        assert ran.document["losses"] == [
            {"path": "log", "what": "its content changed while it was backed up"}
        ]
        assert (tmp_path / "log").read_bytes().startswith(b"a" * 300_000)
        assert run.state != "ended"


class TestHostileContent:
    """What an attacker may have put into a store, or into an image."""

    def test_a_link_that_leads_outside_is_never_followed(
        self, site: CommandSite, nightferry: Command, tmp_path: Path
    ) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (site.priv1 / "e").symlink_to(outside)
        site.night()
        (site.priv1 / "e").unlink()
        (site.priv1 / "e").mkdir()
        (site.priv1 / "e" / "x").write_text("second night")
        site.night(new=True)
        first, second = nightferry(site, "images", "--store", "SG1/priv1", "--json").document["images"][::-1]
        to = ("--to", tmp_path / "r")
        restore = ("restore", "files", "SG1/priv1")
        assert nightferry(site, *restore, "e", *to, "--image", first["image"]).code == 0
        assert (tmp_path / "r" / "e").readlink() == outside
        for how in ("never", "older", "always"):
            ran = nightferry(
                site, *restore, "e/x", *to, "--image", second["image"], "--overwrite", how, "--json"
            )
            assert ran.code == 3
            refused = {r["path"]: r["reason"] for r in ran.document["refused"]}
            assert "link" in refused["e/x"]
        assert os.listdir(outside) == []

    def test_members_that_lead_outside_are_refused_and_the_rest_comes_back(
        self, site: CommandSite, nightferry: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        hostile = (b"../x", b"in/../../x", b"/x", b"e/x")
        really = files_source.add_path

        def smuggle(image: ImageWriter, parent: int, name: bytes, path: bytes, *rest: object) -> None:
            really(image, parent, name, path, *rest)  # type: ignore[arg-type]
            if name == b"note.md":
                status = os.stat(name, dir_fd=parent)
                link = os.lstat(site.root / "e")
                image.add_other(b"e", link, link_target=os.fsencode(tmp_path))
                fd = os.open(name, os.O_RDONLY, dir_fd=parent)
                for evil in hostile:
                    image.add_file(evil, fd, described_by=status)
                os.close(fd)

        (site.root / "e").symlink_to(tmp_path)
        monkeypatch.setattr(files_source, "add_path", smuggle)
        site.night()
        monkeypatch.undo()
        before = sorted(os.listdir(tmp_path))
        ran = nightferry(site, "restore", "store", "SG1/priv1", "--to", tmp_path / "a" / "r", "--json")
        assert ran.code == 3
        assert {r["path"] for r in ran.document["refused"]} == {os.fsdecode(path) for path in hostile}
        assert sorted(os.listdir(tmp_path)) == sorted([*before, "a"])
        assert os.listdir(tmp_path / "a") == ["r"]
        tool("cmp", site.priv1 / "note.md", tmp_path / "a" / "r" / "note.md")
        tool("cmp", site.priv1 / "in" / "letter.txt", tmp_path / "a" / "r" / "in" / "letter.txt")
        assert not os.path.lexists("/x")

    def test_a_selection_that_names_a_missing_path_is_told_before_anything_runs(
        self, site: CommandSite, tmp_path: Path
    ) -> None:
        site.ledger.unlink()
        state = {"NIGHTFERRY_STATE": str(tmp_path / "state")}
        ran = process(site.file, "backup", "--json", env=state)
        assert ran.code == 2
        assert ran.error["subject"] == "SG1/ledger"
        assert str(site.ledger) in ran.error["message"]
        assert not list((tmp_path / "state").rglob("server.*")), "a Prefect server was looked for"
        found = process(site.file, "check", "--json")
        assert found.code == 2
        assert [f["id"] for f in found.document["findings"] if f["severity"] == "fail"] == ["NF-STORE-001"]
