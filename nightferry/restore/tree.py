"""Writes restored files below one directory, so that nothing a name or a link says leads outside of it.

Every path is walked one component at a time by directory descriptors, and no symbolic link is followed,
also not one that an earlier restore put there. A file is written as a new one without a name, is given owner,
attributes, ACL, mode and times by descriptor, and only then gets its name: an existing inode is never
opened for writing, and after a crash a name holds the old content, the new, or nothing. Where the file
system makes no file without a name (NFS), and for what is not a file, it has a random name until then,
which a killed restore leaves behind.

What is durable when: a file of 1 MiB or more, and one that replaces another, is synced before its rename;
all the rest is synced together by ``close_directories``. After a power cut before that a small new file
may be short, so a restore that did not report its end is run again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from nightferry.errors import ConfigError
from nightferry.image.attributes import FREEZING, letters
from nightferry.image.content import version
from nightferry.model.text import path_fields
from nightferry.restore.metadata import Metadata, Owners, apply_metadata, give_flags
from nightferry.restore.new_file import PlacedPieces, fill_file, new_file, temporary_name
from nightferry.restore.syscalls import rename_noreplace, syncfs
from nightferry.restore.walk import DirectoryWalk, EntryRefused, components, entry_status, in_the_way

Overwrite = Literal["never", "older", "always"]
SYNC_AT_ONCE_BYTES = 1 << 20
"""Files of at least this size are synced before they get their name."""
_FATAL = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)
"""What ends the restore, because the next file would meet it too; everything else refuses one entry."""
_LOOK_ONLY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The outcome of one restore. Paths are bytes, relative to the target.

    ``files`` counts regular files, FIFOs and devices, ``links`` symbolic and hard links, ``size_bytes``
    the data that was written (holes are not). ``skipped`` is what was there already and may not be
    overwritten (collisions); ``kept`` what was there, is not older and so stays when only older things are
    replaced; ``refused`` was not restored, with the reason; ``losses`` are things that could not be
    carried over (an owner, an attribute, a socket), with what. A dry run's report has the same shape and
    says what would happen.
    """

    files: int = 0
    directories: int = 0
    links: int = 0
    size_bytes: int = 0
    skipped: tuple[bytes, ...] = ()
    kept: tuple[bytes, ...] = ()
    refused: tuple[tuple[bytes, str], ...] = ()
    losses: tuple[tuple[bytes, str], ...] = ()

    @property
    def complete(self) -> bool:
        """Everything asked for is there now; ``kept`` and ``losses`` do not count."""
        return not self.skipped and not self.refused

    def as_json(self) -> dict[str, object]:
        """Plain JSON; ``path_b64`` beside ``path`` where the name is not UTF-8."""
        return {
            "files": self.files,
            "directories": self.directories,
            "links": self.links,
            "size_bytes": self.size_bytes,
            "skipped": [path_fields(path) for path in self.skipped],
            "kept": [path_fields(path) for path in self.kept],
            "refused": [{**path_fields(path), "reason": reason} for path, reason in self.refused],
            "losses": [{**path_fields(path), "what": what} for path, what in self.losses],
        }


@dataclass(frozen=True, slots=True)
class Writing:
    """How a restore writes into its target; the fields are ``TargetTree``'s."""

    overwrite: Overwrite = "never"
    privileged: bool = False
    map_owner: Mapping[str, str] = field(default_factory=dict)
    below: Path | None = None

    def into(self, target: Path) -> TargetTree:
        """The target, open."""
        return TargetTree(
            target,
            overwrite=self.overwrite,
            privileged=self.privileged,
            map_owner=self.map_owner,
            below=self.below,
        )


AS_NEW = Writing()
"""What is there already is left alone; nothing privileged, no owner mapped."""


class _Skipped(Exception):
    """Something is there already that may not be overwritten."""


class TargetTree:
    """The directory a restore writes into, open by descriptor. A context manager; not for several threads.

    The ``make_…`` and ``write_file`` methods return whether the entry is there now; when not, the report
    says why (``skipped``, ``kept`` or ``refused``). Missing directories on the way are made 0700 and stay so
    unless ``make_directory`` names them too.

    Args:
        root: Where paths begin. Made (0700) by the first write when missing.
        privileged: Whether devices, setuid, setgid and privileged attributes are restored; else they are
            reported.
        overwrite: What to do where something is: ``never`` leaves it, ``older`` replaces what has an older
            mtime, ``always`` replaces. Directories are never replaced by anything, nor anything by a
            directory; one that is there keeps its identity and gets the image's metadata in every mode.
        map_owner: See ``Owners``.
        below: When given, ``root`` must lie in it and is itself walked from it without following a link.
            Without it ``root`` is the operator's own word, and links in it are followed.

    Raises:
        ConfigError: ``root`` cannot be opened, is not a directory, or does not lie in ``below``.
    """

    def __init__(
        self,
        root: Path,
        *,
        privileged: bool = False,
        overwrite: Overwrite = "never",
        map_owner: Mapping[str, str] | None = None,
        below: Path | None = None,
    ) -> None:
        self._walk = DirectoryWalk(root, below)
        self.privileged = privileged
        self.overwrite: Overwrite = overwrite
        self._owners = Owners(map_owner)
        self._made: dict[bytes, os.stat_result] = {}
        self._to_freeze: dict[bytes, tuple[int, tuple[int, int]]] = {}
        self._frozen: set[bytes] = set()
        self._directories: dict[bytes, tuple[Metadata, tuple[int, int]]] = {}
        self._asked_for: set[bytes] = set()
        self._files = self._links = self._bytes = 0
        self._skipped: dict[bytes, None] = {}
        self._refused: dict[bytes, str] = {}
        self._losses: list[tuple[bytes, str]] = []
        self._closed_losses: list[tuple[bytes, str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the descriptors. May be called twice. Does not finish directories."""
        self._walk.close()

    def report(self) -> RestoreReport:
        """The outcome so far."""
        return RestoreReport(
            files=self._files,
            directories=len(self._asked_for),
            links=self._links,
            size_bytes=self._bytes,
            skipped=() if self.overwrite == "older" else tuple(self._skipped),
            kept=tuple(self._skipped) if self.overwrite == "older" else (),
            refused=tuple(self._refused.items()),
            losses=(*self._losses, *self._closed_losses),
        )

    def refuse(self, path: bytes, reason: str) -> None:
        """Records that an entry is not restored."""
        self._refused[path] = reason

    def lose(self, path: bytes, what: str) -> None:
        """Records that something of an entry is not carried over."""
        self._losses.append((path, what))

    def made(self, path: bytes) -> bool:
        """Whether this restore wrote ``path`` as a linkable file, so that a hard link to it may be made."""
        return path in self._made

    def probe(self, path: bytes, *, is_directory: bool, mtime_ns: int) -> Literal["free", "taken", "refused"]:
        """What would happen to an entry, by looking only; ``taken`` and ``refused`` go into the report."""
        with self._outcome(path):
            names = components(path)
            with self._os_errors(path):
                try:
                    parent = self._walk.to(names[:-1], create=False)
                except FileNotFoundError:
                    return "free"
                if is_directory:
                    self._require_directory_place(parent, names[-1])
                else:
                    self._require_free(parent, names[-1], mtime_ns)
            return "free"
        return "refused" if path in self._refused else "taken"

    def make_directory(self, path: bytes, metadata: Metadata, *, implied: bool = False) -> bool:
        """Makes a directory (0700 for now) or takes the one there; ``close_directories`` finishes it.

        Args:
            path: Relative to the root; ``b"."`` is the root itself.
            metadata: What it is given at the end.
            implied: It is only on the way to what was asked for: one that was there keeps its metadata too,
                and the report does not count it.
        """
        with self._outcome(path):
            names = () if path == b"." else components(path)
            with self._os_errors(path):
                fd = self._walk.to(names, create=True)
                status = os.fstat(fd)
                if not implied or path in self._walk.made:
                    # Before anything is in it: some of them are for what is made in it.
                    self._note(path, self._early_flags(fd, path, metadata, status))
            if not implied:
                self._asked_for.add(path)
            if not implied or path in self._walk.made:
                self._directories[path] = (metadata, (status.st_dev, status.st_ino))
            return True
        return False

    def write_file(
        self,
        path: bytes,
        metadata: Metadata,
        size_bytes: int,
        pieces: PlacedPieces,
        *,
        linkable: bool = False,
        in_order: bool = False,
    ) -> bool:
        """Writes a regular file.

        Args:
            path: Relative to the root.
            metadata: What it is given at the end.
            size_bytes: Its size; what ``pieces`` leaves out stays a hole.
            pieces: ``(offset, data)`` in any order. Whatever the iterator raises, also at its very end,
                removes the temporary file and propagates: so a digest that does not match leaves nothing
                behind.
            linkable: Remember the file, so that ``make_hardlink`` may link to it.
            in_order: The pieces come one after the other and leave nothing out.

        Raises:
            ConfigError: the target has no room left or cannot be written; the temporary file is gone.
        """
        with self._outcome(path):
            parent, name = self._place(path, metadata)
            with temporary_name(parent) as temporary:
                with self._os_errors(path):
                    fd, named = new_file(parent, temporary)
                try:
                    guard = partial(self._os_errors, path)
                    status = os.fstat(fd)
                    # Before it has content: some of them are for how that is written.
                    flag_losses = self._early_flags(fd, path, metadata, status)
                    written = fill_file(path, fd, size_bytes, pieces, in_order=in_order, guard=guard)
                    with self._os_errors(path):
                        losses = apply_metadata(fd, metadata, self._owners, privileged=self.privileged)
                        self._sync(fd, parent, name, size_bytes)
                        if not named:
                            self._give_name(fd, parent, name if self.overwrite == "never" else temporary)
                        if named or self.overwrite != "never":
                            self._commit(parent, temporary, name, fd)
                        status = os.fstat(fd)
                finally:
                    os.close(fd)
            self._note(path, (*losses, *flag_losses))
            self._files += 1
            self._bytes += written
            if linkable:
                self._made[path] = status
            return True
        return False

    def make_symlink(self, path: bytes, metadata: Metadata, target: bytes, *, linkable: bool = False) -> bool:
        """Makes a symbolic link. Where it leads is not looked at; nothing ever follows it."""
        with self._outcome(path):
            if not target or b"\0" in target:
                raise EntryRefused("the symbolic link has no valid target")
            parent, name = self._place(path, metadata)
            with temporary_name(parent) as temporary, self._os_errors(path):
                os.symlink(target, temporary, dir_fd=parent)
                self._finish_node(path, parent, temporary, name, metadata, stat.S_IFLNK, linkable)
            self._links += 1
            return True
        return False

    def make_fifo(self, path: bytes, metadata: Metadata, *, linkable: bool = False) -> bool:
        """Makes a FIFO. It is never opened."""
        return self._make_node(path, metadata, stat.S_IFIFO, 0, linkable)

    def make_device(
        self,
        path: bytes,
        metadata: Metadata,
        kind: Literal["char", "block"],
        major: int,
        minor: int,
        *,
        linkable: bool = False,
    ) -> bool:
        """Makes a device node; refused without ``privileged``."""
        if not self.privileged:
            self.refuse(path, "a device node needs --privileged")
            return False
        node_type = stat.S_IFCHR if kind == "char" else stat.S_IFBLK
        return self._make_node(path, metadata, node_type, os.makedev(major, minor), linkable)

    def make_hardlink(self, path: bytes, existing: bytes, mtime_ns: int) -> bool:
        """Links ``path`` to something that this restore made as linkable; anything else is refused.

        What is linked is compared with what was made, by device, inode, type, size and mtime, so a file put in its
        place meanwhile is not linked, whatever number it was given.
        """
        with self._outcome(path):
            known = self._made.get(existing)
            if known is None:
                raise EntryRefused("the file it is linked to was not restored")
            names = components(path)
            with self._os_errors(path):
                source_dir = os.dup(self._walk.to(components(existing)[:-1], create=False))
            try:
                with self._os_errors(path):
                    parent = self._walk.to(names[:-1], create=True)
                    self._require_free(parent, names[-1], mtime_ns)
                with temporary_name(parent) as temporary, self._os_errors(path):
                    source = components(existing)[-1]
                    identity = (known.st_dev, known.st_ino)
                    self._require_identity(source_dir, source, identity, known)
                    os.link(
                        source, temporary, src_dir_fd=source_dir, dst_dir_fd=parent, follow_symlinks=False
                    )
                    self._require_identity(parent, temporary, identity)
                    self._rename(parent, temporary, names[-1])
                    # Renaming one link of a file over another does nothing, and leaves both.
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(temporary, dir_fd=parent)
            finally:
                os.close(source_dir)
            self._links += 1
            return True
        return False

    def close_directories(self) -> None:
        """Gives the directories named so far their metadata, from below, and makes everything durable.

        Last of all what is to be immutable or append-only becomes so. May be called again after more was restored: all
        are done again, but for directories that are frozen by then.

        Raises:
            ConfigError: the target cannot be written.
        """
        self._walk.forget()
        self._closed_losses.clear()
        for path in _from_below(self._directories):
            if path in self._frozen:
                continue
            metadata, identity = self._directories[path]
            with self._outcome(path), self._os_errors(path):
                fd = self._walk.to(() if path == b"." else components(path), create=False)
                status = os.fstat(fd)
                if (status.st_dev, status.st_ino) != identity:
                    raise EntryRefused("the directory was replaced during the restore")
                losses = apply_metadata(fd, metadata, self._owners, privileged=self.privileged)
                self._closed_losses.extend((path, what) for what in losses)
        self._freeze()
        with self._os_errors(b"."), contextlib.suppress(FileNotFoundError):
            syncfs(self._walk.to((), create=False))

    @contextlib.contextmanager
    def _outcome(self, path: bytes) -> Iterator[None]:
        """Turns what stops one entry into a line of the report."""
        try:
            yield
        except EntryRefused as refused:
            self.refuse(path, str(refused))
        except _Skipped:
            self._skipped[path] = None

    @contextlib.contextmanager
    def _os_errors(self, path: bytes) -> Iterator[None]:
        """Sorts the target's errors from those of whoever delivers the data."""
        try:
            yield
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            if error.errno not in _FATAL:
                raise EntryRefused(reason.lower()) from error
            raise ConfigError(
                f"cannot write below {self._walk.root}: {reason.lower()}",
                hint="free space or fix the target, or restore elsewhere with --to; no file is half-written",
                subject=os.fsdecode(path),
            ) from error

    @staticmethod
    def _give_name(fd: int, parent: int, name: bytes) -> None:
        try:
            os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=parent)
        except FileExistsError as error:
            raise _Skipped from error

    def _place(self, path: bytes, metadata: Metadata) -> tuple[int, bytes]:
        names = components(path)
        with self._os_errors(path):
            parent = self._walk.to(names[:-1], create=True)
            self._require_free(parent, names[-1], metadata.mtime_ns)
        return parent, names[-1]

    def _sync(self, fd: int, parent: int, name: bytes, size_bytes: int) -> None:
        large = size_bytes >= SYNC_AT_ONCE_BYTES
        if large or (self.overwrite != "never" and entry_status(parent, name) is not None):
            os.fsync(fd)
        if large:
            # What was just restored is not what this machine's users read next: leave them the page cache.
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def _make_node(
        self, path: bytes, metadata: Metadata, node_type: int, device: int, linkable: bool
    ) -> bool:
        with self._outcome(path):
            parent, name = self._place(path, metadata)
            with temporary_name(parent) as temporary, self._os_errors(path):
                os.mknod(temporary, node_type | 0o600, device, dir_fd=parent)
                self._finish_node(path, parent, temporary, name, metadata, node_type, linkable)
            self._files += 1
            return True
        return False

    def _finish_node(
        self,
        path: bytes,
        parent: int,
        temporary: bytes,
        name: bytes,
        metadata: Metadata,
        node_type: int,
        linkable: bool,
    ) -> None:
        fd = os.open(temporary, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            status = os.fstat(fd)
            if stat.S_IFMT(status.st_mode) != node_type or status.st_nlink != 1:
                raise EntryRefused("it was replaced while it was made")
            # What O_PATH opened is named through /proc: the calls then act on it and follow no link.
            losses = apply_metadata(f"/proc/self/fd/{fd}", metadata, self._owners, privileged=self.privileged)
            self._commit(parent, temporary, name, fd)
            if linkable:
                self._made[path] = os.fstat(fd)
        finally:
            os.close(fd)
        self._note(path, losses)

    def _commit(self, parent: int, temporary: bytes, name: bytes, fd: int) -> None:
        self._rename(parent, temporary, name)
        status = os.fstat(fd)
        self._require_identity(parent, name, (status.st_dev, status.st_ino))

    def _rename(self, parent: int, temporary: bytes, name: bytes) -> None:
        if self.overwrite != "never":
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            return
        try:
            rename_noreplace(temporary, name, dir_fd=parent)
        except FileExistsError as error:
            raise _Skipped from error

    def _require_identity(
        self, parent: int, name: bytes, identity: tuple[int, int], known: os.stat_result | None = None
    ) -> None:
        status = entry_status(parent, name)
        same = status is not None and (status.st_dev, status.st_ino) == identity
        # Without the ctime, which every new name changes.
        if status is None or not same or (known is not None and version(status)[:3] != version(known)[:3]):
            raise EntryRefused("it was replaced during the restore")

    def _early_flags(self, fd: int, path: bytes, metadata: Metadata, status: os.stat_result) -> list[str]:
        """Sets the inode flags that hinder nothing, and remembers the others for the end; returns losses."""
        losses = give_flags(fd, metadata.flags & ~FREEZING)
        freezing = metadata.flags & FREEZING
        if freezing and self.privileged:
            self._to_freeze[path] = (freezing, (status.st_dev, status.st_ino))
        elif freezing:
            losses.append(f"inode flags {letters(freezing)}: needs --privileged")
        return losses

    def _freeze(self) -> None:
        """Sets the inode flags that let nothing be changed any more: of files first, then of directories from below."""
        for path in _from_below(self._to_freeze):
            flags, identity = self._to_freeze[path]
            with self._outcome(path), self._os_errors(path):
                names = () if path == b"." else components(path)
                parent = self._walk.to(names[:-1], create=False)
                fd = os.open(names[-1] if names else b".", _LOOK_ONLY, dir_fd=parent)
                try:
                    status = os.fstat(fd)
                    if (status.st_dev, status.st_ino) != identity:
                        raise EntryRefused("it was replaced during the restore")
                    losses = give_flags(fd, flags)
                finally:
                    os.close(fd)
                self._frozen.add(path)
                self._note(path, losses)
        self._to_freeze.clear()

    def _require_free(self, parent: int, name: bytes, mtime_ns: int) -> None:
        status = entry_status(parent, name)
        if status is None:
            return
        if stat.S_ISDIR(status.st_mode):
            raise EntryRefused("a directory is in its place")
        if self.overwrite == "never" or (self.overwrite == "older" and status.st_mtime_ns >= mtime_ns):
            raise _Skipped

    def _require_directory_place(self, parent: int, name: bytes) -> None:
        status = entry_status(parent, name)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            raise EntryRefused(in_the_way(status, name))

    def _note(self, path: bytes, losses: Iterable[str]) -> None:
        for what in losses:
            self.lose(path, what)


def _from_below(paths: Iterable[bytes]) -> list[bytes]:
    """Each path behind all that lie below it, and beside its neighbours; the top is the last."""
    return sorted(paths, key=lambda path: b"" if path == b"." else path.replace(b"/", b"\0"), reverse=True)
