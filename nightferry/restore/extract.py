"""Rows of an image → files: which are taken, in which order they are read, what each becomes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from nightferry.image.attributes import acl_from_text
from nightferry.image.index import IndexRow
from nightferry.image.reader import ImageReader
from nightferry.model.text import safe
from nightferry.progress import QUIET, Cancel, Progress
from nightferry.restore.metadata import ACL_ACCESS, ACL_DEFAULT, Metadata
from nightferry.restore.tree import RestoreReport, TargetTree
from nightferry.units import counted


@dataclass(frozen=True, slots=True)
class _Planned:
    """One row to restore.

    ``link_to`` is a path of this restore whose file it becomes another name of; ``implied`` is a directory
    on the way to what was asked for.
    """

    row: IndexRow
    link_to: bytes | None = None
    linkable: bool = False
    implied: bool = False

    @property
    def reads_bytes(self) -> int:
        has_content = self.row.type in ("file", "hardlink") and self.link_to is None
        return self.row.payload_length if has_content else 0

    @property
    def read_at(self) -> int:
        """Where its first byte lies that is read: in this order the image is read in one forward pass."""
        alone = self.row.type == "hardlink" and self.link_to is None
        return self.row.payload_offset if alone else self.row.offset


def extract(
    reader: ImageReader,
    rows: Iterable[IndexRow],
    tree: TargetTree,
    *,
    progress: Progress = QUIET,
    cancel: Cancel | None = None,
    subject: str = "",
    done: set[bytes] | None = None,
    dry_run: bool = False,
) -> RestoreReport:
    """Restores rows of one image into a tree, reading only what they need, in the order in which it lies.

    Directories on the way that were not asked for are made as the image has them, when they are missing.
    What stands in the way is found before anything is written. Every byte is checked on the way; a file
    whose content is not what the index says never gets its name. To go on from another copy after an
    error, call again with that copy's reader, the same tree and the same ``done``.

    Args:
        reader: The image.
        rows: What to restore, in any order: rows of this image's index (or of the same image's other copy).
        tree: Where to. Its report also holds what earlier calls did.
        progress: Told the bytes read and the file at hand.
        cancel: Looked at before every piece.
        subject: What progress calls this restore.
        done: Paths already settled, restored or not; they are left out, and what is settled now is added.
        dry_run: Look only. The report then says what would happen; losses are known only by writing.

    Returns:
        What the tree has done so far, this call included.

    Raises:
        IntegrityError: a copy's bytes are damaged. Nothing of the file at hand is left.
        DestinationError: a copy's bytes cannot be had. Nothing of the file at hand is left.
        ConfigError: the target is full or cannot be written.
        Cancelled: a stop was asked for.
    """
    cancel = Cancel() if cancel is None else cancel
    done = set() if done is None else done
    plan = _plan(rows, tree, done, look_first=dry_run or tree.overwrite == "never")
    if dry_run:
        return _forecast(plan, tree)
    plan = _implied(reader, plan, done) + plan
    progress.begin(subject, "restore", sum(planned.reads_bytes for planned in plan))
    already = len(tree.report().skipped)
    if already:
        entries = counted(already, "entry is", "entries are")
        progress.say(f"{entries} already there and kept", subject)
    result = "failed"
    try:
        read = 0
        for planned in plan:
            cancel.check()
            progress.advance(subject, read, safe(planned.row.path))
            read += _restore(reader, planned, tree, _Watch(progress, cancel, subject, read))
            done.add(planned.row.path)
        tree.close_directories()
        report = tree.report()
        result = "whole" if report.complete else "partial"
    finally:
        progress.end(subject, "cancelled" if cancel.is_set() and result == "failed" else result)
    return report


@dataclass(frozen=True, slots=True)
class _Watch:
    """Follows one file's pieces: shows them, and stops between two."""

    progress: Progress
    cancel: Cancel
    subject: str
    before_bytes: int

    def over(self, pieces: Iterator[tuple[int, memoryview]], path: bytes) -> Iterator[tuple[int, memoryview]]:
        read, current = self.before_bytes, safe(path)
        for offset, data in pieces:
            self.cancel.check()
            yield offset, data
            read += len(data)
            self.progress.advance(self.subject, read, current)


def _plan(
    rows: Iterable[IndexRow], tree: TargetTree, done: set[bytes], *, look_first: bool
) -> list[_Planned]:
    """What to do, in reading order; what cannot be done is in the tree's report and in ``done``."""
    possible: list[IndexRow] = []
    leaders: dict[bytes, bytes] = {}
    for row in sorted(rows, key=lambda row: row.path):
        if row.path in done:
            if tree.made(row.path):
                possible.append(row)
        elif _is_possible(row, tree, look_first):
            possible.append(row)
        else:
            done.add(row.path)
    paths = {row.path for row in possible}
    planned = []
    linked: set[bytes] = set()
    for row in possible:
        link_to = None
        if row.type == "hardlink" and row.link_target is not None:
            first = row.link_target
            leader = first if first in paths else leaders.setdefault(first, row.path)
            if leader != row.path:
                link_to = leader
                linked.add(leader)
        planned.append(_Planned(row, link_to))
    return sorted(
        (replace(one, linkable=one.row.path in linked) for one in planned if one.row.path not in done),
        # A link is made after the file it names, wherever that one's bytes lie.
        key=lambda one: (one.link_to is not None, one.read_at),
    )


def _implied(reader: ImageReader, plan: list[_Planned], done: set[bytes]) -> list[_Planned]:
    """The directories above what is planned that were not asked for, outermost first."""
    paths = {planned.row.path for planned in plan} | done
    above: set[bytes] = set()
    for path in paths - done:
        while (path := path.rpartition(b"/")[0]) and path not in above and path not in paths:
            above.add(path)
    rows = (reader.index.lookup(path) for path in sorted(above))
    return [_Planned(row, implied=True) for row in rows if row and row.type == "directory" and row.stored]


def _is_possible(row: IndexRow, tree: TargetTree, look_first: bool) -> bool:
    if row.deleted:
        return False
    if row.type == "socket":
        tree.lose(row.path, "a socket: the program that listens on it makes it again")
        return False
    if not row.stored:
        tree.refuse(row.path, f"the image does not hold it: {row.outcome}")
        return False
    if row.type == "directory" and row.path == b".":
        return True
    if not look_first:
        return True
    return tree.probe(row.path, is_directory=row.type == "directory", mtime_ns=row.mtime_ns) == "free"


def _restore(reader: ImageReader, planned: _Planned, tree: TargetTree, watch: _Watch) -> int:
    """Restores one row; returns how many bytes of content it took from the image."""
    row, path = planned.row, planned.row.path
    if planned.link_to is not None and tree.made(planned.link_to):
        tree.make_hardlink(path, planned.link_to, row.mtime_ns)
        return 0
    if row.type == "hardlink" and row.payload_offset <= 0:
        first = reader.index.lookup(row.link_target or b"")
        if first is None or first.type not in ("symlink", "fifo", "char", "block"):
            tree.refuse(path, "a hard link to something that the image does not hold")
            return 0
        row = first
        if planned.link_to is not None:
            tree.lose(path, f"a hard link, restored as a {row.type} of its own")
    metadata = _metadata(reader, row)
    linkable = planned.linkable
    match row.type:
        case "file" | "hardlink":
            pieces = watch.over(reader.payload(row), path)
            if tree.write_file(
                path, metadata, row.size, pieces, linkable=linkable, in_order=row.sparse is None
            ):
                if row.outcome == "changed":
                    tree.lose(path, "its content changed while it was backed up")
                if planned.link_to is not None:
                    tree.lose(path, "a hard link, restored as a file of its own")
            return row.payload_length
        case "directory":
            tree.make_directory(path, metadata, implied=planned.implied)
        case "symlink":
            tree.make_symlink(path, metadata, row.link_target or b"", linkable=linkable)
        case "fifo":
            tree.make_fifo(path, metadata, linkable=linkable)
        case "char" | "block":
            major, minor = reader.member(row).rdev
            tree.make_device(path, metadata, row.type, major, minor, linkable=linkable)
        case "socket":
            raise AssertionError("sockets are left out of the plan")
    return 0


def _metadata(reader: ImageReader, row: IndexRow) -> Metadata:
    attributes = reader.attributes(row)
    xattrs = {os.fsdecode(name): value for name, value in attributes.xattrs}
    for name, text in ((ACL_ACCESS, attributes.acl_access), (ACL_DEFAULT, attributes.acl_default)):
        if text:
            xattrs[name] = acl_from_text(text)
    return Metadata(
        row.mode,
        row.uid,
        row.gid,
        row.mtime_ns,
        uname=os.fsdecode(row.uname),
        gname=os.fsdecode(row.gname),
        xattrs=xattrs,
        flags=row.flags,
    )


def _forecast(plan: list[_Planned], tree: TargetTree) -> RestoreReport:
    types = [planned.row.type if planned.link_to is None else "link" for planned in plan]
    directories = types.count("directory")
    links = types.count("link") + types.count("symlink")
    return replace(
        tree.report(),
        files=len(types) - directories - links,
        directories=directories,
        links=links,
        size_bytes=sum(planned.reads_bytes for planned in plan),
    )
