"""What the tests of images share: writing one, and GNU tar as the judge of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nightferry.image.format import ImageHeader
from nightferry.image.reader import ImageReader
from nightferry.image.writer import ImageSummary, ImageWriter
from nightferry.progress import QUIET, Cancel
from nightferry.source.base import StoreSource
from nightferry.transfer.direct import DirectWriter, RingSettings
from nightferry.transfer.reading import FileReader

HEADER = ImageHeader(
    image="20261130-TEX-BACK-1.SG1.priv1.L0",
    run="20261130-TEX-BACK-1",
    group="SG1",
    store="priv1",
    source_kind="files",
    source={"path": "/srv/mail"},
    node="TEX-ACTV-1",
    started=datetime(2026, 11, 30, 20, 0, tzinfo=UTC),
    nightferry="0.1.0",
)
SETTINGS = RingSettings(buffer_bytes=1 << 20, buffers=4)


def require_program(name: str) -> str:
    """The program's path; without it the test is skipped at a desk and fails in CI."""
    found = shutil.which(name)
    if found is None:
        if os.environ.get("NIGHTFERRY_REQUIRE_SERVERS") == "1":
            pytest.fail(f"{name} is not installed")
        pytest.skip(f"{name} is not installed")
    return found


def write_image(
    path: Path, fill: Callable[[ImageWriter], object], sink: type[DirectWriter] = DirectWriter
) -> ImageSummary:
    """An image at ``path`` with what ``fill`` adds."""
    writer = sink(path, settings=SETTINGS)
    image = ImageWriter(writer, HEADER)
    try:
        fill(image)
        return image.finish()
    finally:
        image.close()


def write_source(path: Path, source: StoreSource) -> ImageSummary:
    """An image at ``path`` with the whole of ``source``."""
    return write_image(
        path, lambda image: source.write(image, progress=QUIET, cancel=Cancel(), subject="SG1/priv1")
    )


def open_image(path: Path, summary: ImageSummary | None = None) -> ImageReader:
    """A reader; with the summary every chunk is checked."""
    return ImageReader(FileReader(path), summary.chunks if summary is not None else None)


def content(image: ImageReader, path: bytes) -> bytes:
    """The whole content of one file, holes as zeros."""
    row = image.index.lookup(path)
    assert row is not None
    data = bytearray(row.size)
    for offset, piece in image.payload(row):
        data[offset : offset + len(piece)] = piece
    return bytes(data)


def gnu_tar(*arguments: str | Path, check_silent: bool = True) -> bytes:
    """GNU tar's output; any word on stderr is a failure."""
    done = subprocess.run(["tar", *arguments], capture_output=True, env={**os.environ, "LC_ALL": "C"})
    assert done.returncode == 0, done.stderr
    if check_silent:
        assert done.stderr == b""
    return done.stdout


def gnu_extract(image: Path, to: Path, *arguments: str) -> Path:
    """Extracts the data members with GNU tar, silently, with attributes and ACLs."""
    to.mkdir(exist_ok=True)
    gnu_tar("--xattrs", "--acls", "--anchored", "--exclude=.nightferry", *arguments, "-C", to, "-xpf", image)
    return to


def output(*command: str | bytes | Path) -> bytes:
    """What a program prints; it must succeed."""
    return subprocess.run(list(command), check=True, capture_output=True).stdout


def mtime_text(path: Path | bytes) -> str:
    """``stat``'s word for the modification time, with nanoseconds."""
    return output("stat", "-c", "%.9Y", path).decode().strip()
