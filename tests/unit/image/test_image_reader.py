"""One file by its index row, from good images and from bad ones."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from nightferry.errors import IntegrityError, SourceError
from nightferry.image.format import ImageEnd, ImageHeader
from nightferry.image.reader import ImageReader
from nightferry.image.writer import ImageSummary
from nightferry.source.files import FilesSource
from nightferry.transfer.reading import FileReader
from tests.imaging import HEADER, content, open_image, output, write_source

MIB = 1 << 20


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, ImageSummary]:
    """(the store, its image, the image's summary)."""
    top = tmp_path_factory.mktemp("reader")
    store = top / "store"
    (store / "dir").mkdir(parents=True)
    (store / "dir/big").write_bytes(os.urandom(3 * MIB + 17))
    (store / "dir/small").write_bytes(b"small")
    (store / "empty").touch()
    with (store / "sparse").open("wb") as file:
        file.truncate(40 * MIB)
        file.seek(10 * MIB)
        file.write(b"middle" * 1000)
        file.seek(20 * MIB)
        file.write(os.urandom(2 * MIB))
    os.link(store / "dir/small", store / "zlink")
    os.setxattr(store / "dir/small", "user.colour", b"blue")
    output("setfacl", "-m", "u:1234:r", store / "dir/small")
    (store / "soft").symlink_to("dir/small")
    summary = write_source(top / "i.tar", FilesSource(store))
    return store, top / "i.tar", summary


def test_the_header_is_what_was_written(made: tuple[Path, Path, ImageSummary]) -> None:
    assert open_image(made[1], made[2]).header == HEADER


@pytest.mark.parametrize("path", [b"dir/big", b"dir/small", b"empty", b"sparse", b"zlink"])
@pytest.mark.parametrize("checked", [True, False])
def test_content_is_the_files(made: tuple[Path, Path, ImageSummary], path: bytes, checked: bool) -> None:
    store, image, summary = made
    data = content(open_image(image, summary if checked else None), path)
    assert data == (store / os.fsdecode(path)).read_bytes()


def test_holes_are_not_handed_out(made: tuple[Path, Path, ImageSummary]) -> None:
    image = open_image(made[1], made[2])
    row = image.index.lookup(b"sparse")
    assert row is not None
    pieces = [(offset, len(piece)) for offset, piece in image.payload(row)]
    assert sum(length for _, length in pieces) == row.payload_length < 3 * MIB
    assert pieces[0][0] == 10 * MIB


def test_attributes_come_back_for_a_file_and_for_its_hard_link(made: tuple[Path, Path, ImageSummary]) -> None:
    image = open_image(made[1], made[2])
    for path in (b"dir/small", b"zlink"):
        row = image.index.lookup(path)
        assert row is not None
        attributes = image.attributes(row)
        assert attributes.xattrs == ((b"user.colour", b"blue"),)
        assert b"user:1234:r--" in attributes.acl_access
    link = image.index.lookup(b"zlink")
    assert link is not None
    assert (link.type, link.link_target) == ("hardlink", b"dir/small")


def test_a_file_without_attributes_costs_no_read(made: tuple[Path, Path, ImageSummary]) -> None:
    image = open_image(made[1])
    row = image.index.lookup(b"dir/big")
    assert row is not None
    image.reader.close()  # type: ignore[attr-defined]  # a FileReader
    assert image.attributes(row).xattrs == ()


def test_the_index_beside_the_image_saves_the_tail(
    made: tuple[Path, Path, ImageSummary], tmp_path: Path
) -> None:
    _, image, summary = made
    (tmp_path / "head").write_bytes(image.read_bytes()[: summary.index_offset - 4096])
    reader = ImageReader(FileReader(tmp_path / "head"), index=summary.index)
    assert content(reader, b"dir/small") == b"small"


def test_a_row_of_something_else_has_no_content(made: tuple[Path, Path, ImageSummary]) -> None:
    image = open_image(made[1])
    for path in (b"dir", b"soft", b"."):
        row = image.index.lookup(path)
        assert row is not None
        with pytest.raises(SourceError, match="has no content"):
            list(image.payload(row))


def test_one_wrong_bit_is_found_with_and_without_the_chunk_table(
    made: tuple[Path, Path, ImageSummary], tmp_path: Path
) -> None:
    _, image, summary = made
    row = open_image(image).index.lookup(b"dir/big")
    assert row is not None
    data = bytearray(image.read_bytes())
    data[row.payload_offset + 2 * MIB] ^= 4
    (tmp_path / "bad.tar").write_bytes(data)
    with pytest.raises(IntegrityError, match="chunk"):
        content(open_image(tmp_path / "bad.tar", summary), b"dir/big")
    with pytest.raises(IntegrityError, match="BLAKE3 differs"):
        content(open_image(tmp_path / "bad.tar"), b"dir/big")
    assert content(open_image(tmp_path / "bad.tar"), b"dir/small") == b"small"


def test_rows_that_lie_are_integrity_errors(made: tuple[Path, Path, ImageSummary]) -> None:
    image = open_image(made[1])
    big = image.index.lookup(b"dir/big")
    sparse = image.index.lookup(b"sparse")
    link = image.index.lookup(b"zlink")
    assert big is not None
    assert sparse is not None
    assert link is not None
    for wrong in (
        replace(big, payload_offset=1 << 60),
        replace(big, payload_length=5),
        replace(big, size=-1, payload_length=-1),
        replace(big, payload_offset=-4096),
        replace(sparse, sparse=((0, 4096), (100, 4096)), payload_length=8192),
        replace(sparse, sparse=((1 << 40, sparse.payload_length),)),
    ):
        with pytest.raises(IntegrityError):
            list(image.payload(wrong))
    for wrong in (
        replace(big, offset=0),
        replace(big, offset=1 << 50),
        replace(big, offset=big.offset + 512),
    ):
        with pytest.raises(IntegrityError):
            image.member(wrong)
    with pytest.raises(IntegrityError, match="points to no file"):
        image.attributes(replace(link, link_target=b"gone"))
    with pytest.raises(IntegrityError, match="points to no file"):
        image.attributes(replace(link, link_target=b"zlink"))


def test_an_image_cut_anywhere_says_so(made: tuple[Path, Path, ImageSummary], tmp_path: Path) -> None:
    data = made[1].read_bytes()
    for length in (0, 100, 2048, len(data) - 512, len(data) - 2048, len(data) // 2):
        (tmp_path / "cut.tar").write_bytes(data[:length])
        with pytest.raises(IntegrityError):
            open_image(tmp_path / "cut.tar").index  # noqa: B018 - read by being asked for
    (tmp_path / "long.tar").write_bytes(data + bytes(512))
    with pytest.raises(IntegrityError):
        open_image(tmp_path / "long.tar").index  # noqa: B018 - read by being asked for


def test_a_damaged_index_is_found(made: tuple[Path, Path, ImageSummary], tmp_path: Path) -> None:
    _, image, summary = made
    data = bytearray(image.read_bytes())
    data[summary.index_offset + 50] ^= 1
    (tmp_path / "bad.tar").write_bytes(data)
    with pytest.raises(IntegrityError, match="index is damaged"):
        open_image(tmp_path / "bad.tar").index  # noqa: B018 - read by being asked for


@pytest.mark.parametrize(
    "end",
    [ImageEnd(1 << 62, 10, "0" * 64), ImageEnd(0, 17 << 30, "0" * 64), ImageEnd(0, 10**15, "0" * 64)],
)
def test_an_end_that_points_outside_is_refused(end: ImageEnd) -> None:
    with pytest.raises(IntegrityError, match="outside"):
        ImageEnd.decode(end.encode(), 20 << 30)


def test_an_end_with_a_broken_header_is_refused() -> None:
    tail = bytearray(ImageEnd(0, 10, "0" * 64).encode())
    tail[110] ^= 1
    with pytest.raises(IntegrityError, match="damaged"):
        ImageEnd.decode(bytes(tail), 10_000)


def test_a_foreign_tar_is_no_image(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    output("tar", "-C", tmp_path, "-cf", tmp_path / "foreign.tar", "f")
    image = open_image(tmp_path / "foreign.tar")
    with pytest.raises(IntegrityError, match="not an image"):
        image.header  # noqa: B018 - read by being asked for
    with pytest.raises(IntegrityError, match="no end"):
        image.index  # noqa: B018 - read by being asked for


def test_a_later_format_is_refused_and_unknown_keys_are_not() -> None:
    later = HEADER.model_copy(update={"format": 2})
    with pytest.raises(IntegrityError, match="format 2"):
        ImageHeader.decode(later.encode())
    added = HEADER.encode().replace(b"{", b'{"colour": "blue",', 1)
    assert ImageHeader.decode(added) == HEADER
    for broken in (
        b"",
        b"{}",
        b"[]",
        HEADER.encode()[:-5],
        HEADER.encode().replace(b'"level": 0', b'"level": 10'),
    ):
        with pytest.raises(IntegrityError):
            ImageHeader.decode(broken)


def test_the_stores_own_nightferry_folder_is_ordinary_data(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / ".nightferry").mkdir(parents=True)
    for name in ("image.json", "index.parquet", "end"):
        (store / ".nightferry" / name).write_text(f"the store's own {name}")
    summary = write_source(tmp_path / "i.tar", FilesSource(store))
    image = open_image(tmp_path / "i.tar", summary)
    assert image.header == HEADER
    for name in ("image.json", "index.parquet", "end"):
        assert content(image, b".nightferry/" + name.encode()) == f"the store's own {name}".encode()


def test_reading_needs_no_more_than_the_file(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    for number in range(200):
        (store / f"f{number:03d}").write_bytes(b"x" * 50_000)
    summary = write_source(tmp_path / "i.tar", FilesSource(store))
    reader = FileReader(tmp_path / "i.tar")
    read = []
    original = reader.read
    reader.read = lambda offset, length: read.append(length) or original(offset, length)  # type: ignore[method-assign]
    image = ImageReader(reader, summary.chunks, index=summary.index)
    assert content(image, b"f100") == b"x" * 50_000
    assert sum(read) <= 50_000 + 2 * MIB
