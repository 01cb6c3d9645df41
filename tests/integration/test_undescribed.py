"""A copy that no rebuild would take is not right, whatever its data is: said, recorded, and made right again."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nightferry.copies import verify
from nightferry.copies.read_back import verify_copy
from nightferry.errors import NotOurs
from nightferry.health.status import status
from nightferry.model.records import ImageRecord
from nightferry.progress import QUIET, Cancel
from nightferry.site.opened import OpenSite
from tests.integration.test_foreign import LATER, Place, place
from tests.integration.test_rebuild_odd import rebuild
from tests.support.brought import bring_back
from tests.support.command_site import Command
from tests.support.night import nights
from tests.support.outside import compare_tree, tape_copies
from tests.support.small_site import HandClock, SmallSite

__all__ = ["place"]

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("bucket_keys")]

MakeSite = Callable[..., SmallSite]
NEEDED = ("index", "chunks", "copy.json", "meta.json")
ALL = (*NEEDED, "origin.json")


def one_night(place: Place) -> tuple[ImageRecord, ImageRecord]:
    """Images of stores ``a`` and ``b``, verified at the place, and there alone."""
    clock = HandClock(LATER)
    with place.open(clock) as opened:
        nights(opened, clock, 1)
        found = tuple(opened.catalog.images("SG1", store)[0] for store in ("a", "b"))
        assert [row.colour for row in status(opened)] == ["green", "green"]
    shutil.rmtree(place.site.disk)
    place.site.disk.mkdir()
    return found[0], found[1]


def of_image(place: Place, image: ImageRecord) -> dict[str, str]:
    folder = f"images/{image.image}/"
    return {path.removeprefix(folder): text for path, text in place.sums().items() if path.startswith(folder)}


def require_repaired(
    place: Place, image: ImageRecord, nightferry: Command, tmp_path: Path, *named: str
) -> None:
    """``verify`` names copy and file and nothing is green; what the hint says makes it right, from the copy alone."""
    ran = nightferry(place.site.file, "verify", "--json")
    wrong = [row for row in ran.document["copies"] if row["error"]]  # type: ignore[attr-defined]
    assert (ran.code, [(row["image"], row["state"]) for row in wrong]) == (30, [(image.image, "suspect")])
    assert any(name in wrong[0]["error"] for name in named)
    assert f"{image.image} at {place.name}" in wrong[0]["error"]
    assert nightferry(place.site.file, "status", "--json").code != 0
    # A check that reads less, or that is made again, does not clear it.
    assert nightferry(place.site.file, "verify", "--sample", "1", "--json").code == 30
    assert nightferry(place.site.file, "verify", "--json").code == 30
    with place.open(HandClock(LATER)) as opened:
        bring_back(opened, tmp_path / "doubtful")
    assert compare_tree(place.site.store("SG1/a"), tmp_path / "doubtful") == ""

    made = nightferry(place.site.file, "copy", "--missing", "--to", place.name, "--json")
    assert (made.code, [row["state"] for row in made.document["copies"]]) == (0, ["verified"])  # type: ignore[attr-defined]
    assert nightferry(place.site.file, "verify", "--json").code == 0
    with place.open(HandClock(LATER)) as opened:
        assert [row.colour for row in status(opened)] == ["green", "green"]


@pytest.mark.parametrize("gone", [*([name] for name in NEEDED), ALL], ids="+".join)
def test_a_copy_without_what_describes_it_is_made_right_from_the_copy_alone(
    place: Place, nightferry: Command, tmp_path: Path, gone: list[str]
) -> None:
    image, _ = one_night(place)
    before = of_image(place, image)
    for name in gone:
        place.remove(f"images/{image.image}/{name}")
    require_repaired(place, image, nightferry, tmp_path, *gone)
    after = of_image(place, image)
    assert {name: after[name] for name in ("data", "index", "chunks", "meta.json", "origin.json")} == {
        name: before[name] for name in ("data", "index", "chunks", "meta.json", "origin.json")
    }
    code, document = rebuild(place, nightferry)
    assert (code, document["left_out"], document["recovered"]) == (0, [], [])


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("how", ["another's", "cut off"])
def test_a_side_file_that_is_anothers_or_cut_off_is_found(
    place: Place, nightferry: Command, tmp_path: Path, name: str, how: str
) -> None:
    image, other = one_night(place)
    texts = {}
    for each in (image, other):
        if place.root is not None:
            texts[each.image] = (place.root / f"images/{each.image}/{name}").read_bytes()
        else:
            assert place.server is not None
            key = f"{place.prefix}/images/{each.image}/{name}"
            got = place.server.client().get_object(Bucket=place.server.bucket, Key=key)
            texts[each.image] = got["Body"].read()
    place.plant(
        f"images/{image.image}/{name}",
        texts[other.image] if how == "another's" else texts[image.image][:-5],
    )
    require_repaired(place, image, nightferry, tmp_path, name, "record")


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("kind", ["FIFO", "folder"])
def test_something_else_in_a_side_files_place_is_found_and_gives_way(
    make_site: MakeSite, nightferry: Command, tmp_path: Path, name: str, kind: str
) -> None:
    site = make_site(copies=("folder",))
    place = Place(site, "folder", site.objects)
    image, _ = one_night(place)
    path = site.objects / "images" / image.image / name
    path.unlink()
    os.mkfifo(path) if kind == "FIFO" else path.mkdir()
    require_repaired(place, image, nightferry, tmp_path, name)


def test_a_folder_with_something_in_it_is_left_alone_and_the_hint_leads_out(
    make_site: MakeSite, nightferry: Command, tmp_path: Path
) -> None:
    site = make_site(copies=("folder",))
    place = Place(site, "folder", site.objects)
    image, _ = one_night(place)
    path = site.objects / "images" / image.image / "index"
    path.unlink()
    path.mkdir()
    (path / "mine").write_bytes(b"mine")
    assert nightferry(site.file, "verify", "--json").code == 30
    with place.open(HandClock(LATER)) as opened, pytest.raises(NotOurs) as refused:
        verify.remake_copy(opened, image, "folder", progress=QUIET, cancel=Cancel())
    assert f"images/{image.image}/index is a folder" in refused.value.message
    assert "move it away" in refused.value.hint
    path.rename(tmp_path / "moved")
    require_repaired(place, image, nightferry, tmp_path, "index")
    assert (tmp_path / "moved/mine").read_bytes() == b"mine"


def test_a_copy_of_a_release_without_first_side_files_is_right(place: Place, nightferry: Command) -> None:
    image, _ = one_night(place)
    place.remove(f"images/{image.image}/origin.json")
    assert nightferry(place.site.file, "verify", "--json").code == 0


def test_a_compressed_copy_is_described_again_as_it_was(
    make_site: MakeSite, nightferry: Command, tmp_path: Path
) -> None:
    site = make_site(copies=("folder",), encode="zstd:1")
    place = Place(site, "folder", site.objects)
    clock = HandClock(LATER)
    with place.open(clock) as opened:
        (site.store("SG1/a") / "text").write_bytes(b"it shrinks " * 300_000)
        nights(opened, clock, 1)
        image = opened.catalog.images("SG1", "a")[0]
    shutil.rmtree(site.disk)
    site.disk.mkdir()
    before = of_image(place, image)
    assert "data.zst" in before
    for name in ALL:
        place.remove(f"images/{image.image}/{name}")
    require_repaired(place, image, nightferry, tmp_path, "chunks")
    after = of_image(place, image)
    assert before.pop("copy.json")
    assert {name: after[name] for name in before} == before
    said = json.loads((site.objects / "images" / image.image / "copy.json").read_text())
    data = site.objects / "images" / image.image / "data.zst"
    assert (said["encoding"], said["size_bytes"]) == ("zstd", data.stat().st_size)


@pytest.mark.parametrize("length", [0, 1000, None])
def test_data_that_is_cut_off_or_gone_is_damage_of_which_verify_says_30(
    place: Place, nightferry: Command, length: int | None
) -> None:
    image, _ = one_night(place)
    path = f"images/{image.image}/data"
    if length is None:
        place.remove(path)
    else:
        place.plant(path, bytes(length))
    ran = nightferry(place.site.file, "verify", "--json")
    wrong = [row for row in ran.document["copies"] if row["error"]]  # type: ignore[attr-defined]
    assert (ran.code, [(row["image"], row["state"]) for row in wrong]) == (30, [(image.image, "damaged")])


def hurt_trailer(library: Path, image: str) -> None:
    """Turns over one byte of the index in the final trailer of an image."""
    copy = [each for each in tape_copies(library) if each.image == image][-1]
    number, _, rest = copy.data.name.partition(".")
    trailer = copy.data.with_name(f"{int(number) + 1:0{len(number)}d}.{rest}")
    text = bytearray(trailer.read_bytes())
    at = text.index(b"PAR1")
    text[at + 8] ^= 0xFF
    trailer.write_bytes(bytes(text))


def test_a_trailer_that_is_damaged_is_found_and_the_image_is_written_behind_all(
    make_site: MakeSite, nightferry: Command, tmp_path: Path
) -> None:
    site = make_site(copies=("tape",))
    place = Place(site, "tape", site.library)
    image, _ = one_night(place)
    hurt_trailer(site.library, image.image)
    require_repaired(place, image, nightferry, tmp_path, "trailer")


def test_the_checks_of_a_night_look_at_what_describes_a_copy(make_site: MakeSite) -> None:
    site = make_site(copies=("folder",))
    clock = HandClock(LATER)
    with site.open(clock) as opened:
        nights(opened, clock, 1)
        image = opened.catalog.images("SG1", "a")[0]
        (copy,) = opened.catalog.copies(image.image)
        (site.objects / "images" / image.image / "chunks").write_bytes(b"")
        opened.catalog.append(copy.model_copy(update={"state": "whole", "verified": None}))
        (checked,) = [c for c in read_back(opened) if c.error]
        assert (checked.copy.image, checked.copy.state, checked.copy.verified) == (
            image.image,
            "suspect",
            None,
        )
        made = verify.remake_copy(opened, image, "folder", progress=QUIET, cancel=Cancel())
        assert (made.state, made.epoch) == ("verified", 1)
        verify_copy(opened, made, progress=QUIET, cancel=Cancel())


def read_back(opened: OpenSite) -> list[verify.Checked]:
    return list(verify.verify_copies(opened, progress=QUIET, cancel=Cancel()))


def test_verify_goes_on_behind_an_image_that_has_no_index_anywhere(
    make_site: MakeSite, nightferry: Command
) -> None:
    site = make_site(copies=("folder",))
    place = Place(site, "folder", site.objects)
    image, other = one_night(place)
    place.remove(f"images/{image.image}/index")
    kept = [
        path for path in (site.home / "catalog").rglob("*") if path.is_file() and image.image in path.name
    ]
    for path in kept:
        path.unlink()
    assert kept
    ran = nightferry(site.file, "verify", "--json")
    rows = {row["image"]: (row["state"], bool(row["error"])) for row in ran.document["copies"]}  # type: ignore[attr-defined]
    assert (ran.code, rows) == (60, {image.image: ("verified", True), other.image: ("verified", False)})


def test_what_the_hint_says_makes_the_copy_right(make_site: MakeSite, nightferry: Command) -> None:
    site = make_site(copies=("folder",))
    place = Place(site, "folder", site.objects)
    image, _ = one_night(place)
    place.remove(f"images/{image.image}/copy.json")
    assert nightferry(site.file, "verify", "--json").code == 30
    with place.open(HandClock(LATER)) as opened:
        (copy,) = opened.catalog.copies(image.image)
    program, *words = copy.hint.split("`")[1].split()
    assert program == "nightferry"
    assert nightferry(site.file, *words, "--json").code == 0
    assert nightferry(site.file, "verify", "--json").code == 0
