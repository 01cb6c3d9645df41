"""Images of every released format stay readable, by us and by GNU tar."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path

from blake3 import blake3

from nightferry.image.reader import ImageReader
from nightferry.transfer.digest import image_digest
from nightferry.transfer.reading import FileReader
from tests.imaging import HEADER, content, gnu_extract, mtime_text
from tests.support.image_check import check_image

FORMAT_1 = Path(__file__).parent / "image_format_1"
EXPECTED = json.loads((FORMAT_1 / "files.json").read_text())
FILES = {base64.b64decode(file["path_b64"]): file for file in EXPECTED["files"]}


def image() -> ImageReader:
    return ImageReader(FileReader(FORMAT_1 / "image.tar"), (FORMAT_1 / "image.chunks").read_bytes())


def test_format_1_every_digest_is_right() -> None:
    report = check_image(image())
    assert report.members == 14
    assert (
        image_digest((FORMAT_1 / "image.chunks").read_bytes(), image().index.data) == EXPECTED["image_digest"]
    )
    assert image().header == HEADER


def test_format_1_every_file_is_what_it_was() -> None:
    reader = image()
    stored = {row.path: row for row in reader.index if row.type in ("file", "hardlink") and row.stored}
    assert set(stored) == {*FILES, b"zz stream"}
    for path, file in FILES.items():
        assert stored[path].size == file["size"]
        assert f"{stored[path].mtime_ns / 1e9:.3f}" == f"{float(file['mtime']):.3f}"
        assert blake3(content(reader, path)).hexdigest() == file["content_b3sum"]
    assert content(reader, b"zz stream") == b"of unknown length\n"
    gone = reader.index.lookup(b"gone")
    assert gone is not None
    assert (gone.outcome, gone.stored) == ("vanished", False)
    h2 = reader.index.lookup(b"h2")
    assert h2 is not None
    assert (h2.type, h2.link_target) == ("hardlink", b"h1")
    assert reader.attributes(h2).xattrs == ((b"user.colour", b"blue\0\n"),)
    assert b"user:1234:rw-" in reader.attributes(h2).acl_access


def test_format_1_gnu_tar_lists_it_as_it_did() -> None:
    listed = subprocess.run(
        ["tar", "--numeric-owner", "--full-time", "-tvf", FORMAT_1 / "image.tar"],
        env={**os.environ, "TZ": "UTC", "LC_ALL": "C"},
        capture_output=True,
    )
    assert (listed.returncode, listed.stderr) == (0, b"")
    assert listed.stdout == (FORMAT_1 / "listing.txt").read_bytes()


def test_format_1_gnu_tar_restores_it(tmp_path: Path) -> None:
    to = os.fsencode(gnu_extract(FORMAT_1 / "image.tar", tmp_path / "x", "--warning=no-timestamp"))
    for path, file in FILES.items():
        restored = to + b"/" + path
        assert mtime_text(restored) == file["mtime"]
        assert blake3(Path(os.fsdecode(restored)).read_bytes()).hexdigest() == file["content_b3sum"]
