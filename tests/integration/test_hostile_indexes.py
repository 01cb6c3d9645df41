"""Indexes that cost more than they weigh, through the verbs that read them: named, refused, and cheap. The kernel says
what a command took."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3

from nightferry.copies.delivery import deliver_catalog
from nightferry.model.catalog_records import RebuildRecord
from nightferry.model.records import CopyRecord
from tests.support import night
from tests.support.command_site import SOURCES
from tests.support.hostile_indexes import HOSTILE, hostile_catalog
from tests.support.measured import COMMAND, Cost, measured
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

MakeSite = Callable[..., SmallSite]
MORE_BYTES = 300 << 20
MORE_S = 10.0


def _lose(site: SmallSite) -> None:
    """Catalog and staging are gone, with all that the cluster knew."""
    shutil.rmtree(site.home / "catalog")
    (site.home / "catalog-cluster.json").unlink()
    shutil.rmtree(site.disk)
    site.disk.mkdir()


def _forge(folder: Path, index: bytes) -> str:
    """Another index beside a copy, and all that speaks of it changed so that it fits. Returns the image's digest."""
    (folder / "index").write_bytes(index)
    digest = blake3((folder / "chunks").read_bytes() + index).hexdigest()
    more = {"index_bytes": len(index), "index_digest": blake3(index).hexdigest()}
    for name, said in (("meta.json", more), ("copy.json", {})):
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_bytes()) | {"digest": digest} | said))
    return digest


def _cheap(cost: Cost, sound: Cost) -> bool:
    return cost.memory_bytes < sound.memory_bytes + MORE_BYTES and cost.cpu_s < sound.cpu_s + MORE_S


QUICK = ("dictionary_bomb", "many_row_groups")
"""The others go the same way; each is refused by itself in tests/unit/image/test_image_guard.py."""


@pytest.mark.parametrize(
    "hostile", [pytest.param(each, marks=() if each in QUICK else pytest.mark.soak) for each in HOSTILE]
)
def test_a_hostile_index_is_refused_by_every_verb_and_costs_little(make_site: MakeSite, hostile: str) -> None:
    site = make_site(copies=("folder",))
    clock = HandClock()
    with site.open(clock) as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
    _lose(site)
    first, second = sorted((site.objects / "images").iterdir())
    rebuild = ("catalog", "rebuild", "--copy", "folder", "--json", "--to")
    sound = measured(site.file, *rebuild, site.home / "sound")
    assert sound.ran.code == 0, sound.ran
    digest = _forge(first, HOSTILE[hostile]())

    # The catalog is gone: the copy is left out, the other one is there.
    cost = measured(site.file, *rebuild, site.home / "catalog")
    assert cost.ran.code == 3, cost.ran
    assert first.name in " ".join(cost.ran.document["notes"])
    assert cost.ran.document["added"] == [second.name]
    assert _cheap(cost, sound)

    # A catalog that a rebuild made knows the image: what its copy's record says, somebody else may have written.
    shutil.rmtree(site.home / "catalog")
    shutil.copytree(site.home / "sound", site.home / "catalog")
    (site.home / "catalog" / "indexes" / f"{first.name}.parquet").unlink()
    with site.open(clock) as opened:
        image = opened.catalog.image(first.name)
        copy = next(c for c in opened.catalog.all(CopyRecord) if c.image == first.name)
        size = (first / "index").stat().st_size
        opened.catalog.append(image.model_copy(update={"digest": digest, "index_bytes": size}))
        opened.catalog.append(copy.model_copy(update={"digest": digest}))
        (rebuilt,) = opened.catalog.all(RebuildRecord)
        opened.catalog.append(rebuilt.model_copy(update={"accepted": True}))
    restored = site.home / "restored"
    cost = measured(site.file, "restore", "store", "SG1/a", "--to", restored, "--json")
    assert cost.ran.code == 30, cost.ran
    assert first.name in cost.ran.error["message"]
    assert not restored.exists() or not list(restored.iterdir())
    assert _cheap(cost, sound)
    cost = measured(site.file, "verify", "--copy", "folder", "--json")
    assert cost.ran.code == 30, cost.ran
    (wrong,) = [each for each in cost.ran.document["copies"] if each["error"]]
    assert wrong["image"] == first.name
    assert _cheap(cost, sound)


def test_a_hostile_copy_of_the_catalog_is_refused_and_costs_little(make_site: MakeSite) -> None:
    site = make_site(copies=("folder",))
    clock = HandClock()
    with site.open(clock) as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
        deliver_catalog(opened, "folder", clock.now())
    _lose(site)
    rebuild = ("catalog", "rebuild", "--copy", "folder", "--json", "--to")
    sound = measured(site.file, *rebuild, site.home / "sound")
    assert (sound.ran.code, sound.ran.document["added"]) == (0, [])
    (copy,) = (site.objects / "catalog").iterdir()
    copy.write_bytes(hostile_catalog(copy.read_bytes()))
    cost = measured(site.file, *rebuild, site.home / "catalog")
    assert cost.ran.code == 3, cost.ran
    assert f"{copy.name} is refused" in " ".join(cost.ran.document["notes"])
    assert len(cost.ran.document["added"]) == 2, "from the copies themselves"
    assert _cheap(cost, sound)


def test_a_long_index_is_spooled_and_a_rebuild_that_reads_it_ends_when_it_is_told_to(
    make_site: MakeSite,
) -> None:
    """8 GiB of nothing cost their maker nothing; what is read of them goes to a file of ours, which leaves no name."""
    site = make_site(copies=("folder",))
    with site.open(HandClock()) as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
    _lose(site)
    first = min((site.objects / "images").iterdir())
    with (first / "index").open("r+b") as file:
        file.truncate(8 << 30)
    said = json.loads((first / "meta.json").read_bytes()) | {"index_bytes": 8 << 30}
    (first / "meta.json").write_text(json.dumps(said))
    state = site.home / "state"
    words = ["--site", site.file, "catalog", "rebuild", "--copy", "folder", "--to", site.home / "catalog"]
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words],
        env={
            "PYTHONPATH": str(SOURCES),
            "PATH": "/usr/bin:/bin",
            "NIGHTFERRY_STATE": str(state),
            "TMPDIR": "/tmp",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    with process:
        try:
            while process.poll() is None and not _spools(process.pid, state / "tmp"):
                time.sleep(0.02)  # a real process is polled
            process.send_signal(signal.SIGTERM)
            begun = time.monotonic()
            assert process.wait(30) == 128 + signal.SIGTERM, process.stderr and process.stderr.read()
            assert time.monotonic() - begun < 5
        finally:
            process.kill()
    assert not list((state / "tmp").iterdir())


def _spools(pid: int, folder: Path) -> bool:
    """Whether the process has written much to a file without a name in the folder."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if os.readlink(link).startswith(f"{folder}/nightferry-") and os.stat(link).st_size > 64 << 20:
                return True
        except FileNotFoundError:
            continue
    return False


def test_what_a_catalog_recorded_itself_is_read_without_a_process_apart(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its digest proves it: a restore of one's own copies starts nothing."""
    from nightferry.copies import side_files
    from nightferry.image import guard

    site = make_site(copies=("folder",))
    asked: list[str] = []
    monkeypatch.setattr(side_files, "require_proved", lambda content, kind, name, cancel: asked.append(name))
    with site.open(HandClock()) as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
        image = opened.catalog.images("SG1", "a")[0]
        (site.home / "catalog" / "indexes" / f"{image.image}.parquet").unlink()
        shutil.rmtree(site.disk)
        site.disk.mkdir()
        assert side_files.side_files(opened, image).index
    assert asked == []
    assert guard.require_proved is not side_files.require_proved
