"""Where a catalog lies, seen from the catalog: small files by path, of which some are claimed once for all.

A path is ``folder/name``, or a name alone. Two places keep to this: a folder that all nodes share
(``catalog/folder.py``) and a bucket (``site/catalog_bucket.py``); one in memory serves what is thrown away.

What every place guarantees:

- ``create`` gives a path that is free to exactly one of all who ask at once, and says to each whether it was
  he; an answer that was lost on the way is never taken for defeat, nor for success.
- Whoever asks after ``create``, ``replace`` or ``remove`` has returned sees what it did, on every node
  (a network file system may show names late: readers wait then, and writers are stopped by ``create``).
- A file is read whole or not at all, and what was made is there after a crash of the machine.

Every method raises `CatalogError`, which names what was done to which file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from nightferry.errors import CatalogError
from nightferry.transfer.spool import Content


class Storage(Protocol):
    """A place for a catalog; ``str`` of it is what people call it."""

    def require(self) -> None:
        """Raises:
        CatalogError: the place itself is not there.
        """

    def names(self, folder: str) -> list[str]:
        """Names in a folder, in any order; none when it was never written to."""

    def read(self, path: str) -> bytes | None:
        """A file's bytes; None when it is not there."""

    def read_all(self, folder: str, names: Sequence[str]) -> Mapping[str, bytes]:
        """Those of the files that are there, by name."""

    def create(self, path: str, data: bytes) -> bool:
        """Claims a path with ``data`` in it; False: somebody else has it, and nothing was changed."""

    def open(self, path: str) -> Content | None:
        """A file that memory may have no room for; None when it is not there. It stays as it is, whatever is put in
        its place meanwhile."""

    def replace(self, path: str, data: Content) -> None:
        """Puts ``data`` in the place of whatever is there."""

    def remove(self, folder: str, names: Sequence[str]) -> None:
        """Removes files; one that is not there is fine."""

    def tidy(self, folder: str) -> None:
        """Removes what writers that died left unfinished; the empty name is the catalog's own folder."""

    def alone(self, work: str) -> AbstractContextManager[bool]:
        """Says whether nobody else is known to be at the same work. It saves work: nothing depends on it."""

    def add_log(self, run: str, image: str, text: str) -> None:
        """Keeps what people may read of an image in the log of its run."""

    def drop_logs(self, runs: Collection[str]) -> None:
        """Removes the logs of runs; those that are not there are fine."""


def check_name(name: str) -> str:
    """``name`` when it is safe as the name of one file.

    Raises:
        CatalogError: it is empty, hidden, or would lead out of its folder.
    """
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise CatalogError(f"not a name for a file of the catalog: {name!r}", subject=name)
    return name


def folder_of(path: str) -> tuple[str, str]:
    """``"events/7"`` → ``("events", "7")``."""
    folder, _, name = path.rpartition("/")
    return folder, name
