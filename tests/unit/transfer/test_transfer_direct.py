from __future__ import annotations

import errno
import fcntl
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import blake3
import pytest

from nightferry.errors import BusyError, Cancelled, ConfigError, DestinationError, StagingFull
from nightferry.progress import Cancel
from nightferry.transfer import engines, newfile
from nightferry.transfer.base import ByteSink
from nightferry.transfer.direct import DirectWriter, RingSettings
from nightferry.transfer.durable import durable_rename
from nightferry.transfer.meter import Meter
from tests.support.outgoing import table_of

SIZE = 1 << 20
SMALL = RingSettings(buffer_bytes=SIZE, buffers=3, engine="threads")
CONTENT = os.urandom(5 * SIZE + 10_001)
needs_io_uring = pytest.mark.skipif(bool(engines.why_not()), reason=f"io_uring: {engines.why_not()}")
ENGINES = ["threads", pytest.param("io_uring", marks=needs_io_uring)]


@pytest.fixture(params=ENGINES)
def settings(request: pytest.FixtureRequest) -> RingSettings:
    return RingSettings(buffer_bytes=SIZE, buffers=3, engine=request.param)


@pytest.fixture(scope="module")
def source_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "source"
    path.write_bytes(CONTENT)
    os.sync()
    return path


@pytest.fixture
def source(source_path: Path) -> Iterator[int]:
    fd = os.open(source_path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    before = {thread.ident for thread in threading.enumerate()}
    files_before = set(os.listdir("/proc/self/fd"))
    yield
    assert [thread.name for thread in threading.enumerate() if thread.ident not in before] == []
    assert set(os.listdir("/proc/self/fd")) <= files_before


def test_writer_is_a_byte_sink(tmp_path: Path) -> None:
    writer = DirectWriter(tmp_path / "out", settings=SMALL)
    sink: ByteSink = writer
    sink.abort()


def test_odd_small_file_is_exact_and_unbuffered(tmp_path: Path, settings: RingSettings) -> None:
    data = os.urandom(10_001)
    writer = DirectWriter(tmp_path / "out", settings=settings, expected_bytes=10_001)
    assert writer.unbuffered
    assert writer.engine == settings.engine
    writer.write(data)
    assert writer.finish() == table_of(data)
    assert (tmp_path / "out").read_bytes() == data
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o600


BOUNDARIES = sorted(
    {at + d for at in (0, 4096, SIZE, 2 * SIZE, 3 * SIZE, 4 * SIZE) for d in (-1, 0, 1) if at + d >= 0}
)


@pytest.mark.parametrize("size", BOUNDARIES)
def test_copy_is_exact_around_every_boundary(
    tmp_path: Path, source: int, settings: RingSettings, size: int
) -> None:
    hasher = blake3.blake3()
    writer = DirectWriter(tmp_path / "out", settings=settings, expected_bytes=size)
    assert writer.copy_from(source, 0, size, hasher) == size
    assert writer.position == size
    assert writer.finish() == table_of(CONTENT[:size])
    assert (tmp_path / "out").read_bytes() == CONTENT[:size]
    assert hasher.hexdigest() == blake3.blake3(CONTENT[:size]).hexdigest()


@pytest.mark.parametrize("lead", [0, 4096, SIZE - 1, SIZE - 4096, SIZE])
@pytest.mark.parametrize("offset", [0, 1, 4096])
def test_copy_goes_on_from_any_position_and_offset(
    tmp_path: Path, source: int, settings: RingSettings, lead: int, offset: int
) -> None:
    head, tail, length = os.urandom(lead), os.urandom(777), 2 * SIZE + 99
    hasher = blake3.blake3()
    writer = DirectWriter(tmp_path / "out", settings=settings)
    writer.write(head)
    assert writer.copy_from(source, offset, length, hasher) == length
    writer.write(tail)
    whole = head + CONTENT[offset : offset + length] + tail
    assert writer.finish() == table_of(whole)
    assert (tmp_path / "out").read_bytes() == whole
    assert hasher.digest() == blake3.blake3(CONTENT[offset : offset + length]).digest()


def test_copy_is_what_cmp_and_dd_say(
    tmp_path: Path, source_path: Path, source: int, settings: RingSettings
) -> None:
    writer = DirectWriter(tmp_path / "out", settings=settings)
    writer.copy_from(source, SIZE, 2 * SIZE + 5, None)
    writer.finish()
    count = f"count={2 * SIZE + 5}"
    dd = ["dd", f"if={source_path}", f"of={tmp_path}/dd", "bs=64K", f"skip={SIZE}", count]
    subprocess.run([*dd, "iflag=skip_bytes,count_bytes", "status=none"], check=True)
    subprocess.run(["cmp", tmp_path / "out", tmp_path / "dd"], check=True)


@pytest.mark.parametrize("missing", [1, 4096, SIZE, 2 * SIZE + 17])
@pytest.mark.parametrize("offset", [0, 100])
def test_short_source_is_filled_with_hashed_zeros(
    tmp_path: Path, source: int, settings: RingSettings, missing: int, offset: int
) -> None:
    hasher = blake3.blake3()
    had = len(CONTENT) - offset
    writer = DirectWriter(tmp_path / "out", settings=settings)
    assert writer.copy_from(source, offset, had + missing, hasher) == had
    writer.write(b"after")
    padded = CONTENT[offset:] + bytes(missing)
    assert writer.finish() == table_of(padded + b"after")
    assert (tmp_path / "out").read_bytes() == padded + b"after"
    assert hasher.digest() == blake3.blake3(padded).digest()


def test_empty_file(tmp_path: Path, source: int, settings: RingSettings) -> None:
    writer = DirectWriter(tmp_path / "out", settings=settings, expected_bytes=SIZE)
    assert writer.copy_from(source, 0, 0, None) == 0
    assert writer.finish() == b""
    assert (tmp_path / "out").stat().st_size == 0


def test_room_that_was_not_needed_is_given_back(tmp_path: Path, settings: RingSettings) -> None:
    writer = DirectWriter(tmp_path / "out", settings=settings, expected_bytes=64 * SIZE)
    assert (tmp_path / "out").stat().st_blocks * 512 >= 64 * SIZE
    writer.write(b"x")
    writer.finish()
    assert (tmp_path / "out").stat().st_blocks * 512 <= 8192


@pytest.mark.parametrize(
    ("position", "length"),
    [
        (0, 8),
        (SIZE - 4, 8),
        (SIZE + 100, 512),
        (10, 3 * SIZE),
        (4 * SIZE - 5, 10),
        (5 * SIZE + 10, 20),
        (7, 0),
    ],
)
def test_patched_bytes_and_their_chunks_follow(
    tmp_path: Path, source: int, settings: RingSettings, position: int, length: int
) -> None:
    writer = DirectWriter(tmp_path / "out", settings=settings)
    writer.copy_from(source, 0, len(CONTENT), None)
    patch = os.urandom(length)
    writer.patch(position, patch)
    writer.write(b"more")
    expected = CONTENT[:position] + patch + CONTENT[position + length :] + b"more"
    assert writer.finish() == table_of(expected)
    assert (tmp_path / "out").read_bytes() == expected


def test_patch_stays_inside_what_is_written(tmp_path: Path) -> None:
    writer = DirectWriter(tmp_path / "out", settings=SMALL)
    writer.write(b"12345")
    with pytest.raises(ValueError, match="cannot patch bytes 4 to 6 of 5 written"):
        writer.patch(4, b"ab")
    writer.abort()


@pytest.mark.parametrize(
    "position", [0, 1, 4096, SIZE - 1, SIZE, SIZE + 10, 3 * SIZE, 5 * SIZE, 5 * SIZE + 3]
)
def test_rewound_bytes_are_gone_and_writing_goes_on(
    tmp_path: Path, source: int, settings: RingSettings, position: int
) -> None:
    writer = DirectWriter(tmp_path / "out", settings=settings)
    writer.copy_from(source, 0, len(CONTENT), None)
    writer.rewind(position)
    assert writer.position == position
    writer.write(b"after")
    expected = CONTENT[:position] + b"after"
    assert writer.finish() == table_of(expected)
    assert (tmp_path / "out").read_bytes() == expected


def test_rewind_cannot_go_forward(tmp_path: Path) -> None:
    writer = DirectWriter(tmp_path / "out", settings=SMALL)
    with pytest.raises(ValueError, match="cannot rewind to 1 of 0 written"):
        writer.rewind(1)
    writer.abort()


def test_existing_file_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"theirs")
    with pytest.raises(BusyError, match="out exists already"):
        DirectWriter(tmp_path / "out", settings=SMALL)
    assert (tmp_path / "out").read_bytes() == b"theirs"


def test_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot create .*/no/out: No such file"):
        DirectWriter(tmp_path / "no" / "out", settings=SMALL)


def test_what_does_not_fit_is_refused_before_the_copy(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    with pytest.raises(StagingFull, match=r"no space for the .*[GT]iB of"):
        DirectWriter(tmp_path / "out", settings=SMALL, expected_bytes=free * 4)
    assert list(tmp_path.iterdir()) == []


def test_file_system_without_allocation_is_written_all_the_same(
    tmp_path: Path, source: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newfile, "preallocate", lambda fd, size: False)
    writer = DirectWriter(tmp_path / "out", settings=SMALL, expected_bytes=len(CONTENT))
    writer.copy_from(source, 0, len(CONTENT), None)
    writer.finish()
    assert (tmp_path / "out").read_bytes() == CONTENT


def fail_nth(call: Callable[..., int], number: int, code: int) -> Callable[..., int]:
    seen = iter(range(1_000_000))

    def failing(*args: object) -> int:
        if next(seen) == number:
            raise OSError(code, os.strerror(code))
        return call(*args)

    return failing


@pytest.mark.parametrize("number", [0, 2, 4])
def test_write_error_in_a_thread_surfaces_and_stays(
    tmp_path: Path, source: int, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    writer = DirectWriter(tmp_path / "out", settings=SMALL, expected_bytes=len(CONTENT))
    monkeypatch.setattr(os, "pwrite", fail_nth(os.pwrite, number, errno.EIO))
    where = f"cannot write .*/out at byte {number * SIZE}: Input/output error"
    with pytest.raises(DestinationError, match=where):  # noqa: PT012 - it surfaces in whichever looks next
        writer.copy_from(source, 0, len(CONTENT), None)
        writer.finish()
    monkeypatch.undo()
    with pytest.raises(DestinationError):
        writer.write(b"x")
    with pytest.raises(DestinationError):
        writer.finish()
    writer.abort()
    assert not (tmp_path / "out").exists()


def test_full_disk_gives_its_room_back_at_once(
    tmp_path: Path, source: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = DirectWriter(tmp_path / "out", settings=SMALL)
    monkeypatch.setattr(os, "pwrite", fail_nth(os.pwrite, 1, errno.ENOSPC))
    with pytest.raises(StagingFull, match="no space left"):
        writer.copy_from(source, 0, len(CONTENT), None)
    assert not (tmp_path / "out").exists()
    writer.abort()


def test_source_error_is_the_sources_own_and_the_writer_goes_on(
    tmp_path: Path, source: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = DirectWriter(tmp_path / "out", settings=SMALL)
    writer.write(b"before")
    monkeypatch.setattr(os, "preadv", fail_nth(os.preadv, 2, errno.EIO))
    with pytest.raises(OSError, match="Input/output error") as caught:
        writer.copy_from(source, 0, len(CONTENT), None)
    assert caught.value.errno == errno.EIO
    monkeypatch.undo()
    assert 6 <= writer.position < 6 + len(CONTENT)
    writer.rewind(6)
    writer.copy_from(source, 0, len(CONTENT), None)
    assert writer.finish() == table_of(b"before" + CONTENT)


def test_unreadable_descriptor_is_the_sources_error(tmp_path: Path, settings: RingSettings) -> None:
    writer = DirectWriter(tmp_path / "out", settings=settings)
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError, match="directory"):
        writer.copy_from(folder, 0, 10, None)
    os.close(folder)
    writer.write(b"on")
    writer.finish()
    assert (tmp_path / "out").read_bytes() == b"on"


class CancelOnUpdate:
    """A hasher that asks for a stop when it sees its first bytes."""

    def __init__(self, cancel: Cancel) -> None:
        self.cancel = cancel
        self.updates = 0

    def update(self, data: memoryview | bytes, /) -> None:
        self.updates += 1
        self.cancel.set("test")


def test_cancel_is_seen_at_the_next_buffer(tmp_path: Path, source: int, settings: RingSettings) -> None:
    cancel = Cancel()
    hasher = CancelOnUpdate(cancel)
    writer = DirectWriter(tmp_path / "out", settings=settings, cancel=cancel)
    with pytest.raises(Cancelled):
        writer.copy_from(source, 0, len(CONTENT), hasher)
    assert hasher.updates == 1
    with pytest.raises(Cancelled):
        writer.write(bytes(2 * SIZE))
    writer.abort()
    writer.abort()
    assert not (tmp_path / "out").exists()


def test_abort_leaves_a_file_alone_that_took_the_name(tmp_path: Path) -> None:
    writer = DirectWriter(tmp_path / "out", settings=SMALL)
    writer.write(b"ours")
    writer.finish()
    durable_rename(tmp_path / "out", tmp_path / "final")
    (tmp_path / "out").write_bytes(b"theirs")
    writer.abort()
    assert (tmp_path / "out").read_bytes() == b"theirs"
    assert (tmp_path / "final").read_bytes() == b"ours"


def test_abort_after_finish_removes_the_file(tmp_path: Path) -> None:
    writer = DirectWriter(tmp_path / "out", settings=SMALL)
    writer.finish()
    writer.abort()
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_the_callers_is_written_and_stays_the_callers(tmp_path: Path) -> None:
    data = os.urandom((3 << 20) + 5)
    fd = os.open(tmp_path / "theirs", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        writer = DirectWriter("of the caller", settings=RingSettings(buffers=2), fd=fd)
        assert writer.unbuffered
        writer.write(data)
        writer.finish()
        writer.abort()
        assert os.pread(fd, len(data) + 1, 0) == data
        os.pwrite(fd, b"odd", 1)  # its own descriptor goes through the cache as before
        DirectWriter(tmp_path / "theirs", settings=RingSettings(buffers=2), fd=fd).abort()
        assert (tmp_path / "theirs").stat().st_size == len(data)
    finally:
        os.close(fd)


def test_finished_writer_takes_nothing_more(tmp_path: Path) -> None:
    writer = DirectWriter(tmp_path / "out", settings=SMALL)
    writer.finish()
    with pytest.raises(ValueError, match="is closed"):
        writer.write(b"x")


def test_meter_hears_every_byte(tmp_path: Path, source: int, settings: RingSettings) -> None:
    meter = Meter()
    writer = DirectWriter(tmp_path / "out", settings=settings, meter=meter)
    writer.copy_from(source, 0, len(CONTENT), None)
    writer.finish()
    assert meter.sample().bytes_total == len(CONTENT)


def refuse_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    real = fcntl.fcntl

    def refusing(fd: int, command: int, argument: int = 0) -> int:
        if command == fcntl.F_SETFL and argument & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(fd, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", refusing)
    monkeypatch.setattr(newfile, "_said", set())


def test_refusing_file_system_is_written_through_the_cache_and_said_once(
    tmp_path: Path,
    source: int,
    settings: RingSettings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    refuse_direct(monkeypatch)
    with caplog.at_level(logging.WARNING):
        for name in ("one", "two"):
            writer = DirectWriter(tmp_path / name, settings=settings)
            assert not writer.unbuffered
            writer.copy_from(source, 0, len(CONTENT), None)
            writer.patch(5, b"patch")
            writer.rewind(4 * SIZE + 5)
            assert writer.finish() == table_of(CONTENT[:5] + b"patch" + CONTENT[10 : 4 * SIZE + 5])
    assert [record.message.count("refuses unbuffered I/O") for record in caplog.records] == [1]


def test_file_system_that_refuses_only_the_write_falls_back(
    tmp_path: Path, source: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = DirectWriter(tmp_path / "out", settings=SMALL)
    assert writer.unbuffered
    monkeypatch.setattr(os, "pwrite", fail_nth(os.pwrite, 0, errno.EINVAL))
    writer.copy_from(source, 0, len(CONTENT), None)
    assert writer.finish() == table_of(CONTENT)
    assert not writer.unbuffered
    assert (tmp_path / "out").read_bytes() == CONTENT


def test_source_that_refuses_only_the_read_is_read_through_the_cache(
    tmp_path: Path, source: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = DirectWriter(tmp_path / "out", settings=SMALL)
    monkeypatch.setattr(os, "preadv", fail_nth(os.preadv, 0, errno.EINVAL))
    assert writer.copy_from(source, 0, len(CONTENT), None) == len(CONTENT)
    assert writer.finish() == table_of(CONTENT)


def test_memory_file_system_works(tmp_path: Path, source: int, settings: RingSettings) -> None:
    out = Path("/dev/shm") / f"nightferry-test-{os.getpid()}"
    writer = DirectWriter(out, settings=settings, expected_bytes=SIZE)
    try:
        writer.copy_from(source, 0, len(CONTENT), None)
        assert writer.finish() == table_of(CONTENT)
        again = DirectWriter(tmp_path / "back", settings=settings)
        fd = os.open(out, os.O_RDONLY)
        again.copy_from(fd, 4096, 2 * SIZE, None)
        os.close(fd)
        assert again.finish() == table_of(CONTENT[4096 : 4096 + 2 * SIZE])
    finally:
        writer.abort()


def test_buffered_on_demand(tmp_path: Path, source: int) -> None:
    writer = DirectWriter(
        tmp_path / "out", settings=RingSettings(SIZE, 3, unbuffered=False, engine="threads")
    )
    assert not writer.unbuffered
    writer.copy_from(source, 0, len(CONTENT), None)
    assert writer.finish() == table_of(CONTENT)


def cached_bytes(path: Path) -> int:
    fincore = ["fincore", "--bytes", "--noheadings", "--output", "RES", str(path)]
    return int(subprocess.run(fincore, capture_output=True, text=True, check=True).stdout)


def test_no_page_cache_is_left(
    tmp_path: Path, source_path: Path, source: int, settings: RingSettings
) -> None:
    os.posix_fadvise(source, 0, 0, os.POSIX_FADV_DONTNEED)
    writer = DirectWriter(tmp_path / "out", settings=settings, expected_bytes=len(CONTENT))
    writer.write(bytes(4096))
    writer.copy_from(source, 0, len(CONTENT), None)
    writer.finish()
    assert cached_bytes(source_path) <= 64 << 10
    assert cached_bytes(tmp_path / "out") <= 64 << 10


def test_memory_is_bounded_by_the_ring(tmp_path: Path) -> None:
    """Copying 96 MiB through a 4 MiB ring takes no more memory than copying 1 MiB and filling the ring."""
    source = tmp_path / "source"
    source.write_bytes(os.urandom(1 << 20) * 96)
    program = (
        "import os, sys\n"
        "from nightferry.transfer.direct import DirectWriter, RingSettings\n"
        "from tests.support.peak import peak_bytes\n"
        "fd = os.open(sys.argv[1], os.O_RDONLY)\n"
        "settings = RingSettings(1 << 20, 4, engine='threads')\n"
        "peaks = []\n"
        "for number, length in enumerate((1 << 20, 96 << 20)):\n"
        "    writer = DirectWriter(f'{sys.argv[2]}{number}', settings=settings)\n"
        "    writer.copy_from(fd, 0, length, None)\n"
        "    writer.write(bytes(100))\n"
        "    writer.finish()\n"
        "    peaks.append(peak_bytes())\n"
        "print(peaks[1] - peaks[0], settings.memory_bytes)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, source, tmp_path / "out"], capture_output=True, text=True, check=True
    )
    grown, bound = map(int, done.stdout.split())
    assert grown <= bound


def test_ring_settings_are_checked() -> None:
    assert RingSettings().memory_bytes == 32 << 20
    for wrong in (
        {"buffer_bytes": 4096},
        {"buffer_bytes": 0},
        {"buffers": 1},
        {"readers": 0},
        {"writers": 0},
        {"engine": "magic"},
    ):
        with pytest.raises(ConfigError):
            RingSettings(**wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_without_uring_api_auto_takes_threads_and_the_name_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "why_not", lambda: "not today")
    writer = DirectWriter(tmp_path / "out", settings=RingSettings(SIZE, 2))
    assert writer.engine == "threads"
    writer.abort()
    with pytest.raises(ConfigError, match="io_uring does not work here: not today"):
        DirectWriter(tmp_path / "out", settings=RingSettings(SIZE, 2, engine="io_uring"))
