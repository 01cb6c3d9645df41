"""Objects at URLs whose drivers can little, lie, or fail."""

from __future__ import annotations

import base64
import errno
import logging
import sys
import traceback
import uuid
from collections.abc import Callable, Iterator
from typing import Any, ClassVar
from urllib.parse import quote

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import register_implementation

from nightferry.destination.fsspec import FsspecDestination
from nightferry.destination.schemes import open_driver
from nightferry.destination.spec import SpecObjects
from nightferry.destination.spec_check import check_objects
from nightferry.errors import ConfigError, DestinationError, MediumDamaged, MediumFull, Unavailable

MIB = 1 << 20


class HurtFileSystem(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A place in memory that does what a test wants of it."""

    protocol = "hurt"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    short_bytes = 0
    words = ""
    kind: ClassVar[Callable[[str], Exception]] = RuntimeError
    behind: BaseException | None = None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.partition("://")[2] if "://" in path else path))

    def __init__(self, password: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.password = password
        if password == "wrong-9c1d":
            raise ValueError(f"cannot log in with {password}")

    def size(self, path: str) -> int:
        return int(super().size(path)) - self.short_bytes

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        if self.words:
            raise self.kind(self.words)
        if self.behind is not None:
            raise FileNotFoundError(path) from self.behind
        return super().ls(path, detail, **options)

    def info(self, path: str, **options: Any) -> Any:
        if self.behind is not None:
            raise FileNotFoundError(path) from self.behind
        return super().info(path, **options)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        raise AssertionError("a driver's cat_file may ignore ranges")


class RenamingFileSystem(HurtFileSystem):
    """The same, with a rename of its own."""

    protocol = "renaming"
    renamed: ClassVar[list[tuple[str, str]]] = []

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        if self.exists(path2):
            raise FileExistsError(path2)
        self.renamed.append((path1, path2))
        self.store[path2] = self.store.pop(path1)


@pytest.fixture(autouse=True)
def _schemes(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (HurtFileSystem, RenamingFileSystem):
        register_implementation(kind.protocol, kind, clobber=True)
        for name in ("short_bytes", "words", "behind"):
            monkeypatch.setattr(kind, name, getattr(kind, name))
    HurtFileSystem.store.clear()
    RenamingFileSystem.renamed.clear()


def objects(scheme: str = "hurt") -> SpecObjects:
    root = uuid.uuid4().hex
    found = SpecObjects(open_driver("cloud", f"{scheme}:///{root}", {}))
    fsspec.filesystem(scheme).mkdirs(f"/{root}")
    return found


def in_store(scheme: str = "hurt") -> list[str]:
    return sorted(path.rpartition("/")[2] for path in fsspec.filesystem(scheme).store)


def test_a_source_that_fails_leaves_no_truncated_object() -> None:
    def pieces() -> Iterator[bytes]:
        yield b"x" * (5 * MIB)
        raise RuntimeError("the source")

    for scheme in ("hurt", "renaming"):
        with pytest.raises(RuntimeError, match="the source"):
            objects(scheme).write("a", pieces())
        assert in_store(scheme) == []


def test_an_object_that_arrived_shorter_is_no_object() -> None:
    HurtFileSystem.short_bytes = 1
    with pytest.raises(Unavailable, match="has 2 bytes there, 3 were sent") as caught:
        objects().write("a", [b"abc"])
    assert caught.value.retryable
    assert in_store() == []


def test_where_objects_are_renamed_none_is_seen_before_it_is_whole() -> None:
    place = objects("renaming")

    def pieces() -> Iterator[bytes]:
        yield b"x" * (5 * MIB)
        assert place.names("images/i") == []
        yield b"y"

    place.publish("images/i", 1, {"data": pieces()}, ("meta.json", b"{}"))
    assert place.names("images/i") == ["data", "meta.json"]
    assert [new.rpartition("/")[2] for _, new in RenamingFileSystem.renamed] == ["data", "meta.json"]


def test_without_a_rename_the_last_object_still_comes_last() -> None:
    place = objects()

    def pieces() -> Iterator[bytes]:
        assert "meta.json" not in place.names("images/i")
        yield b"x"

    place.publish("images/i", 1, {"data": [b"d"], "copy.json": pieces()}, ("meta.json", b"{}"))
    assert place.names("images/i") == ["copy.json", "data", "meta.json"]


def test_ranges_are_read_through_files_whatever_cat_file_does() -> None:
    place = objects()
    place.write("a", [bytes(range(256))])
    assert place.read("a", 250, 100) == bytes(range(250, 256))
    with place.opened("a") as read_at:
        assert read_at(3, 2) + read_at(0, 1) == b"\x03\x04\x00"
    with pytest.raises(MediumDamaged, match="b is not there"):
        place.read("b")


def test_check_says_what_a_driver_can_and_cannot() -> None:
    assert [(f.id, f.severity) for f in check_objects(objects())] == [
        (f"NF-FS-00{number}", "note") for number in (4, 5, 6, 7)
    ]
    assert [(f.id, f.severity) for f in check_objects(objects("renaming"))] == [
        (f"NF-FS-00{number}", "note") for number in (5, 7)
    ]
    assert in_store() == in_store("renaming") == []


def test_a_librarys_words_are_told_without_our_secret_and_without_its_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NF_TEST_PASSWORD", "hunter2-77aa")
    HurtFileSystem.words = "login as hunter2-77aa refused at https://user:hunter2-77aa@host/"
    place = SpecObjects(open_driver("cloud", "hurt:///r", {"password": "env:NF_TEST_PASSWORD"}))
    with pytest.raises(DestinationError) as caught:
        place.names("images")
    assert "RuntimeError: login as ‹redacted› refused at https://…@host/" in caught.value.message
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("kind", "meant"),
    [
        (OSError, DestinationError),
        (lambda words: OSError(errno.EIO, words), DestinationError),
        (lambda words: OSError(errno.EACCES, "refused", words), DestinationError),
        (lambda words: OSError(errno.ENOSPC, "no room", words), MediumFull),
        (ConnectionResetError, Unavailable),
        (lambda words: TimeoutError(errno.ETIMEDOUT, words), Unavailable),
        (EOFError, Unavailable),
        (KeyError, DestinationError),
    ],
    ids=["OSError", "EIO", "a path", "no room", "reset", "timeout", "EOFError", "KeyError"],
)
def test_whatever_a_driver_raises_after_the_login_our_secret_is_not_in_it(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: Callable[[str], Exception],
    meant: type[DestinationError],
) -> None:
    """In no form: what the error says of itself, in a message and in a traceback as Python prints it."""
    secret = "hunter2/77+aa"
    monkeypatch.setenv("NF_TEST_PASSWORD", secret)
    basic = base64.b64encode(f"user:{secret}".encode()).decode()
    forms = [secret, basic, secret.encode().hex(), quote(secret, safe=""), f"ftp://user:{secret}@host/x"]
    place = SpecObjects(open_driver("cloud", "hurt:///r", {"password": "env:NF_TEST_PASSWORD"}))
    for form in forms:
        monkeypatch.setattr(HurtFileSystem, "words", f"530 sent: {form}")
        monkeypatch.setattr(HurtFileSystem, "kind", staticmethod(kind))
        with caplog.at_level(logging.DEBUG), pytest.raises(meant) as caught:
            place.names("images")
        shown = f"{caught.value.as_json()} {''.join(traceback.format_exception(caught.value))} {caplog.text}"
        assert "hunter2" not in shown
        assert form not in shown
        assert basic[10:16] not in shown


class _Answered(Exception):
    """As HTTP libraries say what a server answered."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


@pytest.mark.parametrize(
    ("behind", "absent"),
    [
        (None, True),
        (StopIteration(), True),
        (_Answered(404), True),
        (_Answered(503), False),
        (ConnectionResetError("reset"), False),
        (TimeoutError("silence"), False),
    ],
)
def test_trouble_that_a_driver_calls_not_there_is_no_absence(
    monkeypatch: pytest.MonkeyPatch, behind: BaseException | None, absent: bool
) -> None:
    place = objects()
    place.write("images/i/data", [b"x"])
    looks = (place.exists, place.size, place.names)
    monkeypatch.setattr(HurtFileSystem, "behind", behind)
    if behind is None:
        assert [look_at("images/none") for look_at in looks] == [False, None, []]
    elif absent:
        assert [look_at("images/i") for look_at in looks] == [False, None, []]
    else:
        for look_at in looks:
            with pytest.raises(DestinationError, match=r"reset|silence|503"):
                look_at("images/i")


def test_a_full_place_is_known_by_the_words_of_its_driver() -> None:
    HurtFileSystem.words = "OSError: [Errno 28] No space left on device: '/x'"
    with pytest.raises(MediumFull):
        objects().names("images")


def test_an_option_that_a_driver_does_not_take_is_a_mistake_in_the_site_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NF_TEST_PASSWORD", "wrong-9c1d")
    driver = open_driver("cloud", "hurt:///r", {"password": "env:NF_TEST_PASSWORD"})
    with pytest.raises(ConfigError, match="cannot log in with ‹redacted›"):
        driver.open()


@pytest.mark.parametrize(
    ("url", "says", "hint"),
    [
        ("gopher://host/x", "no driver knows gopher://", "scheme"),
        ("ftp://files.example/x", "would carry stores without encryption", "sftp://"),
        ("http://files.example/x", "would carry stores without encryption", "https://"),
    ],
)
def test_what_cannot_be_opened_is_said(url: str, says: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        FsspecDestination("cloud", url)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("url", "module", "package"),
    [
        ("sftp://host/x", "sshfs", "sshfs"),
        ("gs://bucket/x", "gcsfs", "gcsfs"),
        ("abfs://c/x", "adlfs", "adlfs"),
    ],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, url: str, module: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=package) as caught:
        FsspecDestination("cloud", url)
    assert "every node" in caught.value.hint


def test_a_place_without_folders_gets_a_mark_for_its_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HurtFileSystem, "makedirs", lambda self, path, exist_ok=False: None)
    root = uuid.uuid4().hex
    place = SpecObjects(open_driver("cloud", f"hurt:///{root}/copies", {}))
    fsspec.filesystem("hurt").pipe_file(f"/{root}/other", b"x")
    with pytest.raises(Unavailable, match="copies is not there"):
        place.require_root()
    place.make_root()
    place.require_root()
    assert place.names("") == []
