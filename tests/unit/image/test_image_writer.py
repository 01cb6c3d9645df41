"""What an image is after files were added, changed, lost or refused."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nightferry.errors import Cancelled, IntegrityError, SourceError
from nightferry.image.index import IndexRow
from nightferry.image.writer import ImageWriter
from nightferry.transfer.direct import DirectWriter
from tests.imaging import content, gnu_extract, gnu_tar, open_image, output, require_program, write_image
from tests.support.image_check import check_image

MIB = 1 << 20


def add(image: ImageWriter, path: Path, name: bytes = b"", **options: object) -> IndexRow:
    fd = os.open(path, os.O_RDONLY)
    try:
        return image.add_file(name or os.fsencode(path.name), fd, **options)  # type: ignore[arg-type]
    finally:
        os.close(fd)


def meddling(when: Callable[[int], None]) -> type[DirectWriter]:
    """A sink that calls ``when(number of the read)`` before each read of a large file."""

    class Meddling(DirectWriter):
        reads = 0

        def copy_from(self, fd, offset, length, hasher=None):  # type: ignore[no-untyped-def]
            self.reads += 1
            when(self.reads)
            return super().copy_from(fd, offset, length, hasher)

    return Meddling


@pytest.fixture
def big(tmp_path: Path) -> Path:
    path = tmp_path / "big"
    path.write_bytes(os.urandom(3 * MIB + 5))
    return path


def test_header_first_index_and_end_last(tmp_path: Path, big: Path) -> None:
    image = tmp_path / "i.tar"
    summary = write_image(image, lambda writer: add(writer, big))
    assert gnu_tar("-tf", image).split() == [
        b".nightferry/image.json",
        b"big",
        b".nightferry/index.parquet",
        b".nightferry/end",
    ]
    assert image.stat().st_size == summary.size_bytes
    tail = image.read_bytes()[-2048:]
    assert b"index_offset %020d\n" % summary.index_offset in tail[512:1024]
    start = summary.index_offset
    assert image.read_bytes()[start : start + summary.index_bytes] == summary.index


def test_digests_are_those_of_other_tools(tmp_path: Path, big: Path) -> None:
    b3sum = require_program("b3sum")
    xxhsum = require_program("xxhsum")
    image = tmp_path / "i.tar"
    summary = write_image(image, lambda writer: add(writer, big))
    row = open_image(image).index.lookup(b"big")
    assert row is not None
    assert row.digest == output(b3sum, "--no-names", big).decode().strip()
    (tmp_path / "index").write_bytes(summary.index)
    assert summary.index_digest == output(b3sum, "--no-names", tmp_path / "index").decode().strip()
    (tmp_path / "side").write_bytes(summary.chunks + summary.index)
    assert summary.digest == output(b3sum, "--no-names", tmp_path / "side").decode().strip()
    data = image.read_bytes()
    for number in range(len(summary.chunks) // 8):
        (tmp_path / "chunk").write_bytes(data[number * MIB : (number + 1) * MIB])
        word = output(xxhsum, "-H3", tmp_path / "chunk").decode()
        assert summary.chunks[number * 8 : number * 8 + 8].hex() in word


def test_large_payloads_lie_on_pages_and_small_ones_are_packed(tmp_path: Path, big: Path) -> None:
    (tmp_path / "small").write_bytes(b"x" * 700)
    rows: list[IndexRow] = []

    def fill(writer: ImageWriter) -> None:
        rows.append(add(writer, tmp_path / "small", b"a"))
        rows.append(add(writer, big, b"b"))
        rows.append(add(writer, tmp_path / "small", b"c"))

    write_image(tmp_path / "i.tar", fill)
    assert rows[1].payload_offset % 4096 == 0
    assert rows[2].offset == rows[1].offset + rows[1].length
    assert rows[2].length == 1536 + 1024


def test_a_file_that_grew_once_is_read_once_more_and_whole(tmp_path: Path, big: Path) -> None:
    def grow(read: int) -> None:
        if read == 1:
            with big.open("ab") as file:
                file.write(b"y" * 5000)

    summary = write_image(tmp_path / "i.tar", lambda writer: add(writer, big), meddling(grow))
    image = open_image(tmp_path / "i.tar", summary)
    assert content(image, b"big") == big.read_bytes()
    assert summary.outcomes.whole == 1
    check_image(image)


def test_a_file_that_keeps_growing_is_kept_to_its_size_at_open_and_flagged(tmp_path: Path, big: Path) -> None:
    sizes = []

    def grow(read: int) -> None:
        sizes.append(big.stat().st_size)
        with big.open("ab") as file:
            file.write(b"y" * 5000)

    summary = write_image(tmp_path / "i.tar", lambda writer: add(writer, big), meddling(grow))
    image = open_image(tmp_path / "i.tar", summary)
    row = image.index.lookup(b"big")
    assert row is not None
    assert (row.outcome, row.size, len(sizes)) == ("changed", sizes[1], 2)
    assert content(image, b"big") == big.read_bytes()[: row.size]
    assert summary.outcomes.changed == 1
    check_image(image)
    assert (gnu_extract(tmp_path / "i.tar", tmp_path / "x") / "big").stat().st_size == row.size


def test_a_file_that_shrinks_is_filled_with_zeros_and_flagged(tmp_path: Path, big: Path) -> None:
    data = big.read_bytes()

    def shrink(read: int) -> None:
        os.truncate(big, len(data) - read * MIB)

    summary = write_image(tmp_path / "i.tar", lambda writer: add(writer, big), meddling(shrink))
    image = open_image(tmp_path / "i.tar", summary)
    row = image.index.lookup(b"big")
    assert row is not None
    assert row.outcome == "changed"
    assert row.size == len(data) - MIB
    assert content(image, b"big") == data[: MIB + 5] + bytes(MIB)
    check_image(image)


def test_a_small_file_that_shrinks_under_the_reading_is_stored_as_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"x" * 1000)
    monkeypatch.setattr("nightferry.image.writer.read_whole", lambda fd, announced, most: b"x" * 10)
    summary = write_image(tmp_path / "i.tar", lambda writer: add(writer, tmp_path / "f"))
    image = open_image(tmp_path / "i.tar", summary)
    assert content(image, b"f") == b"x" * 10
    assert summary.outcomes.changed == 1


def test_a_file_that_cannot_be_read_leaves_a_row_and_no_bytes(tmp_path: Path, big: Path) -> None:
    def fail(read: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    (tmp_path / "after").write_bytes(b"still here")

    def fill(writer: ImageWriter) -> None:
        add(writer, big)
        add(writer, tmp_path / "after")

    summary = write_image(tmp_path / "i.tar", fill, meddling(fail))
    image = open_image(tmp_path / "i.tar", summary)
    row = image.index.lookup(b"big")
    assert row is not None
    assert (row.outcome, row.note, row.stored) == ("unreadable", "Input/output error", False)
    assert content(image, b"after") == b"still here"
    assert (summary.outcomes.whole, summary.outcomes.unreadable, summary.files) == (1, 1, 2)
    with pytest.raises(SourceError, match="unreadable"):
        list(image.payload(row))
    assert check_image(image).members == 1


def test_what_tick_raises_stops_the_writing(tmp_path: Path, big: Path) -> None:
    def stop(done: int) -> None:
        raise Cancelled("stopped: test")

    with pytest.raises(Cancelled):
        write_image(tmp_path / "i.tar", lambda writer: add(writer, big, tick=stop))


def test_a_descriptor_of_something_else_is_refused(tmp_path: Path) -> None:
    def fill(writer: ImageWriter) -> None:
        with pytest.raises(SourceError, match="no longer a regular file"):
            add(writer, tmp_path, b"d")

    write_image(tmp_path / "i.tar", fill)


def test_one_path_given_twice_is_refused(tmp_path: Path, big: Path) -> None:
    def fill(writer: ImageWriter) -> None:
        add(writer, big)
        add(writer, big)

    with pytest.raises(IntegrityError, match="one path"):
        write_image(tmp_path / "i.tar", fill)


def test_an_empty_image_is_an_image(tmp_path: Path) -> None:
    summary = write_image(tmp_path / "i.tar", lambda writer: None)
    assert summary.files == 0
    assert check_image(open_image(tmp_path / "i.tar", summary)).members == 0
