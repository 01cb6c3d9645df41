"""What `check` says of a BACK group's disk on Pacemaker: what is mounted, and what keeps a second node from it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from nightferry.cluster.crm import Configured, Primitive
from nightferry.cluster.mount import mount_of
from nightferry.cluster.run import CLEAN_ENVIRONMENT, run_program
from nightferry.errors import ClusterError
from nightferry.model.findings import Finding

RESERVING = ("stonith:fence_scsi", "stonith:fence_mpath")
"""Fence devices that take a lost node's access to the disk itself away, by SCSI-3 reservations."""

_TOOL_S = 10.0


def disk(group: str, path: Path, configured: Configured, *, here: bool) -> Iterator[Finding]:
    """Whether the group mounts the disk that the site file means, and how a second mount is kept away.

    Args:
        group: The BACK group.
        path: Its disk's path in the site file.
        configured: The cluster's configuration.
        here: The group is started on this node, so its disk can be looked at.
    """
    file_system = _file_system(group, path, configured)
    if file_system is None:
        yield _wrong(
            group,
            f"no file system of the group is mounted at {path} or above it",
            "correct the BACK group's path",
        )
        return
    if not here:
        return
    mount = mount_of(path)
    directory, device = file_system.parameters["directory"], file_system.parameters.get("device", "")
    if os.path.realpath(directory) != mount.point:
        yield _wrong(
            group, f"{path} lies on {mount}, not on {file_system.name}", f"look at what hides {directory}"
        )
        return
    if not _same_device(device, mount.source):
        yield _wrong(
            group,
            f"{mount} is mounted in the place of {file_system.name} ({device})",
            f"unmount {mount.point}",
        )
        return
    uuid = _output_of("blkid", "--probe", "--match-tag", "UUID", "--output", "value", mount.source)
    kept = tuple(_keeps_second_away(group, mount.source, mount.kind, configured))
    text = f"{group}: {mount}, UUID {uuid or 'unknown'}; against a second node: {', '.join(kept) or 'fencing alone'}"
    yield Finding(
        "NF-CLUSTER-035",
        "note" if kept else "warn",
        text,
        "nothing to do"
        if kept
        else "fence_scsi or fence_mpath, LVM's system ID, or ext4's mmp (docs/cluster.md)",
    )


def _wrong(group: str, text: str, cure: str) -> Finding:
    return Finding("NF-CLUSTER-034", "fail", f"{group}: {text}", cure)


def _file_system(group: str, path: Path, configured: Configured) -> Primitive | None:
    """The group's file system that the path lies on: of several above it the nearest."""
    found = [
        p
        for p in configured.members.get(group, ())
        if p.agent.endswith(":Filesystem") and path.is_relative_to(p.parameters.get("directory", "/dev/null"))
    ]
    return max(found, key=lambda p: len(p.parameters["directory"]), default=None)


def _same_device(configured: str, mounted: str) -> bool:
    for prefix, folder in (("UUID=", "by-uuid"), ("LABEL=", "by-label")):
        if configured.startswith(prefix):
            configured = f"/dev/disk/{folder}/{configured.removeprefix(prefix)}"
    if not configured.startswith("/dev/"):
        return configured == mounted  # a network file system
    return os.path.realpath(configured) == os.path.realpath(mounted)


def _keeps_second_away(group: str, source: str, kind: str, configured: Configured) -> Iterator[str]:
    yield from (f"{p.name} ({p.agent})" for p in configured.elsewhere if p.agent in RESERVING)
    for member in configured.members.get(group, ()):
        if member.parameters.get("vg_access_mode") == "system_id":
            yield f"LVM's system ID ({member.name})"
    if kind == "ext4" and "mmp" in _features(source):
        yield "ext4's multi-mount protection"


def _features(source: str) -> list[str]:
    output = _output_of("dumpe2fs", "-h", source)
    line = next((line for line in output.splitlines() if line.startswith("Filesystem features:")), "")
    return line.split()[2:]


def _output_of(tool: str, *arguments: str) -> str:
    """What a tool says of a device; nothing where it is not there, or may not look."""
    program = shutil.which(tool, path=CLEAN_ENVIRONMENT["PATH"])
    if program is None:
        return ""
    try:
        ended = run_program([program, *arguments], deadline_s=_TOOL_S)
    except ClusterError:
        return ""
    return ended.stdout.decode(errors="replace").strip() if ended.code == 0 else ""
