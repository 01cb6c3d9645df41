"""A catalog that cannot be written: no restore needs to."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.conftest import needs
from tests.support import night
from tests.support.command_site import Command, process
from tests.support.disks import bound_read_only, small_disk
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

pytestmark = needs("mount", "chattr", "diff")

MIB = 1 << 20


@contextmanager
def full(catalog: Path) -> Iterator[None]:
    """Not a byte is free in it, and not an inode."""
    filler = catalog / "filler"
    with filler.open("wb") as out, suppress(OSError):
        while True:
            out.write(bytes(MIB))
            out.flush()
    with suppress(OSError):
        for number in range(1000):
            (catalog / f"inode-{number}").touch()
    with pytest.raises(OSError, match="No space left"):
        (catalog / "one-more").write_bytes(b"x")
    yield


@contextmanager
def immutable(catalog: Path) -> Iterator[None]:
    """Nobody may change it, root neither."""
    subprocess.run(["chattr", "-R", "+i", catalog], check=True)
    try:
        yield
    finally:
        subprocess.run(["chattr", "-R", "-i", catalog], check=True)


HOW = {"read-only": bound_read_only, "full": full, "immutable": immutable}


@pytest.fixture(params=HOW)
def unwritable(request: pytest.FixtureRequest, make_site: Callable[..., SmallSite]) -> Iterator[SmallSite]:
    """A site after one night; its catalog can be written no more."""
    site = make_site()
    with ExitStack() as stack:
        if request.param == "full":
            stack.enter_context(small_disk(site.home / "catalog", 4 * MIB, inodes=400))
        with site.open(HandClock()) as opened:
            assert night.night(opened, BACK_GROUP).result == "whole"
        stack.enter_context(HOW[request.param](site.home / "catalog"))
        yield site


def diff(left: Path, right: Path) -> str:
    return subprocess.run(
        ["diff", "-r", "--no-dereference", left, right], capture_output=True, text=True
    ).stdout


@pytest.mark.parametrize("copy", ["staging", "folder", "tape"])
def test_a_store_comes_back_from_any_copy(
    unwritable: SmallSite, copy: str, nightferry: Command, tmp_path: Path
) -> None:
    for number in (1, 2):  # a second restore finds what the first one left
        target = tmp_path / f"back-{number}"
        back = nightferry(unwritable.file, "restore", "store", "SG1/a", "--to", target, "--copy", copy)
        assert back.code == 0, back.err
        assert diff(unwritable.store("SG1/a"), target) == ""


@pytest.mark.parametrize("copy", ["staging", "tape"])
def test_what_cannot_be_written_down_is_said_once(unwritable: SmallSite, copy: str, tmp_path: Path) -> None:
    back = process(
        unwritable.file, "restore", "store", "SG1/a", "--to", str(tmp_path / "back"), "--copy", copy
    )
    assert back.code == 0, back.err
    reasons = ("Read-only file system", "No space left on device", "Operation not permitted")
    notices = [line for line in back.err.splitlines() if line.endswith(reasons)]
    assert len(notices) == 1, back.err


def test_the_hint_of_a_full_catalog_is_to_free_room(
    unwritable: SmallSite, nightferry: Command, request: pytest.FixtureRequest
) -> None:
    with unwritable.open() as opened:
        image = opened.catalog.images()[0].image
    refused = nightferry(unwritable.file, "hold", "add", image, "--reason", "a test", "--json")
    assert refused.code == 60
    is_full = "No space" in refused.error["message"]
    assert is_full == (request.node.callspec.params["unwritable"] == "full")
    expected = "free room on the file system of" if is_full else "mounted and writable"
    assert expected in refused.error["hint"]


def test_a_damaged_copy_stops_no_restore_though_it_cannot_be_recorded(
    unwritable: SmallSite, nightferry: Command, tmp_path: Path
) -> None:
    (tar,) = unwritable.disk.glob("SG1/a/*.tar")
    tar.unlink()
    (data,) = unwritable.objects.glob("images/*.SG1.a.L0/data")
    os.truncate(data, data.stat().st_size - 4096)
    with data.open("r+b") as file:
        file.seek(data.stat().st_size // 2)
        file.write(b"\0" * 8192)
    back = nightferry(unwritable.file, "restore", "store", "SG1/a", "--to", tmp_path / "back", "--json")
    assert back.code == 0, back.err
    assert back.document["copy"] == "tape"
    assert diff(unwritable.store("SG1/a"), tmp_path / "back") == ""


def test_copies_are_verified_and_what_cannot_be_recorded_is_said(
    unwritable: SmallSite, nightferry: Command
) -> None:
    right = nightferry(unwritable.file, "verify", "--copy", "folder")
    assert right.code == 0, right.err
    assert "2 of 2 copies right" in right.out
    damaged = sorted(unwritable.objects.glob("images/*/data"))[0]
    os.truncate(damaged, damaged.stat().st_size - 4096)
    wrong = nightferry(unwritable.file, "verify", "--copy", "folder", "--json")
    assert wrong.code == 30, wrong.err
    found = {c["image"]: bool(c["error"]) for c in wrong.document["copies"]}
    assert [image for image, bad in found.items() if bad] == [damaged.parent.name]


def test_lists_and_a_dry_run_answer(unwritable: SmallSite, nightferry: Command, tmp_path: Path) -> None:
    for command in (
        ("images",),
        ("runs",),
        ("hold", "list"),
        ("gate", "show"),
        ("media", "list"),
        ("restore", "store", "SG1/a", "--to", tmp_path / "x", "--copy", "tape", "--dry-run"),
    ):
        ran = nightferry(unwritable.file, *command)
        assert ran.code == 0, (command, ran.err)


def test_a_restore_in_place_comes_back(unwritable: SmallSite, nightferry: Command, tmp_path: Path) -> None:
    store = unwritable.store("SG1/a")
    subprocess.run(["cp", "-a", store, tmp_path / "before"], check=True)
    (store / "empty").unlink()
    back = nightferry(unwritable.file, "restore", "store", "SG1/a", "--in-place", "--yes")
    assert back.code == 0, back.err
    assert diff(tmp_path / "before", store) == ""
