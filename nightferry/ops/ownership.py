"""Whether a BACK disk is still ours, asked again and again while somebody works on it.

A token of another epoch, another file system in the disk's place, a cluster that lost its quorum or runs the
group elsewhere: each ends what works on the disk at its next chunk, and nothing of it is touched any more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nightferry.cluster.disk import OwnerToken
from nightferry.cluster.mount import mount_of
from nightferry.errors import ClusterError, NotOwner
from nightferry.ops.opened import OpenSite
from nightferry.progress import Cancel

log = logging.getLogger(__name__)

SILENT_S = 30.0
"""How long a cluster may give no answer until its disk counts as lost."""


class Watch:
    """Looks after one BACK disk for everybody in this process who works on it.

    Args:
        opened: The site.
        back_group: Whose disk.
        token: The owner token that the work began with.
        every_s: Seconds between two looks.

    Raises:
        NotOwner: the disk is not the token's holder's even now.
    """

    def __init__(self, opened: OpenSite, back_group: str, token: OwnerToken, every_s: float) -> None:
        self.token = token
        self.users = 0
        self._opened = opened
        self._back_group = back_group
        self._path = Path(opened.site.back_group(back_group).path)
        self._mount = mount_of(self._path)
        self._every_s = every_s
        self._answered = time.monotonic()
        self._lost: NotOwner | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._keep_looking, daemon=True, name=f"owner {back_group}")
        self.confirm()

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._end.set()

    def require(self) -> None:
        """Costs nothing: tells what the last look found.

        Raises:
            NotOwner: the disk is not ours any more.
        """
        if self._lost is not None:
            raise self._lost

    def confirm(self) -> None:
        """Looks at the disk now, before something that cannot be taken back.

        Raises:
            NotOwner: the disk is not ours any more.
        """
        self.require()
        try:
            here = mount_of(self._path)
            if here != self._mount:
                raise ClusterError(f"{here} is where {self._mount} was")
            self._opened.disk(self._back_group).confirm(self.token)
        except ClusterError as error:
            self._lost = self._not_owner(error.message)
            raise self._lost from error

    def look(self) -> None:
        """Looks at the disk and asks the cluster.

        Raises:
            NotOwner: the disk is not ours any more.
        """
        self.confirm()
        try:
            view = self._opened.cluster.view()
        except ClusterError as error:
            silent_s = time.monotonic() - self._answered
            log.warning("the cluster does not say who owns %s: %s", self._back_group, error.message)
            if silent_s < SILENT_S:
                return
            self._lost = self._not_owner(f"the cluster gave no answer for {silent_s:.0f} s: {error.message}")
            raise self._lost from error
        self._answered = time.monotonic()
        group = view.group(self._back_group)
        if not view.quorate:
            self._lost = self._not_owner("the cluster lost its quorum")
        elif group is not None and group.state == "started" and group.owner != self.token.node:
            self._lost = self._not_owner(f"the cluster runs it on {group.owner}")
        self.require()

    def _keep_looking(self) -> None:
        while not self._end.wait(self._every_s):
            try:
                self.look()
            except NotOwner as error:
                log.error("%s", error)
                return
            except Exception as error:
                self._lost = self._not_owner(f"{type(error).__name__}: {error}")
                log.exception("the disk of %s cannot be watched", self._back_group)
                return

    def _not_owner(self, why: str) -> NotOwner:
        return NotOwner(
            f"the disk of {self._back_group} is not {self.token.node}'s any more: {why}",
            subject=self._back_group,
        )


class OwnedCancel(Cancel):
    """Also stops what works on a disk that was lost."""

    def __init__(self, outer: Cancel, watch: Watch) -> None:
        super().__init__()
        self._outer = outer
        self._watch = watch

    def set(self, reason: str) -> None:
        self._outer.set(reason)

    def is_set(self) -> bool:
        return self._outer.is_set()

    def check(self) -> None:
        """Raises:
        NotOwner: the disk is not ours any more.
        Cancelled: a stop was asked for.
        """
        self._outer.check()
        self._watch.require()

    def wait(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            self._outer.wait(min(left, 1.0))
            self._watch.require()
        self.check()


@contextmanager
def watched(
    opened: OpenSite, back_group: str, cancel: Cancel, token: OwnerToken | None = None
) -> Iterator[OwnedCancel]:
    """Watches a BACK disk while the block works on it; the block stops where it looks at the given cancel.

    Blocks inside one another and beside one another share one watch, which goes by the token that the first
    began with.

    Args:
        opened: The site.
        back_group: Whose disk.
        cancel: The caller's own.
        token: Whose disk it must be; the present owner's when None.

    Raises:
        NotOwner: the disk is nobody's, or not the token's holder's.
    """
    with opened.watch_lock:
        watch = opened.watches.get(back_group)
        if watch is None or (token is not None and watch.token != token):
            present = token or opened.disk(back_group).owner()
            if present is None:
                raise NotOwner(f"the disk of {back_group} is nobody's", subject=back_group)
            watch = Watch(opened, back_group, present, opened.recheck_s)
            watch.begin()
            opened.watches[back_group] = watch
        watch.users += 1
    try:
        yield OwnedCancel(cancel, watch)
    finally:
        with opened.watch_lock:
            watch.users -= 1
            if watch.users == 0:
                watch.end()
                if opened.watches.get(back_group) is watch:
                    del opened.watches[back_group]


def confirm(opened: OpenSite, back_group: str) -> None:
    """Looks at a watched disk now, before something that cannot be taken back.

    Raises:
        NotOwner: it is not ours any more.
    """
    watch = opened.watches.get(back_group)
    if watch is not None:
        watch.confirm()
