"""What is kept of every image beside the log: index and chunk table, so that a restore need not ask a
cartridge, and the samples of its transfer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from nightferry.catalog.storage import Storage, check_name
from nightferry.errors import CatalogError
from nightferry.transfer.spool import Content

T = TypeVar("T", bound=Content)

_FOLDER = "indexes"
_ENDINGS = ("parquet", "chunks", "jsonl")


class IndexFiles:
    """``indexes/<image>.parquet`` and ``indexes/<image>.chunks`` of the catalog."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def keep(self, image: str, index: Content, chunks: Content) -> None:
        """Keeps both, durable on return; the index comes last, so where it is the chunk table is too.

        Raises:
            CatalogError: they cannot be written.
        """
        self._storage.replace(_path(image, "chunks"), chunks)
        self._storage.replace(_path(image, "parquet"), index)

    def keep_samples(self, image: str, lines: str) -> None:
        """Keeps ``indexes/<image>.jsonl``, one JSON object a line.

        Raises:
            CatalogError: it cannot be written.
        """
        self._storage.replace(_path(image, "jsonl"), lines.encode())

    def samples(self, image: str) -> str:
        """The image's samples as they were kept; empty when there are none.

        Raises:
            CatalogError: they cannot be read.
        """
        return (self._storage.read(_path(image, "jsonl")) or b"").decode()

    def index(self, image: str) -> Content:
        """The image's index.

        Raises:
            CatalogError: it is not here, or cannot be read.
        """
        found = self._storage.open(_path(image, "parquet"))
        return self._present(image, "index", found)

    def chunks(self, image: str) -> bytes:
        """The image's chunk table.

        Raises:
            CatalogError: it is not here, or cannot be read.
        """
        return self._present(image, "chunk table", self._storage.read(_path(image, "chunks")))

    def drop(self, images: Iterable[str]) -> None:
        """Removes all that is kept of images.

        Raises:
            CatalogError: it cannot be removed.
        """
        wanted = {f"{image}.{ending}" for image in images for ending in _ENDINGS}
        self._storage.remove(_FOLDER, sorted(wanted.intersection(self._storage.names(_FOLDER))))

    def _present(self, image: str, what: str, found: T | None) -> T:
        if found is None:
            raise CatalogError(
                f"the catalog has no {what} of image {image}",
                subject=image,
            )
        return found


def _path(image: str, ending: str) -> str:
    return f"{_FOLDER}/{check_name(image)}.{ending}"
