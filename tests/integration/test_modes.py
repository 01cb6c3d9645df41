"""What nightferry writes is its owner's alone, whatever the umask; and a check that is killed leaves nothing."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nightferry.cluster.reader_agent import install_agent
from nightferry.model import allowed
from nightferry.site.destinations import HOST_LOCKS
from nightferry.site.state import keep_private
from nightferry.transfer.temporary import temporary_folder
from tests.support.command_site import Command, CommandSite


@pytest.fixture(params=[0o000, 0o077], ids=["umask 000", "umask 077"])
def any_umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.fixture
def everyones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory as the system's, which everyone may write."""
    folder = tmp_path / "everyones"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("NIGHTFERRY_STATE", str(tmp_path / "state"))
    return folder


def breaks_the_rule(folder: Path) -> list[str]:
    """Files below the folder that are not 0600, and folders that are not 0700, by GNU find."""
    wrong = ["-type", "d", "!", "-perm", "700", "-o", "!", "-type", "d", "!", "-perm", "600"]
    found = subprocess.run(
        ["find", folder, "!", "-type", "l", "(", *wrong, ")", "-printf", "%m %P\n"],
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.splitlines()


def test_a_night_and_the_verbs_write_nothing_that_others_may_read(
    site: CommandSite, nightferry: Command, everyones: Path, any_umask: None, tmp_path: Path
) -> None:
    for made in ("backup", "objects", "catalog"):
        (site.root / made).rmdir()
        (site.root / made).mkdir(mode=0o700)
    assert nightferry(site, "check").code in (0, 3)
    site.night()
    image = site.image("SG1/priv1")
    for words in (
        ("hold", "add", image, "--reason", "x"),
        ("hold", "remove", image),
        ("verify",),
        ("expire",),
        ("media", "inventory"),
        ("copy", image, "--to", "objects"),
        ("catalog", "rebuild", "--copy", "objects", "--to", tmp_path / "rebuilt"),
        ("restore", "store", "SG1/priv1", "--to", site.root / "restored" / "priv1"),
        ("restore", "files", "SG1/priv1", "note.md", "--to", site.root / "restored" / "note"),
        ("support", "--to", tmp_path / "support.tar.gz"),
        ("init", tmp_path / "new"),
    ):
        ran = nightferry(site, *words)
        assert ran.code in (0, 2, 3), (words, ran.err)
    site.night(new=True)
    ours = (
        "site/backup",
        "site/objects",
        "site/catalog",
        "site/vtl",
        "rebuilt",
        "new",
        "state",
        "support.tar.gz",
    )
    assert {name: breaks_the_rule(tmp_path / name) for name in ours} == {name: [] for name in ours}
    # What was restored has the modes of what was saved.
    restored = site.root / "restored" / "priv1" / "in" / "letter.txt"
    assert restored.stat().st_mode == (site.priv1 / "in" / "letter.txt").stat().st_mode
    assert os.listdir(everyones) == []


def test_a_command_and_its_children_keep_temporary_files_out_of_a_folder_of_everyone(
    everyones: Path, any_umask: None, tmp_path: Path
) -> None:
    undo = keep_private()
    try:
        with temporary_folder("plan") as folder:
            (folder / "f").touch()
            assert folder.parent == tmp_path / "state" / "tmp"
            assert breaks_the_rule(folder.parents[1]) == []
        child = subprocess.run(["mktemp"], capture_output=True, text=True, check=True).stdout.strip()
        assert Path(child).parent == tmp_path / "state" / "tmp"
        assert subprocess.run(["sh", "-c", "umask"], capture_output=True, text=True).stdout.strip() == "0077"
    finally:
        undo()
    assert tempfile.gettempdir() == os.environ["TMPDIR"] == str(everyones)


def test_what_others_must_read_is_readable_whatever_the_umask(
    any_umask: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allowed, "folders", lambda: (tmp_path / "etc" / "allowed",))
    listed = allowed.allow("TEX", "0" * 64, "root", datetime(2026, 1, 1, tzinfo=UTC))
    agent = install_agent(tmp_path / "ocf")
    modes = [f"{path.stat().st_mode & 0o777:o}" for path in (listed, listed.parent, agent, agent.parent)]
    assert modes == ["644", "755", "755", "755"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_nobody_else_can_make_the_lock_of_a_drive_first() -> None:
    for made in (HOST_LOCKS, HOST_LOCKS / "nightferry-drive-X.lock"):
        nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
        tried = subprocess.run([*nobody, "mkdir", made], capture_output=True, text=True)
        assert tried.returncode != 0
        assert "denied" in tried.stderr or "exists" in tried.stderr or "No such" in tried.stderr
    for folder in (HOST_LOCKS, *HOST_LOCKS.parents):
        if folder.exists():
            status = folder.lstat()
            assert (status.st_uid, status.st_mode & 0o022) == (0, 0), folder


def test_what_a_check_that_was_killed_left_goes_with_the_next_night(
    site: CommandSite, nightferry: Command
) -> None:
    dead = site.root / "objects" / ".tmp-1-0123456789abcdef"
    dead.write_bytes(b"nightferry")
    assert nightferry(site, "check").code in (0, 3)
    site.night()
    assert not dead.exists()
    assert [name for name in os.listdir(site.root / "objects") if name.startswith(".")] == []
