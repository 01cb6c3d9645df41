"""A catalog rebuilt where not all is as it should be: everything is named, what can be recovered is, nothing goes."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nightferry.copies import verify
from nightferry.copies.delivery import deliver_catalog, spread_decisions
from nightferry.model.catalog_records import RebuildRecord
from nightferry.model.records import (
    ApprovalRecord,
    CopyRecord,
    HoldRecord,
    ImageRecord,
    SealRecord,
    SelectionRecord,
)
from nightferry.progress import QUIET, Cancel
from nightferry.retention import expire
from tests.integration.test_foreign import KEEP_1, LATER, Place, place, run_expire
from tests.servers.seaweed import Seaweed
from tests.support import toml
from tests.support.brought import bring_back
from tests.support.command_site import Command
from tests.support.night import nights
from tests.support.outside import compare_tree
from tests.support.small_site import HandClock, SmallSite

__all__ = ["place"]

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("bucket_keys")]

MakeSite = Callable[..., SmallSite]


def rebuild(
    place: Place, nightferry: Command, *, keep_catalogs: bool = False
) -> tuple[int, dict[str, object]]:
    """The catalog is lost, and made again from what lies there."""
    shutil.rmtree(place.site.home / "catalog")
    if not keep_catalogs:
        for path in list(place.sums()):
            if path.startswith("catalog/"):
                place.remove(path)
    new = place.site.home / "catalog"
    ran = nightferry(place.site.file, "catalog", "rebuild", "--copy", place.name, "--to", new, "--json")
    return ran.code, ran.document


@pytest.mark.parametrize(
    "gone",
    [("meta.json",), ("meta.json", "copy.json"), ("copy.json",), ("meta.json", "copy.json", "origin.json")],
)
def test_a_copy_without_its_record_is_recovered_and_nothing_expires_before_it_is_accepted(
    place: Place, nightferry: Command, tmp_path: Path, gone: tuple[str, ...]
) -> None:
    clock = HandClock(LATER)
    with place.open(clock) as opened:
        nights(opened, clock, 2)
        old, new = sorted(image.image for image in opened.catalog.images("SG1", "a"))
        known = {image.image: image for image in opened.catalog.all(ImageRecord)}
    for image in (old, new):
        for name in gone:
            place.remove(f"images/{image}/{name}")
    before = place.sums()
    code, document = rebuild(place, nightferry)
    assert code == 3
    assert (sorted(document["recovered"]), document["left_out"]) == ([old, new], [])  # type: ignore[call-overload]
    with place.open(clock) as opened:
        shutil.rmtree(place.site.disk)
        place.site.disk.mkdir()
        made = opened.catalog.image(new)
        same = {
            "image",
            "run",
            "group",
            "store",
            "level",
            "state",
            "size_bytes",
            "payload_bytes",
            "files",
            "outcomes",
        }
        same |= {
            "digest",
            "index_offset",
            "index_bytes",
            "index_digest",
            "path",
            "node",
            "started",
            "source_kind",
        }
        assert made.model_dump(include=same) == known[new].model_dump(include=same)
        bring_back(opened, tmp_path / "back", copy=place.name)
    assert compare_tree(place.site.store("SG1/a"), tmp_path / "back") == ""
    refused = nightferry(place.site.file, "expire", "--json")
    assert (refused.code, "has not been accepted" in refused.error["message"]) == (2, True)
    foreseen = nightferry(place.site.file, "expire", "--dry-run", "--json")
    assert (foreseen.code, "not been accepted" in foreseen.document["refused"]) == (2, True)
    after = place.sums()
    assert {path: text for path, text in after.items() if path in before} == {
        path: text for path, text in before.items() if path in after
    }
    assert {path for path in before if path.startswith("images/")} == {
        p for p in after if p.startswith("images/")
    }
    with place.open(clock) as opened:
        # What was gone is gone still: the next catalog must not have to make it again.
        rows = list(verify.verify_copies(opened, progress=QUIET, cancel=Cancel()))
        assert {(r.copy.image, r.exit_code) for r in rows if r.copy.state == "suspect"} == {
            (old, 30),
            (new, 30),
        }
        for image in (old, new):
            record = opened.catalog.image(image)
            made = verify.remake_copy(opened, record, place.name, progress=QUIET, cancel=Cancel())
            assert (made.state, made.epoch) == ("verified", 1)
    assert {f"images/{image}/{name}" for image in (old, new) for name in gone} <= place.sums().keys()
    assert nightferry(place.site.file, "catalog", "accept").code == 2
    shown = nightferry(place.site.file, "catalog", "accept", "--dry-run", "--json").document
    assert (shown["copy"], shown["left_out"]) == (place.name, [])
    assert nightferry(place.site.file, "catalog", "accept", "--reason", "looked at", "--json").code == 0
    assert nightferry(place.site.file, "catalog", "accept", "--yes").code == 2, "once is enough"
    with place.open(clock) as opened:
        (accepted,) = opened.catalog.all(RebuildRecord)
        assert (accepted.accepted, accepted.reason) == (True, "looked at")
        assert accepted.who
        done = run_expire(opened)
        fates = {row.image.image: row.fate for row in done.copies if ".a." in row.image.image}
        assert fates[new] == "kept"
        assert fates[old] == "expired"


@pytest.mark.parametrize("how", ["cut off", "another's"])
def test_a_record_that_is_cut_off_or_anothers_is_made_again_as_a_missing_one_is(
    place: Place, nightferry: Command, tmp_path: Path, how: str
) -> None:
    clock = HandClock(LATER)
    with place.open(clock) as opened:
        nights(opened, clock, 1)
        image, other = (opened.catalog.images("SG1", store)[0] for store in ("a", "b"))
    text = image.model_dump_json()[:20] if how == "cut off" else other.model_dump_json()
    place.plant(f"images/{image.image}/meta.json", text.encode())
    code, document = rebuild(place, nightferry)
    assert (code, document["recovered"], document["left_out"]) == (3, [image.image], [])
    with place.open(clock) as opened:
        shutil.rmtree(place.site.disk)
        place.site.disk.mkdir()
        bring_back(opened, tmp_path / "back", copy=place.name)
    assert compare_tree(place.site.store("SG1/a"), tmp_path / "back") == ""


def test_every_folder_that_cannot_be_taken_is_named_and_none_stops_the_rest(
    place: Place, nightferry: Command
) -> None:
    clock = HandClock(LATER)
    odd = {day: f"2039010{day}-TEX-BACK-1.SG1.a.L0" for day in range(1, 8)}
    with place.open(clock) as opened:
        nights(opened, clock, 1)
        whole = opened.catalog.images("SG1", "a")[0]
        other = opened.catalog.images("SG1", "b")[0]
        mark = opened.mark()
    place.plant(f"images/{odd[1]}/data", b"data alone")
    place.plant(f"images/{odd[2]}/meta.json", b"{")
    for name in ("data", "index", "chunks"):
        place.plant(f"images/{odd[3]}/{name}", b"nonsense")
    place.plant(f"images/{odd[4]}/copy.json", b"[" * 99999)
    said = {"image": odd[5], "epoch": 1, "digest": "d", "size_bytes": 4, "encoding": "rot13"}
    for name, data in {"copy.json": json.dumps(said).encode(), "meta.json": b"{}", "data": b"data"}.items():
        place.plant(f"images/{odd[5]}/{name}", data)
    said = {"image": odd[6], "epoch": 1, "digest": whole.digest, "size_bytes": 4}
    record = whole.model_dump(mode="json") | {"image": odd[6]}
    files = {
        "copy.json": json.dumps(said),
        "meta.json": json.dumps(record),
        "data": "data",
        "index": "i",
        "chunks": "c",
    }
    for name, text in files.items():
        place.plant(f"images/{odd[6]}/{name}", text.encode())
    for name, text in files.items():
        place.plant(f"images/{odd[7]}/{name}", text.replace(odd[6], odd[7]).encode())
    place.plant(
        f"images/{odd[7]}/origin.json",
        json.dumps({"image": odd[7], "site": "OHIO", "id": "f" * 32, "run": "r", "epoch": 1}).encode(),
    )
    place.plant("images/holiday/2024.jpg", b"jpg")
    place.plant("images/loose", b"loose")
    place.remove(f"images/{other.image}/data")
    before = place.sums()
    code, document = rebuild(place, nightferry)
    assert code == 3
    expected = {f"images/{name}" for name in (*odd.values(), other.image)}
    assert set(document["left_out"]) == expected  # type: ignore[call-overload]
    assert set(document["foreign"]) == {"images/holiday", "images/loose"}  # type: ignore[call-overload]
    notes = " ".join(document["notes"])  # type: ignore[call-overload]
    assert all(name in notes for name in odd.values())
    assert "site OHIO" in notes
    assert (document["images"], document["added"]) == (1, [whole.image])
    assert nightferry(place.site.file, "catalog", "accept", "--yes").code == 0
    with place.open(clock) as opened:
        assert opened.mark() == mark
        done = run_expire(opened)
    after = place.sums()
    assert {row.orphan.path for row in done.orphans} == {f"images/{other.image}"}, "ours, named, and accepted"
    lacks = {path for path in before if path not in after}
    assert {path.rsplit("/", 1)[0] for path in lacks if path.startswith("images/")} == {
        f"images/{other.image}"
    }


def test_a_copy_on_record_of_which_something_is_there_is_damaged_and_not_lost(
    place: Place, nightferry: Command
) -> None:
    clock = HandClock(LATER)
    with place.open(clock) as opened:
        nights(opened, clock, 1)
        deliver_catalog(opened, place.name, clock.now())
        image = opened.catalog.images("SG1", "a")[0].image
    place.remove(f"images/{image}/data")
    code, document = rebuild(place, nightferry, keep_catalogs=True)
    assert (code, document["lost"], document["left_out"]) == (3, [], [f"images/{image}"])
    with place.open(clock) as opened:
        states = {copy.image: copy.state for copy in opened.catalog.all(CopyRecord)}
    assert states[image] == "damaged"


@pytest.mark.parametrize("keep_catalogs", [False, True])
def test_what_people_decided_is_known_without_a_copy_of_the_catalog(
    place: Place, nightferry: Command, keep_catalogs: bool
) -> None:
    clock = HandClock(LATER)
    with place.open(clock) as opened:
        nights(opened, clock, 1)
        images = [image.image for image in opened.catalog.images()]
        expire.add_hold(opened, images[0], "early")
        expire.add_hold(opened, images[1], "the audit")
        deliver_catalog(opened, place.name, clock.now())
        expire.remove_hold(opened, images[0])
        run = opened.catalog.runs()[0]
        seal = opened.catalog.seal(run.run)
        assert seal is not None
        approval = ApprovalRecord(
            run=run.run, seal_digest=seal.digest, stores=("SG1/z",), reason="known", who="op", at=clock.now()
        )
        opened.catalog.append(approval)
        clock.sleep(60)
        assert spread_decisions(opened) == {}
        kept = {
            cls: opened.catalog.all(cls) for cls in (HoldRecord, SealRecord, SelectionRecord, ApprovalRecord)
        }
    code, document = rebuild(place, nightferry, keep_catalogs=keep_catalogs)
    assert (code, document["notes"]) == (0, [])
    assert document["beside"]
    with place.open(clock) as opened:
        for cls, records in kept.items():
            assert {r.subject: r for r in opened.catalog.all(cls)} == {r.subject: r for r in records}
        assert [h.image for h in opened.catalog.holds()] == [images[1]]


def test_a_hold_reaches_the_copies_at_once(place: Place, nightferry: Command) -> None:
    clock = HandClock(LATER)
    with place.open(clock) as opened:
        nights(opened, clock, 1)
        image = opened.catalog.images()[0].image
    assert nightferry(place.site.file, "hold", "add", image, "--reason", "a lawsuit").code == 0
    rebuild(place, nightferry)
    listed = nightferry(place.site.file, "hold", "list", "--json").document["holds"]
    assert [(h["image"], h["reason"]) for h in listed] == [(image, "a lawsuit")]


def test_a_compressed_copy_without_its_record_is_recovered(
    make_site: MakeSite, seaweed: Seaweed, nightferry: Command, tmp_path: Path
) -> None:
    site = make_site(copies=())
    prefix = seaweed.prefix()
    bucket = toml.bucket(
        f"s3://{seaweed.bucket}/{prefix}", seaweed.endpoint, 'encode = { compress = "zstd:1" }'
    )
    site.write_file(copies=("cloud",), more=KEEP_1 + bucket)
    (site.store("SG1/a") / "long.txt").write_text("dear reader\n" * 600_000)
    place, clock = Place(site, "cloud", server=seaweed, prefix=prefix), HandClock(LATER)
    with site.open(clock) as opened:
        nights(opened, clock, 1)
        known = opened.catalog.images("SG1", "a")[0]
    for name in ("meta.json", "copy.json"):
        place.remove(f"images/{known.image}/{name}")
    assert f"images/{known.image}/data.zst" in place.sums()
    code, document = rebuild(place, nightferry)
    assert (code, document["recovered"]) == (3, [known.image])
    shutil.rmtree(site.disk)
    site.disk.mkdir()
    with site.open(clock) as opened:
        assert opened.catalog.image(known.image).size_bytes == known.size_bytes
        bring_back(opened, tmp_path / "back", copy="cloud")
    assert compare_tree(site.store("SG1/a"), tmp_path / "back") == ""


def test_a_site_that_was_renamed_says_so_and_keeps_its_places(place: Place, nightferry: Command) -> None:
    clock = HandClock(LATER)
    with place.open(clock) as opened:
        nights(opened, clock, 1)
        mark = opened.mark()
    text = place.site.file.read_text()
    place.site.file.write_text(text.replace('name = "TEX"', 'name = "TEXAS"'))
    refused = nightferry(place.site.file, "verify", "--json")
    assert (refused.code, "--renamed-from TEX" in refused.error["hint"]) == (2, True)
    wrong = nightferry(place.site.file, "catalog", "accept", "--renamed-from", "OHIO", "--reason", "x")
    assert wrong.code == 2
    done = nightferry(
        place.site.file, "catalog", "accept", "--renamed-from", "TEX", "--reason", "it is called so", "--json"
    )
    assert (done.code, done.document["renamed_from"]) == (0, "TEX")
    with place.open(clock) as opened:
        assert (opened.mark().site, opened.mark().id) == ("TEXAS", mark.id)
        nights(opened, clock, 1)
        deliver_catalog(opened, place.name, clock.now())
    code, _ = rebuild(place, nightferry, keep_catalogs=True)
    assert code == 0


def test_cartridges_say_whose_they_are_and_what_was_decided(make_site: MakeSite, nightferry: Command) -> None:
    """Without any copy of the catalog: id, selection and seal come from the images' trailers, read by tar alone."""
    site = make_site(copies=("tape",))
    clock = HandClock(LATER)
    with site.open(clock) as opened:
        nights(opened, clock, 1)
        mark = opened.mark()
        run = opened.catalog.runs()[0].run
        kept = (opened.catalog.seal(run), opened.catalog.selection("SG1"))
    trailer = site.library / "cartridges" / "A00001L9" / "0002.tape"
    said = subprocess.run(["tar", "-xOf", trailer, "site.json"], check=True, capture_output=True).stdout
    assert json.loads(said) == {"format": 1, "site": "TEX", "id": mark.id}
    shutil.rmtree(site.home / "catalog")
    new = site.home / "catalog"
    ran = nightferry(site.file, "catalog", "rebuild", "--copy", "tape", "--to", new, "--json")
    assert (ran.code, ran.document["begun_from"], ran.document["beside"] > 0) == (0, "", True)
    with site.open(clock) as opened:
        assert opened.mark() == mark
        assert (opened.catalog.seal(run), opened.catalog.selection("SG1")) == kept
    shutil.rmtree(site.home / "catalog")
    site.file.write_text(site.file.read_text().replace('name = "TEX"', 'name = "OHIO"'))
    other = nightferry(site.file, "catalog", "rebuild", "--copy", "tape", "--to", new, "--json")
    assert other.code == 60
    assert f"site TEX (id {mark.id[:8]})" in other.error["message"]
