"""What the source kept of odd files comes back: flags, far times, names of one inode, deep trees."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightferry.image.index import IndexRow
from nightferry.progress import Quiet
from nightferry.restore.extract import extract
from nightferry.restore.tree import RestoreReport, TargetTree
from nightferry.restore.walk import OPEN_FOLDERS, remove_tree
from nightferry.source.files import MAX_DEPTH, FilesSource
from tests.imaging import open_image, output, write_source
from tests.support.disks import ext4, small_disk

MIB = 1 << 20
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts, devices, inode flags")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    path.mkdir()
    return path


def image_of(store: Path, image: Path) -> list[IndexRow]:
    summary = write_source(image, FilesSource(store))
    return list(open_image(image, summary).index)


def restored(
    image: Path, to: Path, *paths: bytes, privileged: bool = False, progress: Quiet | None = None
) -> RestoreReport:
    """Restores everything, or ``paths``."""
    reader = open_image(image)
    rows = [row for row in reader.index if not paths or row.path in paths]
    with TargetTree(to, privileged=privileged) as tree:
        return extract(reader, rows, tree, progress=progress or Quiet())


def flags(top: Path) -> list[bytes]:
    """``lsattr``'s flags and names below a directory, without how the file system stores it."""
    lines = output(
        "sh", "-c", 'cd "$1" && lsattr -Rd . && find . -mindepth 1 -exec lsattr -d {} +', "sh", top
    )
    return sorted(line.replace(b"e", b"-", 1) for line in lines.splitlines())


class TestFlags:
    @pytest.fixture
    def flagged(self, tmp_path: Path) -> Iterator[Path]:
        with ext4(tmp_path, 32 * MIB, "source") as disk:
            (disk / "lost+found").rmdir()
            (disk / "frozen").mkdir()
            for name in ("plain", "nodump", "frozen/file", "log", "a"):
                (disk / name).write_bytes(name.encode())
            os.link(disk / "a", disk / "b")
            os.link(disk / "a", disk / "frozen/c")
            for how, name in (
                ("+dA", "nodump"),
                ("+a", "log"),
                ("+i", "a"),
                ("+i", "frozen/file"),
                ("+iD", "frozen"),
            ):
                output("chattr", how, disk / name)
            yield disk
            output("chattr", "-R", "-ia", disk)

    def test_they_come_back_as_lsattr_shows_them(self, tmp_path: Path, flagged: Path) -> None:
        image_of(flagged, tmp_path / "i.tar")
        with ext4(tmp_path, 32 * MIB, "target") as target:
            report = restored(tmp_path / "i.tar", target / "x", privileged=True)
            try:
                assert (report.losses, report.refused) == ((), ())
                assert flags(target / "x") == flags(flagged)
                links = output(
                    "stat", "-c", "%i %h", *(target / "x" / name for name in ("a", "b", "frozen/c"))
                )
                assert len(set(links.splitlines())) == 1
                assert links.splitlines()[0].endswith(b" 3")
            finally:
                output("chattr", "-R", "-ia", target / "x")

    def test_what_freezes_a_file_needs_privileged_and_is_listed(self, tmp_path: Path, flagged: Path) -> None:
        image_of(flagged, tmp_path / "i.tar")
        with ext4(tmp_path, 32 * MIB, "target") as target:
            report = restored(tmp_path / "i.tar", target / "x")
            shown = dict(line.split()[::-1] for line in flags(target / "x"))
            assert shown[b"./nodump"].replace(b"-", b"") == b"dA"
            assert not any({*b"ia"} & {*found} for found in shown.values())
        assert dict(report.losses) == {
            b"log": "inode flags a: needs --privileged",
            b"a": "inode flags i: needs --privileged",
            b"frozen/file": "inode flags i: needs --privileged",
            b"frozen": "inode flags i: needs --privileged",
        }

    def test_what_a_file_system_does_not_know_is_listed_and_the_rest_is_set(
        self, tmp_path: Path, flagged: Path
    ) -> None:
        output("chattr", "+Sd", flagged / "plain")
        image_of(flagged, tmp_path / "i.tar")
        with small_disk(tmp_path / "x", 4 * MIB):
            report = restored(tmp_path / "i.tar", tmp_path / "x", b"plain", privileged=True)
            assert dict(report.losses) == {b"plain": "inode flags S"}
            assert output("lsattr", tmp_path / "x/plain").split()[0].replace(b"-", b"") == b"d"


class TestTimes:
    def test_times_far_away_come_back_or_are_listed(self, store: Path, tmp_path: Path) -> None:
        far = {"a": 2**63, "b": -(2**63) - 1, "c": 2**62 * 10**9 + 5}
        with (
            small_disk(store, 4 * MIB),
            small_disk(tmp_path / "memory", 4 * MIB),
            ext4(tmp_path, 32 * MIB) as disk,
        ):
            (store / "d").mkdir()
            for name, ns in far.items():
                (store / name).write_bytes(b"x")
                os.utime(store / name, ns=(0, ns))
            os.utime(store / "d", ns=(0, 2**63))
            image_of(store, tmp_path / "i.tar")
            report = restored(tmp_path / "i.tar", tmp_path / "memory")
            assert report.losses == ()
            for name in (*far, "d"):
                words = output("stat", "-c", "%.9Y", store / name, tmp_path / "memory" / name).split()
                assert words[0] == words[1]
            # ext4 ends in 2446 and begins in 1901.
            report = restored(tmp_path / "i.tar", disk / "x")
            assert report.files == 3
            assert {path for path, what in report.losses if what.startswith("mtime")} == {b"b", b"c"}
            assert output("stat", "-c", "%.9Y", disk / "x/a") == output("stat", "-c", "%.9Y", store / "a")


class TestLinks:
    def test_names_of_one_symbolic_link_fifo_or_device(self, store: Path, tmp_path: Path) -> None:
        os.symlink("no/where", store / "symlink1")
        os.mkfifo(store / "fifo1")
        os.mknod(store / "char1", 0o20600, os.makedev(1, 3))
        kinds = ("symlink", "fifo", "char")
        for kind in kinds:
            os.link(store / f"{kind}1", store / f"{kind}2", follow_symlinks=False)
        image_of(store, tmp_path / "i.tar")
        report = restored(tmp_path / "i.tar", tmp_path / "both", privileged=True)
        assert (report.refused, report.losses, report.links) == ((), (), 4)
        for kind in kinds:
            names = (tmp_path / "both" / f"{kind}1", tmp_path / "both" / f"{kind}2")
            assert len(set(output("stat", "-c", "%i %h %F %t,%T", *names).splitlines())) == 1
        second = tuple(f"{kind}2".encode() for kind in kinds)
        report = restored(tmp_path / "i.tar", tmp_path / "one", *second, privileged=True)
        assert report.refused == ()
        for name in second:
            words = output("stat", "-c", "%F %t,%T %.9Y %a", store / os.fsdecode(name))
            assert output("stat", "-c", "%F %t,%T %.9Y %a", tmp_path / "one" / os.fsdecode(name)) == words
        assert os.readlink(tmp_path / "one/symlink2") == "no/where"

    def test_a_number_used_again_during_the_restore_is_not_linked(self, store: Path, tmp_path: Path) -> None:
        (store / "a").write_bytes(b"ours!")
        os.link(store / "a", store / "b")
        image_of(store, tmp_path / "i.tar")
        with ext4(tmp_path, 32 * MIB) as disk:
            numbers = []

            class Meddling(Quiet):
                def advance(self, subject: str, done_bytes: int, current: str = "") -> None:
                    if current == "b" and not numbers:
                        numbers.append((disk / "x/a").stat().st_ino)
                        (disk / "x/a").unlink()
                        (disk / "x/a").write_bytes(b"other")
                        numbers.append((disk / "x/a").stat().st_ino)

            report = restored(tmp_path / "i.tar", disk / "x", progress=Meddling())
            assert numbers[0] == numbers[1]
            assert dict(report.refused) == {b"b": "it was replaced during the restore"}


class TestDepth:
    def test_four_thousand_levels_come_back_with_few_descriptors(self, tmp_path: Path) -> None:
        with small_disk(tmp_path / "memory", 64 * MIB):
            store, target = tmp_path / "memory/store", tmp_path / "memory/x"
            store.mkdir()
            fd = os.open(store, os.O_RDONLY)
            for number in range(MAX_DEPTH):
                os.mkdir(b"d", 0o700 + number % 8, dir_fd=fd)
                inner = os.open(b"d", os.O_RDONLY, dir_fd=fd)
                os.close(fd)
                fd = inner
                if number % 1000 == 999:
                    leaf = os.open(b"leaf", os.O_CREAT | os.O_WRONLY, dir_fd=fd)
                    os.write(leaf, b"%04d" % number)
                    os.close(leaf)
            os.close(fd)
            most = 0

            class Counting(Quiet):
                def advance(self, subject: str, done_bytes: int, current: str = "") -> None:
                    nonlocal most
                    most = max(most, len(os.listdir("/proc/self/fd")))

            image_of(store, tmp_path / "i.tar")
            before = len(os.listdir("/proc/self/fd"))
            report = restored(tmp_path / "i.tar", target, progress=Counting())
            assert (report.directories, report.files, report.complete) == (MAX_DEPTH + 1, 4, True)
            assert most - before < OPEN_FOLDERS + 8
            found = [output("find", top, "-printf", "%d %y %m %s %T@\\n") for top in (store, target)]
            assert sorted(found[0].splitlines()) == sorted(found[1].splitlines())
            assert len(found[0].splitlines()) == MAX_DEPTH + 5
            texts = [
                output("find", top, "-name", "leaf", "-execdir", "cat", "{}", ";") for top in (store, target)
            ]
            assert {*zip(*[iter(texts[0])] * 4, strict=True)} == {*zip(*[iter(texts[1])] * 4, strict=True)}
            remove_tree(target)
            assert not target.exists()


def test_removing_a_tree_follows_no_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    (tmp_path / "x/a/b").mkdir(parents=True)
    (tmp_path / "x/a/c").mkdir()
    (tmp_path / "x/a/b/link").symlink_to(tmp_path / "kept")
    os.mkfifo(tmp_path / "x/a/fifo")
    remove_tree(tmp_path / "x")
    assert output("find", tmp_path, "-mindepth", "1", "-printf", "%P\\n").split() == [b"kept", b"kept/file"]
