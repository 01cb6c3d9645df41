"""From a store of the site file to the source that reads it: the one place where the kinds are told apart."""

from __future__ import annotations

from pathlib import Path
from typing import assert_never

from nightferry.errors import NotInThisRelease
from nightferry.model.stores import CommandStore, FilesStore, NdmpStore, PostgresStore, SqliteStore, Store
from nightferry.source.base import Source


def open_source(store: Store, scratch: Path) -> Source:
    """Opens the store for reading.

    Args:
        store: As the site file says.
        scratch: A folder on staging for what must become a file before it becomes a member.

    Raises:
        ConfigError: the store's path is not there.
        StoreUnreadable: it cannot be read for now.
        NotInThisRelease: a later release reads this kind.
    """
    match store:
        case FilesStore():
            from nightferry.source.files import FilesSource

            return FilesSource(store.path, exclude=store.exclude)
        case SqliteStore():
            from nightferry.source.sqlite import SqliteSource

            return SqliteSource(store.path, scratch)
        case PostgresStore() | CommandStore() | NdmpStore():
            raise NotInThisRelease(
                f"stores of kind {store.kind!r} are not in this release", subject=store.name
            )
        case _:
            assert_never(store)
