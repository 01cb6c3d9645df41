"""What nightferry writes is its owner's alone, whatever the umask; and a check that is killed leaves nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_site import Command, CommandSite


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """Whatever below the folder others may read, write or enter, by GNU find."""
    found = subprocess.run(
        ["find", folder, "!", "-type", "l", "-perm", "/077", "-printf", "%m %P\n"],
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.splitlines()


def test_a_night_and_the_verbs_write_nothing_that_others_may_read(
    site: CommandSite, nightferry: Command, no_umask: None, tmp_path: Path
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
        ("init", tmp_path / "new"),
    ):
        ran = nightferry(site, *words)
        assert ran.code in (0, 2, 3), (words, ran.err)
    site.night(new=True)
    ours = ("site/backup", "site/objects", "site/catalog", "site/vtl", "rebuilt", "new")
    assert {name: open_to_others(tmp_path / name) for name in ours} == {name: [] for name in ours}


def test_what_a_check_that_was_killed_left_goes_with_the_next_night(
    site: CommandSite, nightferry: Command
) -> None:
    dead = site.root / "objects" / ".tmp-1-0123456789abcdef"
    dead.write_bytes(b"nightferry")
    assert nightferry(site, "check").code in (0, 3)
    site.night()
    assert not dead.exists()
    assert [name for name in os.listdir(site.root / "objects") if name.startswith(".")] == []
