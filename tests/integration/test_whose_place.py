"""Two sites, one place: the second one is refused by every verb that would do something there, and both are named."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nightferry.copies.delivery import deliver_catalog
from nightferry.errors import OtherSite
from nightferry.health.check import check
from nightferry.model.catalog_records import SiteRecord
from nightferry.model.load import load_site
from nightferry.model.records import CopyRecord
from tests.integration.test_foreign import KEEP_1, LATER, Place, place, run_expire
from tests.servers.seaweed import WRITER_KEYS, Seaweed
from tests.support import night, toml
from tests.support.command_site import Command
from tests.support.night import nights
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

__all__ = ["place"]

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("bucket_keys")]

MakeSite = Callable[..., SmallSite]


def second(place: Place, home: Path, name: str = "OHIO") -> SmallSite:
    """Another site whose copies go to the same place."""
    home.mkdir()
    site = replace(place.site, home=home).build()
    text = site.file.read_text().replace('name = "TEX"', f'name = "{name}"')
    text = text.replace(f"file://{home}/objects", f"file://{place.site.objects}")
    site.file.write_text(text)
    return site


def ids(site: SmallSite) -> set[str]:
    return {f.id for f in check(load_site(site.file)) if f.severity == "fail"}


@pytest.mark.parametrize("name", ["OHIO", "TEX"])
def test_a_second_site_at_the_same_place_is_refused_by_every_verb(
    place: Place, tmp_path: Path, nightferry: Command, name: str
) -> None:
    clock = HandClock(LATER)
    with place.open(clock) as opened:
        nights(opened, clock, 2)
        mark = opened.mark()
    before = place.sums()
    assert json.loads(_text(place, "site.json")) == {"format": 1, "site": "TEX", "id": mark.id}
    other = second(place, tmp_path / "other", name)
    assert "NF-DEST-003" in ids(other)
    both = rf"destination {place.name} belongs to site TEX \(id {mark.id[:8]}\), not to site {name}"
    with other.open(clock) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        with pytest.raises(OtherSite, match=both):
            night.stage_two(opened, record)
        assert opened.catalog.all(CopyRecord) == []
    for verb in (["verify"], ["verify", "--copy", place.name], ["copy", "--missing", "--to", place.name]):
        ran = nightferry(other.file, *verb, "--json")
        assert ran.code in (2, 20), ran.out
        assert f"belongs to site TEX (id {mark.id[:8]}), not to site {name}" in ran.out
    with other.open(clock) as opened:
        done = run_expire(opened)
        assert done.exit_code == 2
        assert "belongs to site TEX" in done.errors[place.name].message
    rebuilt = nightferry(
        other.file, "catalog", "rebuild", "--copy", place.name, "--to", tmp_path / "new", "--json"
    )
    if name != "TEX":
        assert (rebuilt.code, "belong to site TEX" in rebuilt.error["message"]) == (2, True)
        assert "site OHIO" in rebuilt.error["message"]
    assert {path: text for path, text in place.sums().items() if not path.startswith(".")} == before


def _text(place: Place, path: str) -> bytes:
    if place.root is not None:
        return (place.root / path).read_bytes()
    assert place.server is not None
    key = f"{place.prefix}/{path}"
    body: bytes = place.server.client().get_object(Bucket=place.server.bucket, Key=key)["Body"].read()
    return body


READING = [
    ["status"], ["runs"], ["images"], ["copies", "{image}"], ["files", "{image}"], ["hold", "list"], ["gate", "show"],
    ["media", "list"], ["selection", "show", "SG1"], ["cluster", "view"], ["expire", "--dry-run"],
    ["restore", "store", "SG1/a", "--to", "{to}/restored", "--dry-run"],
    ["cluster", "move", BACK_GROUP, "--dry-run"], ["catalog", "accept", "--dry-run"],
]  # fmt: skip
WRITING = [
    ["hold", "add", "{image}", "--reason", "a test"], ["hold", "remove", "{image}"], ["verify"], ["expire"],
    ["copy", "--missing", "--to", "folder"], ["forget", "{image}", "--reason", "a test"],
    ["selection", "fix", "SG1"], ["selection", "adopt", "SG1/a", "SG1/b"], ["cluster", "move", BACK_GROUP],
    ["gate", "retry", "20261110-TEX-BACK-1"],
    ["gate", "approve", "20261110-TEX-BACK-1", "--store", "SG1/a", "--reason", "a test"],
    ["restore", "store", "SG1/a", "--to", "{to}/restored"], ["restore", "files", "SG1/a", "*", "--to", "{to}/restored"],
    ["restore", "group", "SG1", "--to", "{to}/restored"], ["media", "retire", "A00001L9", "--reason", "a test"],
    ["media", "inventory"], ["catalog", "accept", "--yes"],
]  # fmt: skip


def sums(folder: Path) -> dict[str, str]:
    """Every file's digest, by sha256sum."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    said = subprocess.run(["sha256sum", *files], capture_output=True, text=True, check=True).stdout
    return {line[66:]: line[:64] for line in said.splitlines()}


def test_a_second_site_at_the_same_catalog_is_refused_by_every_verb(
    make_site: MakeSite, tmp_path: Path, nightferry: Command
) -> None:
    site = make_site(copies=("folder",), more=KEEP_1)
    clock = HandClock(LATER)
    with site.open(clock) as opened:
        nights(opened, clock, 1)
        mark = opened.mark()
        image = opened.catalog.images()[0].image
    (tmp_path / "other").mkdir()
    other = replace(site, home=tmp_path / "other").build()
    text = other.file.read_text().replace('name = "TEX"', 'name = "OHIO"')
    other.file.write_text(text.replace(f"{tmp_path}/other/catalog", f"{site.home}/catalog"))
    said = f"belongs to site TEX (id {mark.id[:8]}), but the site file is for OHIO"
    assert ids(other) == {"NF-CAT-004"}
    there = sorted(p.name for p in (tmp_path / "other").iterdir())
    with pytest.raises(OtherSite) as caught:
        other.open(clock)
    assert said in str(caught.value)
    before = sums(site.home / "catalog")
    for words in READING + WRITING:
        ran = nightferry(other.file, *(word.format(image=image, to=tmp_path) for word in words), "--json")
        assert (words, ran.code, said in ran.error["message"]) == (words, 2, True)
        assert "correct site.catalog" in ran.error["hint"]
    assert sums(site.home / "catalog") == before
    assert nightferry(site.file, "hold", "list", "--json").document["holds"] == []
    assert sorted(p.name for p in (tmp_path / "other").iterdir()) == there


def test_a_renamed_site_says_so_and_goes_on(make_site: MakeSite, nightferry: Command) -> None:
    site = make_site(copies=("folder",))
    clock = HandClock(LATER)
    with site.open(clock) as opened:
        nights(opened, clock, 1)
        mark = opened.mark()
    site.file.write_text(site.file.read_text().replace('name = "TEX"', 'name = "OHIO"'))
    refused = nightferry(site.file, "status", "--json")
    assert refused.code == 2
    assert "catalog accept --renamed-from TEX --reason TEXT" in refused.error["hint"]
    wrong = nightferry(
        site.file, "catalog", "accept", "--renamed-from", "UTAH", "--reason", "a test", "--json"
    )
    assert (wrong.code, "belongs to site TEX, not to site UTAH" in wrong.error["message"]) == (2, True)
    assert nightferry(site.file, "catalog", "accept", "--yes", "--json").code == 2
    assert nightferry(site.file, "catalog", "accept", "--renamed-from", "TEX", "--reason", "a test").code == 0
    with site.open(clock) as opened:
        assert (opened.mark().site, opened.mark().id) == ("OHIO", mark.id)


def test_a_place_from_before_there_were_markers_is_adopted_when_the_catalog_knows_a_copy_there(
    place: Place,
) -> None:
    clock = HandClock(LATER)
    with place.open(clock) as opened:
        nights(opened, clock, 1)
        mark = opened.mark()
    for path in list(place.sums()):
        if path == "site.json" or path.endswith("/origin.json"):
            place.remove(path)
    with place.open(clock) as opened:
        assert "NF-DEST-003" not in ids(place.site)
        assert "site.json" not in place.sums(), "a look marks nothing"
        nights(opened, clock, 1)
    assert json.loads(_text(place, "site.json"))["id"] == mark.id


def test_a_place_with_images_that_nobody_knows_and_no_marker_is_refused(place: Place, tmp_path: Path) -> None:
    clock = HandClock(LATER)
    with place.open(clock) as opened:
        nights(opened, clock, 1)
    place.remove("site.json")
    other = second(place, tmp_path / "other")
    assert "NF-DEST-003" in ids(other)
    with other.open(clock) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        with pytest.raises(OtherSite, match="images that are not in the catalog of site OHIO"):
            night.stage_two(opened, record)
    assert "site.json" not in place.sums()


def test_a_rebuilt_site_keeps_its_id_with_and_without_a_copy_of_the_catalog(
    place: Place, nightferry: Command
) -> None:
    clock = HandClock(LATER)
    with place.open(clock) as opened:
        nights(opened, clock, 1)
        mark = opened.mark()
        deliver_catalog(opened, place.name, clock.now())
    for _ in range(2):
        shutil.rmtree(place.site.home / "catalog")
        new = place.site.home / "catalog"
        ran = nightferry(place.site.file, "catalog", "rebuild", "--copy", place.name, "--to", new, "--json")
        assert ran.code in (0, 3), ran.out
        with place.open(clock) as opened:
            assert opened.mark() == mark
            assert len(opened.catalog.all(SiteRecord)) == 1
        assert "NF-DEST-003" not in ids(place.site)
        for path in list(place.sums()):
            if path.startswith("catalog/"):
                place.remove(path)


def test_a_lost_catalog_that_was_begun_again_is_told_to_rebuild(place: Place, nightferry: Command) -> None:
    clock = HandClock(LATER)
    with place.open(clock) as opened:
        nights(opened, clock, 1)
    shutil.rmtree(place.site.home / "catalog")
    (place.site.home / "catalog").mkdir()
    ran = nightferry(place.site.file, "verify", "--json")
    assert (ran.code, f"catalog rebuild --copy {place.name}" in ran.error["hint"]) == (2, True)


def test_a_garbled_marker_is_refused_and_not_written_over(place: Place) -> None:
    clock = HandClock(LATER)
    with place.open(clock) as opened:
        nights(opened, clock, 1)
    place.plant("site.json", b"{}")
    with place.open(clock) as opened:
        record = night.stage_one(opened, BACK_GROUP)
        with pytest.raises(OtherSite, match="does not name its site"):
            night.stage_two(opened, record)
    assert _text(place, "site.json") == b"{}"


def test_a_key_that_may_only_write_marks_a_place_and_never_over_a_marker(
    make_site: MakeSite, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NF_TEST_ACCESS", WRITER_KEYS[0])
    monkeypatch.setenv("NF_TEST_SECRET", WRITER_KEYS[1])
    site, clock, prefix = make_site(copies=()), HandClock(LATER), seaweed.prefix()
    bucket = toml.bucket(f"s3://{seaweed.bucket}/{prefix}", seaweed.endpoint)
    site.write_file(copies=("cloud",), more=KEEP_1 + bucket)
    place = Place(site, "cloud", server=seaweed, prefix=prefix)
    with site.open(clock) as opened:
        nights(opened, clock, 1)
        assert json.loads(_text(place, "site.json"))["id"] == opened.mark().id
        place.plant("site.json", b"somebody's")
    with site.open(clock) as opened:
        nights(opened, clock, 1)
    assert _text(place, "site.json") == b"somebody's"


def test_expire_at_the_place_of_another_removes_nothing_and_goes_on_elsewhere(make_site: MakeSite) -> None:
    site = make_site(copies=("folder", "tape"), more=KEEP_1)
    clock = HandClock(LATER)
    with site.open(clock) as opened:
        nights(opened, clock, 2)
        (site.objects / "site.json").write_text('{"format": 1, "site": "OHIO", "id": "abc"}')
    with site.open(clock) as opened:
        done = run_expire(opened)
        assert done.exit_code == 20
        assert {(row.copy.destination, row.fate) for row in done.copies if row.fate != "kept"} == {
            ("folder", "failed"),
            ("tape", "expired"),
        }
