"""The site: what one site file says, as frozen models.

`nightferry.model.load` reads one from a file or a text; what comes from there is complete and consistent.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Protocol, TypeVar
from zoneinfo import ZoneInfo

from pydantic import Field

from nightferry.errors import ConfigError, NotInThisRelease
from nightferry.model.destinations import (
    DestinationSettings,
    NdmpLibrarySettings,
    Retention,
    S3Access,
    S3Settings,
    SiteRetention,
    TapeSettings,
)
from nightferry.model.fields import (
    AbsolutePath,
    BackGroupName,
    Bandwidth,
    KeepFree,
    SafeName,
    SecretRef,
    Section,
    Size,
    StringList,
    Verify,
    keep_free_bytes,
    verify_share,
)
from nightferry.model.hooks import Hook
from nightferry.model.names import choose, split_store
from nightferry.model.nodes import (
    ClusterSettings,
    LocalClusterSettings,
    NodeSettings,
    NodeSpec,
    specify,
)
from nightferry.model.stores import FilesStore, Group, SqliteStore, StoreRef
from nightferry.units import MIB


class SiteSection(Section):
    """``[site]``."""

    name: SafeName
    description: str = ""
    catalog: str
    """A folder every node reaches, or ``s3://bucket/prefix``; never on a BACK disk."""
    catalog_s3: S3Access = S3Access()
    """How the bucket is reached when the catalog lies in one."""
    timezone: str = "UTC"
    restore_roots: tuple[AbsolutePath, ...] = ()
    """Where restores asked for in the Prefect UI may write."""
    restore_overwrite: Annotated[bool, Field(strict=True)] = False
    """Whether restores asked for in the Prefect UI may replace files that are there and older."""
    single_user: Annotated[bool, Field(strict=True)] = False
    """Nobody else uses the machine: a Prefect server on loopback may let in whoever reaches it."""
    log: Literal["full", "summary", "none"] = "summary"
    """How much a run's log says of each file: every one, only those that are not whole, nothing."""


def is_bucket(catalog: str) -> bool:
    """Whether a catalog's place is a bucket rather than a folder."""
    return "://" in catalog


class StagingSettings(Section):
    """``[staging]``: how images are written to a BACK group's disk."""

    path: AbsolutePath | None = None
    """The disk's mount point; None when each BACK group names its own."""
    unbuffered: bool = True
    """Read and write past the page cache (the 2003 process's ``/fu``)."""
    buffer_bytes: Annotated[Size, Field(ge=MIB, le=64 * MIB, multiple_of=MIB)] = 2 * MIB
    buffers: Annotated[int, Field(strict=True, ge=2, le=256)] = 16
    """Buffers of one store's ring; several streams share twice as many, so memory stays bounded."""
    streams: Annotated[int, Field(strict=True, ge=1, le=64)] = 4
    """Stores staged at once."""
    verify: Verify = "sample:1%"
    """What is read back before the gate; the passive node checks every byte while it streams."""
    keep_free: KeepFree = "5 %"
    bandwidth: Bandwidth = ()
    """What all streams of stage one together may write a second, by site time: the store's users read from
    the same disks."""
    restricted: bool = True
    """Images readable by their owner alone (0700, 0600)."""

    @property
    def verify_share(self) -> float:
        """The share of an image's chunks read back after it was staged, 0 to 1."""
        return verify_share(self.verify)

    def keep_free_bytes(self, disk_bytes: int) -> int:
        """Bytes that stay free on a disk of ``disk_bytes``."""
        return keep_free_bytes(self.keep_free, disk_bytes)


class BackGroup(Section):
    """``[[back_groups]]``: a backup disk and its group, the unit of run, lock, seal, gate and move."""

    name: BackGroupName
    description: str = ""
    path: AbsolutePath
    targets: tuple[str, ...] = ()
    """Passive nodes in order; empty: the alternates, then the primary."""
    on_overrun: Literal["drain", "hold", "skip"] = "drain"
    """What happens when stage two still runs as the next window starts."""


class NdmpServer(Section):
    """``[[ndmp_servers]]``: a NAS."""

    name: SafeName
    address: StringList
    port: Annotated[int, Field(strict=True, ge=1, le=65535)] = 10000
    user: str = ""
    password: SecretRef | None = None
    profile: Literal["generic", "ontap", "isilon", "fluidfs"] = "generic"


class SiteFile(Section):
    """One site file. Every name that one section gives another exists."""

    schema_version: Literal[1] = Field(alias="schema")
    site: SiteSection
    cluster: ClusterSettings = LocalClusterSettings()
    node_settings: tuple[NodeSettings, ...] = Field(default=(), alias="nodes")
    staging: StagingSettings = StagingSettings()
    back_groups: tuple[BackGroup, ...]
    groups: tuple[Group, ...]
    destinations: tuple[DestinationSettings, ...] = ()
    ndmp_servers: tuple[NdmpServer, ...] = ()
    hooks: tuple[Hook, ...] = ()
    retention: SiteRetention = SiteRetention()

    @property
    def name(self) -> str:
        return self.site.name

    @cached_property
    def tz(self) -> ZoneInfo:
        """Site time."""
        return ZoneInfo(self.site.timezone)

    @cached_property
    def nodes(self) -> tuple[NodeSpec, ...]:
        """All nodes, the active ones first, each role by rank."""
        return specify(self.cluster.nodes, self.node_settings)

    @property
    def active_node(self) -> NodeSpec:
        """The node that stages."""
        return next(node for node in self.nodes if node.role == "active")

    @property
    def passive_nodes(self) -> tuple[NodeSpec, ...]:
        """The passive nodes, the primary first."""
        return tuple(node for node in self.nodes if node.role == "passive")

    def node(self, name: str) -> NodeSpec:
        """Raises:
        ConfigError: there is no such node.
        """
        return _named(self.nodes, name, "node")

    def group(self, name: str) -> Group:
        """Raises:
        ConfigError: there is no such storage group.
        """
        return _named(self.groups, name, "storage group")

    def store(self, name: str) -> StoreRef:
        """The store called ``GROUP/STORE``, with its group.

        Raises:
            ConfigError: there is no such store.
        """
        group_name, store_name = split_store(name)
        group = self.group(group_name)
        return StoreRef(group, _named(group.stores, store_name, f"store of {group_name}"))

    @property
    def stores(self) -> tuple[StoreRef, ...]:
        """Every store of every storage group, in the order of the file."""
        return tuple(StoreRef(group, store) for group in self.groups for store in group.stores)

    def back_group(self, name: str | None = None) -> BackGroup:
        """The BACK group of that name, or the only one.

        Raises:
            ConfigError: there is no such BACK group, or several and no name.
        """
        if name is None:
            if len(self.back_groups) > 1:
                raise ConfigError(
                    "several BACK groups, and none was named",
                    hint=f"name one with --back-group: {', '.join(b.name for b in self.back_groups)}",
                )
            return self.back_groups[0]
        return _named(self.back_groups, name, "BACK group")

    def groups_of(self, back_group: str) -> tuple[Group, ...]:
        """The storage groups staged on a BACK group, by their start, then as listed."""
        name = self.back_group(back_group).name
        return tuple(sorted((g for g in self.groups if g.back_group == name), key=lambda g: g.start))

    def destination(self, name: str) -> DestinationSettings:
        """Raises:
        ConfigError: there is no such destination.
        """
        return _named(self.destinations, name, "destination")

    def targets(self, back_group: str) -> tuple[NodeSpec, ...]:
        """Passive nodes that may take the BACK group, in order.

        As given, else the alternates, then the primary.
        """
        given = self.back_group(back_group).targets
        if given:
            return tuple(self.node(name) for name in given)
        passive = self.passive_nodes
        return (*passive[1:], *passive[:1])

    def retention_of(self, destination: str) -> Retention:
        """The destination's own retention, else the site's."""
        return self.destination(destination).retention or self.retention

    @property
    def catalog_path(self) -> Path | None:
        """The catalog's folder; None when it lies in a bucket."""
        return None if is_bucket(self.site.catalog) else Path(self.site.catalog)

    def catalog_bucket(self, url: str | None = None) -> S3Settings:
        """A catalog's bucket as whoever opens buckets wants it: the site's own, or another reached likewise."""
        access = self.site.catalog_s3
        return S3Settings(name="catalog", kind="s3", url=url or self.site.catalog, **dict(access))

    @property
    def cluster_state_path(self) -> Path:
        """Where a local cluster remembers who owns what: as given, else beside the catalog's folder.

        Raises:
            ConfigError: neither is said.
        """
        given = self.cluster.state_path if isinstance(self.cluster, LocalClusterSettings) else None
        beside = self.catalog_path
        if given is None and beside is None:
            raise ConfigError(
                "the local cluster has no file for its state",
                hint="a catalog in a bucket has no folder beside it: set [cluster] state_path to a file",
                subject="cluster.state_path",
            )
        return given or Path(f"{beside}-cluster.json")

    def undelivered(self) -> tuple[str, ...]:
        """What this site asks for and this release cannot do yet, each with its place in the file."""
        return tuple(_undelivered(self))

    def require_delivered(self) -> None:
        """Raises:
        NotInThisRelease: the site asks for something a later release delivers.
        """
        missing = self.undelivered()
        if missing:
            raise NotInThisRelease(
                f"not in this release: {'; '.join(missing)}", subject=missing[0].split(":")[0]
            )


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_N = TypeVar("_N", bound=_Named)


def _named(things: tuple[_N, ...], name: str, what: str) -> _N:
    for thing in things:
        if thing.name == name:
            return thing
    raise choose(name, [thing.name for thing in things], what)


def _undelivered(site: SiteFile) -> list[str]:
    found: list[str] = []
    for group in site.groups:
        if group.postgres is not None:
            found.append(f"groups[{group.name}].postgres: PostgreSQL storage groups")
        for store in group.stores:
            if not isinstance(store, FilesStore | SqliteStore):
                found.append(f"groups[{group.name}].stores[{store.name}].kind: {store.kind} stores")
    for destination in site.destinations:
        place = f"destinations[{destination.name}]"
        if isinstance(destination, TapeSettings) and isinstance(destination.library, NdmpLibrarySettings):
            found.append(f"{place}.library.kind: {destination.library.kind} libraries")
        if destination.encode is not None and destination.encode.encrypt_to:
            found.append(f"{place}.encode.encrypt_to: encrypted copies")
    return found
