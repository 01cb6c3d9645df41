"""The same forged copies at every kind of destination: left out, and nothing outside the site's places is touched."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from nightferry.catalog.query import Catalog
from nightferry.copies.delivery import deliver_catalog
from nightferry.copies.verify import verify_copies
from nightferry.progress import QUIET, Cancel
from nightferry.retention import expire
from tests.servers.seaweed import Seaweed
from tests.servers.sshd import Sshd
from tests.servers.tgtd import Tgtd
from tests.support import night, toml
from tests.support.command_site import Command
from tests.support.hostile_places import BucketPlace, FilesPlace, Place, TapePlace, iscsi_place, virtual_place
from tests.support.outside import compare_tree
from tests.support.peak import peak_bytes
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

MakeSite = Callable[..., SmallSite]

CANARY = "canary"
_SERVED = pytest.mark.server
KINDS = (
    "folder",
    pytest.param("bucket", marks=[_SERVED, pytest.mark.xdist_group("seaweed")]),
    pytest.param("sftp", marks=[_SERVED, pytest.mark.xdist_group("sshd")]),
    "virtual",
    pytest.param("tgtd", marks=[_SERVED, pytest.mark.xdist_group("tgtd")]),
)


@dataclass
class Attacked:
    """A site with one destination, after a whole night."""

    site: SmallSite
    place: Place
    clock: HandClock
    canary: Path

    def lose(self) -> None:
        """Catalog and staging are gone, with all that the cluster knew."""
        trees = [self.site.home / "catalog", self.site.disk]
        for tree in trees:
            tree.rename(self.site.home / f"lost-{tree.name}")
        (self.site.home / "catalog-cluster.json").unlink()
        self.site.disk.mkdir()

    def around(self) -> list[str]:
        """What lies beside the site, and what the canary sings."""
        beside = sorted(path.name for path in self.site.home.parent.iterdir())
        return [*beside, *(f"{path.name} {path.read_bytes()!r}" for path in sorted(self.canary.iterdir()))]


@pytest.fixture(params=KINDS)
def attacked(
    request: pytest.FixtureRequest, make_site: MakeSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Attacked:
    canary = tmp_path / CANARY
    canary.mkdir()
    for name in ("canary", "canary.tar", "canary.chunks", "canary.meta.json"):
        (canary / name).write_bytes(b"sings")
    site, place = _built(request, make_site, tmp_path, monkeypatch)
    clock = HandClock()
    with site.open(clock) as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
        deliver_catalog(opened, place.destination, clock.now())
    return Attacked(site, place, clock, canary)


def _built(
    request: pytest.FixtureRequest, make_site: MakeSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[SmallSite, Place]:
    match request.param:
        case "folder":
            site = make_site(copies=("folder",))
            return site, FilesPlace("folder", site.objects)
        case "bucket":
            seaweed: Seaweed = request.getfixturevalue("seaweed")
            request.getfixturevalue("bucket_keys")
            site, prefix = make_site(copies=()), seaweed.prefix()
            cloud = toml.bucket(f"s3://{seaweed.bucket}/{prefix}", seaweed.endpoint)
            site.write_file(copies=("cloud",), more=cloud)
            return site, BucketPlace(seaweed, prefix)
        case "sftp":
            sshd: Sshd = request.getfixturevalue("sshd")
            site, folder = make_site(copies=()), sshd.folder() / "copies"
            options = ", ".join(f'{key} = "{value}"' for key, value in sshd.options.items())
            remote = toml.fsspec("remote", sshd.url(folder), f"options = {{ {options} }}\n")
            site.write_file(copies=("remote",), more=remote)
            return site, FilesPlace("remote", folder)
        case "virtual":
            site = make_site(copies=("tape",))
            return site, virtual_place(site.library)
        case _:
            tgtd: Tgtd = request.getfixturevalue("tgtd")
            tgtd.reset(24)
            site = make_site(tape=tgtd.toml, copies=("tape",))
            return site, iscsi_place(tgtd, tmp_path / "locks")


def _says(**fields: Any) -> Callable[[bytes, Path], bytes]:
    def change(text: bytes, canary: Path) -> bytes:
        told = {key: value(canary) if callable(value) else value for key, value in fields.items()}
        return json.dumps(json.loads(text) | told).encode()

    return change


FORGED_RECORDS: dict[str, Callable[[bytes, Path], bytes]] = {
    "path": _says(path=lambda canary: str(canary / "canary.tar")),
    "path upwards": _says(path=lambda canary: f"../../../../../../../../..{canary}/canary.tar"),
    "group": _says(group="../../x"),
    "store": _says(store=lambda canary: str(canary / "canary")),
    "run": _says(run="20261110-../../x"),
    "node": _says(node="a/../../b"),
    "image": _says(image="../../x"),
    "size": _says(size_bytes=-1),
    "types": lambda text, _: b'{"image": [], "run": 7, "size_bytes": true, "digest": {}}',
    "terminal": _says(group="\x1b]0;owned\x07"),
    "not text": lambda text, _: bytes(range(256)),
    "deep": lambda text, _: b"[" * 100_000,
    "number": lambda text, _: b'{"size_bytes": ' + b"9" * 20_000 + b"}",
    "huge": lambda text, _: b" " * (5 << 20) + text,
}
FORGED_COPIES: dict[str, Callable[[bytes, Path], bytes]] = {
    "encoding": _says(encoding="rot13"),
    "encoding type": _says(encoding=["zstd"]),
    "epoch": _says(epoch=-1),
    "epoch type": _says(epoch="1"),
    "image": _says(image="../../x"),
    "image path": _says(image=lambda canary: str(canary / "canary")),
    "size": _says(size_bytes=1 << 70),
    "location": _says(location={"parts": [{"barcode": "../../x"}]}),
    "not text": lambda text, _: b"\xff\xfe",
}


def test_whatever_is_forged_a_rebuild_names_it_and_takes_the_rest(
    attacked: Attacked, nightferry: Command
) -> None:
    site, place = attacked.site, attacked.place
    first, second = place.images()
    around, before = attacked.around(), peak_bytes()
    attacks = [("meta.json", *item) for item in FORGED_RECORDS.items()]
    attacks += [("copy.json", *item) for item in FORGED_COPIES.items()]
    for number, (name, attack, forge) in enumerate(attacks):
        held: list[bytes] = []

        def forged(text: bytes, held: list[bytes] = held, forge: Any = forge) -> bytes:
            held.append(text)
            try:
                return bytes(forge(text, attacked.canary))
            except ValueError:
                return text

        if isinstance(place, TapePlace):
            held_tapes = place.held()
        place.change(first, name, forged)
        to = site.home / f"rebuilt{number}"
        ran = nightferry(site.file, "catalog", "rebuild", "--copy", place.destination, "--to", to, "--json")
        assert ran.code in (0, 3), f"{name} {attack}: {ran.out}{ran.err}"
        assert "\x1b" not in ran.out + ran.err
        known = {image.image for image in Catalog(to, node="n").images()}
        assert second in known, f"{name} {attack}: {ran.out}{ran.err}"
        assert known <= {first, second}
        assert attacked.around() == around, f"{name} {attack}"
        if isinstance(place, TapePlace):
            place.put_back(held_tapes)
        else:
            place.change(first, name, lambda _, held=held: held[0])
    assert peak_bytes() < before + (300 << 20)


@pytest.mark.parametrize("forged", ["record", "swapped records", "swapped indexes", "catalog"])
def test_a_forged_copy_gains_nothing_in_the_nights_after_a_rebuild(
    attacked: Attacked, nightferry: Command, forged: str
) -> None:
    site, place = attacked.site, attacked.place
    first, _ = place.images()
    around = attacked.around()
    match forged:
        case "record":
            place.change(first, "meta.json", lambda text: FORGED_RECORDS["path"](text, attacked.canary))
            place.change_catalogs(lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
        case "swapped records":
            place.swap("meta.json")
            place.change_catalogs(lambda data: bytes(len(data)))
        case "swapped indexes":
            place.swap("index")
            place.change_catalogs(lambda data: data[::-1])
        case _:
            place.change_catalogs(lambda data: data.replace(b"SG1", b"../", 3))
    attacked.lose()
    words = ("--copy", place.destination, "--to", site.home / "catalog", "--json")
    ran = nightferry(site.file, "catalog", "rebuild", *words)
    assert ran.code == 3, ran.out + ran.err
    assert not ran.document["begun_from"], "the changed copy of the catalog is not believed"
    assert nightferry(site.file, "catalog", "accept", "--yes").code == 0
    moved = ("--to", "TEX-ACTV-1", "--ungated", "--reason", "the disk was lost")
    assert nightferry(site.file, "cluster", "move", BACK_GROUP, *moved).code == 0
    for _ in range(2):
        attacked.clock.advance(timedelta(days=1))
        with site.open(attacked.clock) as opened:
            assert night.night(opened, BACK_GROUP).result == "whole"
            expire.expire(opened, reason="a test", progress=QUIET, cancel=Cancel())
            list(verify_copies(opened, progress=QUIET, cancel=Cancel()))
    assert nightferry(site.file, "copy", "--missing", "--to", place.destination).code in (0, 20)
    for store in ("SG1/a", "SG1/b"):
        back = site.home / store.replace("/", "-")
        ran = nightferry(site.file, "restore", "store", store, "--copy", place.destination, "--to", back)
        assert ran.code == 0, ran.out + ran.err
        assert compare_tree(site.store(store), back) == ""
    assert sorted({*attacked.around()} - {*around}) == []
