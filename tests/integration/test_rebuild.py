"""The catalog made again from what lies at a destination, after catalog and staging are gone."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from nightferry.copies.delivery import deliver_catalog
from nightferry.destination.tape.library.changer import Address
from nightferry.destination.tape.library.virtual import open_virtual
from nightferry.model.records import CopyRecord, ImageRecord
from nightferry.site import catalog_bucket
from tests.servers.seaweed import Seaweed
from tests.support import night, toml
from tests.support.bucket_catalog import move_catalog
from tests.support.command_site import Command, process
from tests.support.outside import compare_tree, folder_copies, tape_copies
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite, fill

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("seaweed")]

MakeSite = Callable[..., SmallSite]


@pytest.fixture(autouse=True)
def _ask_again(bucket_keys: None) -> None:
    catalog_bucket._honest.clear()


@pytest.fixture(params=["folder", "tape", "spanned", "cloud", "compressed"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def site(kind: str, make_site: MakeSite, request: pytest.FixtureRequest) -> SmallSite:
    """A site with copies at one destination of each kind; a spanned store takes two cartridges."""
    if kind in ("cloud", "compressed"):
        server: Seaweed = request.getfixturevalue("seaweed")
        encode = 'encode = { compress = "zstd:1" }' if kind == "compressed" else ""
        url = f"s3://{server.bucket}/{server.prefix()}"
        return make_site(copies=("cloud",), more=toml.bucket(url, server.endpoint, encode))
    if kind == "spanned":
        site = make_site(copies=("tape",), cartridge="8 MiB", stores={"SG1": ("b",)})
        fill(site.store("SG1/a"), seed=7, big=(9 << 20) + 77)
        site.write_file(stores={"SG1": ("b", "a")})
        return site
    return make_site(copies=(kind,))


def name_of(kind: str) -> str:
    return {"spanned": "tape", "compressed": "cloud"}.get(kind, kind)


def nights(site: SmallSite, kind: str, *, delivered: tuple[bool, ...]) -> None:
    """One night each; after those that say so a copy of the catalog goes to the destination."""
    clock = HandClock()
    for deliver in delivered:
        with site.open(clock) as opened:
            assert night.night(opened, BACK_GROUP).result == "whole"
            if deliver:
                deliver_catalog(opened, name_of(kind), clock.now())
        clock.advance(timedelta(days=1))


def lose(site: SmallSite) -> None:
    """Catalog and staging are gone, with all that the cluster knew."""
    shutil.rmtree(site.home / "catalog")
    (site.home / "catalog-cluster.json").unlink()
    shutil.rmtree(site.disk)
    site.disk.mkdir()


def digests(folder: Path) -> str:
    """``sha256sum`` of every file below."""
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    done = subprocess.run(["sha256sum", *files], cwd=folder, capture_output=True, check=True)
    return done.stdout.decode(errors="surrogateescape")


def require_restored(site: SmallSite, nightferry: Command) -> None:
    """Every store comes back from the rebuilt catalog, the same by ``diff`` and ``sha256sum``."""
    for store in site.names:
        back = site.home / "returned" / store
        ran = nightferry(site.file, "restore", "store", store, "--to", back)
        assert ran.code == 0, ran.err
        assert compare_tree(site.store(store), back) == ""
        assert digests(site.store(store)) == digests(back)


def rebuilt(site: SmallSite, kind: str, nightferry: Command, code: int = 0) -> dict[str, object]:
    ran = nightferry(
        site.file, "catalog", "rebuild", "--copy", name_of(kind), "--to", site.home / "catalog", "--json"
    )
    assert ran.code == code, ran.out + ran.err
    return ran.document


def test_a_rebuilt_catalog_restores_everything(site: SmallSite, kind: str, nightferry: Command) -> None:
    nights(site, kind, delivered=(True,))
    with site.open() as opened:
        before = {image.image: image for image in opened.catalog.all(ImageRecord)}
    lose(site)
    document = rebuilt(site, kind, nightferry)
    assert re.fullmatch(r"catalog-[0-9]{12}-20261110T[0-9]{6}Z\.parquet", str(document["begun_from"]))
    assert (document["images"], document["added"], document["lost"]) == (2, [], [])
    with site.open() as opened:
        assert {image.image: image for image in opened.catalog.all(ImageRecord)} == before
        assert {copy.state for copy in opened.catalog.all(CopyRecord)} == {"verified"}
    require_restored(site, nightferry)
    new_disk = ("--to", "TEX-ACTV-1", "--ungated", "--reason", "the old one is lost")
    assert nightferry(site.file, "cluster", "move", BACK_GROUP, *new_disk).code == 0
    with site.open(HandClock()) as opened:
        opened.clock.sleep(86400)
        again = night.night(opened, BACK_GROUP)
        assert (again.run, again.result) == ("20261111-TEX-BACK-1", "whole")


def test_what_only_lies_elsewhere_is_restored_by_the_side_files_there(
    make_site: MakeSite, nightferry: Command
) -> None:
    site = make_site(copies=("folder", "tape"))
    clock = HandClock()
    with site.open(clock) as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
        deliver_catalog(opened, "folder", clock.now())
    for copies in (site.home / "objects" / "images").glob("*.SG1.a.L0"):
        shutil.rmtree(copies)
    lose(site)
    assert rebuilt(site, "folder", nightferry, code=3)["lost"] == ["20261110-TEX-BACK-1.SG1.a.L0"]
    require_restored(site, nightferry)
    shutil.rmtree(site.home / "returned")
    (site.home / "vtl").rename(site.home / "away")
    assert nightferry(site.file, "files", "20261110-TEX-BACK-1.SG1.a.L0").code == 0, "kept for the next time"


def test_without_a_copy_of_the_catalog_the_side_files_suffice(
    site: SmallSite, kind: str, nightferry: Command
) -> None:
    nights(site, kind, delivered=(False,))
    lose(site)
    document = rebuilt(site, kind, nightferry)
    assert document["begun_from"] == ""
    assert len(document["added"]) == 2  # type: ignore[arg-type]
    with site.open() as opened:
        copies = opened.catalog.all(CopyRecord)
        assert {copy.state for copy in copies} == {"whole"}
        assert {"zstd"} & {copy.location.get("encoding") for copy in copies} or kind != "compressed"
        (run,) = opened.catalog.runs()
        assert (run.run, run.back_group, run.window) == ("20261110-TEX-BACK-1", BACK_GROUP, "20261110")
    require_restored(site, nightferry)
    assert nightferry(site.file, "verify", "--copy", name_of(kind)).code == 0
    with site.open(HandClock()) as opened:
        assert {copy.state for copy in opened.catalog.all(CopyRecord)} == {"verified"}
        again = night.night(opened, BACK_GROUP, new=True)
        assert (again.run, again.result) == ("20261110-TEX-BACK-1-2", "whole")
    if name_of(kind) == "tape":
        assert len(tape_copies(site.library)) >= 2


def test_what_came_after_the_copy_is_added(site: SmallSite, kind: str, nightferry: Command) -> None:
    nights(site, kind, delivered=(True, False))
    lose(site)
    document = rebuilt(site, kind, nightferry)
    assert document["images"] == 4
    stores = sorted(image.split(".")[2] for image in document["added"])  # type: ignore[attr-defined]
    assert stores == ["a", "b"]
    with site.open() as opened:
        states = {copy.run: copy.state for copy in opened.catalog.all(CopyRecord)}
    assert states == {"20261110-TEX-BACK-1": "verified", "20261111-TEX-BACK-1": "whole"}
    require_restored(site, nightferry)


def test_what_is_on_record_and_not_there_is_lost(make_site: MakeSite, nightferry: Command) -> None:
    site = make_site(copies=("folder",))
    nights(site, "folder", delivered=(True,))
    gone = next(image for image in folder_copies(site.objects) if ".b." in image)
    expired = next(image for image in folder_copies(site.objects) if ".a." in image)
    with site.open(HandClock()) as opened:
        (copy,) = opened.catalog.copies(expired)
        opened.catalog.append(copy.model_copy(update={"state": "expired"}))
        deliver_catalog(opened, "folder", HandClock().now() + timedelta(hours=1))
    for image in (gone, expired):
        shutil.rmtree(site.objects / "images" / image)
    lose(site)
    document = rebuilt(site, "folder", nightferry, code=3)
    assert document["lost"] == [gone]
    with site.open() as opened:
        states = {copy.image: copy.state for copy in opened.catalog.all(CopyRecord)}
        assert states == {gone: "lost", expired: "expired"}


def test_a_cartridge_that_is_not_in_the_library_keeps_its_copies(
    make_site: MakeSite, nightferry: Command
) -> None:
    site = make_site(copies=("tape",), cartridge="8 MiB", stores={"SG1": ("a",)})
    (site.store("SG1/a") / "more.bin").write_bytes(bytes(5 << 20))
    nights(site, "tape", delivered=(False, True))
    first = next(copy for copy in tape_copies(site.library) if copy.data.parent.name == "A00001L9")
    taken_out(site, "A00001L9")
    lose(site)
    document = rebuilt(site, "tape", nightferry)
    assert first.image in document["elsewhere"]  # type: ignore[operator]
    assert document["lost"] == []
    with site.open() as opened:
        assert "A00001L9" in {c.barcode for c in opened.catalog.cartridges("tape")}
        assert first.image in opened.catalog.live_images("tape", "A00001L9")


def taken_out(site: SmallSite, barcode: str) -> None:
    """Puts a cartridge of the virtual library into a port, and takes it from there by hand."""
    library = open_virtual(site.library, 2, 6, 8 << 20)
    place = next(e.address for e in library.changer.inventory() if e.barcode == barcode)
    library.changer.move(place, Address("port", 1))
    library.close()
    (port,) = site.library.glob(f"ports/1/{barcode}")
    port.rename(site.home / barcode)


def test_a_damaged_copy_of_the_catalog_gives_way_to_the_one_before(
    make_site: MakeSite, nightferry: Command
) -> None:
    site = make_site(copies=("folder",))
    nights(site, "folder", delivered=(True, True))
    first, last = sorted((site.objects / "catalog").iterdir())
    last.write_bytes(last.read_bytes()[:-20])
    damaged = next(image for image in folder_copies(site.objects) if ".b." in image)
    (site.objects / "images" / damaged / "meta.json").write_text("{}")
    lose(site)
    document = rebuilt(site, "folder", nightferry, code=3)
    assert document["begun_from"] == first.name
    notes = document["notes"]
    assert isinstance(notes, list)
    assert [last.name in notes[0], damaged in notes[1]] == [True, True]


def test_a_place_that_is_not_empty_and_a_destination_that_is_not_there_are_refused(
    make_site: MakeSite, nightferry: Command
) -> None:
    site = make_site(copies=("folder", "tape"))
    nights(site, "folder", delivered=(True,))
    full = nightferry(
        site.file, "catalog", "rebuild", "--copy", "folder", "--to", site.home / "catalog", "--json"
    )
    assert (full.code, "is not empty" in full.error["message"]) == (60, True)
    for name, path in (("folder", site.objects), ("tape", site.library)):
        path.rename(path.with_suffix(".away"))
        away = nightferry(
            site.file, "catalog", "rebuild", "--copy", name, "--to", site.home / "new", "--json"
        )
        assert (away.code, "is not there" in away.error["message"]) == (20, True)
        assert not path.exists()
    assert list((site.home / "new").iterdir()) == []
    unknown = nightferry(
        site.file, "catalog", "rebuild", "--copy", "taep", "--to", site.home / "new", "--json"
    )
    assert (unknown.code, "tape" in unknown.error["hint"]) == (2, True)


def test_a_rebuild_that_was_killed_is_no_catalog_and_can_be_repeated(
    make_site: MakeSite, nightferry: Command
) -> None:
    site = make_site(copies=("folder",))
    nights(site, "folder", delivered=(True,))
    lose(site)
    (site.home / "catalog" / "indexes").mkdir(parents=True)
    (site.home / "catalog" / "indexes" / "left.parquet").write_bytes(b"half")
    rebuilt(site, "folder", nightferry)
    require_restored(site, nightferry)


def test_a_catalog_is_rebuilt_into_a_bucket_and_out_of_one(
    make_site: MakeSite, seaweed: Seaweed, nightferry: Command
) -> None:
    site = make_site(copies=("folder",))
    prefix = move_catalog(site.file, seaweed)
    with site.open(HandClock()) as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
        with opened.claims.exclusive(BACK_GROUP).acquire("r", "20261110"):
            deliver_catalog(opened, "folder", opened.clock.now())
    shutil.rmtree(site.disk)
    site.disk.mkdir()
    old, new = f"s3://{seaweed.bucket}/{prefix}", f"s3://{seaweed.bucket}/{seaweed.prefix()}"
    full = process(site.file, "catalog", "rebuild", "--copy", "folder", "--to", old, "--json")
    assert (full.code, "is not empty" in full.error["message"]) == (60, True)
    done = process(site.file, "catalog", "rebuild", "--copy", "folder", "--to", new)
    assert done.code == 0, done.err
    assert f'put catalog = "{new}" into the site file' in done.out
    site.file.write_text(site.file.read_text().replace(old, new))
    require_restored(site, nightferry)
    with site.open(HandClock()) as opened:
        assert opened.claims.exclusive(BACK_GROUP).holder() is None
