"""Images → files. The images here were packed by GNU tar; what came out is compared by cmp, stat and tar."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from blake3 import blake3

from nightferry.errors import Cancelled, IntegrityError
from nightferry.image.format import ImageHeader
from nightferry.image.index import Index, IndexRow
from nightferry.image.index_builder import IndexBuilder
from nightferry.image.reader import ImageReader
from nightferry.image.writer import ImageWriter
from nightferry.progress import Cancel, Quiet
from nightferry.restore import extract as extract_module
from nightferry.restore.extract import extract
from nightferry.restore.tree import Overwrite, TargetTree
from nightferry.transfer.digest import ChunkTable
from nightferry.transfer.direct import DirectWriter
from nightferry.transfer.reading import FileReader
from nightferry.transfer.ring import RingSettings

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


class Counting(FileReader):
    """Counts the bytes that are read."""

    taken = 0

    def read(self, offset: int, length: int) -> bytes:
        self.taken += length
        return super().read(offset, length)

    def stream(self, offset: int, length: int) -> Iterator[memoryview]:
        for piece in super().stream(offset, length):
            self.taken += len(piece)
            yield piece


def rows_of(path: Path) -> dict[bytes, IndexRow]:
    """Index rows of any pax tar, taken from its headers."""
    rows: dict[bytes, IndexRow] = {}
    with FileReader(path) as file:
        reader = ImageReader(file)
        at = 0
        while any(file.read(at, 512)):
            found = reader.member_at(at)
            member = found.member
            payload = file.read(found.payload_offset, found.payload_bytes)
            digest, where, length = blake3(payload).digest(), found.payload_offset, found.payload_bytes
            size, sparse, attributes = member.size, member.segments, member.attributes.digest()
            if member.type == "hardlink":
                first = rows[member.link_target]
                assert first.blake3 is not None
                digest, where, length = first.blake3, first.payload_offset, first.payload_length
                size, sparse, attributes = first.size, first.sparse, first.attributes_digest
            elif member.type != "file":
                digest, where = None, 0
            rows[member.path] = IndexRow(
                member.path, member.type, member.link_target or None, size,
                member.mode, member.uid, member.gid, member.uname, member.gname, member.mtime_ns,
                attributes_digest=attributes, sparse=sparse, offset=at, length=found.end - at,
                payload_offset=where, payload_length=length, blake3=digest,
            )  # fmt: skip
            at = found.end
    return rows


class Image:
    """A tar file opened as an image: with its rows, its index and its chunk table."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = rows_of(path)
        builder = IndexBuilder()
        for row in self.rows.values():
            builder.add(row)
        self.index = Index(builder.finish())
        table = ChunkTable()
        table.update(path.read_bytes())
        self.chunks = table.table()

    def reader(self, path: Path | None = None) -> ImageReader:
        self.file = Counting(path or self.path)
        return ImageReader(self.file, self.chunks, index=self.index)

    def pick(self, *paths: bytes) -> list[IndexRow]:
        return [self.rows[path] for path in paths]


def pack(source: Path, image: Path, *what: str) -> Image:
    subprocess.run(
        [
            "tar", "--format=pax", "--pax-option=delete=atime,delete=ctime,exthdr.name=x",
            "--xattrs", "--acls",
            "--sparse", "--sparse-version=1.0", r"--transform=s,^\./\(.\),\1,rhS",
            "-C", source, "-cf", image, *(what or sorted(os.listdir(source))),
        ],
        check=True,
    )  # fmt: skip
    return Image(image)


def hostile(image: Path, *members: tarfile.TarInfo, data: bytes = b"new") -> Image:
    with tarfile.open(image, "w", format=tarfile.PAX_FORMAT) as tar:
        for member in members:
            member.size = len(data) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(data))
    return Image(image)


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


def run(*argv: str | os.PathLike[str], cwd: Path | None = None) -> str:
    return subprocess.run(argv, cwd=cwd, check=True, capture_output=True, text=True).stdout


def test_a_store_comes_back_as_tar_sees_it(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "a" / "deep").mkdir(parents=True)
    (source / "a" / "deep" / "big").write_bytes(os.urandom(5_000_001))
    (source / "a" / "small").write_bytes(b"10,001 bytes".ljust(10_001, b"."))
    (source / "a" / "empty").touch()
    os.link(source / "a" / "small", source / "a" / "twin")
    (source / "a" / "link").symlink_to("../nowhere")
    Path(os.fsdecode(os.fsencode(source) + b"/caf\xe9\xff")).write_text("latin")
    os.mkfifo(source / "pipe", 0o640)
    run("setfacl", "-m", "u:1234:rw", source / "a" / "small")
    run("setfattr", "-n", "user.colour", "-v", "0x620065", source / "a" / "deep" / "big")
    run("setfattr", "-n", "user.d", "-v", "1", source / "a")
    run("setfacl", "-d", "-m", "u:1234:rw", source / "a" / "deep")
    times = {
        "a/small": -1_000_500_000_000,
        "a/empty": 1_700_000_000_645_903_343,
        "pipe": (2**33 + 5) * 10**9,
        "a/link": -1000 * 10**9,
        "a/deep": 7,
    }
    for name, time_ns in times.items():
        os.utime(source / name, ns=(0, time_ns), follow_symlinks=False)
    (source / "a").chmod(0o2750 if os.geteuid() == 0 else 0o750)
    image = pack(source, tmp_path / "image.tar", ".")
    with TargetTree(target, privileged=True) as tree:
        report = extract(image.reader(), image.index, tree)
    assert report.losses == ()
    assert report.complete
    assert (report.files, report.directories, report.links) == (5, 3, 2)
    compared = subprocess.run(
        ["tar", "--xattrs", "--acls", "-C", target, "-df", image.path], capture_output=True, text=True
    )
    assert compared.returncode == 0, compared.stdout + compared.stderr
    # tar's comparison looks at neither attributes nor names' times to the nanosecond.
    for command, wanted in (
        (["getfattr", "-R", "-P", "-h", "-d", "-e", "hex", "."], b"user.colour=0x620065"),
        (["getfacl", "-R", "-P", "-n", "."], b"user:1234:rw-"),
        (["find", ".", "-printf", r"%p %y %m %U:%G %n %s %T@ %l\n"], b"a/small f"),
    ):
        told = [
            sorted(subprocess.run(command, cwd=root, check=True, capture_output=True).stdout.splitlines())
            for root in (source, target)
        ]
        assert told[0] == told[1]
        assert wanted in b"\n".join(told[0])


def test_a_sparse_file_comes_back_sparse(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    with (source / "s").open("wb") as file:
        file.truncate(100 << 20)
        for at in (8192, 77 << 20):
            file.seek(at)
            file.write(b"data" * 1024)
    image = pack(source, tmp_path / "image.tar")
    assert image.rows[b"s"].sparse is not None
    with TargetTree(target) as tree:
        assert extract(image.reader(), image.index, tree).size_bytes <= 64 << 10
    run("cmp", source / "s", target / "s")
    assert int(run("stat", "-c", "%b", target / "s")) * 512 <= 256 << 10


def test_directories_on_the_way_come_with_it_unless_they_are_there(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "there" / "new").mkdir(parents=True)
    (source / "there" / "new" / "f").touch()
    (target / "there").mkdir(parents=True)
    run("setfacl", "-m", "u:1234:rx", source / "there" / "new")
    for directory, mode, time_ns in ((source / "there" / "new", 0o751, 5), (source / "there", 0o750, 6),
                                     (target / "there", 0o711, 7)):  # fmt: skip
        directory.chmod(mode)
        os.utime(directory, ns=(0, time_ns))
    image = pack(source, tmp_path / "image.tar")
    with TargetTree(target) as tree:
        report = extract(image.reader(), image.pick(b"there/new/f"), tree)
    assert (report.files, report.directories, report.losses) == (1, 0, ())
    made = (target / "there" / "new").stat()
    assert (stat.S_IMODE(made.st_mode), made.st_mtime_ns) == (0o751, 5)
    assert "user:1234:r-x" in run("getfacl", "-n", "-p", target / "there" / "new")
    assert stat.S_IMODE((target / "there").stat().st_mode) == 0o711


def test_only_the_needed_bytes_are_read(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(12):
        (source / f"f{number:02}").write_bytes(os.urandom(1 << 20))
    image = pack(source, tmp_path / "image.tar")
    with TargetTree(tmp_path / "target") as tree:
        report = extract(image.reader(), image.pick(b"f07"), tree)
    assert (report.files, report.size_bytes) == (1, 1 << 20)
    assert image.file.taken <= 4 << 20
    run("cmp", source / "f07", tmp_path / "target" / "f07")


@pytest.mark.parametrize("picked", [(b"h2",), (b"h3", b"h2"), (b"h1", b"h3"), (b"h3", b"h1", b"h2")])
def test_hard_links_come_out_whichever_are_picked(tmp_path: Path, picked: tuple[bytes, ...]) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "h1").write_bytes(os.urandom(50_000))
    run("setfattr", "-n", "user.x", "-v", "1", source / "h1")
    for name in ("h2", "h3"):
        os.link(source / "h1", source / name)
    image = pack(source, tmp_path / "image.tar")
    with TargetTree(target) as tree:
        report = extract(image.reader(), image.pick(*picked), tree)
    assert (report.files, report.links) == (1, len(picked) - 1)
    assert sorted(os.listdir(os.fsencode(target))) == sorted(picked)
    for name in os.listdir(target):
        run("cmp", source / "h1", target / name)
        assert (target / name).stat().st_nlink == len(picked)
        assert os.getxattr(target / name, "user.x") == b"1"


def test_a_link_whose_first_name_is_taken_gets_the_data_itself(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "h1").write_text("image")
    (target / "h1").write_text("theirs")
    os.link(source / "h1", source / "h2")
    image = pack(source, tmp_path / "image.tar")
    with TargetTree(target) as tree:
        report = extract(image.reader(), image.index, tree)
    assert (report.skipped, report.files, report.links) == ((b"h1",), 1, 0)
    assert ((target / "h1").read_text(), (target / "h2").read_text()) == ("theirs", "image")


@pytest.mark.parametrize("apart", [False, True], ids=["one restore", "two restores"])
@pytest.mark.parametrize("overwrite", ["never", "always"])
def test_a_symlink_to_the_outside_is_never_walked(tmp_path: Path, apart: bool, overwrite: Overwrite) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    image = hostile(
        tmp_path / "image.tar",
        entry("e", tarfile.SYMTYPE, str(outside)),
        entry("e/x"),
        entry("e/d", tarfile.DIRTYPE),
    )
    refused: set[bytes] = set()
    for picked in [(b"e",), (b"e/x", b"e/d")] if apart else [(b"e", b"e/x", b"e/d")]:
        with TargetTree(target, overwrite=overwrite) as tree:
            refused |= {path for path, _ in extract(image.reader(), image.pick(*picked), tree).refused}
    assert os.listdir(outside) == []
    assert refused == {b"e/x", b"e/d"}
    assert os.readlink(target / "e") == str(outside)


@pytest.mark.parametrize("overwrite", ["never", "always"])
def test_members_that_lead_outside_are_refused_and_named(tmp_path: Path, overwrite: Overwrite) -> None:
    target = tmp_path / "deep" / "target"
    bad = ["../x", "/tmp/nightferry-x", "a/../../x", "a//b", "./x"]
    image = hostile(tmp_path / "image.tar", entry("good"), *map(entry, bad))
    with TargetTree(target, overwrite=overwrite) as tree:
        report = extract(image.reader(), image.index, tree)
    assert {path for path, _ in report.refused} == {path.encode() for path in bad}
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == [
        "deep", "deep/target", "deep/target/good", "image.tar",
    ]  # fmt: skip
    assert not Path("/tmp/nightferry-x").exists()


def test_collisions_are_listed_before_anything_is_written(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    for name in "abc":
        (source / name).write_text("image")
    (target / "b").write_text("theirs")
    image = pack(source, tmp_path / "image.tar")
    said: list[tuple[str, list[str]]] = []

    class Listening(Quiet):
        def say(self, text: str, subject: str = "") -> None:
            said.append((text, os.listdir(target)))

    with TargetTree(target) as tree:
        report = extract(image.reader(), image.index, tree, progress=Listening())
    assert said == [("1 entry is already there and kept", ["b"])]
    assert (report.skipped, report.files, report.complete) == ((b"b",), 2, False)
    assert (target / "b").read_text() == "theirs"


def test_a_dry_run_writes_nothing_and_says_what_would_happen(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "d").mkdir(parents=True)
    (source / "d" / "f").write_text("12345")
    os.link(source / "d" / "f", source / "d" / "g")
    image = pack(source, tmp_path / "image.tar")
    with TargetTree(target) as tree:
        planned = extract(image.reader(), image.index, tree, dry_run=True)
    assert not target.exists()
    assert image.file.taken == 0
    with TargetTree(target) as tree:
        assert extract(image.reader(), image.index, tree) == planned
    assert (planned.files, planned.directories, planned.links, planned.size_bytes) == (1, 1, 1, 5)


def test_a_flipped_byte_leaves_nothing_and_the_next_copy_goes_on(tmp_path: Path) -> None:
    source, target, damaged = tmp_path / "source", tmp_path / "target", tmp_path / "damaged.tar"
    source.mkdir()
    for name in "abcd":
        (source / name).write_bytes(os.urandom(3 << 20))
    os.link(source / "a", source / "z")
    image = pack(source, tmp_path / "image.tar")
    data = bytearray(image.path.read_bytes())
    data[image.rows[b"c"].payload_offset + (2 << 20)] ^= 1
    damaged.write_bytes(data)
    done: set[bytes] = set()
    with TargetTree(target) as tree:
        with pytest.raises(IntegrityError):
            extract(image.reader(damaged), image.index, tree, done=done)
        assert sorted(os.listdir(target)) == ["a", "b"]
        assert done == {b"a", b"b"}
        report = extract(image.reader(), image.index, tree, done=done)
    assert image.file.taken < 9 << 20
    assert (report.files, report.links, report.skipped) == (4, 1, ())
    for name in "abcdz":
        run("cmp", source / name, target / name)
    assert (target / "a").stat().st_nlink == 2


def test_without_a_chunk_table_the_member_digest_still_stops_damage(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "f").write_bytes(os.urandom(10_001))
    image = pack(source, tmp_path / "image.tar")
    data = bytearray(image.path.read_bytes())
    data[image.rows[b"f"].payload_offset + 10_000] ^= 1
    image.path.write_bytes(data)
    with (
        FileReader(image.path) as file,
        TargetTree(target) as tree,
        pytest.raises(IntegrityError, match="BLAKE3"),
    ):
        extract(ImageReader(file, index=image.index), image.index, tree)
    assert os.listdir(target) == []


def test_a_stop_leaves_whole_files_only(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    for name in "abc":
        (source / name).write_bytes(os.urandom(3 << 20))
    image = pack(source, tmp_path / "image.tar")
    cancel, ended = Cancel(), []

    class Stopping(Quiet):
        def advance(self, subject: str, done_bytes: int, current: str = "") -> None:
            if done_bytes > 4 << 20:
                cancel.set("test")

        def end(self, subject: str, result: str) -> None:
            ended.append(result)

    with TargetTree(target) as tree, pytest.raises(Cancelled):
        extract(image.reader(), image.index, tree, progress=Stopping(), cancel=cancel)
    assert ended == ["cancelled"]
    assert os.listdir(target) == ["a"]
    run("cmp", source / "a", target / "a")


def test_progress_shows_names_that_cannot_harm(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "\x1b[31mred\n").write_text("x" * 100)
    image = pack(source, tmp_path / "image.tar")
    seen: list[tuple[int, str]] = []

    class Watching(Quiet):
        def advance(self, subject: str, done_bytes: int, current: str = "") -> None:
            seen.append((done_bytes, current))

    with TargetTree(tmp_path / "target") as tree:
        extract(image.reader(), image.index, tree, progress=Watching())
    assert seen[-1][0] == 100
    assert all("\x1b" not in current and "\n" not in current for _, current in seen)


def test_what_the_image_does_not_hold_is_said(tmp_path: Path) -> None:
    image = hostile(tmp_path / "image.tar", entry("f"))
    rows = [
        IndexRow(b"gone", "file", outcome="vanished"),
        IndexRow(b"closed", "file", outcome="unreadable", note="permission denied"),
        IndexRow(b"socket", "socket"),
        IndexRow(b"deleted", "file", deleted=True),
        IndexRow(b"odd", "hardlink", link_target=b"pipe", offset=0),
        *image.pick(b"f"),
    ]
    with TargetTree(tmp_path / "target") as tree:
        report = extract(image.reader(), rows, tree)
    assert dict(report.refused) == {
        b"gone": "the image does not hold it: vanished",
        b"closed": "the image does not hold it: unreadable",
        b"odd": "a hard link to something that the image does not hold",
    }
    assert report.losses == ((b"socket", "a socket: the program that listens on it makes it again"),)
    assert os.listdir(tmp_path / "target") == ["f"]


def test_an_image_of_our_own_writer_comes_back(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "d").mkdir(parents=True)
    (source / "d" / "big").write_bytes(os.urandom((2 << 20) + 1))
    with (source / "sparse").open("wb") as file:
        file.truncate(8 << 20)
        file.seek(4 << 20)
        file.write(b"middle")
    os.link(source / "d" / "big", source / "twin")
    (source / "link").symlink_to("d/big")
    run("setfacl", "-m", "u:1234:r", source / "d" / "big")
    os.utime(source / "sparse", ns=(0, -1_000_500_000_000))
    header = ImageHeader(
        image="i", run="r", group="g", store="s", source_kind="files", node="n", nightferry="0",
        started=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip
    writer = ImageWriter(DirectWriter(tmp_path / "image.tar", settings=RingSettings(buffers=4)), header)
    for name in (".", "d", "d/big", "link", "sparse", "twin"):
        path, status = source / name, (source / name).lstat()
        if stat.S_ISREG(status.st_mode):
            with path.open("rb") as file:
                _ = writer.add_link(name.encode(), status) or writer.add_file(name.encode(), file.fileno())
        else:
            target_of = os.fsencode(os.readlink(path)) if path.is_symlink() else b""
            writer.add_other(name.encode(), status, link_target=target_of)
    summary = writer.finish()
    with FileReader(tmp_path / "image.tar") as file, TargetTree(target) as tree:
        reader = ImageReader(file, summary.chunks)
        report = extract(reader, reader.index, tree)
    assert (report.complete, report.losses, report.files, report.directories, report.links) == (
        True,
        (),
        2,
        2,
        2,
    )
    command = ["find", ".", "-printf", r"%p %y %m %U:%G %n %s %T@ %l\n"]
    assert [sorted(run(*command, cwd=source).splitlines())] == [
        sorted(run(*command, cwd=target).splitlines())
    ]
    run("diff", "-r", source, target)
    assert "user:1234:r--" in run("getfacl", "-n", "-p", target / "twin")


@needs_root
@pytest.mark.parametrize("privileged", [False, True])
def test_devices_and_setuid_follow_the_switch(tmp_path: Path, privileged: bool) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    os.mknod(source / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (source / "su").write_text("#!/bin/true")
    (source / "su").chmod(0o4755)
    image = pack(source, tmp_path / "image.tar")
    with TargetTree(target, privileged=privileged) as tree:
        report = extract(image.reader(), image.index, tree)
    mode = stat.S_IMODE((target / "su").stat().st_mode)
    if privileged:
        assert (report.refused, report.losses, mode) == ((), (), 0o4755)
        assert run("stat", "-c", "%t:%T", target / "null").strip() == "1:3"
    else:
        assert report.refused == ((b"null", "a device node needs --privileged"),)
        assert report.losses == ((b"su", "setuid: needs --privileged"),)
        assert mode == 0o755


def test_kill_in_the_middle_leaves_no_wrong_file_and_a_rerun_is_right(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    for name in "abc":
        (source / name).write_bytes(os.urandom(3 << 20))
    image = pack(source, tmp_path / "image.tar")
    (tmp_path / "index").write_bytes(image.index.data)
    program = f"""
import os, signal
from pathlib import Path
from nightferry.image.index import Index
from nightferry.image.reader import ImageReader
from nightferry.image.writer import ImageWriter
from nightferry.restore.extract import extract
from nightferry.restore.tree import Overwrite, TargetTree
from nightferry.progress import Quiet
from nightferry.transfer.reading import FileReader
class Deadly(Quiet):
    def advance(self, subject, done_bytes, current=""):
        if done_bytes > {4 << 20}: os.kill(os.getpid(), signal.SIGKILL)
work = Path({str(tmp_path)!r})
index = Index((work / "index").read_bytes())
reader = ImageReader(FileReader(work / "image.tar"), index=index)
extract(reader, index, TargetTree(work / "target"), progress=Deadly())
"""
    killed = subprocess.run([sys.executable, "-c", program], cwd=Path(extract_module.__file__).parents[2])
    assert killed.returncode == -9
    left = sorted(os.listdir(target))
    assert "a" in left
    assert not {"b", "c"} & set(left)
    run("cmp", source / "a", target / "a")
    with TargetTree(target) as tree:
        report = extract(image.reader(), image.index, tree)
    assert (report.skipped, report.files) == ((b"a",), 2)
    for name in "bc":
        run("cmp", source / name, target / name)
