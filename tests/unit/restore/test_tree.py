"""The writer of restored files. What came out is asked of stat, getfattr, getfacl and cmp."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nightferry.errors import ConfigError, IntegrityError
from nightferry.restore import new_file
from nightferry.restore import tree as tree_module
from nightferry.restore.metadata import ACL_ACCESS, ACL_DEFAULT, Metadata, Owners
from nightferry.restore.new_file import TEMPORARY_PREFIX
from nightferry.restore.tree import Overwrite, TargetTree
from nightferry.restore.walk import OPEN_FOLDERS

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
NOBODY = 65534

ACL_FOR_1234 = bytes.fromhex(
    "02000000"  # version 2
    "01000600ffffffff"  # user::rw-
    "02000400d2040000"  # user:1234:r--
    "04000400ffffffff"  # group::r--
    "10000600ffffffff"  # mask::rw-
    "20000000ffffffff"  # other::---
)
"""As setfacl writes it (linux/posix_acl_xattr.h)."""


def meta(mode: int = 0o644, mtime_ns: int = 1_000_000_000, **more: Any) -> Metadata:
    return Metadata(mode, os.geteuid(), os.getegid(), mtime_ns, **more)


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def run(*argv: str | os.PathLike[str]) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def write(tree: TargetTree, path: bytes, data: bytes = b"new", **more: Any) -> bool:
    metadata = more.pop("metadata", meta())
    return tree.write_file(path, metadata, len(data), [(0, data)], **more)


# names


@pytest.mark.parametrize(
    "path", [b"../x", b"/x", b"", b"a/../x", b"a/./x", b".", b"..", b"a//x", b"a/", b"a\0b", b"a/.."]
)
def test_a_path_that_could_leave_the_target_is_refused_and_named(tmp_path: Path, path: bytes) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with TargetTree(target, overwrite="always") as tree:
        assert not write(tree, path)
        assert not tree.make_symlink(path, meta(), b"t")
        assert not tree.make_fifo(path, meta())
        if path != b".":
            assert not tree.make_directory(path, meta(0o755))
        assert [refused for refused, _ in tree.report().refused] == [path]
    assert names(tmp_path) == ["target"]
    assert names(target) == []


def test_a_symlink_that_was_restored_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    with TargetTree(tmp_path / "t", overwrite="always") as tree:
        assert tree.make_symlink(b"e", meta(), os.fsencode(outside))
        assert not write(tree, b"e/x")
        assert not tree.make_directory(b"e", meta())
        assert not tree.make_directory(b"e/d", meta())
        assert dict(tree.report().refused)[b"e/x"] == "a symbolic link is in the way at e"
    assert names(outside) == []


def test_a_symlink_of_an_earlier_restore_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    with TargetTree(tmp_path / "t") as first:
        assert first.make_symlink(b"e", meta(), os.fsencode(outside))
    with TargetTree(tmp_path / "t", overwrite="always") as second:
        assert not write(second, b"e/x")
        assert [path for path, _ in second.report().refused] == [b"e/x"]
    assert names(outside) == []
    assert os.readlink(tmp_path / "t" / "e") == str(outside)


def test_a_directory_swapped_for_a_symlink_meanwhile_leads_nowhere(tmp_path: Path) -> None:
    target, outside = tmp_path / "t", tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("precious")

    def swap() -> Iterator[tuple[int, bytes]]:
        (target / "d").rename(target / "moved")
        (target / "d").symlink_to(outside)
        yield 0, b"new"

    with TargetTree(target, overwrite="always") as tree:
        tree.write_file(b"d/x", meta(), 3, swap())
        assert not write(tree, b"d2/../d/y")
        assert write(tree, b"other/z")
        assert not write(tree, b"d/y")
    assert (outside / "x").read_text() == "precious"
    assert names(outside) == ["x"]
    assert (target / "moved" / "x").read_text() == "new"


@pytest.fixture
def needs_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its own bit O_TMPFILE is what a kernel or file system that has none takes it for."""
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)


@pytest.mark.usefixtures("needs_names")
def test_a_temporary_file_swapped_meanwhile_is_noticed_and_its_victim_untouched(tmp_path: Path) -> None:
    target, victim = tmp_path / "t", tmp_path / "victim"
    victim.write_text("precious")
    victim.chmod(0o600)

    def swap() -> Iterator[tuple[int, bytes]]:
        (temporary,) = target.iterdir()
        temporary.unlink()
        temporary.symlink_to(victim)
        yield 0, b"new"

    with TargetTree(target) as tree:
        assert not tree.write_file(b"x", meta(0o666), 3, swap())
        assert [path for path, _ in tree.report().refused] == [b"x"]
    assert victim.read_text() == "precious"
    assert stat.S_IMODE(victim.stat().st_mode) == 0o600


def test_a_name_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    def appear() -> Iterator[tuple[int, bytes]]:
        (tmp_path / "x").write_text("theirs")
        yield 0, b"new"

    with TargetTree(tmp_path) as tree:
        assert not tree.write_file(b"x", meta(), 3, appear())
        assert tree.report().skipped == (b"x",)
    assert (tmp_path / "x").read_text() == "theirs"
    assert names(tmp_path) == ["x"]


def test_without_renameat2_a_link_keeps_the_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nightferry.restore import syscalls

    def no_flags(*arguments: object) -> None:
        raise OSError(errno.EINVAL, "no such flag")

    monkeypatch.setattr(syscalls, "_renameat2", no_flags)
    (tmp_path / "taken").write_text("theirs")
    with TargetTree(tmp_path) as tree:
        assert write(tree, b"free")
        assert tree.make_symlink(b"link", meta(), b"free")
        assert not write(tree, b"taken")
    assert names(tmp_path) == ["free", "link", "taken"]
    assert (tmp_path / "free").stat().st_nlink == 1


def test_a_root_below_the_allowed_one_is_reached_without_links(tmp_path: Path) -> None:
    (tmp_path / "allowed").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "allowed" / "e").symlink_to(tmp_path / "outside")
    for root in (tmp_path / "allowed" / "e", tmp_path / "outside", tmp_path / "allowed" / ".." / "outside"):
        with pytest.raises(ConfigError, match="cannot restore into"):
            TargetTree(root, below=tmp_path / "allowed")
    with TargetTree(tmp_path / "allowed" / "a" / "b", below=tmp_path / "allowed") as tree:
        assert names(tmp_path / "allowed") == ["e"]
        assert write(tree, b"x")
    assert (tmp_path / "allowed" / "a" / "b" / "x").read_bytes() == b"new"


def test_a_root_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(ConfigError, match=r"f: not a directory"):
        TargetTree(tmp_path / "f")


# overwriting


def test_never_leaves_what_is_there_and_lists_it(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")
    (tmp_path / "s").symlink_to("dangling")
    with TargetTree(tmp_path) as tree:
        assert not write(tree, b"x")
        assert not write(tree, b"s")
        assert tree.report().skipped == (b"x", b"s")
        assert not tree.report().complete
    assert (tmp_path / "x").read_text() == "old"
    assert os.readlink(tmp_path / "s") == "dangling"


def test_always_gives_the_name_a_new_inode(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("old")
    os.link(victim, tmp_path / "x")
    (tmp_path / "s").symlink_to(victim)
    with TargetTree(tmp_path, overwrite="always") as tree:
        assert write(tree, b"x")
        assert write(tree, b"s")
    assert victim.read_text() == "old"
    assert (tmp_path / "x").read_text() == "new"
    assert not (tmp_path / "s").is_symlink()


def test_older_replaces_only_what_has_an_older_mtime(tmp_path: Path) -> None:
    for name, at in (("older", 5), ("same", 10), ("newer", 11)):
        (tmp_path / name).write_text("there")
        os.utime(tmp_path / name, ns=(0, at * 10**9))
    with TargetTree(tmp_path, overwrite="older") as tree:
        for name in (b"older", b"same", b"newer"):
            write(tree, name, metadata=meta(mtime_ns=10 * 10**9))
        report = tree.report()
    assert (report.kept, report.skipped, report.files) == ((b"same", b"newer"), (), 1)
    assert report.complete
    assert (tmp_path / "older").read_text() == "new"
    assert (tmp_path / "newer").read_text() == "there"


def test_directories_are_never_replaced_nor_replace_anything(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "inner").touch()
    (tmp_path / "f").touch()
    with TargetTree(tmp_path, overwrite="always") as tree:
        assert not write(tree, b"d")
        assert not tree.make_directory(b"f", meta())
        assert not write(tree, b"f/x")
        assert dict(tree.report().refused) == {
            b"d": "a directory is in its place",
            b"f": "something that is not a directory is in the way at f",
            b"f/x": "something that is not a directory is in the way at f",
        }
    assert names(tmp_path / "d") == ["inner"]


def test_an_existing_directory_keeps_its_identity(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir(mode=0o700)
    (tmp_path / "out").mkdir(mode=0o711)
    before = (tmp_path / "in").stat().st_ino
    with TargetTree(tmp_path) as tree:
        assert tree.make_directory(b"in", meta(0o750, mtime_ns=7))
        assert write(tree, b"in/x")
        assert write(tree, b"out/x")
        tree.close_directories()
    after = (tmp_path / "in").stat()
    assert (after.st_ino, stat.S_IMODE(after.st_mode), after.st_mtime_ns) == (before, 0o750, 7)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o711


# content


def test_a_source_that_fails_at_its_end_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")

    def damaged() -> Iterator[tuple[int, bytes]]:
        yield 0, b"x" * 100
        raise IntegrityError("digest does not match")

    with TargetTree(tmp_path, overwrite="always") as tree:
        for path in (b"fresh", b"old"):
            with pytest.raises(IntegrityError):
                tree.write_file(path, meta(), 100, damaged())
        assert tree.report().files == 0
    assert names(tmp_path) == ["old"]
    assert (tmp_path / "old").read_text() == "old"


def test_a_source_error_is_not_taken_for_one_of_the_target(tmp_path: Path) -> None:
    def failing() -> Iterator[tuple[int, bytes]]:
        raise PermissionError("the source")
        yield 0, b""

    with TargetTree(tmp_path) as tree, pytest.raises(PermissionError, match="the source"):
        tree.write_file(b"x", meta(), 1, failing())
    assert names(tmp_path) == []


def test_a_full_target_stops_the_restore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tree_module.os, "pwrite", full)
    with TargetTree(tmp_path) as tree, pytest.raises(ConfigError, match="no space left on device"):
        write(tree, b"x")
    assert names(tmp_path) == []


def test_data_beyond_the_size_is_refused(tmp_path: Path) -> None:
    with TargetTree(tmp_path) as tree:
        assert not tree.write_file(b"x", meta(), 5, [(3, b"abc")])
        assert tree.report().refused == ((b"x", "its data does not fit into its size"),)
    assert names(tmp_path) == []


@pytest.fixture
def large() -> Iterator[bytes]:
    """Bytes of what counts as a large file in these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(new_file, "UNBUFFERED_BYTES", 1 << 20)
        yield os.urandom((5 << 20) + 777)


def in_order(data: bytes, piece: int = 300_000) -> Iterator[tuple[int, bytes]]:
    for at in range(0, len(data), piece):
        yield at, data[at : at + piece]


@pytest.mark.parametrize("overwrite", ["never", "always"])
def test_a_large_file_in_order_is_exact_and_leaves_no_page_cache(
    tmp_path: Path, large: bytes, overwrite: Overwrite
) -> None:
    (tmp_path / "source").write_bytes(large)
    with TargetTree(tmp_path / "t", overwrite=overwrite) as tree:
        assert tree.write_file(b"big", meta(0o640), len(large), in_order(large), in_order=True)
        tree.close_directories()
        assert tree.report().size_bytes == len(large)
    left = run("fincore", "--bytes", "--noheadings", "--output", "RES", tmp_path / "t" / "big")
    assert int(left) == 0
    run("cmp", tmp_path / "source", tmp_path / "t" / "big")
    assert run("stat", "-c", "%a %Y", tmp_path / "t" / "big") == "640 1\n"
    assert names(tmp_path / "t") == ["big"]


def test_a_large_file_whose_source_fails_leaves_nothing(tmp_path: Path, large: bytes) -> None:
    def failing() -> Iterator[tuple[int, bytes]]:
        yield from in_order(large)
        raise IntegrityError("the content is damaged")

    with TargetTree(tmp_path / "t", overwrite="never") as tree:
        with pytest.raises(IntegrityError, match="the content is damaged"):
            tree.write_file(b"big", meta(), len(large), failing(), in_order=True)
        assert names(tmp_path / "t") == []
        assert not tree.write_file(b"short", meta(), len(large) + 1, in_order(large), in_order=True)
        assert not tree.write_file(b"long", meta(), len(large) - 1, in_order(large), in_order=True)
        assert [path for path, _ in tree.report().refused] == [b"short", b"long"]
    assert names(tmp_path / "t") == []


def test_a_target_without_room_for_a_large_file_stops_the_restore(
    tmp_path: Path, large: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> bool:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr("nightferry.transfer.newfile.preallocate", full)
    with TargetTree(tmp_path / "t", overwrite="never") as tree, pytest.raises(ConfigError, match="no space"):
        tree.write_file(b"big", meta(), len(large), in_order(large), in_order=True)
    assert names(tmp_path / "t") == []


def test_holes_stay_holes(tmp_path: Path) -> None:
    size = 100 << 20
    with TargetTree(tmp_path) as tree:
        assert tree.write_file(b"s", meta(), size, [(50 << 20, b"\1" * 4096), (0, b"\2" * 4096)])
        assert tree.report().size_bytes == 8192
    assert int(run("stat", "-c", "%s", tmp_path / "s")) == size
    assert int(run("stat", "-c", "%b", tmp_path / "s")) * 512 <= 64 << 10
    expected = tmp_path / "expected"
    with expected.open("wb") as file:
        file.truncate(size)
    run("dd", "if=/dev/zero", f"of={expected}", "bs=1M", "seek=99", "count=1", "conv=notrunc", "status=none")
    for offset, byte in ((0, b"\2"), (50 << 20, b"\1")):
        with expected.open("r+b") as file:
            file.seek(offset)
            file.write(byte * 4096)
    run("cmp", tmp_path / "s", expected)


def test_large_pieces_are_written_whole(tmp_path: Path) -> None:
    data = os.urandom(9 << 20)
    with TargetTree(tmp_path) as tree:
        assert write(tree, b"big", data)
    (tmp_path / "expected").write_bytes(data)
    run("cmp", tmp_path / "big", tmp_path / "expected")


@pytest.mark.usefixtures("needs_names")
@pytest.mark.parametrize("overwrite", ["never", "always"])
def test_files_that_need_a_name_come_back_the_same(tmp_path: Path, overwrite: Overwrite) -> None:
    with TargetTree(tmp_path, overwrite=overwrite) as tree:
        assert write(tree, b"x")
    assert names(tmp_path) == ["x"]
    assert (tmp_path / "x").read_bytes() == b"new"


@pytest.mark.parametrize("nameless", [True, False])
@pytest.mark.parametrize("point", ["before the name", "while writing"])
def test_a_kill_leaves_no_whole_looking_file(tmp_path: Path, point: str, nameless: bool) -> None:
    program = f"""
import os, signal
from pathlib import Path
from nightferry.restore import tree as t
from nightferry.restore.metadata import Metadata
die = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
def pieces():
    yield 0, b"half"
    if {point!r} == "while writing": die()
    yield 4, b"half"
if {point!r} == "before the name": t.rename_noreplace = os.link = die
if not {nameless}: os.O_TMPFILE = os.O_DIRECTORY
tree = t.TargetTree(Path({str(tmp_path)!r}))
tree.write_file(b"x", Metadata(0o644, 0, 0, 0), 8, pieces())
"""
    killed = subprocess.run([sys.executable, "-c", program], cwd=Path(tree_module.__file__).parents[2])
    assert killed.returncode == -9
    left = list(tmp_path.iterdir())
    assert len(left) == (0 if nameless else 1)
    for file in left:
        assert os.fsencode(file.name).startswith(TEMPORARY_PREFIX)
        assert stat.S_IMODE(file.stat().st_mode) in (0o600, 0o644)
    with TargetTree(tmp_path) as tree:
        assert write(tree, b"x")
    assert (tmp_path / "x").read_bytes() == b"new"


# metadata


@pytest.mark.parametrize(
    ("mtime_ns", "shown"),
    [
        (-1000 * 10**9, "1969-12-31 23:43:20.000000000"),
        (-1_000_500_000_000, "1969-12-31 23:43:19.500000000"),
        ((2**33 + 5) * 10**9, "2242-03-16 12:56:37.000000000"),
        (1_700_000_000_645_903_343, "2023-11-14 22:13:20.645903343"),
    ],
)
def test_times_are_exact_to_the_nanosecond(tmp_path: Path, mtime_ns: int, shown: str) -> None:
    with TargetTree(tmp_path) as tree:
        write(tree, b"f", metadata=meta(mtime_ns=mtime_ns))
        tree.make_symlink(b"s", meta(mtime_ns=mtime_ns), b"f")
        tree.make_fifo(b"p", meta(mtime_ns=mtime_ns))
        tree.make_directory(b"d", meta(0o755, mtime_ns=mtime_ns))
        tree.make_directory(b"d/d", meta(0o755, mtime_ns=mtime_ns))
        write(tree, b"d/d/f")
        tree.close_directories()
        assert tree.report().losses == ()
    for name in ("f", "s", "p", "d", "d/d"):
        line = subprocess.run(
            ["stat", "-c", "%y", tmp_path / name],
            capture_output=True, text=True, check=True, env={"TZ": "UTC", "PATH": os.environ["PATH"]},
        ).stdout  # fmt: skip
        assert line.strip() == f"{shown} +0000", name


def test_name_bytes_are_kept_and_reported_in_base64(tmp_path: Path) -> None:
    name = b"caf\xe9\xff"
    with TargetTree(tmp_path) as tree:
        assert write(tree, name)
        assert not write(tree, name)
        document = json.loads(json.dumps(tree.report().as_json()))
    assert os.listdir(os.fsencode(tmp_path)) == [name]
    assert document["skipped"] == [{"path": "caf\\xe9\\xff", "path_b64": "Y2Fm6f8="}]


def test_user_attributes_and_acls_come_back(tmp_path: Path) -> None:
    attributes = {"user.colour": b"b\0lue", ACL_ACCESS: ACL_FOR_1234}
    with TargetTree(tmp_path) as tree:
        write(tree, b"f", metadata=meta(0o660, xattrs=attributes))
        tree.make_directory(b"d", meta(0o750, xattrs={"user.colour": b"red", ACL_DEFAULT: ACL_FOR_1234}))
        tree.close_directories()
        assert tree.report().losses == ()
    assert "user.colour=0x62006c7565" in run(
        "getfattr", "-d", "-e", "hex", "--absolute-names", tmp_path / "f"
    )
    access = run("getfacl", "-n", "--absolute-names", tmp_path / "f").splitlines()
    assert {"user::rw-", "user:1234:r--", "group::r--", "mask::rw-", "other::---"} <= set(access)
    assert 'user.colour="red"' in run("getfattr", "-d", "--absolute-names", tmp_path / "d")
    assert "default:user:1234:r--" in run("getfacl", "-n", "--absolute-names", tmp_path / "d")
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o660


def test_an_acl_that_the_directory_hands_down_is_taken_away(tmp_path: Path) -> None:
    run("setfacl", "-d", "-m", "u:1234:rwx", tmp_path)
    with TargetTree(tmp_path) as tree:
        write(tree, b"f", metadata=meta(0o640))
        tree.make_directory(b"d", meta(0o750))
        tree.close_directories()
    for name in ("f", "d"):
        assert "1234" not in run("getfacl", "-n", "--absolute-names", tmp_path / name)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o640


@needs_root
def test_owner_mode_and_special_files_come_back(tmp_path: Path) -> None:
    owned = Metadata(0o641, 1234, 4321, 5)
    with TargetTree(tmp_path, privileged=True) as tree:
        write(tree, b"f", metadata=owned)
        tree.make_symlink(b"s", owned, b"/nowhere")
        tree.make_fifo(b"p", owned)
        tree.make_device(b"c", owned, "char", 1, 3)
        tree.make_device(b"b", owned, "block", 7, 9)
        tree.make_directory(b"d", owned)
        tree.close_directories()
        assert tree.report().losses == ()
    lines = run("stat", "-c", "%n %A %u:%g %t:%T", *(tmp_path / name for name in "fspcbd"))
    assert lines.replace(f"{tmp_path}/", "").splitlines() == [
        "f -rw-r----x 1234:4321 0:0",
        "s lrwxrwxrwx 1234:4321 0:0",
        "p prw-r----x 1234:4321 0:0",
        "c crw-r----x 1234:4321 1:3",
        "b brw-r----x 1234:4321 7:9",
        "d drw-r----x 1234:4321 0:0",
    ]


def test_setuid_devices_and_privileged_attributes_need_the_switch(tmp_path: Path) -> None:
    with TargetTree(tmp_path) as tree:
        write(tree, b"su", metadata=meta(0o6755, xattrs={"trusted.t": b"1", "security.capability": b"1"}))
        assert not tree.make_device(b"null", meta(0o666), "char", 1, 3)
        report = tree.report()
    assert stat.S_IMODE((tmp_path / "su").stat().st_mode) == 0o755
    assert names(tmp_path) == ["su"]
    assert report.losses == (
        (b"su", "attribute trusted.t: needs --privileged"),
        (b"su", "attribute security.capability: needs --privileged"),
        (b"su", "setuid and setgid: needs --privileged"),
    )
    assert report.refused == ((b"null", "a device node needs --privileged"),)


@needs_root
def test_with_the_switch_they_come_back(tmp_path: Path) -> None:
    capability = bytes.fromhex("0100000200040000000000000000000000000000")
    with TargetTree(tmp_path, privileged=True) as tree:
        write(tree, b"su", metadata=Metadata(0o6755, 1234, 1234, 0, xattrs={"trusted.t": b"1"}))
        write(tree, b"cap", metadata=meta(0o755, xattrs={"security.capability": capability}))
        assert tree.report().losses == ()
    assert run("stat", "-c", "%a %u", tmp_path / "su").strip() == "6755 1234"
    assert "trusted.t" in run("getfattr", "-d", "-m", "-", "--absolute-names", tmp_path / "su")
    assert os.getxattr(tmp_path / "cap", "security.capability") == capability


def test_an_attribute_that_cannot_be_set_is_a_loss(tmp_path: Path) -> None:
    too_many = {"user.big": b"x" * 70_000, "user.": b"", "user.a\0b": b"", "user.ok": b"1"}
    with TargetTree(tmp_path) as tree:
        assert write(tree, b"f", metadata=meta(xattrs=too_many))
        assert len(tree.report().losses) == 3
    assert os.listxattr(tmp_path / "f") == ["user.ok"]


@needs_root
def test_owners_go_by_name_then_number_and_can_be_mapped() -> None:
    def owner(uname: str, uid: int) -> Metadata:
        return Metadata(0, uid, uid, 0, uname=uname, gname=uname)

    plain, mapped = Owners(), Owners({"alice": "nobody", "7": "77", ":staffers": ":88"})
    assert plain.uid(owner("nobody", 5)) == NOBODY
    assert plain.uid(owner("no-such-user", 5)) == 5
    assert mapped.uid(owner("alice", 5)) == NOBODY
    assert mapped.uid(owner("", 7)) == 77
    assert (mapped.gid(owner("staffers", 7)), mapped.gid(owner("", 7))) == (88, 7)
    for bad in ({"a": ":b"}, {"a": "no-such-user"}, {"": "1"}, {":": ":1"}):
        with pytest.raises(ConfigError, match="cannot map owner"):
            Owners(bad)


@needs_root
def test_without_root_owners_are_losses_and_everything_else_comes_back(tmp_path: Path) -> None:
    target = tmp_path / "t"
    target.mkdir()
    os.chown(target, NOBODY, NOBODY)
    for directory in (tmp_path, *(p for p in tmp_path.parents if len(p.parts) > 2)):
        directory.chmod(0o755)
    program = f"""
import json, os
from pathlib import Path
from nightferry.restore.metadata import Metadata
from nightferry.restore.tree import TargetTree
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
with TargetTree(Path({str(target)!r}), privileged=True) as tree:
    tree.make_directory(b"d", Metadata(0o555, 0, 0, 5))
    tree.write_file(b"d/f", Metadata(0o4751, 0, 0, 5, xattrs={{"user.x": b"1"}}), 1, [(0, b"1")])
    tree.make_symlink(b"d/s", Metadata(0o777, 0, 0, 5), b"f")
    tree.make_fifo(b"d/p", Metadata(0o600, {NOBODY}, {NOBODY}, 5))
    tree.make_device(b"d/c", Metadata(0o600, 0, 0, 5), "char", 1, 3)
    tree.close_directories()
    print(json.dumps(tree.report().as_json()))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(tree_module.__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    owner = f"owner 0:0, is {NOBODY}:{NOBODY}"
    assert report["losses"] == [
        {"path": "d/f", "what": owner},
        {"path": "d/f", "what": "setuid: not without its owner"},
        {"path": "d/s", "what": owner},
        {"path": "d", "what": owner},
    ]
    assert report["refused"] == [{"path": "d/c", "reason": "operation not permitted"}]
    assert run("stat", "-c", "%a %Y", target / "d" / "f").strip() == "751 0"
    assert run("stat", "-c", "%a", target / "d").strip() == "555"


# links


def test_hard_links_are_made_to_files_of_this_restore_only(tmp_path: Path) -> None:
    (tmp_path / "stranger").touch()
    with TargetTree(tmp_path) as tree:
        assert write(tree, b"a/h1", linkable=True)
        assert tree.made(b"a/h1")
        assert tree.make_hardlink(b"b/h2", b"a/h1", 0)
        assert not tree.make_hardlink(b"h3", b"stranger", 0)
        assert tree.report().refused == ((b"h3", "the file it is linked to was not restored"),)
    assert run("stat", "-c", "%i", tmp_path / "a" / "h1") == run("stat", "-c", "%i", tmp_path / "b" / "h2")
    assert names(tmp_path / "b") == ["h2"]


def test_a_file_put_in_the_place_of_a_restored_one_is_not_linked(tmp_path: Path) -> None:
    (tmp_path / "shadow").write_text("secret")
    with TargetTree(tmp_path) as tree:
        write(tree, b"h1", linkable=True)
        os.rename(tmp_path / "shadow", tmp_path / "h1")
        assert not tree.make_hardlink(b"h2", b"h1", 0)
    assert names(tmp_path) == ["h1"]


def test_a_hard_link_over_itself_leaves_no_temporary_name(tmp_path: Path) -> None:
    with TargetTree(tmp_path, overwrite="always") as tree:
        write(tree, b"h1", linkable=True)
        assert tree.make_hardlink(b"h2", b"h1", 0)
        assert tree.make_hardlink(b"h2", b"h1", 0)
    assert names(tmp_path) == ["h1", "h2"]


# looking only


def test_probing_writes_nothing_and_says_what_would_happen(tmp_path: Path) -> None:
    with TargetTree(tmp_path / "missing") as tree:
        assert tree.probe(b"a/b", is_directory=False, mtime_ns=0) == "free"
    assert names(tmp_path) == []
    (tmp_path / "f").touch()
    (tmp_path / "s").symlink_to(".")
    with TargetTree(tmp_path) as tree:
        assert tree.probe(b"f", is_directory=False, mtime_ns=0) == "taken"
        assert tree.probe(b"s/x", is_directory=False, mtime_ns=0) == "refused"
        assert tree.probe(b"f", is_directory=True, mtime_ns=0) == "refused"
        assert tree.probe(b"../f", is_directory=False, mtime_ns=0) == "refused"
        assert tree.probe(b"d/x", is_directory=False, mtime_ns=0) == "free"
    assert names(tmp_path) == ["f", "s"]


def test_deep_paths_need_few_descriptors(tmp_path: Path) -> None:
    deep = b"/".join([b"d"] * 500)
    before = len(os.listdir("/proc/self/fd"))
    with TargetTree(tmp_path) as tree:
        assert write(tree, deep + b"/f")
        assert write(tree, deep + b"/g")
        assert len(os.listdir("/proc/self/fd")) <= before + OPEN_FOLDERS + 2
    assert len(os.listdir("/proc/self/fd")) == before
