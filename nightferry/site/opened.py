"""A site opened for one process: the definition with the doors to catalog, cluster, disks and destinations.

Every verb takes an ``OpenSite``. It is cheap to open, safe to use from several threads, and closed once.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, assert_never

from nightferry.catalog.locks import RunLock
from nightferry.catalog.query import Catalog
from nightferry.catalog.readers import DiskReaders
from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.cluster.base import SILENT_S, Cluster
from nightferry.cluster.disk import FOLDER, BackDisk
from nightferry.cluster.leases import Leases
from nightferry.cluster.local import LocalCluster
from nightferry.cluster.reader_agent import registered, working_on
from nightferry.destination.base import Destination, SiteMark
from nightferry.errors import CatalogError, ClusterError, GroupStopping, NotOwner, OtherSite
from nightferry.model.fields import BandwidthStep
from nightferry.model.load import LoadedSite
from nightferry.model.names import split_store
from nightferry.model.nodes import CommandClusterSettings, LocalClusterSettings, PacemakerSettings
from nightferry.model.records import CartridgeRecord, ImageRecord, RunRecord
from nightferry.model.redact import redacted
from nightferry.model.site import Site
from nightferry.model.stores import FilesStore, Group, SqliteStore
from nightferry.plan.restore_order import Speed
from nightferry.plan.staging import CopyPolicy
from nightferry.progress import QUIET, Cancel, Progress
from nightferry.site.destinations import open_destination, speed_of
from nightferry.site.register import CatalogConstraints
from nightferry.site.whose import known_mark, require_mark
from nightferry.staging.staged_files import StagedFiles
from nightferry.transfer.durable import FILE_MODE
from nightferry.transfer.ring import RingSettings
from nightferry.transfer.throttle import Throttle, Timetable

log = logging.getLogger(__name__)

NODE_VARIABLE = "NIGHTFERRY_NODE"
"""Names the node that a process works on, where the machine's own name does not."""

if TYPE_CHECKING:
    from nightferry.night.run import BorrowedLock
    from nightferry.staging.ownership import Watch

SEEN_S = 5.0
"""How old an answer of the cluster may be in a list."""


class OpenSite:
    """The site of one process.

    Args:
        loaded: The site file as read.
        clock: Handed to everything that waits or stamps.
        progress: Is told what a destination waits for where a verb has no progress of its own to hand on: a
            cartridge that is to be read and is not in its library.
        cancel: Ends such a wait.
        catalog: Another catalog than the site's own, which is lost: no destination is new then, whatever this
            one knows of it.
        renaming: The site has a new name, which its catalog is about to learn: that it bears another one is the point.

    Raises:
        OtherSite: the catalog is another site's. Nothing is shown of it, and nothing is written to it.
        CatalogError: it is not there, or cannot be read.
    """

    def __init__(
        self,
        loaded: LoadedSite,
        *,
        clock: Clock = SYSTEM_CLOCK,
        progress: Progress = QUIET,
        cancel: Cancel | None = None,
        catalog: Catalog | None = None,
        renaming: bool = False,
    ) -> None:
        self.loaded = loaded
        self.site: Site = loaded.site
        self.clock = clock
        self.progress = progress
        self.cancel = cancel or Cancel()
        self.site.require_delivered()
        self.host = socket.gethostname()
        self._closing = ExitStack()
        self.is_lost = catalog is not None
        self.catalog = catalog if catalog is not None else self._open_catalog()
        if catalog is None and not renaming:
            try:
                known_mark(self.catalog, self.site.site.name)
            except OtherSite:
                self._closing.close()
                raise
        self._destinations: dict[str, Destination] = {}
        self._lock = threading.Lock()
        self._room_locks: dict[str, threading.Lock] = {}
        self._throttles: dict[str, Throttle] = {}
        self._mark: SiteMark | None = None
        self._mark_lock = threading.Lock()
        self.proved: set[str] = set()
        """Destinations that were seen to be this site's; see ``site.marker.require_ours``."""
        self._seen: dict[str, tuple[float, bool]] = {}
        self.held: dict[str, RunLock | BorrowedLock] = {}
        """BACK groups whose run lock this process holds, or works under; see ``night.run.run_lock``."""
        self.watches: dict[str, Watch] = {}
        """BACK groups whose disks this process works on; see ``staging.ownership.watched``."""
        self.watch_lock = threading.Lock()
        self.is_unaccepted_said = False
        """Whether it was said that the catalog is a rebuilt one; see ``copies.accept.warn_unaccepted``."""
        self.recheck_s = 5.0
        """Seconds between two looks at a disk that is worked on."""

    # -- the parts ----------------------------------------------------------------------------

    @property
    def cluster(self) -> Cluster:
        """The cluster driver the site names."""
        return self.open_cluster(self.cancel)

    def open_cluster(self, cancel: Cancel, silent_s: float = SILENT_S) -> Cluster:
        """The same driver, whose questions ``cancel`` ends. ``silent_s``: how long no answer is asked for again."""
        settings = self.site.cluster
        mail_groups = {g.mail_group for g in self.site.groups if g.mail_group}
        groups = tuple(sorted(mail_groups | {b.name for b in self.site.back_groups}))
        match settings:
            case LocalClusterSettings():
                return LocalCluster(self.site.cluster_state_path, self.site.nodes, groups)
            case PacemakerSettings():
                from nightferry.cluster.pacemaker import PacemakerCluster

                return PacemakerCluster(
                    self.site.nodes,
                    groups,
                    CatalogConstraints(self.catalog, self.clock),
                    disks={b.name: b.path for b in self.site.back_groups},
                    allow_without_fencing=settings.allow_without_fencing,
                    move_s=settings.move_deadline,
                    cancel=cancel,
                )
            case CommandClusterSettings():
                from nightferry.cluster.command import CommandCluster
                from nightferry.cluster.verbs import verbs

                return CommandCluster(
                    verbs(settings),
                    self.site.nodes,
                    groups,
                    deadline_s=settings.deadline,
                    preset=settings.preset or "",
                    silent_s=silent_s,
                    clock=self.clock,
                    cancel=cancel,
                )
            case _:
                assert_never(settings)

    @cached_property
    def here(self) -> str | None:
        """The node this process runs on, by ``NIGHTFERRY_NODE`` or as the cluster knows this machine; None where
        one machine plays every node.

        Raises:
            ConfigError: ``NIGHTFERRY_NODE`` names none of the site's nodes.
            ClusterError: the cluster does not know this machine.
        """
        named = os.environ.get(NODE_VARIABLE)
        return self.site.node(named).name if named else self.cluster.here

    def sees(self, back_group: str) -> bool:
        """Whether the BACK group's disk is on this node for certain; always where one machine plays every node."""
        if self.here is None:
            return True
        try:
            return self.cluster.where(back_group) == self.here
        except ClusterError:
            return False

    def require_here(self, node: str, what: str) -> None:
        """Raises:
        NotOwner: ``what`` belongs to another node than this one.
        """
        if self.here not in (None, node):
            raise NotOwner(
                f"{what} is the work of {node}; this is {self.here}",
                hint=f"run the same command on {node}",
                subject=node,
            )

    @contextmanager
    def working_on(
        self,
        *,
        group: str = "",
        back_group: str = "",
        at: Path | None = None,
        cancel: Cancel,
        if_here: bool = False,
    ) -> Iterator[Cancel]:
        """Work on the disks of a storage group's service and of a BACK group, until their reader agents ask for
        its end.

        Args:
            group: The storage group; empty: none's.
            back_group: The BACK group; empty: none's.
            at: A path that the work reads or writes; the groups on whose disks it lies are worked on too.
            cancel: The wish to stop that the work had anyway; the work looks at what it gets in its place.
            if_here: What is not on this node is none of the work's business.

        Raises:
            GroupStopping: one of them is not here, or is being stopped here.
        """
        known = next((g for g in self.site.groups if g.name == group), None)
        names = [name for name in (known.mail_group if known else "", back_group) if name]
        around = self.groups_at(at) if at is not None else ()
        with (
            working_on(names, cancel, if_here=if_here) as narrower,
            working_on(around, narrower, if_here=True) as narrowest,
        ):
            yield narrowest

    def resource_groups(self, back_group: str) -> tuple[str, ...]:
        """The services that are staged on a BACK group, and the BACK group itself."""
        services = (group.mail_group for group in self.site.groups_of(back_group))
        return tuple(dict.fromkeys([*filter(None, services), back_group]))

    def groups_at(self, path: Path) -> tuple[str, ...]:
        """The resource groups on whose disks a path lies or would lie, as the disks are mounted here."""
        disks = [(b.name, Path(b.path)) for b in self.site.back_groups]
        for ref in self.site.stores:
            store = ref.store
            if ref.group.mail_group and isinstance(store, FilesStore | SqliteStore):
                disks.append((ref.group.mail_group, store.path))
        device = _device(path)
        return tuple(dict.fromkeys(name for name, disk in disks if _device(disk) == device))

    def active_node(self, back_group: str) -> str:
        """The node that stages: where the service of the BACK group's storage groups is now.

        Raises:
            ClusterError: nobody owns it, or its services are on several nodes.
        """
        mail_groups = {g.mail_group for g in self.site.groups_of(back_group) if g.mail_group}
        owners = {self.cluster.where(name) for name in mail_groups}
        if len(owners) > 1:
            raise ClusterError(
                f"the services staged on {back_group} run on several nodes: {', '.join(sorted(owners))}",
                hint="give each its own BACK group, or bring them to one node",
                subject=back_group,
            )
        return owners.pop() if owners else self.site.active_node.name

    def disk(self, back_group: str) -> BackDisk:
        """The BACK group's disk, as it is mounted here; opening a file on it takes a lease for that moment."""
        definition = self.site.back_group(back_group)
        return BackDisk(Path(definition.path), self.clock, leased=partial(registered, [definition.name]))

    def leases(self, back_group: str) -> Leases | DiskReaders:
        """Who reads from the BACK group's disk, on any node."""
        name = self.site.back_group(back_group).name
        path = self.site.catalog_path
        if path is None:
            return DiskReaders(self.catalog, name, self.clock)
        return Leases(path / "locks" / f"{name}.readers", name, self.clock)

    def back_group_of(self, image: ImageRecord) -> str:
        """The BACK group that the image was staged on.

        Its run knows, also when its storage group has left the site file or went to another BACK group; when
        that BACK group has another name by now, the storage group does.
        """
        run = self.catalog.latest(RunRecord, image.run)
        group = next((g for g in self.site.groups if g.name == image.group), None)
        if run is not None and (
            group is None or any(b.name == run.back_group for b in self.site.back_groups)
        ):
            return run.back_group
        if group is not None:
            return group.back_group
        # A BACK group that has another name now, and still the same disk.
        return next((b.name for b in self.site.back_groups if (b.path / image.path).exists()), "")

    def staged_path(self, image: ImageRecord) -> Path:
        """Where the image lies on staging (whether or not it is still there), for people.

        Raises:
            ConfigError: its BACK group has left the site file.
        """
        return self.staged(image).tar

    def staged(self, image: ImageRecord) -> StagedFiles:
        """The image's files on staging, whether or not they are still there.

        Raises:
            ConfigError: its BACK group has left the site file.
        """
        disk = self.site.back_group(self.back_group_of(image))
        return StagedFiles(Path(disk.path), image.image, leased=partial(registered, [disk.name]))

    def is_staged(self, image: ImageRecord) -> bool:
        """Whether the image can be read from staging, on this node.

        Raises:
            GroupStopping: the cluster takes the disk away just now, so nobody can say.
        """
        back_group = self.back_group_of(image)
        if self.catalog.freed(image.image) or back_group not in {b.name for b in self.site.back_groups}:
            return False
        try:
            return self.staged(image).size_bytes() is not None
        except GroupStopping:
            if self.sees(back_group):
                raise
            return False

    def keeps(self, image: ImageRecord) -> bool:
        """Whether staging has the image, for lists; of a disk that is on another node the catalog tells."""
        if self.catalog.freed(image.image):
            return False
        if self.is_staged(image):
            return True
        back_group = self.back_group_of(image)
        known = any(b.name == back_group for b in self.site.back_groups)
        return known and not self.saw(back_group) and not self.catalog.lost_on_staging(image)

    def saw(self, back_group: str) -> bool:
        """As ``sees``, for lists of many images: the cluster is asked once in some seconds."""
        at, answer = self._seen.get(back_group, (float("-inf"), False))
        if time.monotonic() - at > SEEN_S:
            answer = self.sees(back_group)
            self._seen[back_group] = time.monotonic(), answer
        return answer

    def require_disk(self, back_group: str, what: str) -> None:
        """Raises:
        NotOwner: ``what`` needs the BACK group's disk, and that is on another node.
        ClusterError: it is on no node for certain.
        """
        if self.here is not None:
            self.require_here(self.cluster.where(back_group), what)

    def require_store(self, name: str) -> tuple[str, str]:
        """``GROUP/STORE`` → both names, of a store that the site file lists or whose images there still are.

        Raises:
            ConfigError: neither.
        """
        group, store = split_store(name)
        if not self.catalog.images(group, store):
            self.site.store(name)
        return group, store

    def ring_settings(self) -> RingSettings:
        """How one stream of stage one moves bytes; all streams together hold at most twice ``buffers``."""
        staging = self.site.staging
        share = max(2, min(staging.buffers, 2 * staging.buffers // staging.streams))
        return RingSettings(buffer_bytes=staging.buffer_bytes, buffers=share, unbuffered=staging.unbuffered)

    def room_lock(self, back_group: str) -> threading.Lock:
        """Held between looking at a disk's free room and reserving a part of it."""
        with self._lock:
            return self._room_locks.setdefault(back_group, threading.Lock())

    def mark(self) -> SiteMark:
        """Whose catalog this is, drawn by its first use.

        Raises:
            OtherSite: it is another site's.
        """
        with self._mark_lock:
            if self._mark is None:
                self._mark = require_mark(self.catalog, self.site.site.name, self.clock, operator())
            return self._mark

    def destination(self, name: str) -> Destination:
        """The opened destination; the same object for all threads of this process."""
        with self._lock:
            if name not in self._destinations:
                self._destinations[name] = open_destination(self, self.site.destination(name))
            return self._destinations[name]

    def close_destination(self, name: str) -> None:
        """Unloads and unlocks a destination; it is opened again when next asked for."""
        with self._lock:
            destination = self._destinations.pop(name, None)
            self.proved.discard(name)
        if destination is not None:
            destination.close()

    def drain_requested(self, back_group: str) -> bool:
        """Whether another process asked the run that this process holds to end at the next image boundary."""
        lock = self.held.get(back_group)
        return lock is not None and self.catalog.drain_requested(back_group, lock.since) is not None

    def throttle(self, destination: str) -> Throttle | None:
        """The destination's bandwidth timetable, shared by all its lanes; None when it has none."""
        return self._throttle(destination, self.site.destination(destination).bandwidth)

    def staging_throttle(self) -> Throttle | None:
        """Stage one's bandwidth timetable, shared by all its streams; None when it has none."""
        return self._throttle("", self.site.staging.bandwidth)

    def _throttle(self, name: str, timetable: tuple[BandwidthStep, ...]) -> Throttle | None:
        if not timetable:
            return None
        with self._lock:
            if name not in self._throttles:
                entries = tuple((step.start, step.bytes_per_s) for step in timetable)
                self._throttles[name] = Throttle(Timetable(entries, self.site.tz), clock=self.clock)
            return self._throttles[name]

    def scratch_folder(self, back_group: str) -> Path:
        """Where on the BACK disk what lives shorter than its process may lie."""
        folder = self.disk(back_group).folder
        for level in (folder, folder / "scratch"):
            level.mkdir(exist_ok=True, mode=0o700)  # parents=True would give the upper one the umask's mode
        return folder / "scratch"

    @contextmanager
    def scratch(self, image: ImageRecord) -> Iterator[Path]:
        """An empty file below the staging path for an image on its way between destinations; gone afterwards.

        It is locked as long as its process lives: who finds it unlocked may remove it.
        """
        folder = self.scratch_folder(self.back_group_of(image))
        path = folder / f"{image.image}.{os.getpid()}.tar"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        path.unlink(missing_ok=True)  # of a process that had this one's number
        with open(os.open(path, flags, FILE_MODE), "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                yield path
            finally:
                path.unlink(missing_ok=True)

    def policy(self, group: Group) -> CopyPolicy:
        """Where the storage group's images must be, and how many verified copies let staging free one."""
        return CopyPolicy(group.copies, group.at_least)

    def speeds(self) -> dict[str, Speed]:
        """What each destination can be expected to do, to choose where to restore from."""
        return {d.name: speed_of(d) for d in self.site.destinations}

    def pages(self) -> dict[str, bytes]:
        """What a cartridge that is found has to say of itself: how to read it, and what the site was."""
        return {"recovery.md": recovery_page(), "site.toml": redacted(self.loaded.text).encode()}

    def offsite(self) -> dict[str, set[str]]:
        """Destination → barcodes of its cartridges that are in a vault."""
        found: dict[str, set[str]] = {}
        for record in self.catalog.all(CartridgeRecord):
            if record.state == "offsite":
                found.setdefault(record.destination, set()).add(record.barcode)
        return found

    def warn(self, text: str, subject: str = "") -> None:
        """Says, once, what a verb goes on without: to whoever watches its progress, else in the log."""
        if self.progress is QUIET:
            log.warning("%s", f"{subject}: {text}" if subject else text)
        else:
            self.progress.say(text, subject)

    # -- closing ------------------------------------------------------------------------------

    def close(self) -> None:
        for name in list(self._destinations):
            self.close_destination(name)
        self._closing.close()

    def __enter__(self) -> OpenSite:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_catalog(self) -> Catalog:
        """The catalog, begun on a site's first use; the folder above it, or its bucket, must be there.

        Raises:
            CatalogError: it is not there, or the BACK disks show that this is not the first use.
        """
        path = self.site.catalog_path
        used = [b.name for b in self.site.back_groups if (b.path / FOLDER).is_dir()]
        if path is None:
            from nightferry.site.catalog_bucket import open_catalog_bucket

            storage = open_catalog_bucket(self.site.catalog_bucket(), clock=self.clock)
            self._closing.callback(storage.close)
            catalog = Catalog(storage, node=self.host, clock=self.clock)
            if catalog.is_empty and used:
                raise CatalogError(
                    f"the catalog {storage} is empty, and {', '.join(used)} was used before",
                    hint="correct site.catalog, or see docs/recovery.md; to begin anew, remove the disk's .nightferry",
                    subject=str(storage),
                )
            return catalog
        if not path.exists() and path.parent.is_dir():
            if used:
                raise CatalogError(
                    f"the catalog {path} is not there, and {', '.join(used)} was used before",
                    hint="mount the catalog's disk, or see docs/recovery.md; to begin anew, make the folder by hand",
                    subject=str(path),
                )
            return Catalog.create(path, node=self.host, clock=self.clock)
        return Catalog(path, node=self.host, clock=self.clock)


def recovery_page() -> bytes:
    """How to read a cartridge without nightferry; it goes onto each."""
    return (resources.files("nightferry.destination.tape") / "recovery.md").read_bytes()


def operator() -> str:
    """Who asks, for records of approvals and expiry: the login name and, under sudo, the one behind it."""
    import pwd

    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    behind = os.environ.get("SUDO_USER", "")
    return f"{behind} as {name}" if behind and behind != name else name


__all__ = ["OpenSite", "operator"]


def _device(path: Path) -> int:
    """The device of what lies nearest above a path that need not be there yet."""
    for each in (path, *path.parents):
        try:
            return os.stat(each).st_dev
        except (FileNotFoundError, NotADirectoryError):
            continue
    return 0
