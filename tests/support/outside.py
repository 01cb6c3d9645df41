"""What stands at the destinations and on staging, by GNU tar, diff and the documented layouts alone."""

from __future__ import annotations

import json
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def compare_tree(left: Path, right: Path) -> str:
    """What ``diff -r`` says of two folders; empty when they hold the same."""
    done = subprocess.run(
        ["diff", "-r", "--no-dereference", left, right], capture_output=True, text=True, errors="replace"
    )
    return done.stdout + done.stderr


def compare_tar(tar: Path, store: Path) -> str:
    """What GNU tar says of the differences between an image and a store; empty when there are none."""
    done = subprocess.run(
        ["tar", "--compare", "--file", tar, "--directory", store, "--exclude=.nightferry/*"],
        capture_output=True,
        text=True,
        errors="replace",
    )
    return done.stdout + done.stderr


@dataclass(frozen=True)
class TapeCopy:
    """A final trailer on a virtual cartridge; ``data`` holds the image's bytes when it lies in one part."""

    image: str
    epoch: int
    data: Path


def tape_copies(library: Path) -> list[TapeCopy]:
    """Every whole copy in a virtual library, as docs/tape-layout.md says: closed tape files, final trailers."""
    found = []
    for marks in sorted(library.glob("cartridges/*/marks")):
        closed = marks.read_bytes().count(b"\n")
        for number in range(1, closed):
            trailer = _trailer(marks.parent / f"{number:04d}.tape")
            if trailer is not None and trailer["kind"] == "image" and trailer["location"] is not None:
                data = marks.parent / f"{trailer['this']['file']:04d}.tape"
                found.append(TapeCopy(trailer["image"], trailer["epoch"], data))
    return found


def _trailer(tape_file: Path) -> dict[str, Any] | None:
    try:
        with tarfile.open(tape_file) as tar:
            first = tar.next()
            member = tar.extractfile(first) if first is not None else None
            if first is None or member is None or first.name != ".nightferry/trailer.json":
                return None
            found: dict[str, Any] = json.load(member)
            return found
    except tarfile.TarError:
        return None


def folder_copies(objects: Path) -> dict[str, Path]:
    """Every whole copy in an object folder: image → its data. ``meta.json`` comes last and makes it whole."""
    return {meta.parent.name: meta.parent / "data" for meta in sorted(objects.glob("images/*/meta.json"))}


def wrong_images(images: dict[str, Path], stores: Path) -> list[str]:
    """Images (name → tar) that GNU tar finds to differ from the stores they are named after."""
    wrong = []
    for image, tar in images.items():
        group, store = image.split(".")[1:3]
        said = compare_tar(tar, stores / group / store)
        if said:
            wrong.append(f"{tar}: {said[:300]}")
    return wrong
