"""A folder of ours that became a symbolic link is refused by name, and nothing behind it is touched."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from nightferry.copies.delivery import deliver_catalog
from nightferry.copies.verify import verify_copies
from nightferry.errors import NightferryError
from nightferry.progress import QUIET, Cancel
from nightferry.retention import expire
from tests.support import night
from tests.support.command_site import Command
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

MakeSite = Callable[..., SmallSite]

FOLDERS = ("objects/images", "objects/images/*", "objects/catalog", "objects/records")
CATALOG = ("catalog/events", "catalog/indexes", "catalog/logs", "catalog/locks")
DISK = ("back/.nightferry", "back/.nightferry/seals", "back/SG1", "back/SG1/a")
TAPE = ("vtl/cartridges", "vtl/cartridges/*")


def listed(folder: Path) -> str:
    """All below a folder with sizes, modes, times and content, by other programs than ours."""
    find = ["find", str(folder), "-printf", "%P %y %m %s %n %T@ %l\n"]
    sums = ["find", str(folder), "-type", "f", "-exec", "sha256sum", "{}", "+"]
    return "".join(subprocess.run(c, check=True, capture_output=True, text=True).stdout for c in (find, sums))


def everything(site: SmallSite, clock: HandClock, nightferry: Command) -> str:
    """Whatever reads, writes and removes; what it says."""
    said = []

    def tried(work: Callable[[], object]) -> None:
        try:
            work()
        except NightferryError as error:
            said.append(f"{error} ({error.hint})")

    clock.advance(timedelta(days=1))

    def night_and_more() -> None:
        with site.open(clock) as opened:
            tried(lambda: night.night(opened, BACK_GROUP))
            tried(lambda: deliver_catalog(opened, "folder", clock.now()))
            tried(lambda: expire.expire(opened, reason="a test", progress=QUIET, cancel=Cancel()))
            tried(lambda: list(verify_copies(opened, progress=QUIET, cancel=Cancel())))

    tried(night_and_more)
    for words in (
        ("status",),
        ("verify", "--json"),
        ("expire", "--yes", "--json"),
        ("restore", "store", "SG1/a", "--to", site.home / f"back-{clock.now():%j}"),
        ("catalog", "rebuild", "--copy", "folder", "--to", site.home / f"c-{clock.now():%j}", "--json"),
        ("catalog", "rebuild", "--copy", "tape", "--to", site.home / f"t-{clock.now():%j}", "--json"),
    ):
        ran = nightferry(site.file, *words)
        said.append(ran.out + ran.err)
        assert ran.code != 1, f"{words}: {ran.out}{ran.err}"
        assert "unknown option" not in ran.err
    return "\n".join(said)


@pytest.mark.parametrize("where", [*FOLDERS, *CATALOG, *DISK, *TAPE])
def test_a_folder_that_became_a_link_is_refused_by_name(
    make_site: MakeSite, nightferry: Command, tmp_path: Path, where: str
) -> None:
    site = make_site()
    clock = HandClock()
    with site.open(clock) as opened:
        record = night.night(opened, BACK_GROUP)
        assert record.result == "whole"
        deliver_catalog(opened, "folder", clock.now())
    elsewhere = tmp_path / "elsewhere"
    folder = sorted(site.home.glob(where))[0]
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    before = listed(elsewhere)
    said = everything(site, clock, nightferry)
    assert listed(elsewhere) == before
    assert str(folder) in said or str(folder.relative_to(site.objects.parent)) in said, said


def test_the_folders_that_an_operator_named_may_be_links(make_site: MakeSite, tmp_path: Path) -> None:
    site = make_site()
    for name in ("objects", "catalog", "vtl"):
        real = tmp_path / "large-disk" / name
        real.mkdir(parents=True)
        if name != "vtl":
            (site.home / name).symlink_to(real)
    with site.open(HandClock()) as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
    assert sorted((tmp_path / "large-disk/objects/images").iterdir())
    assert sorted((tmp_path / "large-disk/catalog/events").iterdir())
