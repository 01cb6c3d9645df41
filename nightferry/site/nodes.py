"""Which node has which service and which disk, and work on a disk that ends when the cluster takes it away."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nightferry.cluster.base import ClusterView
from nightferry.cluster.reader_agent import registered_work as reading
from nightferry.errors import ClusterError, NotOwner
from nightferry.model.names import split_store
from nightferry.model.stores import FilesStore, SqliteStore
from nightferry.plan.placement import Layout, place
from nightferry.progress import Cancel
from nightferry.site.opened import OpenSite

SEEN_S = 5.0
"""How old an answer of the cluster may be in a list."""


class _Seen(dict[str, tuple[float, bool]]):
    """BACK group → when the cluster was asked for it (monotonic), and whether its disk was here."""


def has_disk(site: OpenSite, back_group: str) -> bool:
    """Whether the BACK group's disk is on this node for certain; always where one machine plays every node."""
    if site.local_node is None:
        return True
    try:
        return site.cluster.where(back_group) == site.local_node
    except ClusterError:
        return False


def had_disk(site: OpenSite, back_group: str) -> bool:
    """As ``has_disk``, for lists of many images: the cluster is asked once in some seconds."""
    seen = site.part(_Seen)
    at, answer = seen.get(back_group, (float("-inf"), False))
    if time.monotonic() - at > SEEN_S:
        answer = has_disk(site, back_group)
        seen[back_group] = time.monotonic(), answer
    return answer


def require_here(site: OpenSite, node: str, what: str) -> None:
    """Raises:
    NotOwner: ``what`` belongs to another node than this one.
    """
    if site.local_node not in (None, node):
        raise NotOwner(
            f"{what} is the work of {node}; this is {site.local_node}",
            hint=f"run the same command on {node}",
            subject=node,
        )


def require_disk(site: OpenSite, back_group: str, what: str) -> None:
    """Raises:
    NotOwner: ``what`` needs the BACK group's disk, and that is on another node.
    ClusterError: it is on no node for certain.
    """
    if site.local_node is not None:
        require_here(site, site.cluster.where(back_group), what)


def active_node(site: OpenSite, back_group: str) -> str:
    """The node that stages: where the service of the BACK group's storage groups is now.

    Raises:
        ClusterError: nobody owns it, or its services are on several nodes.
    """
    mail_groups = {g.mail_group for g in site.file.groups_of(back_group) if g.mail_group}
    owners = {site.cluster.where(name) for name in mail_groups}
    if len(owners) > 1:
        raise ClusterError(
            f"the services staged on {back_group} run on several nodes: {', '.join(sorted(owners))}",
            hint="give each its own BACK group, or move them to one node",
            subject=back_group,
        )
    return owners.pop() if owners else site.file.active_node.name


def resource_groups(site: OpenSite, back_group: str) -> tuple[str, ...]:
    """The services that are staged on a BACK group, and the BACK group itself."""
    services = (group.mail_group for group in site.file.groups_of(back_group))
    return tuple(dict.fromkeys([*filter(None, services), back_group]))


def groups_at(site: OpenSite, path: Path) -> tuple[str, ...]:
    """The resource groups on whose disks a path lies or would lie, as the disks are mounted here."""
    disks = [(b.name, Path(b.path)) for b in site.file.back_groups]
    for ref in site.file.stores:
        store = ref.store
        if ref.group.mail_group and isinstance(store, FilesStore | SqliteStore):
            disks.append((ref.group.mail_group, store.path))
    device = _device(path)
    return tuple(dict.fromkeys(name for name, disk in disks if _device(disk) == device))


@contextmanager
def working_on(
    site: OpenSite,
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
    known = next((g for g in site.file.groups if g.name == group), None)
    names = [name for name in (known.mail_group if known else "", back_group) if name]
    around = groups_at(site, at) if at is not None else ()
    with (
        reading(names, cancel, if_here=if_here) as narrower,
        reading(around, narrower, if_here=True) as narrowest,
    ):
        yield narrowest


def require_store(site: OpenSite, name: str) -> tuple[str, str]:
    """``GROUP/STORE`` → both names, of a store that the site file lists or whose images there still are.

    Raises:
        ConfigError: neither.
    """
    group, store = split_store(name)
    if not site.catalog.images(group, store):
        site.file.store(name)
    return group, store


def placement(site: OpenSite, view: ClusterView) -> dict[str, str | None]:
    """Which passive node takes which BACK group, as the cluster is now; None where none can."""
    file = site.file
    mail_groups = {group.mail_group for group in file.groups if group.mail_group}
    return place(
        [b.name for b in file.back_groups],
        Layout.of(file.nodes),
        usable={node.name for node in view.nodes if node.usable},
        # After a failover a passive node serves the users: any other one comes before it.
        serving={group.owner for name in mail_groups if (group := view.group(name)) is not None},
        owners={group.name: group.owner for group in view.groups if group.state == "started"},
        targets={b.name: b.targets for b in file.back_groups if b.targets},
    )


def _device(path: Path) -> int:
    """The device of what lies nearest above a path that need not be there yet."""
    for each in (path, *path.parents):
        try:
            return os.stat(each).st_dev
        except (FileNotFoundError, NotADirectoryError):
            continue
    return 0
