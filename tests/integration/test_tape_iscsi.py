"""Nights on a real tape library behind iSCSI: tgtd's L700 with four drives, and what can happen to it."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nightferry.copies import stream
from nightferry.errors import DestinationError, NightferryError
from nightferry.progress import Cancel, Quiet
from nightferry.site.opened import OpenSite
from nightferry.staging import owed
from tests.servers.tgtd import Tgtd
from tests.servers.wire import wire_to
from tests.support import night
from tests.support.command_site import Command
from tests.support.outside import compare_tree
from tests.support.small_site import BACK_GROUP, SmallSite
from tests.support.tape_dump import dump, whole_copies

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("tgtd")]

MIB = 1 << 20
MakeSite = Callable[..., SmallSite]


@pytest.fixture
def server(tgtd: Tgtd) -> Iterator[Tgtd]:
    tgtd.reset(24)
    yield tgtd
    tgtd.resume()


@pytest.fixture
def site(make_site: MakeSite, server: Tgtd) -> SmallSite:
    return make_site(tape=server.toml, copies=("tape",), stores={"SG1": ("a", "b"), "SG2": ("c", "d")})


class When(Quiet):
    """Does something once, when so many bytes of an image were written."""

    def __init__(self, done_bytes: int, do: Callable[[], object]) -> None:
        self._done_bytes = done_bytes
        self._do: Callable[[], object] | None = do
        self.said: list[str] = []

    def say(self, text: str, subject: str = "") -> None:
        self.said.append(text)

    def advance(self, subject: str, done_bytes: int, current: str = "") -> None:
        if self._do is not None and done_bytes >= self._done_bytes:
            do, self._do = self._do, None
            do()


def large_store(site: SmallSite, mib: int) -> None:
    (site.store("SG1/a") / "large.bin").write_bytes(os.urandom(mib * MIB))


def restored(site: SmallSite, nightferry: Command, name: str, to: Path) -> str:
    """What ``diff`` says of a store and what came back of it from tape."""
    ran = nightferry(site.file, "restore", "store", name, "--to", to, "--copy", "tape")
    assert ran.code == 0, ran.err
    return compare_tree(site.store(name), to)


def finish(site: SmallSite) -> None:
    """The rerun of the night, which must end whole."""
    with site.open() as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"


def all_in_slots(site: SmallSite, nightferry: Command) -> bool:
    media = json.loads(nightferry(site.file, "media", "list", "--json").out)["cartridges"]
    return {m["element"].split()[0] for m in media} == {"slot"}


def test_a_night_goes_to_a_real_library_and_every_store_comes_back(
    site: SmallSite, server: Tgtd, nightferry: Command, tmp_path: Path
) -> None:
    finish(site)
    for name in site.names:
        assert restored(site, nightferry, name, tmp_path / "back" / name) == ""
    media = json.loads(nightferry(site.file, "media", "inventory", "--json").out)["cartridges"]
    assert sorted(m["barcode"] for m in media) == server.barcodes
    used = [m for m in media if m["images"]]
    assert sum(len(m["images"]) for m in used) == len(site.names)
    shown = nightferry(site.file, "media", "show", used[0]["barcode"], "--json")
    assert json.loads(shown.out)["on_medium"]["barcode"] == used[0]["barcode"]
    assert nightferry(site.file, "check").code in (0, 3)
    assert all_in_slots(site, nightferry)
    tapes = dump(server, tmp_path)
    assert set(whole_copies(tapes).values()) == {1}
    text = tapes[used[0]["barcode"]][0]
    assert text.startswith(b"NIGHTFERRY TAPE LABEL 1\n")
    listed = subprocess.run(["tar", "-tf", "-"], input=tapes[used[0]["barcode"]][1], capture_output=True)
    assert b".nightferry/image.json" in listed.stdout


def test_four_images_go_to_four_drives_at_once_and_come_back_equal(
    site: SmallSite, server: Tgtd, nightferry: Command, tmp_path: Path
) -> None:
    for name in site.names:
        (site.store(name) / "large.bin").write_bytes(os.urandom(5 * MIB))
    with site.open() as opened:
        night.stage_one(opened, BACK_GROUP)
        lanes = stream_together(opened)
    assert len(lanes) == 4
    for name in site.names:
        assert restored(site, nightferry, name, tmp_path / "back" / name) == ""


def stream_together(opened: OpenSite) -> set[str]:
    """Streams what is owed, an image a thread; returns the drives that wrote."""
    debts = owed.owed(opened, BACK_GROUP)
    together = threading.Barrier(len(debts), timeout=60)
    lanes: set[str] = set()

    def go(item: owed.Owed) -> None:
        progress = When(1, together.wait)
        copy = stream.stream_image(opened, item.image, item.destination, progress=progress, cancel=Cancel())
        lanes.add(str(copy.lane))

    threads = [threading.Thread(target=go, args=(item,)) for item in debts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return lanes


def test_a_target_killed_in_the_middle_of_a_write_and_started_again(
    site: SmallSite, server: Tgtd, nightferry: Command, tmp_path: Path
) -> None:
    large_store(site, 12)
    with site.open() as opened:
        record = night.stage_one(opened, BACK_GROUP)
        with pytest.raises(NightferryError):
            night.stage_two(opened, record, When(5 * MIB, server.kill))
    server.start()
    finish(site)
    for name in site.names:
        assert restored(site, nightferry, name, tmp_path / "back" / name) == ""
    assert whole_copies(dump(server, tmp_path)) == dict.fromkeys(images(site), 1)


def test_a_session_cut_in_the_middle_of_a_write_neither_doubles_nor_loses_anything(
    site: SmallSite, server: Tgtd, nightferry: Command, tmp_path: Path
) -> None:
    large_store(site, 12)
    cut: list[int] = []
    with site.open() as opened:
        record = night.stage_one(opened, BACK_GROUP)
        watch = When(5 * MIB, lambda: cut.append(server.cut_sessions()))
        night.stage_two(opened, record, watch)
    assert cut
    assert cut[0] >= 1
    assert [line for line in watch.said if "was not written: continuing after it" in line]
    for name in site.names:
        assert restored(site, nightferry, name, tmp_path / "back" / name) == ""
    assert whole_copies(dump(server, tmp_path)) == dict.fromkeys(images(site), 1)


@pytest.mark.parametrize("done_mib", [0, 5, 11])
def test_a_write_that_was_done_and_never_acknowledged_neither_doubles_nor_loses_anything(
    make_site: MakeSite, server: Tgtd, nightferry: Command, tmp_path: Path, done_mib: int
) -> None:
    with wire_to(server.port) as wire:
        site = make_site(tape=server.toml.replace(str(server.port), str(wire.port)), copies=("tape",))
        large_store(site, 12)
        with site.open() as opened:
            record = night.stage_one(opened, BACK_GROUP)
            watch = When(done_mib * MIB + 1, wire.cut_before_answer)
            night.stage_two(opened, record, watch)
        assert wire.lost == 1
        assert [line for line in watch.said if "was written: continuing after it" in line]
        for name in site.names:
            assert restored(site, nightferry, name, tmp_path / "back" / name) == ""
        assert whole_copies(dump(server, tmp_path)) == dict.fromkeys(images(site), 1)


def test_two_hundred_bytes_lost_on_the_medium_are_found_and_the_other_copy_is_taken(
    make_site: MakeSite, server: Tgtd, nightferry: Command, tmp_path: Path
) -> None:
    site = make_site(tape=server.toml, copies=("tape", "folder"))
    large_store(site, 3)
    finish(site)
    content = (site.store("SG1/a") / "large.bin").read_bytes()
    for barcode in server.barcodes:
        medium = server.cartridge(barcode).read_bytes()
        at = medium.find(content[MIB : MIB + 64])
        if at >= 0:
            with server.cartridge(barcode).open("r+b") as file:
                file.seek(at + 1000)
                file.write(bytes(200))
            break
    else:
        pytest.fail("the file is on no cartridge")
    verified = nightferry(site.file, "verify", "--copy", "tape", "--json")
    assert verified.code == 30
    assert '"damaged"' in verified.out
    ran = nightferry(site.file, "restore", "store", "SG1/a", "--to", tmp_path / "back")
    assert ran.code == 0, ran.err
    assert compare_tree(site.store("SG1/a"), tmp_path / "back") == ""


def test_a_target_that_is_away_is_a_finding_and_the_night_owes_what_it_missed(
    site: SmallSite, server: Tgtd, nightferry: Command
) -> None:
    server.kill()
    checked = nightferry(site.file, "check", "--json")
    assert checked.code == 2
    assert server.portal in checked.out
    with site.open() as opened, pytest.raises(DestinationError, match="does not answer"):
        night.night(opened, BACK_GROUP)
    server.start()
    finish(site)


def images(site: SmallSite) -> list[str]:
    with site.open() as opened:
        return [image.image for image in opened.catalog.images()]


def test_a_look_writes_nothing_into_an_empty_catalog_folder(site: SmallSite, nightferry: Command) -> None:
    catalog = site.home / "catalog"
    catalog.mkdir(exist_ok=True)
    for words in (("media", "list"), ("media", "inventory"), ("status",), ("check",), ("images",), ("runs",)):
        nightferry(site.file, *words, "--json")
        assert list(catalog.iterdir()) == [], words
    # Who uses a drive takes its lock there.
    barcode = json.loads(nightferry(site.file, "media", "list", "--json").out)["cartridges"][0]["barcode"]
    assert nightferry(site.file, "media", "show", barcode).code == 0
    assert [p.name for p in catalog.iterdir()] == ["locks"]
