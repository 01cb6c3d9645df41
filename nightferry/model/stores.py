"""What the site file says of storage groups and their stores."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from nightferry.model.fields import (
    AbsolutePath,
    Argv,
    BackGroupName,
    Bound,
    Dsn,
    Growing,
    Patterns,
    SafeName,
    Section,
    Shrinking,
    Size,
    TimeOfDay,
)
from nightferry.units import counted


class Tolerate(Section):
    """How many files of an image may come out other than whole before the image is partial.

    ``vanished``: gone before they were opened. ``changed``: grew or shrank while they were read, twice.
    ``unreadable``: refused by the file system.
    """

    vanished: Bound = "any"
    changed: Bound = 0
    unreadable: Bound = 0

    def exceeded(self, *, vanished: int, changed: int, unreadable: int) -> tuple[str, ...]:
        """The bounds these counts break, in words; empty when the image is whole."""
        counts = (
            ("vanished", vanished, self.vanished),
            ("changed", changed, self.changed),
            ("unreadable", unreadable, self.unreadable),
        )
        return tuple(
            f"{counted(count, 'file')} {word}, {bound} tolerated"
            for word, count, bound in counts
            if bound != "any" and count > bound
        )


class Expect(Section):
    """How much of its last whole image a store may have become, in bytes and in files; beyond it is suspect.

    ``least = "0 %"``: it may shrink to nothing. ``most = "any"``: it may grow as it likes.
    """

    least: Shrinking = 0.5
    most: Growing = 10.0


class _StoreBase(Section):
    name: SafeName
    description: str = ""
    tolerate: Tolerate | None = None
    """Overrides the storage group's."""
    expect: Expect | None = None
    """Overrides the storage group's."""


class FilesStore(_StoreBase):
    """A directory tree, or a single file."""

    kind: Literal["files"]
    path: AbsolutePath
    exclude: Patterns = ()
    """Patterns as in .gitignore, relative to ``path``."""


class SqliteStore(_StoreBase):
    """One SQLite database, copied consistently while it is in use."""

    kind: Literal["sqlite"]
    path: AbsolutePath


class PostgresStore(_StoreBase):
    """One database of a PostgreSQL cluster."""

    kind: Literal["postgres"]
    dsn: Dsn
    database: str


class CommandStore(_StoreBase):
    """Whatever a program writes to its standard output."""

    kind: Literal["command"]
    backup: Argv
    restore: Argv
    minimum_bytes: Size = 0


class NdmpStore(_StoreBase):
    """A container of a NAS that speaks NDMP."""

    kind: Literal["ndmp"]
    server: SafeName
    path: str
    streams: Annotated[int, Field(strict=True, ge=1, le=64)] = 1


Store = Annotated[
    FilesStore | SqliteStore | PostgresStore | CommandStore | NdmpStore,
    Field(discriminator="kind"),
]


class PostgresSettings(Section):
    """A PostgreSQL cluster as a storage group: its databases are the stores, its WAL the log."""

    dsn: Dsn
    databases: Literal["all"] | tuple[SafeName, ...] = "all"
    channels: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    log_path: AbsolutePath | None = None


class Group(Section):
    """A storage group: stores that share one log, scheduled and restored together."""

    name: SafeName
    description: str = ""
    mail_group: SafeName | None = None
    back_group: BackGroupName
    start: TimeOfDay
    """Site time at which its stores begin to be staged."""
    copies: tuple[SafeName, ...]
    """Destinations; every image goes to each."""
    at_least: Annotated[int, Field(strict=True, ge=1)] | None = None
    """Copies that must be verified before staging may free an image; all of them when None."""
    tolerate: Tolerate = Tolerate()
    expect: Expect = Expect()
    stores: tuple[Store, ...] = ()
    postgres: PostgresSettings | None = None

    def tolerate_of(self, store: Store) -> Tolerate:
        """The store's own tolerance, else the group's."""
        return store.tolerate or self.tolerate

    def expect_of(self, store: Store) -> Expect:
        """What the store says itself, else the group."""
        return store.expect or self.expect


class StoreRef(NamedTuple):
    """A store together with its storage group."""

    group: Group
    store: Store

    @property
    def name(self) -> str:
        """``GROUP/STORE``."""
        return f"{self.group.name}/{self.store.name}"

    @property
    def tolerate(self) -> Tolerate:
        return self.group.tolerate_of(self.store)

    @property
    def expect(self) -> Expect:
        return self.group.expect_of(self.store)

    @property
    def path(self) -> str:
        """Where its content lies; empty for a kind that has no path here."""
        return str(self.store.path) if isinstance(self.store, FilesStore | SqliteStore) else ""
