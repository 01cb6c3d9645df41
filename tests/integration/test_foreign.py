"""Others' files below a destination of ours: still there, the same by sha256sum, whatever we do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nightferry.copies.delivery import deliver_catalog
from nightferry.progress import QUIET, Cancel
from nightferry.retention import expire
from nightferry.site.opened import OpenSite
from tests.servers.seaweed import Seaweed
from tests.servers.sshd import Sshd
from tests.support import toml
from tests.support.command_site import Command
from tests.support.night import nights
from tests.support.small_site import HandClock, SmallSite

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("bucket_keys")]

MakeSite = Callable[..., SmallSite]
DAY = timedelta(days=1)
KEEP_1 = '[retention]\nkeep_last = 1\nat_most = "95 %"\n'
LATER = datetime(2040, 3, 1, 21, 0, tzinfo=UTC)
"""Long after everything that a test writes: nothing is too young to be removed."""
SHAPED = "20390101-TEX-BACK-1.SG1.a.L0"
FOREIGN = {
    "images/holiday/2024.jpg": b"jpg" * 999,
    "images/.cache/x": b"cached",
    "images/loose.bin": b"loose",
    f"images/{SHAPED}/data": b"named as an image of ours",
    "catalog/holiday.parquet": b"no catalog",
    "catalog/zzz": b"last by name",
    "elsewhere/readme": b"beside it all",
}
TOLD = {"images/holiday", "images/.cache", "images/loose.bin", f"images/{SHAPED}"}


@dataclass
class Place:
    """A destination as others see it: files below a folder, or objects below a prefix."""

    site: SmallSite
    name: str
    root: Path | None = None
    server: Seaweed | None = None
    prefix: str = ""

    def plant(self, path: str, data: bytes) -> None:
        if self.server is not None:
            self.server.client().put_object(Bucket=self.server.bucket, Key=f"{self.prefix}/{path}", Body=data)
            return
        assert self.root is not None
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(data)

    def remove(self, path: str) -> None:
        if self.server is not None:
            self.server.client().delete_object(Bucket=self.server.bucket, Key=f"{self.prefix}/{path}")
        else:
            assert self.root is not None
            (self.root / path).unlink()

    def sums(self) -> dict[str, str]:
        """Path → what ``sha256sum`` says of it."""
        if self.root is not None:
            command = ["find", ".", "-type", "f", "-exec", "sha256sum", "{}", "+"]
            done = subprocess.run(command, cwd=self.root, capture_output=True, check=True, text=True)
            return {line[66:].removeprefix("./"): line[:64] for line in done.stdout.splitlines()}
        assert self.server is not None
        found = {}
        for key in self.server.keys_below(self.prefix):
            body = self.server.client().get_object(Bucket=self.server.bucket, Key=key)["Body"].read()
            done = subprocess.run(["sha256sum"], input=body, capture_output=True, check=True)
            found[key.removeprefix(f"{self.prefix}/")] = done.stdout.split()[0].decode()
        return found

    def open(self, clock: HandClock) -> OpenSite:
        return self.site.open(clock)


REMOTE = """
[[destinations]]
name = "remote"
kind = "fsspec"
url = "{url}"
options = {{ {options} }}
"""


@pytest.fixture(
    params=[
        "folder",
        pytest.param("sftp", marks=pytest.mark.xdist_group("sshd")),
        pytest.param("s3", marks=pytest.mark.xdist_group("seaweed")),
    ]
)
def place(request: pytest.FixtureRequest, make_site: MakeSite) -> Place:
    if request.param == "folder":
        site = make_site(copies=("folder",), more=KEEP_1)
        return Place(site, "folder", site.objects)
    site = make_site(copies=())
    if request.param == "sftp":
        sshd: Sshd = request.getfixturevalue("sshd")
        root = sshd.folder() / "copies"
        options = ", ".join(f'{key} = "{value}"' for key, value in sshd.options.items())
        more = KEEP_1 + REMOTE.format(url=sshd.url(root), options=options)
        site.write_file(copies=("remote",), more=more)
        return Place(site, "remote", root)
    server: Seaweed = request.getfixturevalue("seaweed")
    prefix = server.prefix()
    bucket = toml.bucket(f"s3://{server.bucket}/{prefix}", server.endpoint)
    site.write_file(copies=("cloud",), more=KEEP_1 + bucket)
    return Place(site, "cloud", server=server, prefix=prefix)


def run_expire(opened: OpenSite, **options: Any) -> expire.Expiry:
    return expire.expire(opened, progress=QUIET, cancel=Cancel(), **options)


def told(done: expire.Expiry) -> set[str]:
    return {row.orphan.path for row in done.foreign}


def test_others_files_are_told_and_stay_whatever_is_done(
    place: Place, nightferry: Command, tmp_path: Path
) -> None:
    clock = HandClock(LATER)
    with place.open(clock) as opened:
        nights(opened, clock, 1)
        first = opened.catalog.images("SG1", "a")[0].image
        within = {
            f"images/{first}/notes.txt": b"mine, in your folder",
            f"images/{first}/deep/data": b"mine too",
        }
        for path, data in (FOREIGN | within).items():
            place.plant(path, data)
        before = {path: place.sums()[path] for path in FOREIGN | within}
        nights(opened, clock, 2)
        for _ in range(5):
            deliver_catalog(opened, place.name, clock.now())
            clock.advance(DAY)
        foreseen = run_expire(opened, dry_run=True)
        expected = TOLD | {f"images/{first}/notes.txt"}
        expected |= {f"images/{first}/deep" if place.root else f"images/{first}/deep/data"}
        assert told(foreseen) == expected
        assert foreseen.orphans == []
        done = run_expire(opened)
        assert (told(done), done.orphans, done.exit_code) == (expected, [], 0)
        after = place.sums()
        assert {path: after[path] for path in before} == before
        assert {path for path in after if path.startswith(f"images/{first}/")} == set(within)
        assert sum(path.startswith("catalog/catalog-") for path in after) == 3
        again = run_expire(opened)
        assert (told(again), [row.fate for row in again.copies]) == (expected, ["kept", "kept"])
        nights(opened, clock, 1)
    rebuilt = nightferry(
        place.site.file, "catalog", "rebuild", "--copy", place.name, "--to", tmp_path / "new", "--json"
    )
    assert rebuilt.document["images"] >= 2
    after = place.sums()
    assert {path: after[path] for path in before} == before


def test_orphans_of_ours_go_and_count_in_the_implausible_share(place: Place) -> None:
    """What a put that was cut off leaves is removed by its first side file, and only where the catalog knows it."""
    clock = HandClock(LATER)
    with place.open(clock) as opened:
        nights(opened, clock, 1)
        known = opened.catalog.images("SG1", "a")[0]
        copy = opened.catalog.copies(known.image)[0]
        names = [f"2039010{day}-TEX-BACK-1.SG1.a.L0" for day in range(1, 10)]
        mark = opened.mark()
        for name in names:
            said = {"image": name, "site": mark.site, "id": mark.id, "run": name.split(".")[0], "epoch": 1}
            place.plant(f"images/{name}/origin.json", json.dumps(said).encode())
            place.plant(f"images/{name}/data", b"half")
        unknown = run_expire(opened)
        assert told(unknown) == {f"images/{name}" for name in names}
        assert {row.why for row in unknown.foreign} == {"the catalog knows no copy of it there"}
        begun = {"state": "writing", "location": {}, "started": LATER - 400 * DAY}
        for name in names:
            opened.catalog.append(copy.model_copy(update={**begun, "image": name}))
        opened.file.retention.__dict__["at_most"] = 0.5
        refused = run_expire(opened, dry_run=True).refused
        assert refused is not None
        assert "9 of 11 copies" in refused.message
        assert "9 orphans among them" in refused.message
        opened.file.retention.__dict__["at_most"] = 0.95
        done = run_expire(opened)
        assert {row.orphan.path for row in done.orphans} == {f"images/{name}" for name in names}
    left = {path.split("/")[1] for path in place.sums() if path.startswith("images/")}
    assert left.isdisjoint(names)
    assert len(left) == 2


@pytest.mark.parametrize("proof", [("copy.json", "meta.json"), ("meta.json",), ()])
def test_a_copy_of_before_expires_by_the_digest_on_record_and_else_stays(
    place: Place, proof: tuple[str, ...]
) -> None:
    clock = HandClock(LATER)
    with place.open(clock) as opened:
        nights(opened, clock, 1)
        old = opened.catalog.images("SG1", "a")[0].image
        place.remove(f"images/{old}/origin.json")
        for name in {"copy.json", "meta.json"} - set(proof):
            place.remove(f"images/{old}/{name}")
        nights(opened, clock, 1)
        before = place.sums()
        done = run_expire(opened)
        (row,) = (row for row in done.copies if row.image.image == old)
        copy = opened.catalog.copies(old)[0]
        there = {path for path in place.sums() if path.startswith(f"images/{old}/")}
        if proof:
            assert (row.fate, copy.state, there) == ("expired", "expired", set())
        else:
            assert (row.fate, copy.state, done.exit_code) == ("failed", "verified", 20)
            assert "no proof that it is this site's" in row.note
            assert there == {path for path in before if path.startswith(f"images/{old}/")}


def test_parts_of_others_are_not_aborted(seaweed: Seaweed, make_site: MakeSite) -> None:
    site = make_site(copies=())
    prefix = seaweed.prefix()
    bucket = toml.bucket(f"s3://{seaweed.bucket}/{prefix}", seaweed.endpoint)
    site.write_file(copies=("cloud",), more=KEEP_1 + bucket)
    clock, client = HandClock(LATER), seaweed.client()
    begun = []
    with site.open(clock) as opened:
        nights(opened, clock, 1)
        for path in ("images/holiday/film", f"images/{SHAPED}/data", ".nightferry-checklist"):
            key = f"{prefix}/{path}"
            begun.append(client.create_multipart_upload(Bucket=seaweed.bucket, Key=key)["UploadId"])
            client.upload_part(Bucket=seaweed.bucket, Key=key, UploadId=begun[-1], PartNumber=1, Body=b"part")
        done = run_expire(opened)
        assert done.orphans == []
        assert {f"images/{SHAPED}/data", "images/holiday/film"} <= told(done)
    left = client.list_multipart_uploads(Bucket=seaweed.bucket, Prefix=prefix)["Uploads"]
    assert sorted(upload["UploadId"] for upload in left) == sorted(begun)


def test_a_folder_of_an_image_that_is_a_link_is_not_followed(make_site: MakeSite, tmp_path: Path) -> None:
    site = make_site(copies=("folder",), more=KEEP_1)
    clock = HandClock(LATER)
    with site.open(clock) as opened:
        nights(opened, clock, 1)
        copy = opened.catalog.images("SG1", "a")[0]
        moved = tmp_path / "moved"
        shutil.copytree(site.objects / "images" / copy.image, moved)
        (site.objects / "images" / SHAPED).symlink_to(moved)
        assert f"images/{SHAPED}" in told(run_expire(opened))
        assert os.path.islink(site.objects / "images" / SHAPED)
    assert (moved / "data").exists()


def test_others_files_on_the_back_disk_stay_when_a_night_clears_up(make_site: MakeSite) -> None:
    """Drafts and images are ours only by their whole names, and where we would have put them."""
    site = make_site(copies=("folder",))
    clock = HandClock(LATER)
    with site.open(clock) as opened:
        nights(opened, clock, 1)
        others = {
            "home/alice/.tmp-notes": b"a draft of hers",
            "SG1/a/.tmp-notes": b"another",
            f"home/alice/{SHAPED}.tar.partial": b"not where it would be",
            f"SG1/b/{SHAPED}.tar.damaged": b"of another store",
            f"SG1/a/{SHAPED}.tar.damaged": b"what is left of an image that nobody knows",
        }
        for path, data in others.items():
            (site.disk / path).parent.mkdir(parents=True, exist_ok=True)
            (site.disk / path).write_bytes(data)
        ours = site.disk / "SG1" / "a" / ".tmp-4711-0123456789abcdef"
        half = site.disk / "SG1" / "a" / f"{SHAPED}.tar.partial"
        for left in (ours, half):
            left.write_bytes(b"cut off")
        nights(opened, clock, 1)
    assert {path: (site.disk / path).read_bytes() for path in others} == others
    assert not ours.exists()
    assert not half.exists()


def test_a_link_that_leads_nowhere_is_listed_and_left_alone(make_site: MakeSite) -> None:
    site, clock = make_site(copies=("folder",)), HandClock(LATER)
    with site.open(clock) as opened:
        nights(opened, clock, 1)
        (site.objects / "images" / "dangling").symlink_to("/nonexistent")
        done = run_expire(opened)
    assert done.errors == {}
    assert [row.orphan.path for row in done.foreign] == ["images/dangling"]
    assert (site.objects / "images" / "dangling").is_symlink()
