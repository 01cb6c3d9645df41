"""Files that are not what they seem: inode numbers used again, sizes that lie, names that come and go, servers away."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nightferry.errors import ConfigError, StoreUnreadable
from nightferry.image import writer
from nightferry.image.attributes import letters
from nightferry.image.index import IndexRow
from nightferry.image.writer import ImageSummary, ImageWriter
from nightferry.model.stores import Tolerate
from nightferry.progress import QUIET, Cancel
from nightferry.source import files
from nightferry.source.files import FilesSource
from nightferry.staging.adoption import state_of
from nightferry.transfer.direct import DirectWriter
from tests.imaging import content, gnu_extract, gnu_tar, open_image, output, write_image, write_source
from tests.support.disks import ext4, small_disk
from tests.support.fuse_disk import fuse_disk, fuse_tree
from tests.support.fuse_server import Node
from tests.support.image_check import check_image

MIB = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    path.mkdir()
    return path


Mounted = Callable[..., Path]


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Mounted]:
    """Mounts what it is given at ``store``."""
    with ExitStack() as stack:
        yield lambda **names: stack.enter_context(fuse_disk(tmp_path / "store", **names))


def image_of(store: Path, to: Path | None = None) -> tuple[Path, ImageSummary, dict[bytes, IndexRow]]:
    path = (to or store.parent) / "i.tar"
    path.unlink(missing_ok=True)
    summary = write_source(path, FilesSource(store))
    image = open_image(path, summary)
    check_image(image)
    return path, summary, {row.path: row for row in image.index}


def image_while(store: Path, to: Path, during: Callable[[], None]) -> tuple[Path, dict[bytes, IndexRow]]:
    """An image; ``during`` runs while its first large file is copied."""

    class Meddling(DirectWriter):
        done = False

        def copy_from(self, fd, offset, length, hasher=None):  # type: ignore[no-untyped-def]
            if not self.done:
                self.done = True
                during()
            return super().copy_from(fd, offset, length, hasher)

    def fill(image: ImageWriter) -> None:
        FilesSource(store).write(image, progress=QUIET, cancel=Cancel(), subject="SG1/priv1")

    path = to / "i.tar"
    write_image(path, fill, Meddling)
    return path, {row.path: row for row in open_image(path).index}


class TestLinks:
    def test_an_inode_number_used_again_is_another_file(self, tmp_path: Path) -> None:
        with ext4(tmp_path, 32 * MIB) as disk:
            for folder in ("a", "m", "z"):
                (disk / folder).mkdir()
            (disk / "a/msg").write_bytes(b"old content!")
            os.link(disk / "a/msg", disk / "z/old")
            (disk / "m/big").write_bytes(bytes(3 * MIB))
            numbers = []

            def replace() -> None:
                numbers.append((disk / "a/msg").stat().st_ino)
                (disk / "a/msg").unlink()
                (disk / "z/old").unlink()
                (disk / "z/n1").write_bytes(b"new content!")
                os.link(disk / "z/n1", disk / "z/n1b")
                numbers.append((disk / "z/n1").stat().st_ino)

            # ext4 gives the number out again; the walk lists "z" only afterwards.
            path, rows = image_while(disk, tmp_path, replace)
            assert numbers[0] == numbers[1]
        assert rows[b"z/n1"].type == "file"
        assert (rows[b"z/n1b"].type, rows[b"z/n1b"].link_target) == ("hardlink", b"z/n1")
        to = gnu_extract(path, tmp_path / "x")
        assert output("cat", to / "a/msg") == b"old content!"
        assert output("cat", to / "z/n1") == output("cat", to / "z/n1b") == b"new content!"

    def test_a_file_that_is_written_between_its_names_is_stored_again(
        self, store: Path, tmp_path: Path
    ) -> None:
        (store / "a").write_bytes(b"first")
        (store / "b big").write_bytes(bytes(3 * MIB))
        os.link(store / "a", store / "c")
        path, rows = image_while(store, tmp_path, lambda: void((store / "a").write_bytes(b"second")))
        assert (rows[b"c"].type, rows[b"c"].outcome) == ("file", "whole")
        to = gnu_extract(path, tmp_path / "x")
        assert (output("cat", to / "a"), output("cat", to / "c")) == (b"first", b"second")

    @pytest.mark.skipif(os.geteuid() != 0, reason="devices need root")
    def test_links_among_what_is_no_file_are_links(self, store: Path, tmp_path: Path) -> None:
        os.symlink("no/where", store / "symlink1")
        os.mkfifo(store / "fifo1")
        os.mknod(store / "device1", 0o20600, os.makedev(1, 3))
        os.setxattr(store / "fifo1", "trusted.x", b"1")
        for kind in ("symlink", "fifo", "device"):
            os.link(store / f"{kind}1", store / f"{kind}2", follow_symlinks=False)
        path, summary, rows = image_of(store)
        assert summary.outcomes.whole == 6
        to = gnu_extract(path, tmp_path / "x")
        for kind in ("symlink", "fifo", "device"):
            assert (rows[f"{kind}2".encode()].type, rows[f"{kind}2".encode()].link_target) == (
                "hardlink", f"{kind}1".encode(),
            )  # fmt: skip
            found = output("stat", "-c", "%i %h %F %t,%T %N", to / f"{kind}1", to / f"{kind}2").splitlines()
            assert found[0].split(b"'")[0] == found[1].split(b"'")[0]
            assert found[0].split()[1] == b"2"
        assert os.readlink(to / "symlink2") == "no/where"

    def test_a_symbolic_link_replaced_under_its_number_is_another_one(self, tmp_path: Path) -> None:
        with ext4(tmp_path, 32 * MIB) as disk:
            os.symlink("one", disk / "a")
            os.link(disk / "a", disk / "y", follow_symlinks=False)
            (disk / "m").write_bytes(bytes(3 * MIB))

            def replace() -> None:
                (disk / "a").unlink()
                (disk / "y").unlink()
                os.symlink("two", disk / "y")
                os.link(disk / "y", disk / "y2", follow_symlinks=False)

            (disk / "y2").touch()
            (disk / "y2").unlink()
            _, rows = image_while(disk, tmp_path, replace)
        assert (rows[b"y"].type, rows[b"y"].link_target) == ("symlink", b"two")


def void(_: object) -> None:
    """For a lambda whose result nobody wants."""


class TestSizesThatLie:
    @pytest.mark.parametrize(("size", "announced"), [(5, 0), (5, 3), (MIB - 1, 0), (MIB, 0), (3 * MIB + 7, 100),
                                                     (3 * MIB + 7, 2 * MIB + 1)])  # fmt: skip
    def test_what_is_longer_than_announced_is_stored_as_read(
        self, mounted: Mounted, tmp_path: Path, size: int, announced: int
    ) -> None:
        data = os.urandom(size)
        mounted(f=Node(data, announced=announced), after=Node(b"x"))
        path, summary, rows = image_of(tmp_path / "store")
        assert (rows[b"f"].outcome, rows[b"f"].size, summary.outcomes.changed) == ("changed", size, 1)
        assert "longer than the size it announces" in rows[b"f"].note
        (tmp_path / "right").write_bytes(output("cat", tmp_path / "store/f"))
        output("cmp", tmp_path / "right", gnu_extract(path, tmp_path / "x") / "f")
        assert (tmp_path / "right").read_bytes() == data == content(open_image(path), b"f")

    def test_a_file_without_an_end_is_cut_and_the_store_goes_on(
        self, mounted: Mounted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writer, "MAX_BEYOND_BYTES", 5 * MIB)
        mounted(f=Node(endless=True, announced=10), g=Node(b"after"))
        _, _, rows = image_of(tmp_path / "store")
        assert (rows[b"f"].outcome, rows[b"f"].size) == ("changed", 5 * MIB + 10)
        assert rows[b"g"].outcome == "whole"

    def test_a_file_of_the_kernel_is_stored_as_read(self, tmp_path: Path) -> None:
        assert os.stat("/proc/version").st_size == 0
        write_source(tmp_path / "i.tar", FilesSource("/proc/version"))
        assert gnu_tar("-xOf", tmp_path / "i.tar", "version") == output("cat", "/proc/version")
        row = open_image(tmp_path / "i.tar").index.lookup(b"version")
        assert row is not None
        assert row.outcome == "changed"

    def test_a_small_file_that_comes_short_is_not_filled_with_zeros(
        self, mounted: Mounted, tmp_path: Path
    ) -> None:
        mounted(f=Node(b"four", announced=4096))
        path, _, rows = image_of(tmp_path / "store")
        assert (rows[b"f"].outcome, rows[b"f"].size) == ("changed", 4)
        assert output("cat", gnu_extract(path, tmp_path / "x") / "f") == b"four"


class TestGoneAndUnreadable:
    @pytest.mark.parametrize(
        "code", [errno.ESTALE, errno.ENOTCONN, errno.EIO, errno.ETIMEDOUT, errno.EHOSTDOWN]
    )
    @pytest.mark.parametrize("call", ["lookup", "open", "read"])
    def test_a_server_that_is_away_makes_files_unreadable(
        self, mounted: Mounted, tmp_path: Path, code: int, call: str
    ) -> None:
        mounted(a=Node(b"a"), f=Node(b"f", fails={call: code}), z=Node(b"z"))
        _, summary, rows = image_of(tmp_path / "store")
        assert (rows[b"f"].outcome, rows[b"f"].note) == ("unreadable", os.strerror(code))
        assert (summary.outcomes.whole, summary.outcomes.vanished) == (2, 0)

    @pytest.mark.parametrize(
        ("call", "code"),
        # (A readdir that answers ENOENT is the end of the directory to the C library.)
        [
            (call, code)
            for call in ("opendir", "readdir")
            for code in (errno.ESTALE, errno.ENOTCONN, errno.EIO)
        ]
        + [("opendir", errno.EACCES), ("opendir", errno.ENOENT)],
    )
    def test_a_directory_that_cannot_be_listed_makes_the_store_partial(
        self, mounted: Mounted, tmp_path: Path, code: int, call: str
    ) -> None:
        mounted(d=Node(names={"lost": Node(b"x")}, fails={call: code}), z=Node(b"z"))
        _, summary, rows = image_of(tmp_path / "store")
        assert (rows[b"d"].type, rows[b"d"].outcome) == ("directory", "unreadable")
        assert rows[b"z"].outcome == "whole"
        assert summary.outcomes.unlisted == 1
        anything = Tolerate(vanished="any", changed="any", unreadable="any")
        assert state_of(summary.outcomes, anything) == "partial"

    def test_a_name_that_is_listed_and_not_found_has_not_vanished(
        self, mounted: Mounted, tmp_path: Path
    ) -> None:
        mounted(d=Node(names={"f": Node(b"f", fails={"lookup": errno.ENOENT}), "g": Node(b"g")}))
        _, summary, rows = image_of(tmp_path / "store")
        assert rows[b"d/f"].outcome == "unreadable"
        assert "its directory lists it" in rows[b"d/f"].note
        assert (summary.outcomes.vanished, summary.outcomes.unreadable) == (0, 1)

    def test_a_name_is_not_called_vanished_when_its_directory_cannot_be_asked(
        self, mounted: Mounted, tmp_path: Path
    ) -> None:
        gone = Node(b"f", fails={"lookup": errno.ENOENT})
        # One listing asks twice: for the names, and for what comes behind them.
        mounted(d=Node(names={"f": gone}, fails={"readdir": errno.EIO}, fails_after=2))
        _, _, rows = image_of(tmp_path / "store")
        assert rows[b"d/f"].outcome == "unreadable"
        assert "cannot be listed any more: Input/output error" in rows[b"d/f"].note

    def test_a_name_that_is_back_at_the_end_is_read(
        self, store: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (store / "f").write_bytes(b"1")
        (store / "g").write_bytes(b"2")
        really = files.add_path

        def save(image, parent, name, path, entry, pulse):  # type: ignore[no-untyped-def]
            if name == b"f" and not (store / "f~").exists():
                (store / "f").rename(store / "f~")
            elif name == b"g":
                (store / "f").write_bytes(b"saved")
            really(image, parent, name, path, entry, pulse)

        monkeypatch.setattr(files, "add_path", save)
        path, _, rows = image_of(store)
        assert rows[b"f"].outcome == "whole"
        assert content(open_image(path), b"f") == b"saved"

    def test_a_tree_removed_while_it_is_read_has_vanished(self, store: Path, tmp_path: Path) -> None:
        (store / "a").mkdir()
        (store / "a/1").write_bytes(bytes(2 * MIB))
        (store / "a/2").write_bytes(b"2")
        (store / "a/3").mkdir()
        _, rows = image_while(store, tmp_path, lambda: void(output("rm", "-r", store / "a")))
        assert [rows[name].outcome for name in (b"a/1", b"a/2", b"a/3")] == ["whole", "vanished", "vanished"]

    @pytest.mark.parametrize("becomes", ["file", "symlink", "directory"])
    def test_a_directory_replaced_before_it_is_opened_is_taken_for_what_it_is(
        self, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, becomes: str
    ) -> None:
        (store / "d").mkdir()
        (store / "d/old").touch()
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere/secret").touch()
        really = files._open

        def replace(name: bytes, flags: int = 0, parent: int | None = None) -> int:
            if name == b"d" and (store / "d/old").exists():
                output("rm", "-r", store / "d")
                if becomes == "file":
                    (store / "d").write_bytes(b"now a file")
                elif becomes == "symlink":
                    (store / "d").symlink_to(tmp_path / "elsewhere")
                else:
                    (store / "d").mkdir()
                    (store / "d/new").touch()
            return really(name, flags, parent) if flags else really(name, parent=parent)

        monkeypatch.setattr(files, "_open", replace)
        _, _, rows = image_of(store)
        assert rows[b"d"].type == becomes
        assert set(rows) == {b".", b"d", *([b"d/new"] if becomes == "directory" else [])}
        assert all(row.outcome == "whole" for row in rows.values())

    def test_a_store_whose_server_is_away_may_be_tried_again(self, tmp_path: Path) -> None:
        away = Node(names={}, fails={"lookup": errno.ESTALE})
        top = Node(names={"d": away}, fails={"opendir": errno.ESTALE})
        with fuse_tree(tmp_path / "store", top) as store:
            with pytest.raises(StoreUnreadable, match="Stale file handle"):
                write_source(tmp_path / "i.tar", FilesSource(store))
            with pytest.raises(StoreUnreadable, match="Stale file handle"):
                FilesSource(store / "d").estimate()
            with pytest.raises(ConfigError, match="does not exist"):
                FilesSource(store / "none").estimate()


class TestWhateverRaises:
    @pytest.mark.parametrize("error", [ValueError("odd"), OverflowError("large"), RuntimeError("\udcff")])
    @pytest.mark.parametrize("where", ["add_path", "read_attributes"])
    def test_one_odd_file_never_stops_a_store(
        self, store: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, where: str
    ) -> None:
        (store / "a").touch()
        (store / "odd").touch() if where == "add_path" else (store / "odd").mkdir()
        (store / "z").touch()
        really = getattr(files, where)

        def fail(*arguments):  # type: ignore[no-untyped-def]
            odd = arguments[2] == b"odd" if where == "add_path" else b"/odd" in os.fsencode(
                os.readlink(f"/proc/self/fd/{arguments[0]}")
            )  # fmt: skip
            if odd:
                raise error
            return really(*arguments)

        monkeypatch.setattr(files, where, fail)
        _, summary, rows = image_of(store)
        assert rows[b"odd"].outcome == "unreadable"
        assert rows[b"odd"].note.startswith(type(error).__name__)
        assert (rows[b"a"].outcome, rows[b"z"].outcome) == ("whole", "whole")
        assert summary.outcomes.unreadable == 1


class TestAttributes:
    def test_attributes_that_are_too_large_are_lost_and_the_content_is_kept(
        self, mounted: Mounted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        large = {b"user.%03d" % number: bytes(60_000) for number in range(300)}
        mounted(
            f=Node(b"content", xattrs=large),
            big=Node(bytes(2 * MIB), announced=1, xattrs=large),
            d=Node(names={}, xattrs=large),
            plain=Node(b"x", xattrs={b"user.a": b"1"}),
        )
        path, summary, rows = image_of(tmp_path / "store")
        for name in (b"f", b"d"):
            assert (rows[name].outcome, rows[name].attributes_digest) == ("whole", None)
            assert "extended header" in rows[name].note
        assert rows[b"big"].size == 2 * MIB
        assert rows[b"plain"].attributes_digest is not None
        assert summary.notes == ("3 paths were stored without all attributes, the first: big",)
        to = gnu_extract(path, tmp_path / "x")
        assert output("cat", to / "f") == b"content"
        assert output("getfattr", "--only-values", "-n", "user.a", to / "plain") == b"1"

    @pytest.mark.parametrize("call", ["listxattr", "getxattr"])
    def test_attributes_that_cannot_be_read_are_noted(
        self, mounted: Mounted, tmp_path: Path, call: str
    ) -> None:
        mounted(f=Node(b"content", xattrs={b"user.a": b"1"}, fails={call: errno.EIO}))
        _, summary, rows = image_of(tmp_path / "store")
        assert rows[b"f"].outcome == "whole"
        assert "Input/output error" in rows[b"f"].note
        assert len(summary.notes) == 1


class TestTimes:
    def test_times_far_away_are_kept_exactly(self, tmp_path: Path) -> None:
        far = {
            "2262": "9223372036.854775807", "2262 after": "9223372036.854775808", "2500": "16725225600.000000001",
            "1677": "-9223372036.854775808", "1677 before": "-9223372036.854775809", "1000": "-30610224000.5",
            "half": "-0.5", "last": "9223372036854775807.999999999", "first": "-9223372036854775807.25",
        }  # fmt: skip
        with small_disk(tmp_path / "store", 4 * MIB), small_disk(tmp_path / "x", 4 * MIB):
            for name, seconds in far.items():
                whole, _, fraction = seconds.partition(".")
                sign = -1 if seconds.startswith("-") else 1
                ns = int(whole) * 10**9 + sign * int(fraction.ljust(9, "0"))
                (tmp_path / "store" / name).write_bytes(b"x")
                os.utime(tmp_path / "store" / name, ns=(0, ns))
            path, _, rows = image_of(tmp_path / "store")
            for name in far:
                word = output("stat", "-c", "%.9Y", tmp_path / "store" / name)
                ns = rows[name.encode()].mtime_ns
                sign = b"-" if ns < 0 else b""
                assert b"%s%d.%09d\n" % (sign, abs(ns) // 10**9, abs(ns) % 10**9) == word
            to = gnu_extract(path, tmp_path / "x", "--warning=no-timestamp")
            for name in far:
                words = output("stat", "-c", "%.9Y", tmp_path / "store" / name, to / name).split()
                assert words[0] == words[1], name


class TestFlags:
    def test_inode_flags_are_those_of_lsattr(self, tmp_path: Path) -> None:
        with ext4(tmp_path, 32 * MIB) as disk:
            (disk / "d").mkdir()
            for name, flags in (("f", "+dA"), ("frozen", "+i"), ("log", "+a"), ("d", "+D"), ("plain", "+")):
                if name != "d":
                    (disk / name).write_bytes(b"x")
                if flags != "+":
                    output("chattr", flags, disk / name)
            try:
                _, _, rows = image_of(disk, tmp_path)
            finally:
                output("chattr", "-ia", disk / "frozen", disk / "log")
            shown = {
                name: set(letters(rows[name.encode()].flags)) for name in ("f", "frozen", "log", "d", "plain")
            }
        assert shown == {"f": set("dA"), "frozen": {"i"}, "log": {"a"}, "d": {"D"}, "plain": set()}


def deep(top: Path, depth: int) -> Iterator[int]:
    """Makes a chain of directories ``d``; gives each one's descriptor, valid until the next."""
    fd = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(b"d", dir_fd=fd)
        inner = os.open(b"d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
        yield fd
    os.close(fd)


class TestDepth:
    def test_four_thousand_levels_with_few_descriptors(self, store: Path, tmp_path: Path) -> None:
        for number, fd in enumerate(deep(store, files.MAX_DEPTH)):
            if number % 500 == 499:
                for name in (b"a", b"z"):
                    leaf = os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=fd)
                    os.write(leaf, b"%d" % number)
                    os.close(leaf)
        try:
            before = len(os.listdir("/proc/self/fd"))
            most = 0
            really = files.add_path

            def count(*arguments):  # type: ignore[no-untyped-def]
                nonlocal most
                most = max(most, len(os.listdir("/proc/self/fd")))
                really(*arguments)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(files, "add_path", count)
                path, summary, rows = image_of(store)
            assert FilesSource(store).estimate().files == len(rows) == files.MAX_DEPTH + 1 + 16
            assert summary.outcomes.unreadable == 0
            assert most - before < files.KEPT_OPEN + 24
            listed = set(gnu_tar("-tf", path).splitlines())
            find = output("find", store, "-mindepth", "1", "-printf", "%P/%y\\n").splitlines()
            assert {b"./" + line[:-2] for line in find} | {b"."} == {
                b"./" + name.rstrip(b"/") if name != b"./" else b"."
                for name in listed
                if b".nightferry" not in name
            }
        finally:
            output("rm", "-r", store)

    def test_deeper_than_that_makes_the_store_partial(
        self, store: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files, "MAX_DEPTH", 5)
        for _ in deep(store, 6):
            pass
        _, summary, rows = image_of(store)
        assert rows[b"d/d/d/d/d/d"].outcome == "unreadable"
        assert summary.outcomes.unlisted == 1

    @pytest.mark.parametrize("moves", ["inside", "away"])
    def test_a_directory_moved_while_it_is_read_is_gone_on_with_or_said(
        self, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: str
    ) -> None:
        monkeypatch.setattr(files, "KEPT_OPEN", 2)
        folder = store / "1/2/3/4/5"
        folder.mkdir(parents=True)
        (folder / "a").write_bytes(bytes(2 * MIB))
        for above in (store / "1/2/z", store / "1/z", store / "z"):
            above.write_bytes(b"z")

        def move() -> None:
            # Seen from below, ".." of the moved directory is not the directory the walk came from any more.
            os.rename(store / "1/2/3", tmp_path / "3" if moves == "away" else store / "1/3")
            if moves == "away":
                os.rename(store / "1/2", store / "1/two")

        _, rows = image_while(store, tmp_path, move)
        assert rows[b"1/2/3/4/5/a"].outcome == rows[b"1/z"].outcome == rows[b"z"].outcome == "whole"
        if moves == "inside":
            assert rows[b"1/2/z"].outcome == "whole"
        else:
            assert (rows[b"1/2/z"].outcome, "moved" in rows[b"1/2/z"].note) == ("unreadable", True)
