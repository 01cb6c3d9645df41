"""Copies that somebody else wrote to: whatever they say, nothing outside the site's own places is touched."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3

from nightferry.catalog.query import Catalog
from nightferry.copies.delivery import deliver_catalog
from nightferry.copies.verify import verify_copies
from nightferry.errors import IntegrityError, NightferryError
from nightferry.image.index import IndexRow
from nightferry.image.reader import ImageReader
from nightferry.image.tar import Member
from nightferry.model.records import CopyRecord, ImageRecord
from nightferry.progress import QUIET, Cancel
from nightferry.retention import expire
from nightferry.staging.images import is_staged, staged_path
from nightferry.staging.room import remove_staged
from tests.support import night
from tests.support.command_site import Command
from tests.support.measured import measured
from tests.support.outside import compare_tree
from tests.support.peak import peak_bytes
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

MakeSite = Callable[..., SmallSite]

FORGED: dict[str, Callable[[dict[str, Any], Path], dict[str, Any]]] = {
    "path": lambda meta, canary: meta | {"path": str(canary)},
    "path upwards": lambda meta, canary: meta | {"path": f"../../../../../../../../..{canary}"},
    "group": lambda meta, canary: meta | {"group": "../../x"},
    "store": lambda meta, canary: meta | {"store": str(canary)},
    "run": lambda meta, canary: meta | {"run": "20261110-../../x"},
    "node": lambda meta, canary: meta | {"node": "a/../../b"},
    "size": lambda meta, canary: meta | {"size_bytes": -1},
}


def lose(site: SmallSite) -> None:
    """Catalog and staging are gone, with all that the cluster knew."""
    shutil.rmtree(site.home / "catalog")
    (site.home / "catalog-cluster.json").unlink()
    shutil.rmtree(site.disk)
    site.disk.mkdir()


def metas(site: SmallSite) -> list[Path]:
    return sorted((site.objects / "images").glob("*/meta.json"))


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A file that is nobody's business."""
    path = tmp_path / "canary.tar"
    path.write_bytes(b"sings")
    return path


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_record_is_left_out_and_leads_nowhere(
    make_site: MakeSite, nightferry: Command, canary: Path, forged: str
) -> None:
    site = make_site(copies=("folder",))
    clock = HandClock()
    with site.open(clock) as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
    first, second = metas(site)
    first.write_text(json.dumps(FORGED[forged](json.loads(first.read_bytes()), canary)))
    lose(site)
    ran = nightferry(
        site.file, "catalog", "rebuild", "--copy", "folder", "--to", site.home / "catalog", "--json"
    )
    assert ran.code == 3, ran.out + ran.err
    assert first.parent.name in ran.out + ran.err
    assert ran.document["added"] == [second.parent.name]
    assert nightferry(site.file, "catalog", "accept", "--yes").code == 0
    moved = ("--to", "TEX-ACTV-1", "--ungated", "--reason", "the disk was lost")
    assert nightferry(site.file, "cluster", "move", BACK_GROUP, *moved).code == 0
    for _ in range(3):
        clock.advance(timedelta(days=1))
        with site.open(clock) as opened:
            assert night.night(opened, BACK_GROUP).result == "whole"
            expire.expire(opened, reason="a test", progress=QUIET, cancel=Cancel())
            list(verify_copies(opened, progress=QUIET, cancel=Cancel()))
    assert canary.read_bytes() == b"sings"
    back = site.home / "returned"
    assert nightferry(site.file, "restore", "store", "SG1/b", "--to", back).code == 0
    assert compare_tree(site.store("SG1/b"), back) == ""


@pytest.mark.parametrize("forged", [*FORGED, "location upwards", "location"])
def test_a_forged_record_in_the_catalog_itself_leads_nowhere(
    make_site: MakeSite, nightferry: Command, canary: Path, forged: str
) -> None:
    """Whoever writes there may lie about backups; no path and no name of it is used, not when a copy expires either."""
    site = make_site(copies=("folder",), more='[retention]\nkeep_last = 1\nat_most = "95 %"\n')
    clock = HandClock()
    with site.open(clock) as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
        clock.advance(timedelta(days=1))
        assert night.night(opened, BACK_GROUP).result == "whole"
        image, last = opened.catalog.images("SG1", "a")[-1], opened.catalog.last
        (copy,) = opened.catalog.copies(image.image)
    if forged in FORGED:
        kind, subject = "image", image.subject
        body = FORGED[forged](image.model_dump(mode="json"), canary)
    else:
        kind, subject = "copy", copy.subject
        up = "../../../../../../../.." if forged == "location upwards" else ""
        location = {"image": f"{up}{canary.parent}", "epoch": 1, "size_bytes": image.size_bytes}
        body = copy.model_dump(mode="json") | {"location": location}
    event = {"sequence": last + 1, "at": "2026-11-30T22:00:00+00:00", "writer": "node:1", "phase": "result"}
    event |= {"kind": kind, "subject": subject, "body": body}
    events = site.home / "catalog" / "events"
    events.mkdir(mode=0o700, exist_ok=True)
    (events / f"{last + 1:012d}.json").write_text(json.dumps(event))
    shutil.rmtree(site.disk / "SG1")
    around = sorted(canary.parent.iterdir())
    clock.advance(timedelta(days=400))
    to = site.home / "returned"
    said = {}
    for words in (
        ("status",),
        ("verify",),
        ("expire", "--yes", "--reason", "a test"),
        ("restore", "store", "SG1/a", "--image", image.image, "--to", to),
    ):
        ran = said[words[0]] = nightferry(site.file, *words)
        assert ran.code not in (0, 1), (words, ran.out, ran.err)
    if forged in FORGED:
        assert {(ran.code, f"event {last + 1} is not" in ran.err) for ran in list(said.values())[:3]} == {
            (60, True)
        }
    else:
        assert said["verify"].code == 30
        assert "SG1/b at folder: verified" in said["verify"].err
        assert "names no place" in said["verify"].out
    with site.open(clock) as opened, suppress(NightferryError):
        night.night(opened, BACK_GROUP)
    assert canary.read_bytes() == b"sings"
    assert sorted(canary.parent.iterdir()) == around
    assert not any(path.is_file() for path in to.rglob("*"))


def test_a_known_image_is_not_restored_from_a_whole_copy_of_another_one(
    make_site: MakeSite, nightferry: Command
) -> None:
    """Two copies change their places, each sound in itself: data, index, chunk table and all that speaks of them."""
    site = make_site(copies=("folder",))
    shutil.rmtree(site.store("SG1/b"))
    shutil.copytree(site.store("SG1/a"), site.store("SG1/b"), symlinks=True)
    changed = max((path for path in site.store("SG1/b").iterdir() if path.is_file()), key=os.path.getsize)
    changed.write_bytes(bytes(changed.stat().st_size))
    with site.open(HandClock()) as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
    shutil.rmtree(site.disk / "SG1")
    first, second = (path.parent for path in metas(site))
    for folder, name in ((first, "aside"), (second, first.name), (first.with_name("aside"), second.name)):
        folder.rename(folder.with_name(name))
    for folder, other in ((first, second), (second, first)):
        for path in (folder / "meta.json", folder / "copy.json", folder / "origin.json"):
            path.write_bytes(path.read_bytes().replace(other.name.encode(), folder.name.encode()))
    back = site.home / "returned"
    ran = nightferry(site.file, "restore", "store", "SG1/a", "--to", back)
    assert ran.code == 30, ran.out + ran.err
    assert first.name in ran.out + ran.err
    assert not any(path.is_file() for path in back.rglob("*"))


def test_a_record_of_another_image_of_that_name_removes_nothing_from_staging(make_site: MakeSite) -> None:
    site = make_site(copies=("folder",))
    with site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
        image = opened.catalog.images("SG1", "a")[0]
        staged = staged_path(opened, image)
        before = staged.stat()
        remove_staged(opened, image.model_copy(update={"digest": "0" * 64}))
        assert staged.stat() == before
        remove_staged(opened, image)
        assert not list(staged.parent.iterdir())


@pytest.mark.parametrize("where", ["group", "store", "tar"])
def test_staging_is_not_left_through_a_symbolic_link(make_site: MakeSite, tmp_path: Path, where: str) -> None:
    """Root owns staging; a disk that was in other hands may come back with links on it."""
    site = make_site(copies=("folder",))
    elsewhere = tmp_path / "elsewhere"
    with site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
        image = opened.catalog.images("SG1", "a")[0]
        tar = staged_path(opened, image)
        moved = {"group": tar.parent.parent, "store": tar.parent, "tar": tar}[where]
        moved.rename(elsewhere)
        moved.symlink_to(elsewhere)
        there = sorted((path, os.lstat(path)) for path in [elsewhere, *elsewhere.rglob("*")])
        assert not is_staged(opened, image)
        remove_staged(opened, image)
        after = sorted((path, os.lstat(path)) for path in [elsewhere, *elsewhere.rglob("*")])
        assert [path for path, _ in after] == [path for path, _ in there]
        assert {copy.state for copy in opened.catalog.all(CopyRecord)} == {"verified"}
        assert opened.catalog.all(ImageRecord)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _folder(path: Path) -> None:
    path.mkdir()


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(12 << 30)


def _deep(path: Path) -> None:
    path.write_text("[" * 100_000)


def _number(path: Path) -> None:
    path.write_text('{"epoch": ' + "9" * 20_000 + "}")


def _types(path: Path) -> None:
    path.write_text('{"image": [], "epoch": -1, "size_bytes": true, "digest": {}, "encoding": ["zstd"]}')


def _no_text(path: Path) -> None:
    path.write_bytes(bytes(range(256)))


def _encoding(path: Path) -> None:
    if path.name == "copy.json":
        path.write_text(json.dumps(json.loads(BEFORE[path]) | {"encoding": "rot13"}))
    else:
        path.write_bytes(b"")


def _epoch(path: Path) -> None:
    if path.name == "copy.json":
        path.write_text(json.dumps(json.loads(BEFORE[path]) | {"epoch": -1}))
    else:
        path.write_bytes(b"null")


BEFORE: dict[Path, bytes] = {}
"""What was there."""

ODD = (_fifo, _endless, _folder, _sparse, _deep, _number, _types, _no_text, _encoding, _epoch)


@pytest.mark.parametrize("odd", ODD)
def test_one_odd_file_stops_no_rebuild(
    make_site: MakeSite, nightferry: Command, odd: Callable[[Path], None]
) -> None:
    """In the place of each file that a rebuild reads: it is named, the other image is there, and little was read."""
    site = make_site(copies=("folder",))
    clock = HandClock()
    with site.open(clock) as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
        deliver_catalog(opened, "folder", clock.now())
    lose(site)
    (first, second) = sorted((site.objects / "images").iterdir())
    victims = [first / name for name in ("meta.json", "copy.json", "origin.json", "index", "chunks")]
    victims += sorted((site.objects / "catalog").iterdir()) + sorted((site.objects / "records").iterdir())
    victims.append(site.objects / "site.json")
    before = peak_bytes()
    for number, victim in enumerate(victims):
        BEFORE[victim] = victim.read_bytes()
        victim.unlink()
        odd(victim)
        place = site.home / f"catalog{number}"
        ran = nightferry(site.file, "catalog", "rebuild", "--copy", "folder", "--to", place, "--json")
        assert ran.code == 3, f"{victim}: {ran.out}{ran.err}"
        assert victim.parent.name in ran.out or victim.name in ran.out
        copies = {copy.image: copy.state for copy in Catalog(place, node="n").all(CopyRecord)}
        assert second.name in copies
        if victim.name == "origin.json":
            assert copies[first.name] in ("whole", "verified"), "the copy itself is"
        if victim.is_dir():
            victim.rmdir()
        else:
            victim.unlink()
        victim.write_bytes(BEFORE[victim])
    assert peak_bytes() < before + (300 << 20), "nothing of 12 GiB was read"


@pytest.mark.parametrize("name", ["catalog", "records"])
def test_a_link_in_the_place_of_a_folder_of_ours_stops_no_rebuild(
    make_site: MakeSite, nightferry: Command, name: str
) -> None:
    site = make_site(copies=("folder",))
    clock = HandClock()
    with site.open(clock) as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
        deliver_catalog(opened, "folder", clock.now())
    lose(site)
    (site.objects / name).rename(site.home / "elsewhere")
    (site.objects / name).symlink_to(site.home / "elsewhere")
    ran = nightferry(
        site.file, "catalog", "rebuild", "--copy", "folder", "--to", site.home / "again", "--json"
    )
    assert ran.code == 3, ran.out + ran.err
    assert any("symbolic link" in note for note in ran.document["notes"])
    assert len(Catalog(site.home / "again", node="n").all(CopyRecord)) == 2


def test_verify_compares_rows_with_members_where_others_may_have_made_the_index(
    make_site: MakeSite, nightferry: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(copies=("folder",))
    with site.open(HandClock()) as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"

    def disagrees(image: ImageReader, row: IndexRow) -> Member:
        raise IntegrityError(f"the index says {row.path!r}; something else is there")

    with monkeypatch.context() as patched:
        patched.setattr(ImageReader, "member", disagrees)
        assert nightferry(site.file, "verify").code == 0, "what this catalog indexed itself"
    lose(site)
    assert (
        nightferry(site.file, "catalog", "rebuild", "--copy", "folder", "--to", site.home / "catalog").code
        == 0
    )
    with monkeypatch.context() as patched:
        patched.setattr(ImageReader, "member", disagrees)
        ran = nightferry(site.file, "verify", "--json")
        assert ran.code == 30
        assert {copy["state"] for copy in ran.document["copies"]} == {"damaged"}
    assert nightferry(site.file, "verify").code == 0


def test_twenty_thousand_foreign_names_are_counted_and_the_first_are_named(make_site: MakeSite) -> None:
    site = make_site(copies=("folder",))
    with site.open(HandClock()) as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
    lose(site)
    rebuild = ("catalog", "rebuild", "--copy", "folder", "--json", "--to")
    few = measured(site.file, *rebuild, site.home / "first")
    assert (few.ran.code, few.ran.document["foreign"], few.ran.document["foreign_count"]) == (0, [], 0)
    names = [f"{'of somebody else ' * 12}{number:05d}" for number in range(20_000)]
    for name in names:
        (site.objects / "images" / name).touch()
    many = measured(site.file, *rebuild, site.home / "second")
    assert many.ran.code == 0, many.ran.err
    assert many.ran.document["foreign_count"] == len(names)
    assert [path.partition("/")[2] for path in many.ran.document["foreign"]] == names[:24]
    assert len(many.ran.out) < 16 << 10
    assert many.ran.document["added"] == few.ran.document["added"]
    # The names once, as the folder is listed; not again as findings.
    assert many.memory_bytes - few.memory_bytes < 48 << 20
    shown = measured(site.file, *rebuild[:-2], "--to", site.home / "third").ran.out
    assert shown.count("not ours, and not touched: images/") == 24
    assert "not ours, and not touched: 19976 more" in shown


def test_an_index_that_is_not_the_images_own_is_damage(make_site: MakeSite, nightferry: Command) -> None:
    """Index, digest and record beside a copy are forged so that they fit each other; only the tar knows better."""
    site = make_site(copies=("folder",))
    clock = HandClock()
    with site.open(clock) as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
    lose(site)
    first, second = (path.parent for path in metas(site))
    table = pq.read_table(io.BytesIO((first / "index").read_bytes()))
    sizes = pa.array([size + 1 for size in table["size"].to_pylist()], pa.int64())
    position = table.schema.get_field_index("size")
    forged = io.BytesIO()
    pq.write_table(table.set_column(position, table.schema.field("size"), sizes), forged, compression="zstd")
    (first / "index").write_bytes(forged.getvalue())
    digest = blake3((first / "chunks").read_bytes() + forged.getvalue()).hexdigest()
    of_index = {"index_bytes": len(forged.getvalue())}
    for name, more in (("meta.json", of_index), ("copy.json", {})):
        said = json.loads((first / name).read_bytes()) | {"digest": digest} | more
        (first / name).write_text(json.dumps(said))
    nightferry(site.file, "catalog", "rebuild", "--copy", "folder", "--to", site.home / "catalog")
    for _ in range(2):
        ran = nightferry(site.file, "verify", "--copy", "folder", "--json")
        assert ran.code == 30, ran.out + ran.err
        with site.open(clock) as opened:
            states = {copy.image: copy.state for copy in opened.catalog.all(CopyRecord)}
        assert states == {first.name: "damaged", second.name: "verified"}


def test_a_restore_says_where_a_rebuilt_catalog_came_from_until_it_is_accepted(
    make_site: MakeSite, nightferry: Command
) -> None:
    site = make_site(copies=("folder",))
    with site.open(HandClock()) as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
    lose(site)
    assert (
        nightferry(site.file, "catalog", "rebuild", "--copy", "folder", "--to", site.home / "catalog").code
        == 0
    )
    said = "the catalog was rebuilt from folder"
    ran = nightferry(site.file, "restore", "store", "SG1/b", "--to", site.home / "back")
    assert (ran.code, said in ran.err) == (0, True), ran.err
    assert nightferry(site.file, "catalog", "accept", "--yes").code == 0
    ran = nightferry(site.file, "restore", "store", "SG1/b", "--to", site.home / "again")
    assert (ran.code, said in ran.err) == (0, False), ran.err


@pytest.mark.parametrize("odd", [_fifo, _sparse, _folder])
def test_one_odd_cartridge_stops_no_rebuild_and_is_damage_to_a_check(
    make_site: MakeSite, nightferry: Command, odd: Callable[[Path], None], tmp_path: Path
) -> None:
    site, clock = make_site(copies=("tape",), cartridge="4 MiB"), HandClock()
    with site.open(clock) as opened:
        night.nights(opened, clock, 4)
        on_second = {
            copy.image
            for copy in opened.catalog.all(CopyRecord)
            if "A00002L9" in [part["barcode"] for part in copy.location["parts"]]
        }
    marks = site.library / "cartridges/A00001L9/marks"
    whole = marks.read_bytes()
    marks.unlink()
    odd(marks)
    lose(site)
    ran = nightferry(site.file, "catalog", "rebuild", "--copy", "tape", "--to", site.home / "again", "--json")
    assert ran.code == 3, ran.out + ran.err
    assert [note.split()[0] for note in ran.document["notes"]] == ["A00001L9"]
    found = {copy.image for copy in Catalog(site.home / "again", node="n").all(CopyRecord)}
    assert found
    assert found <= on_second
    if marks.is_dir():
        marks.rmdir()
    else:
        marks.unlink()
    marks.write_bytes(whole)
    whole_again = nightferry(
        site.file, "catalog", "rebuild", "--copy", "tape", "--to", tmp_path / "whole", "--json"
    )
    assert (whole_again.code, whole_again.document["images"]) == (0, 8)
