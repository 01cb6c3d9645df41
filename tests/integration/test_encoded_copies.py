"""A night whose folder copies are compressed: judged by zstd and tar, restored, damaged, made again."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nightferry.copies import verify
from nightferry.copies.stream import describe_location
from nightferry.destination.fsspec import FsspecDestination
from nightferry.errors import IntegrityError
from nightferry.model.records import CopyRecord, ImageRecord
from nightferry.progress import QUIET, Cancel
from nightferry.restore import restore
from nightferry.site.opened import OpenSite
from nightferry.staging import room
from nightferry.staging.images import staged_path
from nightferry.transfer.base import ByteReader
from tests.conftest import needs
from tests.support import night
from tests.support.brought import bring_back
from tests.support.outside import compare_tar, compare_tree, tape_copies
from tests.support.small_site import BACK_GROUP, HandClock, SmallSite

MakeSite = Callable[..., SmallSite]
MIB = 1 << 20
FRAME = 4 * MIB

pytestmark = [needs("zstd"), pytest.mark.server]


@pytest.fixture
def site(make_site: MakeSite) -> SmallSite:
    """Store a shrinks (five frames of numbers), store b does not: noise alone."""
    site = make_site(encode="zstd:1", cartridge="64 MiB")
    lines = random.Random(3)
    with (site.store("SG1/a") / "numbers.txt").open("w") as file:
        while file.tell() < 17 * MIB:
            file.write("".join(f"{lines.getrandbits(64)}\n" for _ in range(20_000)))
    (site.store("SG1/a") / "last.txt").write_text("the last one\n" * 1000)
    (site.store("SG1/b") / "noise").write_bytes(lines.randbytes(2 * MIB))
    return site


def folder_of(site: SmallSite, image: ImageRecord) -> Path:
    return site.objects / "images" / image.image


def images(opened: OpenSite) -> tuple[ImageRecord, ImageRecord]:
    return restore.find_image(opened, "SG1", "a"), restore.find_image(opened, "SG1", "b")


def copy_of(opened: OpenSite, image: ImageRecord, destination: str = "folder") -> CopyRecord:
    opened.catalog.refresh()
    return next(c for c in opened.catalog.copies(image.image) if c.destination == destination)


def decode(data: Path, to: Path) -> Path:
    subprocess.run(["zstd", "-q", "--test", data], check=True)
    subprocess.run(["zstd", "-q", "-d", data, "-o", to], check=True)
    return to


def test_what_shrinks_lies_there_as_zst_and_zstd_and_tar_restore_it(site: SmallSite, tmp_path: Path) -> None:
    with site.open(HandClock()) as opened:
        record = night.night(opened, BACK_GROUP)
        assert (record.state, record.result) == ("ended", "whole")
        image, dense = images(opened)
        folder = folder_of(site, image)
        data = folder / "data.zst"
        assert not (folder / "data").exists()
        assert data.stat().st_size < image.size_bytes * 0.6
        tar = decode(data, tmp_path / "image.tar")
        assert tar.stat().st_size == image.size_bytes
        assert compare_tar(tar, site.store("SG1/a")) == ""
        (tmp_path / "by hand").mkdir()
        untar = ["tar", "-x", "--anchored", "--exclude=.nightferry", "-C", tmp_path / "by hand"]
        with subprocess.Popen(["zstd", "-dc", data], stdout=subprocess.PIPE) as zstd:
            subprocess.run(untar, stdin=zstd.stdout, check=True)
        assert zstd.returncode == 0
        assert compare_tree(site.store("SG1/a"), tmp_path / "by hand") == ""

        copy = copy_of(opened, image)
        assert (copy.state, copy.size_bytes, copy.digest) == ("verified", data.stat().st_size, image.digest)
        assert copy.location["encoding"] == "zstd"
        assert describe_location(copy) == f"images/{image.image}/data.zst"
        meta = json.loads((folder / "meta.json").read_text())
        assert (meta["image"], meta["size_bytes"]) == (image.image, image.size_bytes)
        assert (meta["encoding"], meta["data"]) == ("zstd", "data.zst")
        assert (folder / "chunks").read_bytes() == opened.catalog.chunks(image.image)

        # What does not shrink, and what lies on tape, is the plain tar.
        plain = folder_of(site, dense) / "data"
        assert compare_tar(plain, site.store("SG1/b")) == ""
        assert "encoding" not in json.loads((plain.parent / "meta.json").read_text())
        assert copy_of(opened, dense).size_bytes == dense.size_bytes
        (on_tape,) = [c.data for c in tape_copies(site.library) if c.image == image.image]
        assert compare_tar(on_tape, site.store("SG1/a")) == ""


def test_a_store_comes_back_from_its_encoded_copy(site: SmallSite, tmp_path: Path) -> None:
    with site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
        for image, store in zip(images(opened), ("SG1/a", "SG1/b"), strict=True):
            to = tmp_path / image.store
            done = bring_back(opened, to, copy="folder", image=image)
            assert (done.copy, done.is_complete) == ("folder", True)
            assert compare_tree(site.store(store), to) == ""


class Counted:
    """A reader that counts what is asked of it."""

    def __init__(self, inner: ByteReader, asked: list[int]) -> None:
        self._inner, self._asked = inner, asked

    @property
    def size_bytes(self) -> int:
        return self._inner.size_bytes

    def read(self, offset: int, length: int) -> bytes:
        self._asked.append(length)
        return self._inner.read(offset, length)

    def stream(self, offset: int, length: int) -> Iterator[memoryview]:
        self._asked.append(length)
        return self._inner.stream(offset, length)


def test_one_file_costs_the_seek_table_and_its_own_frames(
    site: SmallSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
        image, _ = images(opened)
        asked: list[int] = []
        really = FsspecDestination.open

        @contextmanager
        def counted(self: FsspecDestination, location: Mapping[str, Any]) -> Iterator[ByteReader]:
            with really(self, location) as reader:
                yield Counted(reader, asked)

        monkeypatch.setattr(FsspecDestination, "open", counted)
        bring_back(opened, tmp_path / "back", ("last.txt",), copy="folder", image=image)
        assert (tmp_path / "back" / "last.txt").read_text() == "the last one\n" * 1000
        assert len(asked) == 2
        assert sum(asked) < 2 * FRAME < (folder_of(site, image) / "data.zst").stat().st_size


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0x10]))


@pytest.mark.parametrize("where", ["frame", "seek table"])
def test_a_flipped_byte_sends_the_restore_to_the_next_copy_and_is_mended(
    site: SmallSite, tmp_path: Path, where: str
) -> None:
    with site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
        image, _ = images(opened)
        data = folder_of(site, image) / "data.zst"
        flip(data, data.stat().st_size - (30 if where == "seek table" else 5_000_000))
        staged_path(opened, image).unlink()
        done = bring_back(opened, tmp_path / "back", image=image)
        assert (done.copy, done.damaged) == ("tape", ("folder",))
        assert compare_tree(site.store("SG1/a"), tmp_path / "back") == ""
        assert copy_of(opened, image).state == "damaged"
        with pytest.raises(IntegrityError):
            verify.verify_copy(opened, copy_of(opened, image), progress=QUIET, cancel=Cancel())

        made = verify.remake_copy(opened, image, "folder", progress=QUIET, cancel=Cancel())
        assert (made.state, made.epoch, made.location["encoding"]) == ("verified", 2, "zstd")
        assert compare_tar(decode(data, tmp_path / "image.tar"), site.store("SG1/a")) == ""


def test_a_tape_copy_is_made_anew_from_an_encoded_one(site: SmallSite, tmp_path: Path) -> None:
    with site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
        image, _ = images(opened)
        staged_path(opened, image).unlink()
        (on_tape,) = [c.data for c in tape_copies(site.library) if c.image == image.image]
        flip(on_tape, 100_000)
        with pytest.raises(IntegrityError):
            verify.verify_copy(opened, copy_of(opened, image, "tape"), progress=QUIET, cancel=Cancel())
        made = verify.remake_copy(opened, image, "tape", progress=QUIET, cancel=Cancel())
        assert (made.state, made.size_bytes) == ("verified", image.size_bytes)
        newest = [c.data for c in tape_copies(site.library) if c.image == image.image][-1]
        assert compare_tar(newest, site.store("SG1/a")) == ""


def test_the_site_may_change_its_mind_and_old_copies_stay_readable(site: SmallSite, tmp_path: Path) -> None:
    with site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP)
        first, _ = images(opened)
    site.write_file(encode="")
    with site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP, new=True)
        room.free_staging(opened, BACK_GROUP, needed_bytes=1 << 50)
        second, _ = images(opened)
        assert second.image != first.image
        assert (folder_of(site, second) / "data").exists()
        for image in (first, second):
            bring_back(opened, tmp_path / image.run, copy="folder", image=image)
            assert compare_tree(site.store("SG1/a"), tmp_path / image.run) == ""
        checked = verify.verify_copies(opened, "folder", sample=0.3, progress=QUIET, cancel=Cancel())
        assert [c.error for c in checked] == [""] * 4


def test_progress_counts_bytes_of_the_image(site: SmallSite) -> None:
    class Sink:
        def __init__(self) -> None:
            self.seen: dict[str, tuple[int | None, list[int]]] = {}

        def begin(self, subject: str, phase: str, total_bytes: int | None = None) -> None:
            self.seen[subject] = (total_bytes, [])

        def advance(self, subject: str, done_bytes: int, current: str = "") -> None:
            self.seen[subject][1].append(done_bytes)

        def end(self, subject: str, result: str) -> None: ...
        def say(self, text: str, subject: str = "") -> None: ...

    sink = Sink()
    with site.open(HandClock()) as opened:
        night.night(opened, BACK_GROUP, sink)
        image, dense = images(opened)
    for name, size in (("SG1/a", image.size_bytes), ("SG1/b", dense.size_bytes)):
        for destination in ("folder", "tape"):
            total, done = sink.seen[f"{name} → {destination}"]
            assert total == size == done[-1]
            assert done == sorted(done)
