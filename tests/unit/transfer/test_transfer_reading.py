from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nightferry.errors import IntegrityError, MediumDamaged, Unavailable
from nightferry.transfer import reading
from nightferry.transfer.base import ByteReader
from nightferry.transfer.reading import FileReader
from nightferry.transfer.ring import EngineName

SIZE = 1 << 18
CONTENT = os.urandom(7 * SIZE + 1001)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    files_before = set(os.listdir("/proc/self/fd"))
    yield
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("nightferry")]
    assert set(os.listdir("/proc/self/fd")) <= files_before


def collect(pieces: Iterator[memoryview]) -> bytes:
    return b"".join(bytes(piece) for piece in pieces)


RANGES = [
    (0, len(CONTENT)),
    (0, 0),
    (0, 1),
    (len(CONTENT), 0),
    (len(CONTENT) - 1, 1),
    (1, len(CONTENT) - 1),
    (4095, 2),
    (4096, SIZE),
    (SIZE - 1, SIZE + 2),
    (3 * SIZE + 77, 4 * SIZE),
]


@pytest.mark.parametrize("engine", ["threads", "auto"])
@pytest.mark.parametrize("unbuffered", [True, False])
@pytest.mark.parametrize(("offset", "length"), RANGES)
def test_range_is_exact(path: Path, offset: int, length: int, unbuffered: bool, engine: EngineName) -> None:
    with FileReader(path, unbuffered=unbuffered, buffer_bytes=SIZE, engine=engine) as reader:
        protocol: ByteReader = reader
        assert protocol.size_bytes == len(CONTENT)
        assert protocol.read(offset, length) == CONTENT[offset : offset + length]
        assert collect(protocol.stream(offset, length)) == CONTENT[offset : offset + length]


def test_pieces_are_whole_buffers(path: Path) -> None:
    with FileReader(path, buffer_bytes=SIZE) as reader:
        lengths = [piece.nbytes for piece in reader.stream(4096, 3 * SIZE + 5)]
    assert lengths == [SIZE, SIZE, SIZE, 5]


def test_file_system_that_refuses_is_read_through_the_cache(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "reopen_direct", lambda fd: None)
    with FileReader(path, buffer_bytes=SIZE) as reader:
        assert collect(reader.stream(5, 6 * SIZE)) == CONTENT[5 : 5 + 6 * SIZE]


def failing(call: Callable[..., int], number: int, code: int) -> Callable[..., int]:
    seen = iter(range(1_000_000))

    def fail_nth(*args: object) -> int:
        if next(seen) == number:
            raise OSError(code, os.strerror(code))
        return call(*args)

    return fail_nth


def test_refused_unbuffered_read_is_read_again_through_the_cache(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "preadv", failing(os.preadv, 1, errno.EINVAL))
    with FileReader(path, buffer_bytes=SIZE, engine="threads") as reader:
        assert collect(reader.stream(0, len(CONTENT))) == CONTENT


@pytest.mark.parametrize(("code", "error"), [(errno.EIO, MediumDamaged), (errno.ESTALE, Unavailable)])
def test_failing_disk_is_named_with_the_byte(
    path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    with FileReader(path, buffer_bytes=SIZE, unbuffered=False) as reader:
        monkeypatch.setattr(os, "preadv", failing(os.preadv, 0, code))
        with pytest.raises(error, match=r"cannot read .*/image at byte 7"):
            reader.read(7, 10)
        monkeypatch.setattr(os, "preadv", failing(lambda *args: 0, 0, code))
        with pytest.raises(error, match=r"cannot read .*/image at byte 0"):
            collect(reader.stream(0, SIZE))


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, -1), (len(CONTENT), 1), (1, len(CONTENT))])
def test_range_beyond_the_end_is_an_integrity_error(path: Path, offset: int, length: int) -> None:
    with FileReader(path, buffer_bytes=SIZE) as reader:
        with pytest.raises(IntegrityError, match="not all inside"):
            reader.read(offset, length)
        with pytest.raises(IntegrityError, match="not all inside"):
            reader.stream(offset, length)


@pytest.mark.parametrize("engine", ["threads", "auto"])
def test_file_that_shrank_is_an_integrity_error(path: Path, engine: EngineName) -> None:
    with FileReader(path, buffer_bytes=SIZE, engine=engine) as reader:
        os.truncate(path, 2 * SIZE + 100)
        with pytest.raises(IntegrityError, match=f"ends at byte {2 * SIZE + 100}"):
            reader.read(SIZE, 2 * SIZE)
        stream = reader.stream(0, len(CONTENT))
        assert bytes(next(stream)) == CONTENT[:SIZE]
        with pytest.raises(IntegrityError, match=f"ends at byte {2 * SIZE + 100}"):
            collect(stream)


def test_missing_file_is_damage_and_a_folder_without_rights_is_not(tmp_path: Path) -> None:
    with pytest.raises(MediumDamaged, match="gone is not there"):
        FileReader(tmp_path / "gone")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(Unavailable, match="cannot open"):
        FileReader(tmp_path / "loop")


def test_stream_that_is_left_early_leaves_nothing(path: Path) -> None:
    with FileReader(path, buffer_bytes=SIZE) as reader:
        stream = reader.stream(0, len(CONTENT))
        next(stream)
        stream.close()  # type: ignore[attr-defined]  # a generator, as the with of a user would close it


def test_a_stream_may_go_from_thread_to_thread(path: Path) -> None:
    with FileReader(path, buffer_bytes=SIZE) as reader, ThreadPoolExecutor(3) as threads:
        stream = reader.stream(0, len(CONTENT))
        read = b""
        while piece := threads.submit(lambda: bytes(next(stream, b""))).result():
            read += piece
    assert read == CONTENT


def test_streams_of_one_reader_do_not_disturb_each_other(path: Path) -> None:
    with FileReader(path, buffer_bytes=SIZE) as reader:
        one, two = reader.stream(0, 4 * SIZE), reader.stream(SIZE + 1, 4 * SIZE)
        for number, (first, second) in enumerate(zip(one, two, strict=False)):
            assert bytes(first) == CONTENT[number * SIZE : (number + 1) * SIZE]
            assert bytes(second) == CONTENT[SIZE + 1 :][number * SIZE - (number > 0) :][: second.nbytes]
        assert reader.read(10, 10) == CONTENT[10:20]


def test_stream_reads_at_least_two_buffers_ahead(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = os.preadv

    def counting(fd: int, buffers: list[memoryview], offset: int) -> int:
        asked.append(offset)
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", counting)
    with FileReader(path, buffer_bytes=SIZE, buffers=3, engine="threads") as reader:
        stream = reader.stream(0, len(CONTENT))
        next(stream)
        stream.close()  # type: ignore[attr-defined]  # waits for the reads that were begun
    assert sorted(asked) == [0, SIZE, 2 * SIZE]


def test_stream_leaves_no_page_cache(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with FileReader(path, buffer_bytes=SIZE) as reader:
        collect(reader.stream(3, len(CONTENT) - 3))
    fincore = ["fincore", "--bytes", "--noheadings", "--output", "RES", str(path)]
    assert int(subprocess.run(fincore, capture_output=True, text=True, check=True).stdout) <= 64 << 10


def test_sizes_are_checked(path: Path) -> None:
    with pytest.raises(ValueError, match="multiple of 4096"):
        FileReader(path, buffer_bytes=1000)
    with pytest.raises(ValueError, match="at least 3"):
        FileReader(path, buffers=2)


def test_a_stream_of_one_piece_needs_no_thread(path: Path) -> None:
    with FileReader(path, buffer_bytes=SIZE) as reader:
        pieces = reader.stream(100, SIZE - 200)
        assert bytes(next(pieces)) == CONTENT[100 : SIZE - 100]
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("nightferry")]
        assert list(pieces) == []
