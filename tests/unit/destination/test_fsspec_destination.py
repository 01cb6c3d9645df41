"""What is special about a folder: modes, a missing root, what is refused."""

from __future__ import annotations

import errno
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nightferry.destination.failure import as_destination_error
from nightferry.destination.fsspec import FsspecDestination
from nightferry.destination.ours import catalog_name
from nightferry.errors import ConfigError, DestinationError, MediumDamaged, MediumFull, Unavailable
from tests.conftest import needs
from tests.support.outgoing import PlainImage, mark, put


def small(image: str = "i1", data: bytes = b"data", digest: str = "d1") -> PlainImage:
    return PlainImage(image, data, digest=digest)


@pytest.fixture
def folder(tmp_path: Path) -> FsspecDestination:
    return FsspecDestination("cloud", f"file://{tmp_path}", mark=mark)


def test_folders_are_0700_and_files_0600(folder: FsspecDestination, tmp_path: Path) -> None:
    put(folder, small())
    folder.put_catalog("c", b"x")
    for path in tmp_path.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)
    names = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert names == {
        f"images/i1/{n}" for n in ("origin.json", "data", "index", "chunks", "copy.json", "meta.json")
    } | {"catalog/c"}


def test_a_root_that_is_not_there_is_never_made(tmp_path: Path) -> None:
    away = FsspecDestination("cloud", f"file://{tmp_path}/disk")
    assert [f.id for f in away.check()] == ["NF-DEST-001"]
    with pytest.raises(Unavailable) as caught:
        put(away, small())
    assert caught.value.retryable
    with pytest.raises(Unavailable):
        away.put_catalog("c", b"x")
    with pytest.raises(Unavailable):
        list(away.scan())
    assert list(tmp_path.iterdir()) == []


def test_check_leaves_nothing_behind(folder: FsspecDestination, tmp_path: Path) -> None:
    assert folder.check() == []
    assert list(tmp_path.iterdir()) == []


def test_orphans_of_interrupted_epochs_are_removed_by_the_next_put(
    folder: FsspecDestination, tmp_path: Path
) -> None:
    (tmp_path / "images/i1/.partial-1").mkdir(parents=True)
    (tmp_path / "images/i1/.partial-1/data").write_bytes(b"dat")
    (tmp_path / "images/i1/data").write_bytes(b"data")
    put(folder, small(), 2)
    assert sorted(os.listdir(tmp_path / "images/i1")) == [
        "chunks",
        "copy.json",
        "data",
        "index",
        "meta.json",
        "origin.json",
    ]


def test_another_image_of_the_same_name_is_refused_and_the_copy_kept(folder: FsspecDestination) -> None:
    location = put(folder, small()).location
    with pytest.raises(DestinationError, match="d1"):
        put(folder, small(data=b"other", digest="d2"), 2)
    with folder.open(location) as reader:
        assert reader.read(0, 4) == b"data"


def test_data_of_another_length_than_recorded_is_damage(folder: FsspecDestination, tmp_path: Path) -> None:
    location = put(folder, small()).location
    (tmp_path / "images/i1/data").write_bytes(b"dat")
    with pytest.raises(MediumDamaged, match="3 bytes"), folder.open(location):
        pass
    assert folder.find("i1", 1) is None


def test_the_last_written_catalog_copies_are_kept_though_a_clock_was_ahead(folder: FsspecDestination) -> None:
    """By the order that their names begin with; those of releases that gave none are the oldest."""

    def name(order: int, day: int) -> str:
        return catalog_name(order, datetime(2026, 11, day, tzinfo=UTC))

    for old in ("catalog-20261129T000000Z.parquet", "catalog-20261130T000000Z.parquet"):
        folder.put_catalog(old, b"x")
    assert folder.catalog_copies()[0] == "catalog-20261130T000000Z.parquet"
    for order, day in ((7, 28), (9, 29), (10, 2), (101, 3)):
        folder.put_catalog(name(order, day), b"x")
    assert folder.catalog_copies() == [name(101, 3), name(10, 2), name(9, 29)]


def test_the_three_newest_catalog_copies_are_kept(folder: FsspecDestination, tmp_path: Path) -> None:
    def name(number: int) -> str:
        return f"catalog-2026111{number}T210000Z.parquet"

    (tmp_path / "catalog").mkdir()
    others = ["aaa.parquet", "catalog-holiday.parquet", "zzz.jpg"]
    for other in others:
        (tmp_path / "catalog" / other).write_bytes(b"mine")
    for number in range(5):
        folder.put_catalog(name(number), b"x")
        os.utime(tmp_path / "catalog" / name(number), (number, number))
    assert sorted(os.listdir(tmp_path / "catalog")) == sorted([*others, name(2), name(3), name(4)])
    assert folder.catalog_copies() == [name(4), name(3), name(2)]


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", ".partial-1", "a\0b"])
def test_names_that_leave_their_folder_are_refused(folder: FsspecDestination, name: str) -> None:
    with pytest.raises(ConfigError):
        put(folder, small(name))
    with pytest.raises(MediumDamaged, match="names no place"), folder.open({"image": name, "size_bytes": 1}):
        pass


def test_an_unknown_kind_of_url_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="nonsense"):
        FsspecDestination("cloud", "nonsense://x")


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, MediumFull),
        (errno.EDQUOT, MediumFull),
        (errno.ENOENT, Unavailable),
        (errno.ESTALE, Unavailable),
        (errno.EACCES, DestinationError),
    ],
)
def test_errors_of_the_system_mean_full_away_or_refused(number: int, kind: type[DestinationError]) -> None:
    found = as_destination_error(OSError(number, os.strerror(number), "/x"), "cloud")
    assert type(found) is kind
    assert "cloud" in str(found)


def test_blocks_that_cannot_be_read_are_damage_and_not_a_destination_that_is_away(
    folder: FsspecDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = put(folder, small()).location

    def pread(fd: int, length: int, offset: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("nightferry.destination.objects.os.pread", pread)
    with folder.open(location) as reader, pytest.raises(MediumDamaged, match="cannot be read"):
        reader.read(0, 4)


def test_a_root_that_does_not_answer_is_away(
    folder: FsspecDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_dir(path: Path) -> bool:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    monkeypatch.setattr(Path, "is_dir", is_dir)
    with pytest.raises(Unavailable):
        folder.find("i1", 1)


@needs("fincore")
def test_a_copy_just_written_is_read_back_from_the_disk(folder: FsspecDestination, tmp_path: Path) -> None:
    put(folder, small(data=bytes(3 << 20)))
    seen = subprocess.run(
        ["fincore", "--bytes", "--noheadings", "--output", "RES", tmp_path / "images/i1/data"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert seen.stdout.split() == ["0"]
