"""Whether a BACK disk is still ours, asked again and again while somebody works on it.

A token of another epoch, another file system in the disk's place, a cluster that lost its quorum or runs the
group elsewhere: each ends what works on the disk at its next chunk, and nothing of it is touched any more. The disk is
looked at on time also while the cluster's answer takes long.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nightferry.cluster.base import SILENT_S
from nightferry.cluster.disk import OwnerToken
from nightferry.cluster.mount import mount_of
from nightferry.errors import Cancelled, CatalogError, ClusterError, GroupStopping, MoveFailed, NotOwner
from nightferry.model.catalog_records import RebuildRecord
from nightferry.model.names import is_run, parse_run
from nightferry.model.records import RunRecord
from nightferry.progress import Cancel
from nightferry.site.nodes import has_disk
from nightferry.site.opened import OpenSite

log = logging.getLogger(__name__)


class DiskWatch:
    """Looks after one BACK disk for everybody in this process who works on it.

    Args:
        site: The site.
        back_group: Whose disk.
        token: The owner token that the work began with.
        every_s: Seconds between two looks.

    Raises:
        NotOwner: the disk is not the token's holder's even now.
    """

    def __init__(self, site: OpenSite, back_group: str, token: OwnerToken, every_s: float) -> None:
        self.token = token
        self.users = 0
        self._opened = site
        self._back_group = back_group
        self._path = Path(site.file.back_group(back_group).path)
        self._mount = mount_of(self._path)
        self._every_s = every_s
        self._answered = time.monotonic()
        self._silence = "it is still being queried"
        self._lost: ClusterError | None = None
        self._to_stop: list[Cancel] = []
        self._end = threading.Event()
        # A stop of the work does not end the question: until its last chunk the disk must be known to be ours.
        self._asking = Cancel()
        # Asked again and again here, so that another group's silence does not keep back the answer about this one.
        self._cluster = site.open_cluster(self._asking, silent_s=0)
        self.confirm()

    def begin(self) -> None:
        for name, look in (("disk", self.look), ("cluster", self.ask)):
            threading.Thread(
                target=self._repeat, args=(look,), daemon=True, name=f"{name} of {self._back_group}"
            ).start()

    def end(self) -> None:
        self._end.set()
        self._asking.set("the work has ended")

    @contextmanager
    def stopping(self, cancel: Cancel) -> Iterator[None]:
        """While the block runs, ``cancel`` is set when the disk is lost."""
        self._to_stop.append(cancel)
        if self._lost is not None:
            cancel.set(self._lost.message)
        try:
            yield
        finally:
            self._to_stop.remove(cancel)

    def require(self) -> None:
        """Costs nothing: tells what the last look found.

        Raises:
            NotOwner: the disk is not ours any more.
            GroupStopping: the cluster takes it away.
        """
        if self._lost is not None:
            raise self._lost

    def confirm(self) -> None:
        """Looks at the disk now, before something that cannot be taken back.

        Raises:
            NotOwner: the disk is not ours any more.
            GroupStopping: the cluster takes it away.
        """
        self.require()
        try:
            here = mount_of(self._path)
            if here != self._mount:
                raise ClusterError(f"{here} is mounted where {self._mount} was")
            self._opened.disk(self._back_group).confirm(self.token)
        except GroupStopping as error:
            self._lose(error)
        except ClusterError as error:
            self._lose(self._not_ours(error.message))
        self.require()

    def look(self) -> None:
        """Looks at the disk, and at how long the cluster has said nothing.

        Raises:
            NotOwner: the disk is not ours any more, or nobody knows.
            GroupStopping: the cluster takes it away.
        """
        self.confirm()
        silent_s = time.monotonic() - self._answered
        if silent_s >= SILENT_S:
            self._lose(self._not_ours(f"the cluster did not answer for {silent_s:.0f} s: {self._silence}"))
        self.require()

    def ask(self) -> None:
        """Asks the cluster.

        Raises:
            NotOwner: it lost its quorum, or runs the group elsewhere.
        """
        try:
            view = self._cluster.view()
        except ClusterError as error:
            self._silence = error.message
            log.warning("the cluster does not say who owns %s: %s", self._back_group, error.message)
            return
        self._answered = time.monotonic()
        group = view.group(self._back_group)
        if not view.quorate:
            self._lose(self._not_ours("the cluster lost its quorum"))
        elif group is not None and group.state == "started" and group.owner != self.token.node:
            self._lose(self._not_ours(f"the cluster runs it on {group.owner}"))
        self.require()

    def _repeat(self, look: Callable[[], None]) -> None:
        while not self._end.wait(self._every_s):
            try:
                look()
            except (NotOwner, GroupStopping) as error:
                log.error("%s", error)
                return
            except Cancelled:
                return  # the work has ended meanwhile
            except Exception as error:
                self._lose(self._not_ours(f"{type(error).__name__}: {error}"))
                log.exception("the disk of %s cannot be watched", self._back_group)
                return

    def _not_ours(self, why: str) -> NotOwner:
        return NotOwner(
            f"the disk of {self._back_group} no longer belongs to {self.token.node}: {why}",
            subject=self._back_group,
        )

    def _lose(self, error: ClusterError) -> None:
        self._lost = self._lost or error
        for cancel in list(self._to_stop):
            cancel.set(error.message)


class Watches:
    """The BACK disks that this process works on."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_disk: dict[str, DiskWatch] = {}


def knows(site: OpenSite, token: OwnerToken) -> bool:
    """Whether the catalog knows the run that took a disk. A rebuilt one need not: what it did not find was said."""
    catalog = site.catalog
    catalog.refresh()
    return (
        not is_run(token.run)
        or catalog.latest(RunRecord, token.run) is not None
        or bool(catalog.all(RebuildRecord))
    )


def require_own_disk(site: OpenSite, back_group: str) -> None:
    """Disk and catalog belong together, by the run that used the disk last. A disk that is not here is not looked at.

    A catalog that does not know that run would forget what is owed, held and known: an empty one, such as the mount
    point of a catalog whose disk is not mounted, or one that was brought back from a backup.

    Raises:
        MoveFailed: it is the disk of another BACK group.
        CatalogError: the catalog never knew the run of the disk's owner token.
    """
    disk = site.disk(back_group) if has_disk(site, back_group) else None
    token = disk.owner() if disk is not None else None
    if disk is None or token is None:
        return
    other = parse_run(token.run).back_group if is_run(token.run) else back_group
    # A BACK group that was renamed keeps its disk: then nobody has the other name any more.
    if other != back_group and any(other == each.name for each in site.file.back_groups):
        raise MoveFailed(
            f"the disk of {other} is mounted at {disk.path}, the path of {back_group}",
            hint="mount each BACK group's own disk; nothing was moved or staged",
            subject=back_group,
        )
    if knows(site, token):
        return
    raise CatalogError(
        f"the catalog {site.catalog.storage} does not know run {token.run}, which used the disk of {back_group} "
        "last: it is another catalog, or an older one",
        hint="mount the catalog's disk, or correct `catalog` in the site file; if the catalog is lost, `nightferry "
        f"catalog rebuild`; to go on with this one, `nightferry cluster move {back_group} --to {token.node} "
        "--ungated --reason TEXT`",
        subject=back_group,
    )


@contextmanager
def watching_disk(
    site: OpenSite, back_group: str, cancel: Cancel, token: OwnerToken | None = None
) -> Iterator[Cancel]:
    """Watches a BACK disk while the block works on it; gives what the block must look at to know when to stop.

    Blocks inside one another and beside one another share one watch, which goes by the token that the first
    began with.

    Args:
        site: The site.
        back_group: Whose disk.
        cancel: The caller's own.
        token: Whose disk it must be; the present owner's when None.

    Raises:
        NotOwner: the disk is nobody's, or not the token's holder's, before the block or while it ran.
        GroupStopping: the cluster takes the disk away.
    """
    watches = site.part(Watches)
    with watches.lock:
        watch = watches.by_disk.get(back_group)
        if watch is None or (token is not None and watch.token != token):
            present = token or site.disk(back_group).owner()
            if present is None:
                raise NotOwner(f"the disk of {back_group} has no owner", subject=back_group)
            watch = DiskWatch(site, back_group, present, site.recheck_s)
            watch.begin()
            watches.by_disk[back_group] = watch
        watch.users += 1
    try:
        with cancel.narrower() as part, watch.stopping(part):
            try:
                yield part
            except Cancelled:
                if not cancel.is_set():
                    watch.require()
                raise
    finally:
        with watches.lock:
            watch.users -= 1
            if watch.users == 0:
                watch.end()
                if watches.by_disk.get(back_group) is watch:
                    del watches.by_disk[back_group]


def confirm(site: OpenSite, back_group: str) -> None:
    """Looks at a watched disk now, before something that cannot be taken back.

    Raises:
        NotOwner: it is not ours any more.
    """
    watch = site.part(Watches).by_disk.get(back_group)
    if watch is not None:
        watch.confirm()
