"""The full check, which other tests rely on, finds every lie."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from blake3 import blake3

from nightferry.errors import Cancelled, IntegrityError
from nightferry.image.format import ImageEnd
from nightferry.image.index import IndexRow
from nightferry.image.index_builder import IndexBuilder
from nightferry.image.reader import ImageReader
from nightferry.image.writer import ImageSummary
from nightferry.source.files import FilesSource
from nightferry.transfer.reading import FileReader
from tests.imaging import open_image, write_source
from tests.support.image_check import check_image

MIB = 1 << 20


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, ImageSummary]:
    store = tmp_path / "store"
    store.mkdir()
    (store / "a").write_bytes(b"a" * 700)
    (store / "big").write_bytes(os.urandom(2 * MIB + 3))
    with (store / "holes").open("wb") as file:
        for number in range(50):
            file.seek(number * 100_000)
            file.write(b"data")
        file.truncate(10 * MIB)
    os.link(store / "a", store / "link")
    (store / "soft").symlink_to("a")
    os.setxattr(store / "a", "user.x", b"y")
    return tmp_path / "i.tar", write_source(tmp_path / "i.tar", FilesSource(store))


def test_a_good_image_passes_and_every_byte_was_read(made: tuple[Path, ImageSummary]) -> None:
    path, summary = made
    ticks: list[int] = []
    report = check_image(open_image(path, summary), tick=ticks.append)
    assert (report.members, report.size_bytes) == (6, summary.size_bytes)
    assert report.payload_bytes == summary.payload_bytes
    assert ticks[-1] == summary.size_bytes


class OneBuffer:
    """A reader whose stream has one small buffer for all its pieces, as the contract allows."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size_bytes = len(data)

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]

    def stream(self, offset: int, length: int) -> Iterator[memoryview]:
        buffer = bytearray(1000)
        for at in range(offset, offset + length, len(buffer)):
            piece = self.read(at, min(len(buffer), offset + length - at))
            buffer[: len(piece)] = piece
            yield memoryview(buffer)[: len(piece)]


def test_headers_that_two_pieces_share_are_read_right(made: tuple[Path, ImageSummary]) -> None:
    path, summary = made
    report = check_image(ImageReader(OneBuffer(path.read_bytes())))
    assert (report.members, report.size_bytes) == (6, summary.size_bytes)


def test_a_check_can_be_stopped(made: tuple[Path, ImageSummary]) -> None:
    def stop(done: int) -> None:
        raise Cancelled("stopped: test")

    with pytest.raises(Cancelled):
        check_image(open_image(made[0]), tick=stop)


def test_every_flipped_byte_is_found_without_the_chunk_table(made: tuple[Path, ImageSummary]) -> None:
    path, _ = made
    good = path.read_bytes()
    image = open_image(path)
    interesting = {0, 300, 700, len(good) - 1, len(good) - 600, len(good) - 1100, len(good) - 1600}
    for row in image.index:
        interesting |= {row.offset, row.offset + 520, row.offset + 1024 + 157, row.payload_offset}
        interesting |= {row.offset + row.length - 1}
    interesting |= set(range(0, len(good), len(good) // 40))
    for offset in interesting - {-1}:
        bad = bytearray(good)
        bad[offset] ^= 0x55
        path.write_bytes(bad)
        with pytest.raises(IntegrityError):
            check_image(open_image(path))


def rebuilt(path: Path, summary: ImageSummary, change: Callable[[IndexRow], IndexRow | None]) -> ImageReader:
    """The image with another index, whose digests agree with each other."""
    builder = IndexBuilder()
    for row in open_image(path).index:
        changed = change(row)
        if changed is not None:
            builder.add(changed)
    index = builder.finish()
    data = path.read_bytes()
    start = summary.index_offset
    room = len(data) - 2048 - start
    assert len(index) <= room
    # The member's size stays: only the end and the side file are forged.
    end = ImageEnd(start, len(index), blake3(index).hexdigest())
    path.write_bytes(data[:start] + index + bytes(room - len(index)) + end.encode())
    return ImageReader(FileReader(path), index=index)


@pytest.mark.parametrize(
    "change",
    [
        lambda row: None if row.path == b"a" else row,
        lambda row: replace(row, mode=0o777) if row.path == b"a" else row,
        lambda row: replace(row, blake3=bytes(32)) if row.path == b"a" else row,
        lambda row: replace(row, path=b"b") if row.path == b"a" else row,
        lambda row: replace(row, sparse=None) if row.path == b"holes" else row,
        lambda row: replace(row, attributes_digest=None) if row.path == b"a" else row,
        lambda row: replace(row, link_target=b"big") if row.path == b"link" else row,
    ],
)
def test_an_index_that_lies_is_found(
    made: tuple[Path, ImageSummary], change: Callable[[IndexRow], IndexRow | None]
) -> None:
    path, summary = made
    with pytest.raises(IntegrityError):
        check_image(rebuilt(path, summary, change))


def test_an_index_of_another_image_is_found(made: tuple[Path, ImageSummary], tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    other = write_source(tmp_path / "o.tar", FilesSource(tmp_path / "f"))
    with pytest.raises(IntegrityError, match="not the image's own"):
        check_image(ImageReader(FileReader(made[0]), index=other.index))
