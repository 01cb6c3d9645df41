"""A site opened for one process: the definition with the doors to catalog, cluster, disks and destinations.

Every verb takes an ``OpenSite``. It is cheap to open, safe to use from several threads, and closed once.

Nothing of ours is done in the place of another site. A site is known by a random id, drawn by its first use of a
catalog and recorded there. Every destination of objects bears a marker with it (``destination/ours.py``), written when
it is first used, never written over.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar, assert_never, cast

from nightferry.catalog.query import Catalog
from nightferry.claims import heartbeat
from nightferry.claims.base import Claims
from nightferry.claims.flock import FlockClaims
from nightferry.claims.log import LogClaims
from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.cluster.base import SILENT_S, Cluster
from nightferry.cluster.disk import FOLDER, BackDisk
from nightferry.cluster.local import LocalCluster
from nightferry.cluster.reader_agent import registered
from nightferry.destination.base import SiteMark
from nightferry.errors import BusyError, CatalogError, OtherSite
from nightferry.model.catalog_records import SiteRecord
from nightferry.model.claim_records import ConstraintRecord
from nightferry.model.load import LoadedSite
from nightferry.model.nodes import CommandClusterSettings, LocalClusterSettings, PacemakerSettings
from nightferry.model.site import SiteFile
from nightferry.progress import QUIET, Cancel, Progress

log = logging.getLogger(__name__)

NODE_VARIABLE = "NIGHTFERRY_NODE"
"""Names the node that a process works on, where the machine's own name does not."""

T = TypeVar("T")


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
        self.file: SiteFile = loaded.site
        self.clock = clock
        self.progress = progress
        self.cancel = cancel or Cancel()
        self.file.require_delivered()
        self.host = socket.gethostname()
        self._closing = ExitStack()
        self.is_lost = catalog is not None
        self.catalog = catalog if catalog is not None else self._open_catalog()
        if catalog is None and not renaming:
            try:
                known_mark(self.catalog, self.file.site.name)
            except OtherSite:
                self._closing.close()
                raise
        self._lock = threading.Lock()
        self._mark: SiteMark | None = None
        self._mark_lock = threading.Lock()
        self._parts: dict[type, object] = {}
        self.recheck_s = 5.0
        """Seconds between two looks at a disk that is worked on."""
        self.lease_s = heartbeat.LEASE_S
        """Seconds after which a holder without a heartbeat is overtaken."""

    # -- the parts ----------------------------------------------------------------------------

    @property
    def cluster(self) -> Cluster:
        """The cluster driver the site names."""
        return self.open_cluster(self.cancel)

    def open_cluster(self, cancel: Cancel, silent_s: float = SILENT_S) -> Cluster:
        """The same driver, whose questions ``cancel`` ends. ``silent_s``: how long no answer is asked for again."""
        settings = self.file.cluster
        mail_groups = {g.mail_group for g in self.file.groups if g.mail_group}
        groups = tuple(sorted(mail_groups | {b.name for b in self.file.back_groups}))
        match settings:
            case LocalClusterSettings():
                return LocalCluster(self.file.cluster_state_path, self.file.nodes, groups)
            case PacemakerSettings():
                from nightferry.cluster.pacemaker import PacemakerCluster

                return PacemakerCluster(
                    self.file.nodes,
                    groups,
                    CatalogConstraints(self.catalog, self.clock),
                    disks={b.name: b.path for b in self.file.back_groups},
                    allow_without_fencing=settings.allow_without_fencing,
                    move_s=settings.move_deadline,
                    cancel=cancel,
                )
            case CommandClusterSettings():
                from nightferry.cluster.command import CommandCluster
                from nightferry.cluster.verbs import verbs

                return CommandCluster(
                    verbs(settings),
                    self.file.nodes,
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
    def local_node(self) -> str | None:
        """The node this process runs on, by ``NIGHTFERRY_NODE`` or as the cluster knows this machine; None where
        one machine plays every node.

        Raises:
            ConfigError: ``NIGHTFERRY_NODE`` names none of the site's nodes.
            ClusterError: the cluster does not know this machine.
        """
        named = os.environ.get(NODE_VARIABLE)
        return self.file.node(named).name if named else self.cluster.local_node

    def disk(self, back_group: str) -> BackDisk:
        """The BACK group's disk, as it is mounted here; opening a file on it takes a lease for that moment."""
        definition = self.file.back_group(back_group)
        return BackDisk(Path(definition.path), self.clock, leased=partial(registered, [definition.name]))

    @cached_property
    def claims(self) -> Claims:
        """Who runs a BACK group, and who uses its disk, on any node."""
        path = self.file.catalog_path
        if path is None:
            return LogClaims(self.catalog, self.clock, self.lease_s)
        return FlockClaims(path, node=self.catalog.node, clock=self.clock)

    def mark(self) -> SiteMark:
        """Whose catalog this is, drawn by its first use.

        Raises:
            OtherSite: it is another site's.
        """
        with self._mark_lock:
            if self._mark is None:
                self._mark = require_mark(self.catalog, self.file.site.name, self.clock, operator())
            return self._mark

    def part(self, kind: type[T]) -> T:
        """The one ``kind`` of this process, made when it is first asked for: what a room remembers while the site is
        open."""
        with self._lock:
            if kind not in self._parts:
                self._parts[kind] = kind()
            return cast("T", self._parts[kind])

    def warn(self, text: str, subject: str = "") -> None:
        """Says, once, what a verb goes on without: to whoever watches its progress, else in the log."""
        if self.progress is QUIET:
            log.warning("%s", f"{subject}: {text}" if subject else text)
        else:
            self.progress.say(text, subject)

    # -- closing ------------------------------------------------------------------------------

    def on_close(self, end: Callable[[], object]) -> None:
        """Is called when the site is closed, what came last first."""
        self._closing.callback(end)

    def close(self) -> None:
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
        path = self.file.catalog_path
        used = [b.name for b in self.file.back_groups if (b.path / FOLDER).is_dir()]
        if path is None:
            from nightferry.site.catalog_bucket import open_catalog_bucket

            storage = open_catalog_bucket(self.file.catalog_bucket(), clock=self.clock)
            self._closing.callback(storage.close)
            catalog = Catalog(storage, node=self.host, clock=self.clock)
            if catalog.is_empty and used:
                raise CatalogError(
                    f"the catalog {storage} is empty, but {', '.join(used)} was used before",
                    hint="correct site.catalog, or see docs/recovery.md; to start again, remove the disk's .nightferry",
                    subject=str(storage),
                )
            return catalog
        if not path.exists() and path.parent.is_dir():
            if used:
                raise CatalogError(
                    f"the catalog {path} is not there, but {', '.join(used)} was used before",
                    hint="mount the catalog's disk, or see docs/recovery.md; to start again, create the folder by hand",
                    subject=str(path),
                )
            return Catalog.create(path, node=self.host, clock=self.clock)
        return Catalog(path, node=self.host, clock=self.clock)


def operator() -> str:
    """Who asks, for records of approvals and expiry: the login name and, under sudo, the one behind it."""
    import pwd

    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    behind = os.environ.get("SUDO_USER", "")
    return f"{behind} as {name}" if behind and behind != name else name


class CatalogConstraints:
    """The catalog as the Pacemaker driver sees it: which constraints in the cluster are ours."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock

    def constraint(self, group: str) -> ConstraintRecord | None:
        self._catalog.refresh()
        return self._catalog.latest(ConstraintRecord, group)

    def place(self, group: str, node: str, *, run: str, before: str, without_fencing: bool) -> None:
        self._catalog.append(
            ConstraintRecord(
                group=group,
                node=node,
                before=before,
                state="placed",
                run=run,
                at=self._clock.now(),
                without_fencing=without_fencing,
            )
        )

    def take_back(self, group: str, reason: str) -> None:
        known = self.constraint(group)
        if known is not None:
            changes = {"state": "taken back", "reason": reason, "at": self._clock.now()}
            self._catalog.append(known.model_copy(update=changes))


def known_mark(catalog: Catalog, site: str) -> SiteMark | None:
    """The site's mark as the catalog has it; None while it has none. Changes nothing.

    Raises:
        OtherSite: it is another site's catalog.
    """
    record = catalog.latest(SiteRecord, "site")
    if record is None:
        return None
    if record.name != site:
        raise OtherSite(
            f"the catalog {catalog.storage} belongs to site {record.name} (id {record.id[:8]}), but the site file is "
            f"for {site}",
            hint="correct site.catalog; after renaming a site, run "
            f"`nightferry catalog accept --renamed-from {record.name} --reason TEXT`",
            subject=str(catalog.storage),
        )
    return SiteMark(record.name, record.id)


def require_mark(catalog: Catalog, site: str, clock: Clock, who: str) -> SiteMark:
    """The site's mark; the first use of a catalog draws it.

    Raises:
        OtherSite: it is another site's catalog.
        CatalogError: it cannot be recorded.
    """
    while (found := known_mark(catalog, site)) is None:
        record = SiteRecord(name=site, id=secrets.token_hex(16), who=who, at=clock.now())
        try:
            catalog.append(record, expect=0)
        except BusyError:  # another process was first: what it drew counts
            catalog.refresh()
    return found
