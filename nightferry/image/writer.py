"""Writing an image: members in the order in which a source brings them, an index row for each path."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from blake3 import blake3

from nightferry.errors import NightferryError, SourceError
from nightferry.image.attributes import NO_ATTRIBUTES, Attributes, read_attributes
from nightferry.image.content import read_whole, sparse_segments, unchanged, version
from nightferry.image.format import HEADER_PATH, INDEX_COMMENT, INDEX_PATH, ImageEnd, ImageHeader
from nightferry.image.index import EntryType, FileOutcome, IndexRow
from nightferry.image.index_builder import IndexBuilder
from nightferry.image.tar import (
    ALIGN_FROM,
    STREAM_SIZE_AT,
    HeaderTooLarge,
    Member,
    Segments,
    encode_header,
    padding,
    size_field,
)
from nightferry.model.records import Outcomes
from nightferry.model.text import safe
from nightferry.transfer.base import ByteSink
from nightferry.transfer.digest import image_digest
from nightferry.transfer.regular import read_at
from nightferry.units import counted

_SLICE: Final = 128 << 20
"""Bytes of a large file between two looks at ``tick``."""

_PIECE: Final = 4 << 20
"""Bytes of a file without a known end between two looks at ``tick``."""

MAX_BEYOND_BYTES: Final = 1 << 30
"""How much is read behind the end that a file's size announces: a device in a file's clothes has no end."""

_Came = Literal["whole", "changed", "longer", "endless"]
"""How one reading of a file went."""
_CHANGED: Final[dict[_Came, str]] = {
    "changed": "changed while it was read, both times",
    "longer": "longer than the size it announces, both times",
    "endless": f"more than {MAX_BEYOND_BYTES >> 30} GiB longer than the size it announces; cut there",
}

_TYPES: Final[dict[int, EntryType]] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFCHR: "char",
    stat.S_IFBLK: "block",
    stat.S_IFSOCK: "socket",
}

Tick = Callable[[int], None]
"""Told the image's payload bytes so far, the file at hand included; may raise to stop."""


def entry_type(mode: int) -> EntryType:
    """The index's word for a file's ``st_mode``."""
    return _TYPES[stat.S_IFMT(mode)]


@dataclass(frozen=True, slots=True)
class ImageSummary:
    """A finished image.

    ``files`` counts every path that is not a directory; ``chunks`` and ``index`` are the side files' bytes,
    ``digest`` is the image digest; digests are lower-case hex.
    """

    size_bytes: int
    payload_bytes: int
    files: int
    outcomes: Outcomes
    chunks: bytes
    digest: str
    index: bytes
    index_offset: int
    index_bytes: int
    index_digest: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Linked:
    """An inode with more names than were met so far: the row of the first, and what it was when it was written."""

    row: IndexRow
    version: tuple[int, int, int, int]
    to_come: int


@dataclass(frozen=True, slots=True)
class _Reading:
    """One reading of a file: its row, how it went, and the file as it was before."""

    row: IndexRow
    came: _Came
    before: os.stat_result
    lost: tuple[str, ...]
    """Attributes that were left out."""


class ImageWriter:
    """Writes one image into a sink: the header at once, members as they come, index and end by ``finish``.

    Paths are relative bytes without ``.`` and ``..``, each given once; ``b"."`` is the store's top directory.
    Errors of a source's file become its outcome, whatever they are; errors of the sink, and those of ours that ``tick``
    raises, pass through, after which only ``close`` may be called. The sink is the caller's: it aborts it.

    Memory: one small file, the index builder's bound, and one row for each inode whose other links are still
    to come.

    Args:
        sink: Where the image goes; at position 0.
        header: What the image is.
        spill_directory: Where a large index is sorted.
    """

    def __init__(self, sink: ByteSink, header: ImageHeader, *, spill_directory: Path | None = None) -> None:
        self._sink = sink
        self._index = IndexBuilder(spill_directory)
        self._owners = OwnerNames()
        self._linked: dict[tuple[int, int], _Linked] = {}
        self._outcomes: Counter[str] = Counter()
        self._notes: list[str] = []
        self._without_attributes = 0
        self._first_without = b""
        self._payload_bytes = 0
        started_ns = int(header.started.timestamp()) * 1_000_000_000
        self._own = Member(b"", mode=0o444, mtime_ns=started_ns)
        self._write_own(HEADER_PATH, header.encode())

    @property
    def payload_bytes(self) -> int:
        """Bytes of content so far, without headers and padding."""
        return self._payload_bytes

    @property
    def entries(self) -> int:
        """Paths so far."""
        return len(self._index)

    def note(self, text: str) -> None:
        """Adds a remark on the image as a whole to its summary."""
        self._notes.append(text)

    def add_file(
        self,
        path: bytes,
        fd: int,
        *,
        described_by: os.stat_result | None = None,
        attributes: Attributes | None = None,
        tick: Tick | None = None,
    ) -> IndexRow:
        """Adds a regular file that the caller has opened.

        The file is read to the size it has now, and once past it. When size, mtime or ctime differ after reading, or
        something came past the end, it is read once more from the start; when that comes again it is kept as read,
        as ``changed``: longer than announced where its size was wrong, cut to its size where it grows. A file of less
        than 1 MiB that came short is stored as short; what a larger one lacks of its size is zeros. When it cannot be
        read it leaves a row ``unreadable`` and no member. Attributes that cannot be read, or are too large for a
        header, are left out and noted.

        Args:
            path: Its path inside the store.
            fd: Open for reading; stays open. Only positions are read, the descriptor's offset may move.
            described_by: Mode, owner and times to record instead of the file's own.
            attributes: Extended attributes and ACLs to record; None reads the file's own.
            tick: Called about every 128 MiB.

        Raises:
            SourceError: ``fd`` is not a regular file.
            OSError: it cannot be looked at any more.
        """
        start = self._sink.position
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise SourceError(f"{path!r} is no longer a regular file")
        try:
            reading = self._add_once(path, fd, described_by, attributes, tick)
            if reading.came != "whole":
                self._sink.rewind(start)
                longer = reading.came == "longer"
                reading = self._add_once(path, fd, described_by, attributes, tick, beyond=longer)
        except NightferryError:
            raise
        except Exception as error:  # noqa: BLE001 - one odd file never stops a store
            # Only the source raises these: a sink's errors are NightferryErrors.
            self._sink.rewind(start)
            return self.add_absent(path, "unreadable", _reason(error), described_by or status)
        row = reading.row
        if reading.came != "whole":
            note = "; ".join(filter(None, (_CHANGED[reading.came], row.note)))
            row = replace(row, outcome="changed", note=note)
        self._payload_bytes += row.payload_length
        if described_by is None:
            self._expect_links(row, reading.before)
        return self._keep(row, reading.lost)

    def add_link(self, path: bytes, status: os.stat_result) -> IndexRow | None:
        """Adds ``path`` as a hard link when the image already holds the same inode; else does nothing.

        An inode is the same when it is what was written: a number that was given to another file meanwhile, or
        whose content changed, is not linked to.

        Returns:
            The link's row, or None: the caller adds the file itself.
        """
        key = (status.st_dev, status.st_ino)
        known = self._linked.pop(key, None) if status.st_nlink > 1 else None
        if known is None or known.version != version(status):
            return None
        first = known.row
        if known.to_come > 1:
            self._linked[key] = replace(known, to_come=known.to_come - 1)
        member = self._member(path, status, NO_ATTRIBUTES, type="hardlink", link_target=first.path)
        start = self._sink.position
        self._sink.write(encode_header(member, start))
        return self._keep(
            replace(
                first,
                path=path,
                type="hardlink",
                link_target=first.path,
                offset=start,
                length=self._sink.position - start,
                note="" if first.outcome == "whole" else first.note,
            )
        )

    def add_other(
        self,
        path: bytes,
        status: os.stat_result,
        *,
        link_target: bytes = b"",
        attributes: Attributes = NO_ATTRIBUTES,
    ) -> IndexRow:
        """Adds a directory, symbolic link, FIFO or device from its status; a socket leaves only a row."""
        kind = entry_type(status.st_mode)
        if kind == "file":
            raise ValueError("regular files go through add_file")
        if kind == "socket":
            return self._keep(self._row(path, kind, status, note="a socket holds no content"))
        device = (os.major(status.st_rdev), os.minor(status.st_rdev)) if kind in ("char", "block") else (0, 0)
        member = self._member(path, status, attributes, type=kind, link_target=link_target, rdev=device)
        start = self._sink.position
        header, member = self._header(member, start)
        self._sink.write(header)
        row = self._row(
            path,
            kind,
            status,
            link_target=link_target or None,
            attributes_digest=member.attributes.digest(),
            offset=start,
            length=self._sink.position - start,
            flags=attributes.flags,
            note="; ".join(member.attributes.lost),
        )
        if kind != "directory":
            self._expect_links(row, status)
        return self._keep(row, member.attributes.lost)

    def add_absent(
        self,
        path: bytes,
        outcome: FileOutcome,
        note: str,
        status: os.stat_result | None = None,
        *,
        unlisted: bool = False,
    ) -> IndexRow:
        """Adds a row for what could not be read: ``vanished`` or ``unreadable``, without a member.

        ``unlisted`` says that it is, or may be, a directory: what it holds is missing too, and not counted.
        """
        self._outcomes["unlisted"] += unlisted
        if status is None:
            return self._keep(IndexRow(path, "file", outcome=outcome, note=note))
        kind = entry_type(status.st_mode)
        size = status.st_size if kind == "file" else 0
        return self._keep(self._row(path, kind, status, size=size, outcome=outcome, note=note))

    def finish(self) -> ImageSummary:
        """Writes index and end, finishes the sink. The image is durable on return.

        Raises:
            IntegrityError: two members have one path.
        """
        files = self._outcomes.pop("entries", 0)
        if self._without_attributes:
            count = counted(self._without_attributes, "path was", "paths were")
            self.note(f"{count} stored without all attributes, the first: {safe(self._first_without)}")
        index = self._index.finish()
        offset = self._write_own(INDEX_PATH, index, comment=INDEX_COMMENT)
        end = ImageEnd(offset, len(index), blake3(index).hexdigest())
        self._sink.write(end.encode())
        size = self._sink.position
        chunks = self._sink.finish()
        return ImageSummary(
            size_bytes=size,
            payload_bytes=self._payload_bytes,
            files=files,
            outcomes=Outcomes(**self._outcomes),
            chunks=chunks,
            digest=image_digest(chunks, index),
            index=index,
            index_offset=offset,
            index_bytes=len(index),
            index_digest=end.index_digest,
            notes=tuple(self._notes),
        )

    def close(self) -> None:
        """Gives the index's temporary file back. May be called twice, also after ``finish``."""
        self._index.close()

    def _expect_links(self, row: IndexRow, status: os.stat_result) -> None:
        if status.st_nlink > 1:
            self._linked[status.st_dev, status.st_ino] = _Linked(row, version(status), status.st_nlink - 1)

    def _header(self, member: Member, position: int, *, stream: bool = False) -> tuple[bytes, Member]:
        """(a member's header, the member as it is stored): without its attributes where they do not fit."""
        try:
            return encode_header(member, position, stream=stream), member
        except HeaderTooLarge as error:
            member = replace(member, attributes=Attributes(lost=(*member.attributes.lost, str(error))))
            return encode_header(member, position, stream=stream), member

    def _add_once(
        self,
        path: bytes,
        fd: int,
        described_by: os.stat_result | None,
        attributes: Attributes | None,
        tick: Tick | None,
        *,
        beyond: bool = False,
    ) -> _Reading:
        """``beyond`` reads a large file to where it really ends."""
        before = os.fstat(fd)
        described = described_by or before
        if attributes is None:
            attributes = read_attributes(fd)
        size = before.st_size
        segments = None if beyond else sparse_segments(fd, before)
        data: bytes | None = None
        if segments is None and size < ALIGN_FROM:
            data = read_whole(fd, size, ALIGN_FROM)
            # What is not read to its end here is as good as a large file.
            beyond = len(data) >= ALIGN_FROM
        start = self._sink.position
        member = self._member(path, described, attributes, size=size, segments=segments)
        longer = False
        if beyond:
            member, header, digest, came = self._stream(fd, member, start, tick)
        elif data is not None:
            header, member = self._header(replace(member, size=len(data)), start)
            digest = blake3(data).digest()
            self._sink.write(b"".join((header, data, bytes(padding(len(data))))))
            came = "whole" if len(data) == size else "longer" if len(data) > size else "changed"
        else:
            header, member = self._header(member, start)
            self._sink.write(header)
            had, digest = self._copy(fd, ((0, size),) if segments is None else segments, tick)
            self._sink.write(bytes(padding(member.payload_bytes)))
            longer = bool(os.pread(fd, 1, size))
            came = "whole" if had == member.payload_bytes and not longer else "changed"
        if not unchanged(before, os.fstat(fd)):
            came = "changed"
        elif longer and segments is None:
            came = "longer"
        row = self._row(
            path,
            "file",
            described,
            size=member.size,
            attributes_digest=member.attributes.digest(),
            sparse=segments,
            offset=start,
            length=self._sink.position - start,
            payload_offset=start + len(header),
            payload_length=member.payload_bytes,
            blake3=digest,
            flags=attributes.flags,
            note="; ".join(member.attributes.lost),
        )
        return _Reading(row, came, before, member.attributes.lost)

    def _stream(
        self, fd: int, member: Member, start: int, tick: Tick | None
    ) -> tuple[Member, bytes, bytes, _Came]:
        """Copies a file whose size nobody knows to its end: (member, header, digest, how it came)."""
        header, member = self._header(member, start, stream=True)
        self._sink.write(header)
        hasher = blake3()
        size, most = 0, member.size + MAX_BEYOND_BYTES
        while size < most and (piece := read_at(fd, size, min(_PIECE, most - size))):
            hasher.update(piece)
            self._sink.write(piece)
            size += len(piece)
            if tick is not None:
                tick(self._payload_bytes + size)
        self._sink.write(bytes(padding(size)))
        self._sink.patch(start + STREAM_SIZE_AT, size_field(size))
        came: _Came = "longer" if size < most else "endless"
        return replace(member, size=size), header, hasher.digest(), came

    def _copy(self, fd: int, segments: Segments, tick: Tick | None) -> tuple[int, bytes]:
        """Copies segments; returns (bytes the file really had, BLAKE3 of what was written)."""
        hasher = blake3()
        had = done = 0
        for offset, length in segments:
            while length:
                piece = min(length, _SLICE)
                if piece < ALIGN_FROM:
                    data = read_at(fd, offset, piece)
                    had += len(data)
                    data += bytes(piece - len(data))
                    hasher.update(data)
                    self._sink.write(data)
                else:
                    had += self._sink.copy_from(fd, offset, piece, hasher)
                offset += piece
                length -= piece
                done += piece
                if tick is not None:
                    tick(self._payload_bytes + done)
        return had, hasher.digest()

    def _write_own(self, path: bytes, data: bytes, *, comment: bytes = b"") -> int:
        """Writes one of the image's own members; returns the offset of its data."""
        member = replace(self._own, path=path, size=len(data), comment=comment)
        self._sink.write(encode_header(member, self._sink.position))
        offset = self._sink.position
        self._sink.write(data)
        self._sink.write(bytes(padding(len(data))))
        return offset

    def _member(self, path: bytes, status: os.stat_result, attributes: Attributes, **fields: Any) -> Member:
        return Member(
            path=path,
            mode=stat.S_IMODE(status.st_mode),
            uid=status.st_uid,
            gid=status.st_gid,
            uname=self._owners.user(status.st_uid),
            gname=self._owners.group(status.st_gid),
            mtime_ns=status.st_mtime_ns,
            attributes=attributes,
            **fields,
        )

    def _row(self, path: bytes, kind: EntryType, status: os.stat_result, **fields: Any) -> IndexRow:
        return IndexRow(
            path=path,
            type=kind,
            mode=stat.S_IMODE(status.st_mode),
            uid=status.st_uid,
            gid=status.st_gid,
            uname=self._owners.user(status.st_uid),
            gname=self._owners.group(status.st_gid),
            mtime_ns=status.st_mtime_ns,
            ctime_ns=status.st_ctime_ns,
            dev=status.st_dev,
            inode=status.st_ino,
            nlink=status.st_nlink,
            **fields,
        )

    def _keep(self, row: IndexRow, lost: tuple[str, ...] = ()) -> IndexRow:
        if lost:
            self._without_attributes += 1
            self._first_without = self._first_without or row.path
        if row.note:
            row = replace(row, note=safe(row.note))
        self._index.add(row)
        if row.type != "directory":
            self._outcomes["entries"] += 1
        if row.type != "directory" or row.outcome != "whole":
            self._outcomes[row.outcome] += 1
        return row


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"{type(error).__name__}: {error}"


class OwnerNames:
    """Numbers → names as this machine knows them; empty for unknown numbers."""

    def __init__(self) -> None:
        self._users: dict[int, bytes] = {}
        self._groups: dict[int, bytes] = {}

    def user(self, uid: int) -> bytes:
        """The user's name in UTF-8."""
        name = self._users.get(uid)
        if name is None:
            try:
                name = pwd.getpwuid(uid).pw_name.encode("utf-8", "surrogateescape")
            except KeyError:
                name = b""
            self._users[uid] = name
        return name

    def group(self, gid: int) -> bytes:
        """The group's name in UTF-8."""
        name = self._groups.get(gid)
        if name is None:
            try:
                name = grp.getgrgid(gid).gr_name.encode("utf-8", "surrogateescape")
            except KeyError:
                name = b""
            self._groups[gid] = name
        return name
