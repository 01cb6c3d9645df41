"""A tree of files becomes an image, and GNU tar gives the tree back."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nightferry.errors import Cancelled, ConfigError, StoreUnreadable
from nightferry.image.index import IndexRow
from nightferry.image.writer import ImageSummary, ImageWriter
from nightferry.progress import Cancel, Quiet
from nightferry.source import files
from nightferry.source.files import FilesSource
from tests.imaging import content, gnu_extract, open_image, output, write_image, write_source
from tests.support.image_check import check_image

MIB = 1 << 20
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: owners and devices")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    path.mkdir()
    return path


def rows(path: Path) -> dict[bytes, IndexRow]:
    return {row.path: row for row in open_image(path).index}


def image_of(store: Path, **options: object) -> tuple[Path, ImageSummary]:
    path = store.parent / "i.tar"
    return path, write_source(path, FilesSource(store, **options))  # type: ignore[arg-type]


def facts(top: Path) -> bytes:
    """Everything ``find`` and ``getfattr``/``getfacl`` say about a tree, in one text."""
    find = "%P|%y|%m|%U|%G|%T@|%n|%l|%s\\n"
    script = """
        cd "$1"
        find . -type d -printf '%P|%y|%m|%U|%G|%T@\\n' | sort
        find . ! -type d -printf "$2" | sort
        getfattr -hR -d -m '^user' . 2>/dev/null
        getfacl -nRp .
        find . -type f -print0 | sort -z | xargs -0r sha256sum
    """
    return output("sh", "-c", script, "sh", top, find)


def furnish(store: Path) -> None:
    """One of everything a store may hold."""
    raw = os.fsencode(store)
    for name, data in (
        (b"caf\xe9\xff", b"latin"),
        (b"\x1b[31mred\x1b[0m", b"escapes"),
        (b"new\nline", b"two"),
        (b"l" * 255, b"long"),
        (b"empty", b""),
    ):
        Path(os.fsdecode(raw + b"/" + name)).write_bytes(data)
    deep = store / ("a" * 100) / ("b" * 100) / ("c" * 100)
    deep.mkdir(parents=True)
    (deep / "leaf").write_bytes(b"deep")
    (store / "empty dir").mkdir(mode=0o700)
    (store / "big").write_bytes(os.urandom(2 * MIB + 100))
    with (store / "sparse").open("wb") as file:
        file.truncate(20 * MIB)
        file.seek(10 * MIB)
        file.write(b"island")
    (store / "h1").write_bytes(b"linked")
    os.link(store / "h1", store / "h2")
    (store / "soft").symlink_to("no/such/target")
    os.symlink(b"\xff" * 200, raw + b"/soft2")
    os.mkfifo(store / "pipe")
    os.setxattr(store / "h1", "user.colour", b"blue\0\n")
    os.setxattr(store / "empty dir", "user.tag", b"x")
    output("setfacl", "-m", "u:1234:rw,g:77:r", store / "h1")
    output("setfacl", "-d", "-m", "u:1234:rwx", store / "empty dir")
    for number, mtime_ns in enumerate((-(10**12), -1_000_500_000_000, (2**33 + 5) * 10**9, 645_903_343)):
        path = store / f"time{number}"
        path.write_bytes(b"t")
        os.utime(path, ns=(mtime_ns, mtime_ns))
    os.utime(store / "empty dir", ns=(1, 1_234_567_890_123_456_789))
    os.chmod(store / "empty", 0o4711)


@as_root
def test_gnu_tar_gives_the_whole_tree_back(store: Path, tmp_path: Path) -> None:
    furnish(store)
    os.chown(store / "big", 70_000_000, 80_000_000)
    os.mknod(store / "device", 0o20640, os.makedev(1, 300))
    os.chmod(store, 0o2750)
    path, summary = image_of(store)
    check_image(open_image(path, summary))
    to = gnu_extract(path, tmp_path / "x", "--warning=no-timestamp")
    assert facts(to) == facts(store)
    assert output("stat", "-c", "%a %.9Y", to) == output("stat", "-c", "%a %.9Y", store)
    assert output("stat", "-c", "%t,%T %a", to / "device") == b"1,12c 640\n"
    assert (to / "sparse").stat().st_blocks * 512 < MIB


def test_nothing_is_missing_and_nothing_is_extra(store: Path) -> None:
    furnish(store)
    path, summary = image_of(store)
    found = output("find", store, "-printf", "%P\\0").split(b"\0")[:-1]
    assert set(rows(path)) == {name or b"." for name in found}
    not_directories = output("find", store, "!", "-type", "d", "-printf", "x")
    assert summary.files == len(not_directories) == summary.outcomes.whole


def test_a_sparse_file_stays_small(store: Path) -> None:
    with (store / "sparse").open("wb") as file:
        file.truncate(100 * MIB)
    path, summary = image_of(store)
    assert summary.size_bytes < 32 * 1024
    assert content(open_image(path, summary), b"sparse") == bytes(100 * MIB)


def test_a_fifo_without_a_writer_is_stored_and_never_opened(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(store / "pipe", 0o600)
    (store / "plain").write_bytes(b"x")
    opened = []
    original = os.open

    def watch(name, *arguments, **options):  # type: ignore[no-untyped-def]
        opened.append(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(files.os, "open", watch)
    path, _ = image_of(store)
    assert b"plain" in opened
    assert b"pipe" not in opened
    assert rows(path)[b"pipe"].type == "fifo"


def test_a_socket_leaves_a_row_only(store: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(store / "s"))
        path, _ = image_of(store)
    row = rows(path)[b"s"]
    assert (row.type, row.outcome, row.stored) == ("socket", "whole", False)


def test_a_file_deleted_between_scan_and_open_is_vanished(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (store / name).write_bytes(b"x")
    original = files.add_path

    def delete_b(image, parent, name, path, entry, pulse):  # type: ignore[no-untyped-def]
        if name == b"b":
            (store / "b").unlink()
        original(image, parent, name, path, entry, pulse)

    monkeypatch.setattr(files, "add_path", delete_b)
    path, summary = image_of(store)
    row = rows(path)[b"b"]
    assert (row.outcome, row.stored, row.type) == ("vanished", False, "file")
    assert (summary.outcomes.whole, summary.outcomes.vanished) == (2, 1)
    check_image(open_image(path, summary))


@pytest.mark.parametrize("becomes", ["fifo", "symlink", "directory", "file"])
def test_a_file_replaced_between_scan_and_open_is_taken_for_what_it_is(
    store: Path, becomes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store / "f").write_bytes(b"old")
    (store.parent / "secret").write_bytes(b"secret")
    original = files.add_path

    def replace(image, parent, name, path, entry, pulse):  # type: ignore[no-untyped-def]
        (store / "f").unlink()
        match becomes:
            case "fifo":
                os.mkfifo(store / "f")
            case "symlink":
                (store / "f").symlink_to(store.parent / "secret")
            case "directory":
                (store / "f").mkdir()
            case _:
                (store / "f").write_bytes(b"new")
        original(image, parent, name, path, entry, pulse)

    monkeypatch.setattr(files, "add_path", replace)
    path, _ = image_of(store)
    row = rows(path)[b"f"]
    assert (row.type, row.outcome) == (becomes, "whole")
    assert b"secret" not in path.read_bytes().replace(os.fsencode(store.parent / "secret"), b"")


def test_a_growing_source_becomes_an_image_gnu_tar_accepts(store: Path, tmp_path: Path) -> None:
    log = store / "log"
    log.write_bytes(b"x" * (4 * MIB))
    script = "import sys\nwith open(sys.argv[1], 'ab', 0) as f:\n  while True: f.write(b'y' * 5000)"
    writer = subprocess.Popen([sys.executable, "-c", script, log])
    try:
        while log.stat().st_size == 4 * MIB:
            pass
        path, summary = image_of(store)
    finally:
        writer.kill()
        writer.wait()
    row = rows(path)[b"log"]
    assert row.outcome == "changed"
    assert summary.outcomes.changed == 1
    check_image(open_image(path, summary))
    restored = gnu_extract(path, tmp_path / "x") / "log"
    assert restored.stat().st_size == row.size
    assert restored.read_bytes() == log.read_bytes()[: row.size]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_rights_is_unreadable(store: Path) -> None:
    (store / "f").write_bytes(b"x")
    (store / "f").chmod(0)
    assert rows(image_of(store)[0])[b"f"].outcome == "unreadable"


def test_an_unreadable_directory_is_a_row_and_the_rest_goes_on(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store / "a/b").mkdir(parents=True)
    (store / "z").write_bytes(b"z")
    original = files._names

    def refuse(fd):  # type: ignore[no-untyped-def]
        if os.readlink(f"/proc/self/fd/{fd}") == str(store / "a"):
            raise PermissionError(13, "Permission denied")
        return original(fd)

    monkeypatch.setattr(files, "_names", refuse)
    path, summary = image_of(store)
    found = rows(path)
    assert (found[b"a"].type, found[b"a"].outcome, found[b"a"].note) == (
        "directory",
        "unreadable",
        "Permission denied",
    )
    assert found[b"z"].outcome == "whole"
    assert summary.outcomes.unreadable == 1


def test_excludes_are_those_of_git(store: Path) -> None:
    names = ["keep.txt", "a.tmp", "cache/x", "sub/b.tmp", "sub/keep.tmp", "sub/build/y", "build/z"]
    for name in (*names, "keep.tmp\n", "d\nd/z.tmp", "sub1", "sub2/x"):
        (store / name).parent.mkdir(exist_ok=True)
        (store / name).write_bytes(b"x")
    patterns = ["*.tmp", "!keep.tmp", "cache/", "/build", "sub[!0]"]
    path, _ = image_of(store, exclude=patterns)
    stored = {name for name, row in rows(path).items() if row.type == "file"}
    (store / ".gitignore").write_text("\n".join(patterns))
    output("git", "-C", store, "init", "-q")
    kept = output("git", "-C", store, "ls-files", "-z", "--others", "--exclude-standard").split(b"\0")[:-1]
    assert stored == set(kept) - {b".gitignore"}
    assert b"keep.tmp\n" in stored
    assert b"cache" not in rows(path)


def test_a_bad_pattern_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="exclude"):
        FilesSource("/tmp", ["!"])


def test_a_single_file_is_stored_under_its_name(tmp_path: Path) -> None:
    (tmp_path / "one.bin").write_bytes(b"content")
    (tmp_path / "alias").symlink_to("one.bin")
    for name in ("one.bin", "alias"):
        path = tmp_path / f"{name}.tar"
        source = FilesSource(tmp_path / name)
        assert source.estimate().files == 1
        write_source(path, source)
        assert list(rows(path)) == [name.encode()]
        assert content(open_image(path), name.encode()) == b"content"


def test_a_missing_store_is_a_configuration_error_that_names_it(tmp_path: Path) -> None:
    source = FilesSource(tmp_path / "nowhere")
    for call in (source.estimate, lambda: write_source(tmp_path / "i.tar", source)):
        with pytest.raises(ConfigError, match="nowhere does not exist") as caught:
            call()
        assert caught.value.exit_code == 2


def test_a_store_that_cannot_be_read_may_be_tried_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd):  # type: ignore[no-untyped-def]
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "_names", refuse)
    with pytest.raises(StoreUnreadable, match="Input/output error") as caught:
        image_of(store)
    assert caught.value.retryable


def test_a_device_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither"):
        write_source(tmp_path / "i.tar", FilesSource("/dev/null"))


def test_the_description_says_what_was_asked_for() -> None:
    assert FilesSource("/srv/x", ["*.tmp"]).description == {
        "path": "/srv/x",
        "exclude": ["*.tmp"],
    }
    assert FilesSource(b"/srv/\xff").description["path_b64"] == "L3Nydi//"


def test_the_estimate_counts_links_once_and_no_holes(store: Path) -> None:
    (store / "a").write_bytes(b"x" * 100_000)
    os.link(store / "a", store / "b")
    with (store / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    estimate = FilesSource(store).estimate()
    assert (estimate.bytes, estimate.files) == (100_000, 4)


def test_access_times_stay(store: Path) -> None:
    (store / "f").write_bytes(b"x")
    os.utime(store / "f", ns=(5, 10**18))
    image_of(store)
    assert (store / "f").stat().st_atime_ns == 5


def test_ten_thousand_files_in_one_directory(store: Path) -> None:
    for number in range(10_000):
        os.mknod(f"{store}/{number:05d}")
    (store / "07777").write_bytes(b"7777")
    path, summary = image_of(store)
    image = open_image(path, summary)
    assert summary.files == 10_000
    assert content(image, b"07777") == b"7777"
    assert len(list(image.index.prefix(b"077"))) == 100


def test_progress_is_told_in_safe_text_and_a_stop_is_heard(store: Path) -> None:
    (store / "\x1b[31mx").write_bytes(b"y")
    said = []

    class Sink(Quiet):
        def advance(self, subject: str, done_bytes: int, current: str = "") -> None:
            said.append((subject, current))

    def fill(image: ImageWriter) -> None:
        cancel = Cancel()
        FilesSource(store).write(image, progress=Sink(), cancel=cancel, subject="SG1/priv1")
        cancel.set("test")
        with pytest.raises(Cancelled):
            FilesSource(store).write(image, progress=Sink(), cancel=cancel, subject="SG1/priv1")
        raise Cancelled("done")

    with pytest.raises(Cancelled, match="done"):
        write_image(store.parent / "i.tar", fill)
    assert said
    assert all("\x1b" not in current for _, current in said)


def test_the_documented_tar_command_leaves_out_only_our_own_folder(store: Path, tmp_path: Path) -> None:
    (store / "dir/.nightferry").mkdir(parents=True)
    (store / "dir/.nightferry/kept").write_bytes(b"x")
    path, _ = image_of(store)
    to = gnu_extract(path, tmp_path / "x")
    assert sorted(os.listdir(to)) == ["dir"]
    assert (to / "dir/.nightferry/kept").read_bytes() == b"x"
