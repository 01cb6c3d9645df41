"""What could fail tonight at a URL, and what its scheme cannot do, found with scratch objects."""

from __future__ import annotations

from collections.abc import Iterator

from nightferry.destination.ours import SCRATCH
from nightferry.destination.spec import SpecObjects
from nightferry.errors import NightferryError
from nightferry.model.findings import Finding
from nightferry.units import MIB, format_size

LITTLE_BYTES = 64 * MIB
_BYTES = bytes(range(256)) * 16


def check_objects(objects: SpecObjects) -> list[Finding]:
    """Every finding. Leaves nothing behind where removing is allowed."""
    name = objects.driver.name
    try:
        objects.write(SCRATCH, [_BYTES])
    except NightferryError as error:
        return [Finding("NF-DEST-002", "fail", f"destination {name} cannot be written: {error}", error.hint)]
    try:
        return [*_memory(objects), *_reading(objects), *_writing(objects), *_removing(objects)]
    except NightferryError as error:
        return [Finding("NF-DEST-002", "fail", f"destination {name} cannot be used: {error}", error.hint)]


def _memory(objects: SpecObjects) -> Iterator[Finding]:
    if objects.driver.scheme == "memory":
        yield Finding(
            "NF-FS-001",
            "warn",
            f"destination {objects.driver.name} is in the memory of one process: copies there are lost "
            "when it ends",
            "use it for tests within one process; copies that must be kept need another URL",
        )


def _reading(objects: SpecObjects) -> Iterator[Finding]:
    name = objects.driver.name
    if objects.read(SCRATCH) != _BYTES:
        yield Finding(
            "NF-FS-002",
            "fail",
            f"destination {name} does not return what was written",
            "do not copy there; check the server",
        )
    elif objects.read(SCRATCH, 1000, 9) != _BYTES[1000:1009]:
        yield Finding(
            "NF-FS-003",
            "fail",
            f"destination {name} does not return byte ranges: no copy could be restored from it",
            "use another scheme to reach the place",
        )


def _writing(objects: SpecObjects) -> Iterator[Finding]:
    name, other = objects.driver.name, f"{SCRATCH}-2"
    if not objects.renames():
        yield Finding(
            "NF-FS-004",
            "note",
            f"destination {name} cannot rename: objects are written under their own names",
            "a copy counts when all objects are there with the right size; meta.json is written last",
        )
    if not objects.syncs(other):
        yield Finding(
            "NF-FS-005",
            "note",
            f"destination {name} cannot be told to sync bytes to its disk",
            "every copy is read back, but a power failure there can still lose the newest copies: verify after one",
        )
    if not objects.keeps(other, SCRATCH):
        yield Finding(
            "NF-FS-006",
            "note",
            f"destination {name} lets objects be written over",
            "let no other program write below the url",
        )
    free = objects.free_bytes()
    if free is None:
        yield Finding(
            "NF-FS-007",
            "note",
            f"destination {name} does not report free space",
            "watch its free space yourself",
        )
    elif free < LITTLE_BYTES:
        yield Finding(
            "NF-FS-009", "warn", f"destination {name} has {format_size(free)} free", "free space there"
        )


def _removing(objects: SpecObjects) -> Iterator[Finding]:
    try:
        objects.remove(SCRATCH)
        objects.remove(f"{SCRATCH}-2")
    except NightferryError as error:
        yield Finding(
            "NF-FS-008",
            "warn",
            f"destination {objects.driver.name} does not let objects be removed: {error}",
            "a damaged or interrupted copy can then not be replaced",
        )
