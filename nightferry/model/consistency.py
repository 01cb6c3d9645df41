"""What the sections of a site file must say together, beyond what each may say alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from nightferry.errors import ConfigError
from nightferry.model.destinations import (
    DestinationSettings,
    FsspecSettings,
    Recall,
    S3Access,
    S3Settings,
    TapeSettings,
    VirtualLibrarySettings,
)
from nightferry.model.names import choose, parse_resource_group
from nightferry.model.nodes import LocalClusterSettings
from nightferry.model.site import SiteFile, is_bucket
from nightferry.model.stores import FilesStore, SqliteStore
from nightferry.model.toml_lines import Path as KeyPath

Problem = tuple[KeyPath, str]


def problems(site: SiteFile) -> Iterator[Problem]:
    """Everything that does not fit together: the key's place in the file, and what is wrong."""
    yield from _present(site)
    yield from _site(site)
    yield from _unique(site)
    yield from _nodes(site)
    yield from _back_groups(site)
    yield from _groups(site)
    yield from _places(site)
    yield from _destinations(site)


def _present(site: SiteFile) -> Iterator[Problem]:
    if not site.groups:
        yield ("groups",), "is empty; list at least one storage group"
    if not site.back_groups:
        yield ("back_groups",), "is empty; list them, or leave it out and give [staging] a path"


def _site(site: SiteFile) -> Iterator[Problem]:
    try:
        ZoneInfo(site.site.timezone)
    except (KeyError, ValueError, OSError):
        yield (
            ("site", "timezone"),
            f"no time zone is called {site.site.timezone!r}; write for example 'Europe/Berlin'",
        )
    catalog, access = site.site.catalog, site.site.catalog_s3
    if is_bucket(catalog):
        if urlsplit(catalog).scheme != "s3" or not urlsplit(catalog).netloc:
            yield ("site", "catalog"), "must be an absolute path or s3://bucket/prefix"
        if isinstance(site.cluster, LocalClusterSettings) and site.cluster.state_path is None:
            yield (
                ("cluster",),
                "a local cluster beside a catalog in a bucket needs state_path, a file on this machine",
            )
        if (access.access_key is None) != (access.secret_key is None):
            yield ("site", "catalog_s3"), "access_key and secret_key are given together, or neither"
    elif access != S3Access():
        yield ("site", "catalog_s3"), "is for a catalog in a bucket, s3://bucket/prefix"
    if not is_bucket(catalog) and (not Path(catalog).is_absolute() or ".." in Path(catalog).parts):
        yield ("site", "catalog"), f"not an absolute path: {catalog!r}"


def _unique(site: SiteFile) -> Iterator[Problem]:
    yield from _twice(("back_groups",), [b.name for b in site.back_groups])
    yield from _twice(("groups",), [g.name for g in site.groups])
    yield from _twice(("destinations",), [d.name for d in site.destinations])
    yield from _twice(("ndmp_servers",), [s.name for s in site.ndmp_servers])
    yield from _twice(("hooks",), [h.name for h in site.hooks])
    for position, group in enumerate(site.groups):
        yield from _twice(("groups", position, "stores"), [s.name for s in group.stores])


def _twice(path: KeyPath, names: list[str]) -> Iterator[Problem]:
    for position, name in enumerate(names):
        if name in names[:position]:
            yield (*path, position, "name"), f"the name {name!r} is used twice"


def _nodes(site: SiteFile) -> Iterator[Problem]:
    try:
        nodes = site.nodes
    except ConfigError as error:
        yield ("cluster", "nodes"), f"{error.message}; {error.hint}"
        return
    names = [node.name for node in nodes]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield ("cluster", "nodes"), f"the node {name!r} is listed twice"
    for role in ("active", "passive"):
        if not any(node.role == role for node in nodes):
            yield ("cluster", "nodes"), f"no {role} node; a night needs an active and a passive one"


def _back_groups(site: SiteFile) -> Iterator[Problem]:
    try:
        passive = [node.name for node in site.passive_nodes]
    except ConfigError:
        return  # told by _nodes
    for position, back_group in enumerate(site.back_groups):
        for target in back_group.targets:
            if target not in passive:
                yield ("back_groups", position, "targets"), _missing(target, passive, "passive node")
    for position, group in enumerate(site.groups):
        parsed = parse_resource_group(group.mail_group) if group.mail_group else None
        if parsed is not None and parsed.kind != "MAIL":
            yield ("groups", position, "mail_group"), f"{group.mail_group!r} names a BACK group"


def _groups(site: SiteFile) -> Iterator[Problem]:
    back_groups = [b.name for b in site.back_groups]
    destinations = [d.name for d in site.destinations]
    servers = [s.name for s in site.ndmp_servers]
    for position, hook in enumerate(site.hooks):
        for name in hook.back_groups:
            if name not in back_groups:
                yield ("hooks", position, "back_groups"), _missing(name, back_groups, "BACK group")
    for position, group in enumerate(site.groups):
        here: KeyPath = ("groups", position)
        if group.back_group not in back_groups:
            yield (*here, "back_group"), _missing(group.back_group, back_groups, "BACK group")
        for copy in group.copies:
            if copy not in destinations:
                yield (*here, "copies"), _missing(copy, destinations, "destination")
        if len(set(group.copies)) != len(group.copies):
            yield (*here, "copies"), "a destination is listed twice"
        if group.at_least is not None and group.at_least > len(group.copies):
            yield (*here, "at_least"), f"{group.at_least} of {len(group.copies)} copies is impossible"
        if bool(group.stores) == (group.postgres is not None):
            yield here, "a storage group has either stores or a postgres table"
        for index, store in enumerate(group.stores):
            if store.kind == "ndmp" and store.server not in servers:
                yield (*here, "stores", index, "server"), _missing(store.server, servers, "NDMP server")


def _places(site: SiteFile) -> Iterator[Problem]:
    disks = [(b.name, b.path) for b in site.back_groups]
    for position, (name, path) in enumerate(disks):
        for other, other_path in disks[:position]:
            if _overlap(path, other_path):
                yield (
                    ("back_groups", position, "path"),
                    f"{name} and {other} share a disk: {path}, {other_path}",
                )
    for name, path in disks:
        if not is_bucket(site.site.catalog) and _below(Path(site.site.catalog), path):
            yield (
                ("site", "catalog"),
                f"the catalog lies on the disk of {name} ({path}), which moves between nodes",
            )
        for place, store_path in _store_paths(site):
            if _overlap(store_path, path):
                yield place, f"{store_path} and the disk of {name} ({path}) overlap"


def _destinations(site: SiteFile) -> Iterator[Problem]:
    taken: dict[str, str] = {}
    for position, destination in enumerate(site.destinations):
        key, place = _place(destination)
        here: KeyPath = ("destinations", position, *key)
        is_folder = isinstance(destination, FsspecSettings) and destination.url.startswith("file://")
        if is_folder and not place.startswith("/"):
            yield here, f"not an absolute path: {place!r}; write three slashes, file:///srv/copies"
        other = taken.setdefault(place, destination.name)
        if other != destination.name:
            yield here, f"{other} is already there: two copies at the same location are one"
        for back_group in site.back_groups:
            if place.startswith("/") and _below(Path(place), back_group.path):
                yield (
                    here,
                    f"{place} lies on the disk of {back_group.name} ({back_group.path}), which moves between nodes",
                )
        match destination:
            case S3Settings(storage_class="DEEP_ARCHIVE", recall=Recall(tier="expedited")):
                yield (
                    ("destinations", position, "recall", "tier"),
                    "DEEP_ARCHIVE has no expedited recall; write 'standard' or 'bulk'",
                )
        if isinstance(destination, TapeSettings) and destination.encode is not None:
            yield (
                ("destinations", position, "encode"),
                "copies on tape are plain tar; leave it out",
            )


def _place(destination: DestinationSettings) -> tuple[KeyPath, str]:
    """The key that says where a destination's copies lie, and the place: a folder's path, or what tells it
    from others."""
    match destination:
        case TapeSettings(library=VirtualLibrarySettings() as library):
            return ("library", "path"), str(library.path)
        case TapeSettings():
            return ("library",), destination.library.model_dump_json()
        case S3Settings():
            return ("url",), f"{destination.endpoint or ''} {destination.url.rstrip('/')}"
        case FsspecSettings():
            return ("url",), os.path.normpath(destination.url.removeprefix("file://"))


def _store_paths(site: SiteFile) -> Iterator[tuple[KeyPath, Path]]:
    for position, group in enumerate(site.groups):
        for index, store in enumerate(group.stores):
            if isinstance(store, FilesStore | SqliteStore):
                yield ("groups", position, "stores", index, "path"), store.path


def _below(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents


def _overlap(one: Path, other: Path) -> bool:
    return _below(one, other) or _below(other, one)


def _missing(name: str, known: list[str], what: str) -> str:
    error = choose(name, known, what)
    return f"{error.message}; {error.hint}"
