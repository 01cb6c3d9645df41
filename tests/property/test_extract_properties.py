"""Whatever an image says, a restore stays below its target and never leaves half a file under a name."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from nightferry.model.text import path_fields
from nightferry.restore.metadata import Metadata
from nightferry.restore.new_file import TEMPORARY_PREFIX
from nightferry.restore.tree import Overwrite, RestoreReport, TargetTree
from nightferry.restore.walk import EntryRefused, components

Kind = Literal["file", "broken", "symlink", "directory", "fifo", "hardlink"]

NAMES = st.sampled_from([b"a", b"e", b"caf\xe9\xff", b"..", b".", b"", b"x" * 300, b"n\0"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(b"/".join)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["file", "broken", "symlink", "directory", "fifo", "hardlink"]),
        PATHS,
        st.one_of(PATHS, st.sampled_from([b"../outside", b"..", b"/"])),
        st.binary(max_size=20),
        st.booleans(),
    ),
    max_size=12,
)


class Broken(Exception):
    pass


def everything_below(root: bytes) -> dict[bytes, tuple[int, int, bytes]]:
    found = {}
    for directory, directories, files in os.walk(root):
        for name in directories + files:
            path = directory + b"/" + name
            status = os.lstat(path)
            content = b""
            if os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb") as file:
                    content = file.read()
            found[path] = (status.st_mode, status.st_mtime_ns, content)
    return found


def take_step(tree: TargetTree, kind: Kind, path: bytes, other: bytes, data: bytes) -> bool:
    metadata = Metadata(0o6777, os.geteuid(), os.getegid(), 5)
    match kind:
        case "file":
            return tree.write_file(path, metadata, len(data) + 7, [(7, data)], linkable=True)
        case "broken":

            def pieces() -> Iterator[tuple[int, bytes]]:
                yield 0, data
                raise Broken

            with contextlib.suppress(Broken):
                return tree.write_file(path, metadata, len(data), pieces())
            return False
        case "symlink":
            return tree.make_symlink(path, metadata, other)
        case "directory":
            return tree.make_directory(path, metadata)
        case "fifo":
            return tree.make_fifo(path, metadata)
        case "hardlink":
            return tree.make_hardlink(path, other, 5)


@settings(max_examples=150)
@given(STEPS, st.sampled_from(["never", "older", "always"]))
def test_nothing_outside_the_target_changes(
    steps: list[tuple[Kind, bytes, bytes, bytes, bool]], overwrite: Overwrite
) -> None:
    with tempfile.TemporaryDirectory() as work:
        outside, target = Path(work, "outside"), Path(work, "target")
        (outside / "a").mkdir(parents=True)
        (outside / "e").write_text("precious")
        before = everything_below(os.fsencode(outside))
        tree = TargetTree(target, overwrite=overwrite)
        settled: dict[bytes, bytes] = {}
        for kind, path, other, data, again in steps:
            if again:  # what an earlier restore left is trusted no more
                tree.close_directories()
                tree.close()
                tree = TargetTree(target, overwrite=overwrite)
            if take_step(tree, kind, path, other, data):
                settled.pop(path, None)
                if kind == "file":
                    settled[path] = bytes(7) + data
        tree.close_directories()
        tree.close()
        assert everything_below(os.fsencode(outside)) == before
        assert sorted(os.listdir(work)) in (["outside"], ["outside", "target"])
        left = everything_below(os.fsencode(target))
        assert not [path for path in left if TEMPORARY_PREFIX in path]
        for path, content in settled.items():
            assert left[os.fsencode(target) + b"/" + path][2] == content
        assert not [mode for mode, _, _ in left.values() if mode & 0o6000]


@given(st.binary(max_size=40) | PATHS)
def test_a_path_is_taken_apart_exactly_or_refused(path: bytes) -> None:
    try:
        names = components(path)
    except EntryRefused:
        suspicious = {b"", b".", b".."} & set(path.split(b"/"))
        assert suspicious or b"\0" in path
    else:
        assert b"/".join(names) == path
        assert not {b"", b".", b".."} & set(names)


@given(st.binary(), st.text())
def test_a_path_survives_json(path: bytes, reason: str) -> None:
    shown = path_fields(path)
    exact = base64.b64decode(shown["path_b64"]) if "path_b64" in shown else shown["path"].encode()
    assert exact == path
    report = RestoreReport(1, 2, 3, 4, (path,), (path,), ((path, reason),), ((path, reason),))
    document = json.loads(json.dumps(report.as_json()))
    assert document["refused"] == [{**shown, "reason": reason}]
    assert document["losses"] == [{**shown, "what": reason}]
    assert document["skipped"] == document["kept"] == [shown]
